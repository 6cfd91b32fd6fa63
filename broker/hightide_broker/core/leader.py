"""A partition's leader: who is in sync, how far everybody is, and so what is committed. Pure.

The high watermark is the smallest log end over the in-sync replicas; this leader's own counts only
up to what it has synced when the topic says `flush=synced`. It never falls, and it does not advance
while fewer than min.insync.replicas are in sync (KIP-966). Log ends are *next* offsets. Source:
Kafka's Partition.maybeIncrementLeaderHW; KIP-966.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hightide.errors import ErrorCode, Refused


@dataclass(slots=True, kw_only=True)
class Leader:
    """One leader epoch of one partition, as its leader sees it."""

    broker: int
    epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    partition_epoch: int
    min_isr: int
    synced_counts: bool
    """Whether the own log end counts only up to what is synced."""
    epoch_start: int
    """Where this epoch began; assigned at the log end before any append."""
    log_end: int
    synced_end: int
    high_watermark: int
    remote_log_ends: dict[int, int] = field(default_factory=dict)
    """The log ends of other replicas, from their fetches in this epoch only."""

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, but no more than there are replicas."""
        return min(self.min_isr, len(self.replicas))

    def refuse_if_too_few(self) -> None:
        """Raise `Refused` NOT_ENOUGH_REPLICAS when acks=all cannot be kept now."""
        if len(self.isr) < self.effective_min_isr:
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas are in sync {list(self.isr)}, "
                f"min.insync.replicas is {self.effective_min_isr}",
            )

    def on_append(self, log_end: int) -> int:
        """The own log grew; the high watermark after that."""
        assert log_end >= self.log_end, f"log end fell from {self.log_end} to {log_end}"
        self.log_end = log_end
        return self.advance()

    def on_synced(self, synced_end: int) -> int:
        """The own log is durable up to there; the high watermark after that."""
        assert synced_end <= self.log_end, f"synced {synced_end} above log end {self.log_end}"
        self.synced_end = max(self.synced_end, synced_end)
        return self.advance()

    def advance(self) -> int:
        """Recompute the high watermark; it only rises."""
        if len(self.isr) >= self.effective_min_isr:
            own = self.synced_end if self.synced_counts else self.log_end
            # A member that has not fetched in this epoch holds the watermark where it is.
            others = [self.remote_log_ends.get(b, -1) for b in self.isr if b != self.broker]
            self.high_watermark = max(self.high_watermark, min([own, *others]))
        self.check_invariants()
        return self.high_watermark

    def knows_its_watermark(self) -> bool:
        """Whether consumers may be told the end: the watermark reached this epoch's start
        (KIP-207)."""
        return self.high_watermark >= self.epoch_start

    def check_invariants(self) -> None:
        """Assert what this module's docstring promises."""
        assert self.high_watermark <= self.log_end, f"watermark above the log end: {self}"
        assert self.synced_end <= self.log_end, f"synced above the log end: {self}"
        assert self.broker in self.replicas, f"leader is no replica: {self}"
