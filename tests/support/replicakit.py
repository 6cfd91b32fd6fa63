"""What the replication tests share: a replica that follows, and answers of a leader made by hand.

No test lives here. `Place` is a real replica with a real log on the simulated disk; `answer` makes
it take a leader's answer to the question that it would ask now. `write` and `lead` give a log a
past.
"""

from __future__ import annotations

from collections.abc import Iterable

from logkit import NOW_MS, TOPIC_ID, Stored, contents, create, follow, make_batch

from hightide.protocol import messages as m
from hightide.protocol.records import encode_batch
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.cluster.image import PartitionState
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication.follower import Pause, Step, next_fetch
from hightide_broker.runtime.replication.following import Following, own_log
from hightide_broker.runtime.replication.log_loader import log_config
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.log import Log
from hightide_broker.trace.events import Event

LEADER, FOLLOWER = 1, 2
EPOCH = 5
"""The leader epoch in which everything happens, unless a test says another."""
RECOVERY_POINTS = "data/recovery-points"


def state(leader: int, epoch: int = EPOCH) -> PartitionState:
    """Both brokers are in sync, one leads."""
    return PartitionState((LEADER, FOLLOWER), (LEADER, FOLLOWER), leader, epoch, 0)


def write(log: Log, *spans: tuple[int, int]) -> None:
    """Batches as somebody's leader stored them: (epoch, records), one after the other."""
    for epoch, count in spans:
        follow(log, make_batch(count, base_offset=log.log_end, epoch=epoch))


def sequenced(base: int, sequence: int, *, count: int = 1, epoch: int = EPOCH) -> bytearray:
    """A batch of the idempotent producer 7."""
    return encode_batch(
        b"",
        record_count=count,
        base_timestamp=1000,
        max_timestamp=1000,
        base_offset=base,
        leader_epoch=epoch,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )


def joined(*batches: bytes) -> bytes:
    return b"".join(bytes(batch) for batch in batches)


class Place:
    """A broker's replica of one partition on a disk of its own, and who carries out its steps."""

    def __init__(
        self,
        *spans: tuple[int, int],
        flush: str = "replicated",
        segment_bytes: int = 1 << 20,
        high_watermark: int = 0,
        epoch: int = EPOCH,
    ) -> None:
        config = TopicConfig.of({"flush": flush, "segment.bytes": str(segment_bytes)}, {})
        self.disk = SimDisk()
        self.log = create(self.disk, config=log_config(config))
        write(self.log, *spans)
        self.replica = Replica(
            "jade",
            TOPIC_ID,
            0,
            config=config,
            log=self.log,
            high_watermark=high_watermark,
            inflated_max=1 << 20,
            now=lambda: 0.0,
        )
        self.replica.become_follower(state(LEADER, epoch))
        self.told: list[Event] = []
        self.following = Following(
            now_ms=lambda: NOW_MS, lower_offsets=self.lower_offsets, tell=self.told.append
        )
        self.lowered: list[tuple[int, int]] = []
        """What the recovery point was lowered to, and where the log ended at that moment."""

    def lower_offsets(self, tp: TopicPartition, offset: int) -> None:
        assert tp == self.replica.tp
        self.disk.replace(RECOVERY_POINTS, b"%d" % offset)
        self.lowered.append((offset, self.log.log_end))

    @property
    def batches(self) -> list[Stored]:
        """What a reader of this log gets, whatever its watermark is."""
        return contents(self.log)

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Log start, watermark and log end."""
        self.log.check_invariants()
        return self.log.log_start, self.replica.high_watermark, self.log.log_end

    @property
    def epochs(self) -> dict[int, int]:
        return dict(self.log.epochs.entries)

    def ask(self) -> m.FetchPartition:
        """What this replica would ask its leader now."""
        replica = self.replica
        assert replica.follower is not None
        return next_fetch(
            replica.topic,
            replica.topic_id,
            replica.partition,
            replica.follower,
            own_log(replica),
            high_watermark=replica.high_watermark,
            max_bytes=1 << 20,
        )

    def answer(
        self,
        *batches: bytes,
        watermark: int = 0,
        log_start: int = 0,
        error: str | None = None,
        diverging: tuple[int, int] | None = None,
        asked: m.FetchPartition | None = None,
        now: float = 0.0,
    ) -> Step:
        """Take a leader's answer: to what would be asked now, or to what was `asked` before."""
        result = m.FetchResult(
            topic="jade",
            partition=0,
            error=error,
            message="it says why",
            high_watermark=watermark,
            log_start_offset=log_start,
            diverging_epoch=None
            if diverging is None
            else m.EpochEnd(epoch=diverging[0], end_offset=diverging[1]),
        )
        question = self.ask() if asked is None else asked
        return self.following.take(self.replica, question, result, joined(*batches), now)

    def do(self, step: Step, now: float = 0.0) -> Step:
        """Carry a step out; what became of it."""
        return self.following.carry_out(self.replica, step, b"", now)


def spans_of(batches: Iterable[Stored]) -> list[tuple[int, int, int]]:
    """Batches as (epoch, first offset, next offset)."""
    return [(each.epoch, each.base_offset, each.next_offset) for each in batches]


def batch(base: int, count: int = 1, *, epoch: int = EPOCH) -> bytearray:
    return make_batch(count, base_offset=base, epoch=epoch)


def flipped(data: bytearray, position: int) -> bytearray:
    data[position] ^= 1
    return data


def paused(step: object, place: Place, why: str) -> bool:
    """Whether nothing but a pause came of it, for this reason."""
    one = place.replica.follower
    assert one is not None
    assert not place.replica.offline
    return isinstance(step, Pause) and why in step.why and not one.may_fetch(0.0)
