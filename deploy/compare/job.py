"""What a client process is told, and how it measures: in one place, so that it is the same for
both systems."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from compare.processes import core_s

SEED = 7
DISTINCT = 1000
"""So many different values, again and again: enough that nothing can be told by looking at one."""
REPLICAS = 3
BATCH_BYTES = 1_000_000
"""The default of librdkafka; hightide's is 512 KiB, that of Kafka's Java client 16 KiB."""
POLL_RECORDS = 10_000
"""The most that one call of a consumer returns, in both."""
PATIENCE_S = 120.0
REST_S, RESTS_MAX = 0.02, 50
"""A process rests if it does next to nothing for so long; so often it is looked at."""

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One workload on one system; travels as JSON."""

    system: str
    """kafka or hightide."""
    work: str
    """A key of the client's `WORK`."""
    address: str
    pids: dict[str, int] = field(default_factory=dict)
    """The brokers' processes, by the broker's id."""
    topic: str = ""
    configs: dict[str, str] = field(default_factory=dict)
    """With what the topic is made, where it is made."""
    records: int = 0
    size: int = 0
    jars: list[str] = field(default_factory=list)
    """Of Spark's Kafka connector."""
    directory: str = ""
    """Where a workload may write."""

    @classmethod
    def from_json(cls, text: str) -> Job:
        """As it travelled."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """For an argument of a process."""
        return json.dumps(asdict(self))


def values(count: int, size: int) -> list[bytes]:
    """The bytes of the records: the same in each process, for each system."""
    chance = random.Random(SEED)
    distinct = [chance.randbytes(size) for _ in range(DISTINCT)]
    return (distinct * (count // DISTINCT + 1))[:count]


class Spent:
    """What a block of `measured` took: by the wall, and of the cores."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.client_core_s = 0.0
        self.brokers_core_s = 0.0

    def figures(self, records: int, size: int) -> Figures:
        """As a rate, and what it cost."""
        return {
            "per_s": records / self.seconds,
            "mb_per_s": records * size / self.seconds / 1e6,
            "client_core_s": self.client_core_s,
            "brokers_core_s": self.brokers_core_s,
        }


@contextmanager
def measured(pids: dict[str, int]) -> Iterator[Spent]:
    """Look at the clock, at this process and at the brokers around a block, and at nothing else."""
    _come_to_rest()
    spent = Spent()
    brokers, own, began = core_s(pids.values()), _own_core_s(), time.monotonic()
    yield spent
    spent.seconds = time.monotonic() - began
    spent.client_core_s = _own_core_s() - own
    spent.brokers_core_s = core_s(pids.values()) - brokers


def _come_to_rest() -> None:
    """Until libraries have started: a thread that numpy makes when it is imported takes a whole
    core for some 30 ms more."""
    for _ in range(RESTS_MAX):
        before = _own_core_s()
        time.sleep(REST_S)
        if _own_core_s() - before < REST_S / 10:
            return


def _own_core_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def latencies(times_s: Sequence[float]) -> Figures:
    """Of records that were sent one at a time."""
    ordered = sorted(times_s)
    last = len(ordered) - 1
    return {"p50_ms": ordered[int(0.5 * last)] * 1000, "p99_ms": ordered[int(0.99 * last)] * 1000}
