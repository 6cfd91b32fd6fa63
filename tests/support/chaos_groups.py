"""What the chaos test's group is made of: members that come, work, commit and go, and take notes.

No test lives here. The notes and their rules are those of the simulation: one owner of a partition
in a generation, nothing committed that nobody read, and no owner that begins before what was
committed when the rebalance began.
"""

import random

import trio
from chaos import TOPIC
from secure_run import reaching

from hightide import Consumer
from hightide.protocol.errors import HightideError
from hightide_broker.simulation.group_workload import GroupLog

GROUP = "chaos"
MEMBERS = 3


class Member:
    """One place in the group: a consumer, and after it another one, until cancelled."""

    def __init__(self, name, address, notes, seed):
        self.told = []
        """Errors that may pass."""
        self._name = name
        self._address = address
        self._notes = notes
        self._random = random.Random(f"{seed}-{name}")
        self._life = 0
        self._floor = {}
        self._consumer = None

    async def run(self):
        while True:
            self._life += 1
            self._floor = {}
            life_s, orderly = self._random.uniform(2, 9), self._random.random() < 0.5
            with trio.CancelScope() as scope:
                async with self._make_consumer() as self._consumer:
                    with trio.move_on_after(life_s):
                        await self._work()
                    if not orderly:
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
            await trio.sleep(self._random.uniform(0, 1))

    def _make_consumer(self):
        return Consumer(
            **reaching(self._address),
            topics=[TOPIC],
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=8_000,
            request_timeout_ms=2_000,
            on_assigned=self._assigned,
            on_revoked=self._let_go,
            on_lost=self._let_go,
        )

    def _let_go(self, _):
        self._floor = dict(self._notes.committed)

    def _assigned(self, partitions):
        self._notes.rebalances += 1
        for tp in partitions:
            self._notes.own(self._consumer.generation, tp, f"{self._name}-{self._life}")
            begin, floor = self._consumer.position(*tp) or 0, self._floor.get(tp, 0)
            assert begin >= floor, f"{self._name} begins {tp} at {begin}, not {floor}"

    async def _work(self):
        consumer = self._consumer
        while True:
            try:
                for record in await consumer.poll(timeout_ms=200):
                    tp = (record.topic, record.partition)
                    self._notes.seen.setdefault(tp, set()).add(record.offset)
                if self._random.random() < 0.3:
                    positions = {w: consumer.position(*w) for w in consumer.assignment()}
                    await consumer.commit()
                    self._notes.commit({w: at for w, at in positions.items() if at is not None})
            except HightideError as error:
                self.told.append(error)
                await trio.sleep(0.1)


class Group:
    """All members, and what they were told."""

    def __init__(self, address, seed):
        self.notes = GroupLog()
        self.members = [
            Member(f"member {n}", address, self.notes, seed) for n in range(1, MEMBERS + 1)
        ]

    async def run(self):
        async with trio.open_nursery() as nursery:
            for member in self.members:
                nursery.start_soon(member.run)

    def has_read(self, ends):
        """Whether somebody has worked on everything below these offsets."""
        return not self.notes.behind({(TOPIC, number): end for number, end in ends.items()})
