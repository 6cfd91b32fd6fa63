"""JVMs that live for a minute, as those of the Spark tests do: what they are told, and Spark's
classes as an archive that they map instead of reading 280 jars, which is half of a start. Spark
itself is told to write no Java for each query: what that costs pays for millions of rows.

No test lives here. A run by several processes runs this file: it writes the archive once for each
Java and each Spark, beside the environment that the tests run in. A JVM that has no archive, or
another one than its own, starts as any other.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from warm_commands import COLD

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What they would compile well never pays."""
_INTERPRETED = {"wholeStage": "false", "factoryMode": "NO_CODEGEN"}
"""By the end of `spark.sql.codegen`; not in the long runs."""
_WITH = "-Xlog:disable -Xshare:auto -XX:SharedArchiveFile="
_PLACE = Path(sys.prefix) / "jvm-archives"


def flags() -> str:
    """What a JVM is told of itself, as words with spaces between them."""
    written = [*_PLACE.glob("*.jsa")]
    if not written or any(letter.isspace() for letter in str(_PLACE)):
        return FLAGS
    return f"{FLAGS} {_WITH}{written[0]}"


def options() -> str:
    """What one is told that Spark is started in."""
    told = [f"-Dspark.sql.codegen.{name}={value}" for name, value in _INTERPRETED.items()]
    return " ".join([flags(), *([] if COLD else told)])


def _archive() -> Path:
    """Where the archive of this Java and this Spark belongs."""
    import pyspark

    from hightide.java import find_java

    home = find_java().home
    told = f"{home} {(home / 'release').read_text()} {pyspark.__file__} {pyspark.__version__}"
    return _PLACE / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.jsa"


def begin() -> subprocess.Popen[bytes]:
    """Have the archive written by a process of its own, while other things are done."""
    return subprocess.Popen([sys.executable, __file__])


def write() -> None:
    """Write the archive, if it is not there: whole, or not at all."""
    archive = _archive()
    if archive.exists():
        return
    print("writing an archive of Spark's classes, which takes a minute, once", file=sys.stderr)
    _PLACE.mkdir(exist_ok=True)
    for old in _PLACE.iterdir():
        old.unlink()
    fresh = archive.with_suffix(f".{os.getpid()}")
    told = {"SPARK_SUBMIT_OPTS": f"{FLAGS} -Xlog:disable -XX:ArchiveClassesAtExit={fresh}"}
    command = [sys.executable, __file__, "be seen"]
    ended = subprocess.run(command, env=os.environ | told, capture_output=True, check=False)
    if ended.returncode or not fresh.exists():
        print(f"there is none, the Spark tests take longer: {ended.stderr!r}", file=sys.stderr)
    else:
        fresh.rename(archive)


def be_seen() -> None:
    """Use what tests use of Spark; the JVM writes the classes that it has met when it ends."""
    from pyspark import SparkContext
    from pyspark.sql.functions import expr, window

    from hightide.blocking import Admin, Producer
    from hightide.spark import session, started
    from hightide.testing import BlockingCluster

    with BlockingCluster(1) as cluster, tempfile.TemporaryDirectory() as place:
        with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            for topic in ("source", "results"):
                admin.create_topic(topic)
            for number in range(100):
                producer.send("source", b"%d" % number)
        spark = session("classes", "local[2]")
        spark.sparkContext.setLogLevel("OFF")
        way = {"bootstrap.servers": cluster.bootstrap}
        reader = spark.readStream.format("hightide").options(**way, subscribe="source")
        rows = reader.option("startingOffsets", "earliest").load()
        windows = rows.withWatermark("timestamp", "1 hour").groupBy(window("timestamp", "1 hour"))
        told = windows.agg(expr("count(*) AS rows")).selectExpr("to_json(struct(*)) AS value")
        results = told.writeStream.format("hightide").options(**way, topic="results")
        files = rows.writeStream.format("parquet").option("path", f"{place}/rows")
        calls = rows.writeStream.foreachBatch(lambda frame, batch: frame.collect())
        for number, writer in enumerate((results, files, calls)):
            writer = writer.option("checkpointLocation", f"{place}/{number}")
            started(writer.trigger(availableNow=True)).awaitTermination()
        spark.read.parquet(f"{place}/rows").groupBy("partition").count().collect()
        jvm = SparkContext._gateway.proc
        spark.stop()
        SparkContext._gateway.shutdown()
        jvm.stdin.close()
        jvm.wait()


if __name__ == "__main__":
    be_seen() if sys.argv[1:] else write()
