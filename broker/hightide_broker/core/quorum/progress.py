"""A leader's view of another node of the metadata quorum: a voter or an observer. Pure.

A fetch says how far its sender has got: a node that asks for offset n holds, durably, everything
below n. What was known in an earlier epoch counts for nothing, so views are rebuilt in each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from hightide.protocol.quorum_messages import QuorumReplica


@dataclass(slots=True)
class Progress:
    """How far one node has got, and when it was last heard of. Times are of the driver's clock."""

    id: int
    heard_at: float
    """The last valid fetch, or the beginning of the epoch."""
    log_end: int = -1
    """-1: not known in this epoch."""
    caught_up_at: float = -1.0
    """The last moment it had everything there was at its fetch before."""
    asked_end: int = -1
    """Our log end at its last fetch."""
    directory: str = ""
    """The id of its directory, as it says; empty: it did not."""

    def fetched(self, offset: int, *, log_end: int, now: float) -> None:
        """Take a valid fetch into account. A lower offset than before means a lost disk: it is
        recorded as it is."""
        assert 0 <= offset <= log_end, f"node {self.id} fetched from {offset}, the end is {log_end}"
        assert now >= self.heard_at, f"node {self.id} was heard of later, at {self.heard_at}"
        # Who reaches by now what was the end at its fetch before had everything at that moment,
        # though under steady appends no fetch ever reaches the end of its own time.
        if offset >= log_end or 0 <= self.asked_end <= offset:
            self.caught_up_at = now if offset >= log_end else self.heard_at
        self.log_end = offset
        self.asked_end = log_end
        self.heard_at = now

    def describe(self, log_end: int, now: float) -> QuorumReplica:
        """How it stands, for people."""
        known = self.log_end >= 0
        caught_up = self.caught_up_at >= 0
        return QuorumReplica(
            id=self.id,
            directory=self.directory,
            log_end_offset=self.log_end,
            lag=log_end - self.log_end if known else -1,
            last_fetch_ms_ago=int((now - self.heard_at) * 1000) if known else -1,
            last_caught_up_ms_ago=int((now - self.caught_up_at) * 1000) if caught_up else -1,
        )


@dataclass(slots=True)
class HighWatermark:
    """Everything below `value` is committed, as far as this node knows."""

    value: int

    def rise_to(self, offset: int) -> bool:
        """Whether that is more than was known: what is committed stays so."""
        assert offset >= 0, f"{offset} says that nothing is known, which is no watermark"
        if offset <= self.value:
            return False
        self.value = offset
        return True


def majority_of(count: int) -> int:
    """How many of `count` voters are a majority."""
    return count // 2 + 1


def held_by_majority(ends: list[int]) -> int:
    """The largest offset up to which a majority of these logs reaches."""
    return sorted(ends, reverse=True)[majority_of(len(ends)) - 1]


def last_majority_contact(heard: list[float], *, votes_itself: bool = True) -> float:
    """When a leader last had a majority with it, itself included if it is a voter; `heard` are the
    others."""
    needed = majority_of(len(heard) + votes_itself) - votes_itself
    return sorted(heard, reverse=True)[needed - 1] if needed else float("inf")
