"""A Spark session with the settings that suit this source, and a Java to run it.

What each setting buys was measured on small micro-batches: Unix sockets between the JVM and Python
spare a 40 ms stall a task; the file-system checkpoint manager spares some twenty forked processes a
batch; few shuffle partitions spare 200 empty tasks; RocksDB keeps state off the heap. `PATIENCE` is
for machines that are busy: what is only slow is waited for. `log4j2.properties` leaves out what
Spark says of every query although nothing is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hightide.java import Java, find_java
from hightide.spark.endings import whole_or_none
from hightide.spark.format import HightideDataSource
from hightide.spark.workers import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "spark.sql.streaming"
_EXECUTION = "org.apache.spark.sql.execution.streaming"
PATIENCE = {
    # How long Python and the JVM wait for each other at a socket; then it is gone. Default 15 s.
    "spark.python.authenticate.socketTimeout": "900s",
    # Heartbeats, and questions over the network: an executor that is only slow is not given up.
    # One that died is missed at once, by its connection. Default 120 s.
    "spark.network.timeout": "900s",
    # How long the driver's files may take to be fetched by an executor. Default 60 s.
    "spark.files.fetchTimeout": "900s",
    # How long the small side of a join may take. Default 300 s.
    "spark.sql.broadcastTimeout": "3600",
    # How long a standalone worker may be silent, where this session is its master too
    # (`local-cluster`). Default 60 s.
    "spark.worker.timeout": "900",
}
"""Where Spark would end what a busy machine is only late with; `started` does what no setting
can."""
SETTINGS = {
    **PATIENCE,
    "spark.python.unix.domain.socket.enabled": "true",
    f"{_STREAMING}.checkpointFileManagerClass": (
        f"{_EXECUTION}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    f"{_STREAMING}.stateStore.providerClass": f"{_EXECUTION}.state.RocksDBStateStoreProvider",
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Nobody else needs to reach the driver. On a cluster the executors do, by Spark's own settings."""
_JAVA_OPTIONS = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
LOGGING = Path(__file__).with_name("log4j2.properties")


def prepare_environment(master: str) -> Java:
    """Point Spark at a Java and at this Python, which on a cluster the executors need at the same
    path unless PYSPARK_PYTHON says another; raises `NoJava`."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.spark_home())
    python = worker_python()
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = python
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        # The script for this machine is not on the others.
        if os.environ.get("PYSPARK_PYTHON", python) == python:
            os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return java


def is_local(master: str) -> bool:
    """Whether the executors are processes of this machine."""
    return master.startswith("local")


def default_master() -> str:
    """All cores of this machine; under `spark-submit` what that was told: empty."""
    return "" if "PYSPARK_GATEWAY_PORT" in os.environ else "local[*]"


def make_session(app_name: str, master: str | None, conf: Mapping[str, Any]) -> SparkSession:
    """A session; `conf` goes over `SETTINGS`. Raises `NoJava`."""
    master = default_master() if master is None else master
    prepare_environment(master)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master:
        builder = builder.master(master)
    local = {**LOCAL_SETTINGS, **_logging()} if is_local(master) else {}
    for name, value in {**SETTINGS, **local, **conf}.items():
        builder = builder.config(name, str(value))
    with whole_or_none():
        spark = builder.getOrCreate()
        _register(spark)
        _make_active(spark)
    return spark


def _logging() -> dict[str, str]:
    """What has the driver log by our file, unless somebody says how it is to log."""
    if _has_own_logging() or not LOGGING.exists():
        return {}
    return {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"}


def _has_own_logging() -> bool:
    """Whether a file in Spark's own directory says it, or options of Java that ours would undo."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    directory = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf")
    defaults = directory / "spark-defaults.conf"
    told = defaults.read_text(encoding="utf-8") if defaults.exists() else ""
    return (
        any(directory.glob("log4j2.*"))
        or "spark.driver.defaultJavaOptions" in told
        or any("log4j" in os.environ.get(name, "").lower() for name in _JAVA_OPTIONS)
        or "LOG4J_CONFIGURATION_FILE" in os.environ
    )


def _register(spark: SparkSession) -> None:
    """Tell Spark of the format, unless it has found it by itself. It looks once, in a Python of its
    own that it does not wait for on a busy machine; and not into an editable install, nor into a
    wheel that `--py-files` brings."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    if not manager.dataSourceExists(HightideDataSource.name()):
        spark.dataSource.register(HightideDataSource)


def _make_active(spark: SparkSession) -> None:
    """In the thread that asks for it: Spark's writers look formats up in the active session of
    their own thread, and one that was made in another thread is active there alone."""
    type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
