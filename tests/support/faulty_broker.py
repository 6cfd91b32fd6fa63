"""Broker 1 with real replicas on a simulated disk that is slow, full, damaged or was there before.

Worker threads wait for a gate; a leader's answers are made by hand.
"""

from __future__ import annotations

import pytest
import trio
from brokers import DATA
from leaderkit import EPOCH, THREE, TWO, Here
from logkit import contents, make_batch, path_of
from replicakit import batch, joined, spans_of, write

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import Refused
from hightide_broker.core.replication.follower import Follower, next_fetch
from hightide_broker.runtime.replication.following import own_log
from hightide_broker.simulation.disk import SimDisk

SIZE = len(make_batch())
RECORDS = 6
ALL = [(EPOCH, number, number + 1) for number in range(RECORDS)]
DIRECTORY = f"{DATA}/jade-0"
OURS = c.OfflineReplica(topic_id="id-of-jade", partition=0)


class SlowDisk(SimDisk):
    """A disk whose worker threads begin when the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()
        self.gate.set()

    async def in_thread(self, function):
        await self.gate.wait()
        return await super().in_thread(function)


class Frail(Here):
    """Broker 1 on a disk that may be slow, was there before, and was left clean or not."""

    def __init__(self, disk=None, *, clean=True) -> None:
        super().__init__(disk=disk or SlowDisk(), clean=clean)

    @property
    def replica(self):
        return self.replicas.get("jade", 0)

    @property
    def stored(self):
        """The bytes of the segment."""
        return self.disk.read_file(path_of(0, directory=DIRECTORY))

    def again(self, *, clean):
        """The next process on the same disk, which knows the same metadata."""
        self.disk.kill()
        made = Frail(self.disk, clean=clean)
        made.image = self.image
        return made

    async def follow_two(self, *, records=RECORDS, isr=(TWO, THREE), **config):
        """Broker 1 follows broker 2 out of sync, and has these records."""
        replica = await self.create(leader=TWO, isr=isr, **config)
        write(replica.log, *[(EPOCH, 1)] * records)
        return replica

    def damage(self, record, *, base=0):
        """A bit of this record's batch is not what was written."""
        self.disk.corrupt(path_of(base, directory=DIRECTORY), (record - base) * SIZE + 30)

    def meet(self, record):
        """A reader meets the damage in this record."""
        replica = self.replica
        with pytest.raises(Refused, match="is damaged"):
            replica.read(record, limit=replica.log.log_end, max_bytes=1, at_least_one=True)
        assert replica.is_damaged
        assert self.replicas.offline() == [OURS]

    def catch_up(self):
        """The leader sends what is missing, and its watermark."""
        replica = self.replica
        asked = next_fetch(
            *("jade", replica.topic_id, 0, replica.follower, own_log(replica)),
            high_watermark=replica.high_watermark,
            max_bytes=1 << 20,
        )
        answer = m.FetchResult(topic="jade", partition=0, high_watermark=RECORDS)
        sent = joined(*(batch(base) for base in range(asked.fetch_offset, RECORDS)))
        self.following.take(replica, asked, answer, sent, 0.0)

    @property
    def is_whole(self):
        """Whether broker 1 follows, and has all that was ever written."""
        replica = self.replica
        assert replica.follower == Follower(leader=TWO, epoch=EPOCH)
        assert not replica.offline
        replica.log.check_invariants()
        return spans_of(contents(replica.log)) == ALL
