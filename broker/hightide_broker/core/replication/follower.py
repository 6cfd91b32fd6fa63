"""A partition's follower: what it asks its leader for, and what it makes of the answer. Pure.

It fetches from its log end and names the newest epoch it knows; the leader compares that with its
own epochs and, where the logs part, says how far they may agree. The follower then cuts at the
smaller of that and its own end of that epoch, and asks again: each round ends in an older epoch, so
it ends. A watermark never decides what is cut (KIP-101, KIP-279, KIP-595). An answer counts only
while the log end and both epochs of its request still hold.

Offsets are *next* offsets; `now` is monotonic, in seconds. Source: Kafka's AbstractFetcherThread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.quorum.divergence import last_common

PAUSE_MIN_S = 0.02
"""The first pause after an error; each further one is twice as long."""


class OwnLog(NamedTuple):
    """What a replica's log says of itself."""

    log_start: int
    log_end: int
    latest_epoch: int
    end_offset_for: Callable[[int], tuple[int, int]]
    """(largest known epoch ≤ the one given, where it ends here); (-1, -1) if there is none."""


class Append(NamedTuple):
    """Take the records, if there are any; then this watermark and log start of the leader's."""

    high_watermark: int
    log_start: int


class Truncate(NamedTuple):
    """Cut the log there, and fetch again."""

    offset: int


class TruncateFully(NamedTuple):
    """The leader no longer has what would come next: drop everything, begin there."""

    offset: int


class AskOffsets(NamedTuple):
    """Ask the leader for the bounds of its log, and take them to `out_of_range`."""


class Pause(NamedTuple):
    """Nothing to do before that moment."""

    until: float
    why: str


class Stop(NamedTuple):
    """Nothing to do before newer metadata arrives."""

    why: str


class Ignore(NamedTuple):
    """The answer is to a question that is not asked any more."""


Step = Append | Truncate | TruncateFully | AskOffsets | Pause | Stop | Ignore


@dataclass(slots=True, kw_only=True)
class Follower:
    """One leader epoch of one partition, as one of its followers sees it."""

    leader: int
    epoch: int
    pause_max_s: float = 1.0
    """replica.fetch.backoff.ms."""
    paused_until: float = float("-inf")
    stopped: str = ""
    """Why nothing is fetched before newer metadata arrives."""
    _pause_s: float = PAUSE_MIN_S

    def may_fetch(self, now: float) -> bool:
        """Whether there is something to ask for now."""
        return not self.stopped and now >= self.paused_until

    def on_result(
        self, asked: m.FetchPartition, result: m.FetchResult, log: OwnLog, now: float
    ) -> Step:
        """What to do about the answer to a fetch; carried out by the caller."""
        if self._is_stale(asked, log):
            return Ignore()
        if result.error is not None:
            return self._on_error(result.error, result.message, now)
        if result.diverging_epoch is not None:
            self._pause_s = PAUSE_MIN_S
            own = log.end_offset_for(result.diverging_epoch.epoch)
            common = last_common(result.diverging_epoch, *own, log.log_end)
            assert 0 <= common <= log.log_end, f"{self} cuts at {common}, the end is {log.log_end}"
            return Truncate(common)
        self._pause_s = PAUSE_MIN_S
        return Append(result.high_watermark, result.log_start_offset)

    def _is_stale(self, asked: m.FetchPartition, log: OwnLog) -> bool:
        # While it was asked the log may have been cut or grown: the answer fits the one before.
        return (
            asked.current_leader_epoch != self.epoch
            or asked.fetch_offset != log.log_end
            or asked.last_fetched_epoch != log.latest_epoch
        )

    def _on_error(self, error: str, message: str, now: float) -> Step:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return AskOffsets()
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            # Of the very epoch that we follow: there is a newer one, the metadata will say.
            self.stopped = message or error
            return Stop(self.stopped)
        return self.back_off(f"{error}: {message}", now)

    def back_off(self, why: str, now: float) -> Pause:
        """Ask again after a pause, longer each time until an answer helps."""
        assert self._pause_s > 0, f"{self} would ask without end"
        self.paused_until = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self.pause_max_s)
        return Pause(self.paused_until, why)

    def out_of_range(
        self, asked: m.FetchPartition, start: int, end: int, log: OwnLog, now: float
    ) -> Step:
        """The leader's log reaches from `start` to `end`, and what was asked for is not in it."""
        if self._is_stale(asked, log):
            return Ignore()
        # What the leader has not is not committed, or was given up by an unclean election.
        if end < log.log_end:
            return Truncate(end)
        if start > log.log_end:
            return TruncateFully(start)
        # The bounds moved between the two questions.
        return self.back_off(f"out of range, but the leader has {start} to {end}", now)


def next_fetch(
    topic: str,
    topic_id: str,
    partition: int,
    follower: Follower,
    log: OwnLog,
    *,
    high_watermark: int,
    max_bytes: int,
) -> m.FetchPartition:
    """The question that follows from where a follower is."""
    return m.FetchPartition(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        fetch_offset=log.log_end,
        current_leader_epoch=follower.epoch,
        last_fetched_epoch=log.latest_epoch,
        log_start_offset=log.log_start,
        max_bytes=max_bytes,
        high_watermark=high_watermark,
    )
