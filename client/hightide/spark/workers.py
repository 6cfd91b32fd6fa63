"""The Python that Spark starts its own processes with, on this machine.

Spark puts its Python, as a zip, before the one that is installed, and Python compiles what is in a
zip again at each start: that is most of the time which such a process takes until it is there. For
a streaming source that time is limited to 10 s, see `starts`. So a script leaves out the zip where
the same is installed. It also has our daemon of workers take the place of Spark's, see `endings`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hightide.java import cache_directory, write_script

_SCRIPT = """#!/bin/sh
# Python without Spark's zip on its path: the same is installed, and compiled. And a daemon of
# workers that prints nothing when Spark ends one.
left=
set -f
IFS=:
for part in $PYTHONPATH; do
  [ "$part" -ef {zip} ] || left=$left${{left:+:}}$part
done
export PYTHONPATH="$left"
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -m {daemon} "$@"
fi
exec {python} "$@"
"""


def worker_python() -> str:
    """This Python, or a script that starts it without Spark's zip; made once."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    zipped = installed / "python" / "lib" / "pyspark.zip"
    # Under `spark-submit` the JVM was started by somebody else.
    if "PYSPARK_GATEWAY_PORT" in os.environ or not zipped.exists():
        return sys.executable
    text = _SCRIPT.format(
        zip=shlex.quote(str(zipped)), python=shlex.quote(sys.executable), daemon=_daemon()
    )
    try:
        script = cache_directory() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if not script.exists():
            write_script(script, text)
    except OSError:
        return sys.executable
    return str(script)


def _daemon() -> str:
    """The module that starts workers: ours where every process of this Python finds it."""
    try:
        version("hightide")
    except PackageNotFoundError:
        return "pyspark.daemon"
    return "hightide.spark.endings"
