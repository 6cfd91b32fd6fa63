"""`deploy/interop.sh`: each case against a cluster of its own, and the page."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from compare.hightide_nodes import hightide_nodes
from compare.maven import kafka_jars
from compare.needs import missing
from compare.places import CACHE, ROOT
from compare.processes import Failed, end_in_order

from interop import files, kills, node, rdkafka, spark, speed, suites, tools
from interop.place import Java, Place, Skipped

SETTINGS = (
    "auto.create.topics.enable=true",
    "num.partitions=4",
    "group.min.session.timeout.ms=1000",
)
"""What the suites of others take for granted."""
PAGE = ROOT / "deploy" / "INTEROP.md"
CASES: tuple[Callable[[Place], str], ...] = (
    tools.console,
    tools.native_to_java,
    tools.topics,
    tools.groups,
    tools.offsets,
    tools.cluster,
    tools.kcat,
    files.dump_log_segments,
    node.kafkajs,
    kills.verifiable,
    suites.kafka_python,
    suites.franz_go,
    rdkafka.librdkafka_tests,
    speed.producer,
    speed.consumer,
    speed.librdkafka,
    spark.spark_connector,
)


class Ended(NamedTuple):
    """How a case came out."""

    name: str
    what: str
    verdict: str
    found: str


@click.command(
    help="Run programs of others against hightide. " + " ".join(c.__name__ for c in CASES)
)
@click.argument("names", nargs=-1, type=click.Choice([case.__name__ for case in CASES]))
def main(names: Sequence[str]) -> None:
    """All of them, or those that are named; the page is written after all."""
    end_in_order()
    CACHE.mkdir(exist_ok=True)
    java = None
    if not missing() and (found := kafka_jars()) is not None:
        java = Java(*found)
    ended = []
    for case in CASES:
        if not names or case.__name__ in names:
            ended.append(_run(case, java))
            click.echo(f"{ended[-1].name:16} {ended[-1].verdict:8} {ended[-1].found}")
    if not names:
        PAGE.write_text(_page(ended, java))
        click.echo(f"written: {PAGE}")
    sys.exit(any(each.verdict == "FAILED" for each in ended))


def _run(case: Callable[[Place], str], java: Java | None) -> Ended:
    what = " ".join((case.__doc__ or "").split())
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(dir=CACHE, prefix="interop-") as directory,
        hightide_nodes(Path(directory), "interop", SETTINGS) as nodes,
    ):
        nodes.start()
        nodes.wait()
        try:
            verdict, found = "held", case(Place(nodes.address, Path(directory), java))
        except Skipped as lacks:
            verdict, found = "skipped", str(lacks)
        except Failed as why:
            verdict, found = "FAILED", str(why)
    took = f" ({time.monotonic() - began:.0f} s)" if verdict == "held" else ""
    return Ended(case.__name__, what, verdict, found + took)


def _page(ended: Sequence[Ended], java: Java | None) -> str:
    rows = "".join(f"| {each.what} | {each.verdict} | {_cell(each.found)} |\n" for each in ended)
    version = java.version if java else "not there"
    return (
        "# Programs of others\n\n"
        "Any Kafka client may use a hightide cluster at the address that hightide's own use. "
        "`deploy/interop.sh` ran\nthese against three brokers, which nobody here wrote, and wrote "
        f"this page. Apache Kafka's programs: {version}.\n\n"
        f"| what | verdict | found |\n|---|---|---|\n{rows}\n"
        "Transactions (KIP-98) and the new group protocol (KIP-848) are not offered yet: tests "
        "that need them\nare skipped by their own suites, or are named above.\n"
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
