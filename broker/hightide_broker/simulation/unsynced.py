"""What is lost in worlds in which nothing is synced before it is acknowledged, and power is lost.

With `flush=replicated` a record that was acknowledged is safe while one replica that may lead has
it: on its disk, or in the memory of a machine that has power. Which ones may lead is the
controllers' to know, who cannot tell a process that was killed from a machine without power; what
they have is there to be read. So what none of those holds is lost when the last one loses it, no
promise broken; and the rest has to be there in the end, in whatever order machines come back.

Nor may a controller forget who may lead and has everything, unless one who stays had it, too, and
power, after that one left the ISR.

This judge is kind still: an offset that was lost once is excused for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import trio

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import BatchHeader, check_crc, iter_batches
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.simulation.replica_checker import Key
from hightide_broker.simulation.workload import Records
from hightide_broker.simulation.world import Machine, World


class Losses:
    """What is lost in one world."""

    def __init__(self, world: World, records: Records) -> None:
        self._world = world
        self._replica_checker = world.checker.replica_checker
        self._records = records
        self._dark: dict[int, float] = {}
        """Node → when its machine lost its power last."""
        self._before: dict[Key, tuple[float, set[int], set[int]]] = {}
        """Of the change before: when it was decided, the ISR, and who else might lead."""

    def power_went(self, machine: Machine) -> None:
        """A machine has lost its power: of what it may lead, nobody expects any more what no
        replica holds that may."""
        self._dark[machine.id] = trio.current_time()
        for key in self._replica_checker.partitions():
            if machine.id in self._replica_checker.may_lead(key)[1]:
                self._expect(key)

    def changed(self, key: Key, since: int) -> None:
        """Others may lead than as of this metadata offset. That was decided when it was written,
        and is known only once it is committed: whoever lost its power meanwhile had not lost it
        then."""
        _, may_lead = self._replica_checker.may_lead(key)
        decided_at = self._world.checker.decided_at(since)
        isr = self._replica_checker.isr(key)
        last = self._before.get(key, (0.0, isr, may_lead - isr))
        self._before[key] = decided_at, isr, may_lead - isr
        self._check_forgotten(key, last[1] - may_lead, decided_at)
        # Who had left before was let go on the word of others since: one that lost its power after
        # it gave that had everything then.
        self._check_forgotten(key, last[2] - may_lead, last[0])
        if not self._had_power(may_lead, decided_at):
            self._expect(key)

    def _had_power(self, nodes: set[int], at: float) -> bool:
        """Whether none of them lost it after that."""
        return all(self._dark.get(node, 0.0) <= at for node in nodes)

    def _check_forgotten(self, key: Key, gone: set[int], left_at: float) -> None:
        topic, stay = self._replica_checker.may_lead(key)
        tp = TopicPartition(topic, key[1])
        is_needed = gone and self._had_power(stay, left_at)
        if is_needed and not any(self._has_all(key, tp, node) for node in stay):
            needed = [node for node in sorted(gone) if self._has_all(key, tp, node)]
            self._world.require(
                not needed, f"{tp}: {needed} must not lead, and of {sorted(stay)} nobody has it all"
            )

    def _has_all(self, key: Key, tp: TopicPartition, node: int) -> bool:
        return self._replica_checker.holds_all(key, self._stored(tp, {node}))

    def _expect(self, key: Key) -> None:
        """No more than what is held by those that may lead."""
        topic, may_lead = self._replica_checker.may_lead(key)
        tp = TopicPartition(topic, key[1])
        end, top = self._replica_checker.lose(key, self._stored(tp, may_lead))
        if end < top:
            self._records.lost.setdefault(tp, []).append(range(end, top))
            self._world.story.tell(f"{tp}: offsets {end} to {top - 1} are lost")

    def _stored(self, tp: TopicPartition, nodes: set[int]) -> Iterator[BatchHeader]:
        disks = [machine.disk for machine in self._world.machines if machine.id in nodes]
        return chain.from_iterable(_stored(disk, tp) for disk in disks)


def _stored(disk: SimDisk, tp: TopicPartition) -> Iterator[BatchHeader]:
    """The batches of a partition, up to the first one that is torn or missing."""
    end = None
    try:
        for data in disk.files(f"/{tp.topic}-{tp.partition}/", ".log").values():
            for header, batch in iter_batches(data):
                check_crc(batch, header)
                if end not in (None, header.base_offset):
                    return
                yield header
                end = header.next_offset
    except CorruptBatch:
        return
