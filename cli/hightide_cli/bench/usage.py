"""What the brokers spend on a measurement: time of processors, and turns of their event loops."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hightide import Admin, NodeDescription

IDLE_S = 2.0
"""How long is looked at what brokers do anyway."""


def core_percents(seconds: float, *spent: Callable[[], float]) -> list[float]:
    """What goes on by itself for so long, in hundredths of a core, by each clock of processor
    time."""
    before, began = [each() for each in spent], time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - began
    return [100 * (each() - first) / elapsed for each, first in zip(spent, before, strict=True)]


async def used(admin: Admin) -> dict[int, NodeDescription]:
    """What each live broker has used, by id."""
    cluster = await admin.describe_cluster()
    return {b.id: await admin.describe_node(b.id) for b in cluster.brokers if not b.fenced}


class Spent:
    """By the brokers, in a block of `spending`."""

    def __init__(self, idle: dict[int, float]) -> None:
        self._idle = idle
        """Turns a second of brokers that nobody asks anything."""
        self._passes: dict[int, float] = {}
        self.seconds: dict[str, float] = {}
        """Of all brokers' processors."""

    def count(
        self, before: dict[int, NodeDescription], after: dict[int, NodeDescription], seconds: float
    ) -> None:
        """Take in what the brokers used between two looks at them."""
        both = [(node, before[node], after[node]) for node in before if node in after]
        for node, one, two in both:
            if one.loop_passes >= 0:
                turns = two.loop_passes - one.loop_passes
                self._passes[node] = turns - self._idle.get(node, 0.0) * seconds
        user_ms = sum(two.user_ms - one.user_ms for _, one, two in both)
        system_ms = sum(two.system_ms - one.system_ms for _, one, two in both)
        self.seconds = {
            "brokers_user_s": round(user_ms / 1000, 2),
            "brokers_system_s": round(system_ms / 1000, 2),
        }

    def passes_per_ack(
        self, leader: int, followers: list[int], acks: int
    ) -> dict[str, float | None]:
        """Turns of their event loops for each record, the followers' on average; None where nobody
        counts, or nobody follows."""
        return {
            "passes_per_ack_leader": self._each([leader], acks),
            "passes_per_ack_follower": self._each(followers, acks),
        }

    def _each(self, nodes: list[int], acks: int) -> float | None:
        if not nodes or not all(node in self._passes for node in nodes):
            return None
        return round(sum(self._passes[node] for node in nodes) / acks / len(nodes), 2)


@asynccontextmanager
async def spending(admin: Admin, *, idle_s: float = 0.0) -> AsyncIterator[Spent]:
    """Look at what the brokers spend in the block; first, for so long, at what they do anyway."""
    import trio

    idle: dict[int, float] = {}
    if idle_s:
        one = await used(admin)
        await trio.sleep(idle_s)
        two = await used(admin)
        idle = {n: (two[n].loop_passes - one[n].loop_passes) / idle_s for n in one if n in two}
    spent = Spent(idle)
    before, started = await used(admin), time.perf_counter()
    yield spent
    spent.count(before, await used(admin), time.perf_counter() - started)
