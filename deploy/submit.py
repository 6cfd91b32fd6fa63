"""The command line as a script, for `spark-submit`, which wants a file: see SPARK.md."""

from hightide_cli.main import main

main()
