"""hightide in Spark: `spark.read` and `spark.readStream.format("hightide")`, and a ready session.

Columns and options are those of Spark's Kafka source. This module is imported by every look-up of a
data source in Spark, so it imports nothing heavy; pyarrow comes when the first batch is built.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    from hightide.spark.format import HightideDataSource
except ModuleNotFoundError as error:
    told = f"hightide.spark needs {error.name}: pip install 'hightide[spark]'"
    raise ModuleNotFoundError(told, name=error.name) from None

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from hightide.java import NoJava
    from hightide.spark.marks import SinkClash
    from hightide.spark.offsets import DataLoss
    from hightide.spark.pipeline import PipelineFailed
    from hightide.spark.stored import LayoutChanged

__all__ = [
    "HightideDataSource",
    "session",
    "started",
    "DataLoss",
    "LayoutChanged",
    "NoJava",
    "PipelineFailed",
    "SinkClash",
]

_ERRORS = {
    "DataLoss": "hightide.spark.offsets",
    "LayoutChanged": "hightide.spark.stored",
    "NoJava": "hightide.java",
    "PipelineFailed": "hightide.spark.pipeline",
    "SinkClash": "hightide.spark.marks",
}
"""What users may meet, and where it is: looked up when it is asked for."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _ERRORS.get(name)
    if home is None:
        raise AttributeError(f"module 'hightide.spark' has no attribute {name!r}")
    return getattr(import_module(home), name)


def session(
    app_name: str = "hightide", master: str | None = None, conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """A session with the settings that suit this source, `conf` over them; see
    `hightide.spark.builder`. `master` None: all cores of this machine, or what `spark-submit`
    was told."""
    from hightide.spark.builder import make_session

    return make_session(app_name, master, conf or {})


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query as `writer.start()` does, and wait until its sources are up. On a busy machine
    they may need longer than Spark waits, which no setting changes; then it is started again."""
    from hightide.spark import starts

    return starts.started(writer)


def _use_this_python() -> None:
    """Have a session that is made after this import start its Python processes with the Python that
    has this module. Spark takes the `python3` of PATH, which is another one in a virtual
    environment that is not activated. What `PYSPARK_PYTHON` or `spark-submit` said stays."""
    if {"PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT"} & os.environ.keys() or not sys.executable:
        return
    taken = shutil.which("python3")
    if taken is None or not _is_this_python(taken):
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _is_this_python(path: str) -> bool:
    # Both: an environment's Python is a link to another one, which has not the same packages; and
    # beside each other may lie several versions.
    in_one_place = os.path.dirname(path) == os.path.dirname(sys.executable)
    return in_one_place and os.path.realpath(path) == os.path.realpath(sys.executable)


_use_this_python()
