"""`python -m hightide`: the command line, which lives in a package of its own."""

import runpy

runpy.run_module("hightide_cli.main", run_name="__main__")
