"""hightide_cli: the `hightide` command. Data goes to stdout, everything else to stderr."""
