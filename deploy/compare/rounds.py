"""What a round is: a cluster of one system is started, warmed, measured in every line, and ended.

Rounds of the two systems take turns, and who begins changes from one to the next, so that whatever
drifts on the machine meets both.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from compare.hightide_nodes import end_hightide, hightide_nodes
from compare.job import Figures, Job
from compare.kafka_nodes import kafka_nodes
from compare.places import DATA
from compare.processes import Failed, ending, resident_mib, start, undisturbed

SYSTEMS = ("kafka", "hightide")
PYTHON = Path(sys.executable)
IDLE_S = 5.0
"""How long a new cluster is left alone before its memory is looked at."""
WORK_S = 3600.0
"""The longest that a workload may take."""
SIZES = {
    "warm": 500_000,
    "warm_acks": 10_000,
    "small": 1_000_000,
    "large": 200_000,
    "acks": 2_000,
    "spark": 4_000_000,
}
"""Records of each workload at full size."""
LEAST = {"acks": 50, "warm_acks": 50}
"""Percentiles of less are none."""
SMALL, LARGE = 100, 1024
"""Bytes of a record."""
SYNCED = {"kafka": {"flush.messages": "1"}, "hightide": {"flush": "synced"}}
REPLICATED: dict[str, dict[str, str]] = {"kafka": {}, "hightide": {"flush": "replicated"}}
"""How a topic is told to sync before it acknowledges, and not to."""


class Nodes(Protocol):
    """A cluster of either system."""

    @property
    def address(self) -> str: ...

    @property
    def pids(self) -> dict[int, int]: ...

    def start(self) -> None: ...

    def wait(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all rounds have in common."""

    scale: int
    """Percent of the full sizes."""
    kafka_jars: Path
    spark_python: Path | None
    """The Python whose PySpark reads from both; None: Spark is left out."""
    spark_jars: tuple[str, ...]

    def records(self, of: str) -> int:
        """How many records a workload has."""
        return max(SIZES[of] * self.scale // 100, LEAST.get(of, 1000))


def play(setting: Setting, system: str, number: int, tell: Callable[[str, float], None]) -> Figures:
    """One round of one system."""
    os.sync()  # what the other one left to be written does not disturb this one
    log = f"{number}-{system}"
    with _cluster(setting, system, log) as (nodes, directory):
        found = Round(setting, system, nodes, directory, log, tell)
        found.play()
        return found.figures


@contextmanager
def _cluster(setting: Setting, system: str, log: str) -> Iterator[tuple[Nodes, Path]]:
    """One that does not run yet, in a directory that is gone at the end."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=DATA))
        stack.callback(_remove, directory)
        nodes: Nodes = (
            stack.enter_context(kafka_nodes(directory, setting.kafka_jars, log))
            if system == "kafka"
            else stack.enter_context(hightide_nodes(directory, log))
        )
        yield nodes, directory


def _remove(directory: Path) -> None:
    with undisturbed():
        shutil.rmtree(directory)


def clear() -> None:
    """End and remove what a run left that was killed itself; its Kafka died with it."""
    for left in DATA.glob("hightide-*"):
        end_hightide(left, "left")
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)


class Round:
    """The figures of one cluster, from its start to the death of a leader."""

    def __init__(
        self,
        setting: Setting,
        system: str,
        nodes: Nodes,
        directory: Path,
        log: str,
        tell: Callable[[str, float], None],
    ) -> None:
        self.figures: Figures = {}
        self._setting = setting
        self._system = system
        self._nodes = nodes
        self._directory = directory
        self._log = log
        self._tell = tell
        self._job = Job(system=system, work="", address=nodes.address, directory=str(directory))

    def play(self) -> None:
        """Everything, in the order of the table; what disturbs comes last."""
        self._start()
        self._warm()
        self._send_and_read()
        self._acks()
        if self._setting.spark_python is not None:
            self._spark(self._setting.spark_python)
        self._keep("memory", {"busy_mib": self._memory()})
        self._keep("kill", self._run("gap", topic="kill", size=SMALL))

    def _start(self) -> None:
        """The client is there first; the clock runs from the start of the nodes."""
        with self._client(replace(self._job, work="first_ack", topic="first")) as go:
            began = time.monotonic()
            self._nodes.start()
            acknowledged = go()["at"]
            self._nodes.wait()
        self._keep("start", {"cold_s": acknowledged - began})
        self._job = replace(self._job, pids={str(n): pid for n, pid in self._nodes.pids.items()})
        time.sleep(IDLE_S)
        self._keep("memory", {"idle_mib": self._memory()})

    def _warm(self) -> None:
        """Kafka's code is compiled while it runs; both are given the same to do."""
        count = self._setting.records("warm")
        acks = self._setting.records("warm_acks")
        self._run("send", topic="warm", records=count, size=SMALL)
        self._run("consume", topic="warm", records=count, size=SMALL)
        self._run("acks", topic="warm-acks", records=acks, size=SMALL)

    def _send_and_read(self) -> None:
        small, large = self._setting.records("small"), self._setting.records("large")
        own_way = "send_untold" if self._system == "kafka" else "send_many"
        for name, work, topic, count, size in (
            ("send", "send", "small", small, SMALL),
            (own_way, own_way, "own-way", small, SMALL),
            ("send_large", "send", "large", large, LARGE),
        ):
            self._keep(name, self._run(work, topic=topic, records=count, size=size))
        self._send_otherwise()
        self._keep("consume", self._run("consume", topic="small", records=small, size=SMALL))
        own_way = "consume_eager" if self._system == "kafka" else "poll_arrow"
        self._keep(own_way, self._run(own_way, topic="small", records=small, size=SMALL))

    def _send_otherwise(self) -> None:
        """Where a system by default syncs before it acknowledges, without; or the other way."""
        is_kafka = self._system == "kafka"
        kind, configs = ("synced", SYNCED) if is_kafka else ("replicated", REPLICATED)
        for name, of, size in (("send", "small", SMALL), ("send_large", "large", LARGE)):
            topic, told = f"{of}-{kind}", configs[self._system]
            count = self._setting.records(of)
            found = self._run("send", topic=topic, configs=told, records=count, size=size)
            self._keep(f"{name}_{kind}", found)

    def _acks(self) -> None:
        count = self._setting.records("acks")
        for kind, configs in (("replicated", REPLICATED), ("synced", SYNCED)):
            topic, told = f"acks-{kind}", configs[self._system]
            found = self._run("acks", topic=topic, configs=told, records=count, size=SMALL)
            self._keep(f"acks_{kind}", found)

    def _spark(self, python: Path) -> None:
        count = self._setting.records("spark")
        fill = "send_untold" if self._system == "kafka" else "send_many"
        self._run(fill, topic="spark", records=count, size=SMALL)
        jars = [*self._setting.spark_jars] if self._system == "kafka" else []
        self._keep(
            "spark", self._run("spark", python=python, topic="spark", records=count, jars=jars)
        )

    def _memory(self) -> float:
        return resident_mib([*self._nodes.pids.values()])

    def _keep(self, name: str, figures: Figures) -> None:
        for kind, figure in figures.items():
            self.figures[f"{name}.{kind}"] = figure
            self._tell(f"{name}.{kind}", figure)

    def _run(
        self,
        work: str,
        *,
        topic: str,
        size: int = 0,
        records: int = 0,
        configs: dict[str, str] | None = None,
        jars: list[str] | None = None,
        python: Path | None = None,
    ) -> Figures:
        """A workload in a process of its own."""
        job = replace(self._job, work=work, topic=topic, records=records, size=size)
        job = replace(job, configs=configs or {}, jars=jars or [])
        with self._client(job, python) as go:
            return go()

    @contextmanager
    def _client(self, job: Job, python: Path | None = None) -> Iterator[Callable[[], Figures]]:
        """A client that is ready; what is yielded has it work, and returns its figures."""
        command = [str(python or PYTHON), "-m", "compare.client", job.to_json()]
        log = f"{self._log}-{job.work}"
        with ending(start(command, log=log, talks=True)) as process:
            assert process.stdout is not None, "it talks"

            def go() -> Figures:
                told, _ = process.communicate("go\n", timeout=WORK_S)
                if process.returncode:
                    raise Failed(f"{job.system}: {job.work} failed, see .compare/logs/{log}.log")
                found: Figures = json.loads(told.splitlines()[-1])
                return found

            process.stdout.readline()
            yield go
