"""Jars by Maven: what it fetched once is kept in `.compare/`, and not asked for again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from compare.places import CACHE

KAFKA_VERSIONS = ("4.1.1", "4.1.0")
"""The first of these that Maven has."""
LOG4J_VERSION = "2.24.3"
"""What Kafka logs with; its own jars name it, and leave out the part that joins the two."""
SPARK_OTHER_VERSION = "4.2.0"
"""Spark's connector comes with each Spark; where Maven lacks that of the installed Spark, both
systems are read by this one."""
FETCH_S = 1800.0
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>compare</groupId><artifactId>jars</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId>"
    "<version>{}</version></dependency>"
)


def kafka_jars() -> tuple[str, Path] | None:
    """The version of Kafka and the directory of its jars; None if Maven has none."""
    for version in KAFKA_VERSIONS:
        wanted = [
            f"org.apache.kafka:kafka_2.13:{version}",
            f"org.apache.kafka:kafka-tools:{version}",
            f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
        ]
        if jars := _fetched(f"kafka-{version}", wanted):
            return version, jars
    return None


def spark_jars(version: str) -> list[Path]:
    """The jars that Spark's Kafka connector adds to a Spark; none if Maven has it not."""
    wanted = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
    # The rest of what Maven would bring is in PySpark already.
    only = "spark-sql-kafka-0-10_2.13 spark-token-provider-kafka-0-10_2.13 kafka-clients"
    jars = _fetched(f"spark-kafka-{version}", [wanted], [*only.split(), "commons-pool2"])
    return sorted(jars.glob("*.jar")) if jars else []


def _fetched(name: str, wanted: Sequence[str], only: Sequence[str] = ()) -> Path | None:
    """The directory of these jars and what they need; None if Maven does not give them."""
    directory = CACHE / name
    if (directory / "jars").exists():
        return directory / "jars"
    directory.mkdir(parents=True, exist_ok=True)
    dependencies = [_DEPENDENCY.format(*each.split(":")) for each in wanted]
    pom = _POM.format(dependencies="\n".join(dependencies))
    (directory / "pom.xml").write_text(pom)
    part = directory / "part"
    shutil.rmtree(part, ignore_errors=True)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={part}"]
    command += [f"-DincludeArtifactIds={','.join(only)}"] if only else []
    with (directory / "mvn.log").open("w") as log:
        ended = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=FETCH_S,
        )
    if ended.returncode or not part.exists():
        return None
    return part.rename(directory / "jars")  # only what is complete gets this name
