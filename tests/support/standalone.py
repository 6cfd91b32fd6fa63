"""A standalone Spark cluster on loopback: a master and two workers, from the installed pyspark.

No test lives here. The processes are ended by their ids, their files are in a temporary directory.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
from patience import PATIENCE_S, size_of
from spark_support import until

from hightide.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = 2


def environment():
    """What Spark's processes need; its driver is to listen on loopback, too."""
    return {
        **os.environ,
        "JAVA_HOME": str(find_java().spark_home()),
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Workers that are only slow are not given up.
        "SPARK_MASTER_OPTS": f"-Dspark.worker.timeout={PATIENCE_S:.0f}",
    }


class Standalone:
    """As a context: `master` is its address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes = []
        self.master = ""

    def __enter__(self):
        try:
            master = self._start("master", "master.Master", "--port", "0")
            self.master = self._said(master, r"Starting Spark master at (spark://\S+)")
            for number in range(WORKERS):
                place = self._directory / f"worker-{number}"
                words = ["-c", "1", "-m", "1g", "-d", str(place), self.master]
                worker = self._start(f"worker-{number}", "worker.Worker", *words)
                self._said(worker, r"(Successfully registered) with master")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        self._end()

    def _start(self, name, kind, *words):
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *words]
        log = self._directory / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, cwd=self._directory, env=environment()
            )
        self._processes.append(process)
        return process, log

    def _said(self, started, pattern):
        """What a process says in its log."""
        process, log = started

        def look():
            found = re.search(pattern, log.read_text(errors="replace"))
            return found or process.poll() is not None

        found = until(look, f"{log.name}: {pattern}", progress=lambda: size_of(log))
        assert isinstance(found, re.Match), log.read_text(errors="replace")
        return found[1]

    def _end(self):
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(PATIENCE_S)
