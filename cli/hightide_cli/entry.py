"""What the script `hightide` calls: the command line, and a Ctrl-C while that is still being
imported, which takes a tenth of a second."""

import sys


def main() -> None:
    """Run a command; see `hightide_cli.main.main`."""
    try:
        from hightide_cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
