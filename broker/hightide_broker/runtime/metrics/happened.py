"""How often things happened that the trace tells of, since the process began."""

from __future__ import annotations

from collections import Counter

from hightide_broker.trace.events import (
    Event,
    QuorumRole,
    RepairEnded,
    ReplicaOffline,
    Truncated,
)


class Happened:
    """Of one node."""

    def __init__(self) -> None:
        self.truncated_records = 0
        self.damages: Counter[str] = Counter()
        """Replicas whose damage was `detected`, and that were `repaired`."""
        self.quorums_led = 0
        """How often this node began to lead the quorum."""

    def count(self, what: Event) -> None:
        """Something happened."""
        match what:
            case Truncated():
                self.truncated_records += max(what.before - what.after, 0)
            case ReplicaOffline(is_damaged=True):
                self.damages["detected"] += 1
            case RepairEnded() if what.log_end >= 0:
                self.damages["repaired"] += 1
            case QuorumRole(role="leader"):
                self.quorums_led += 1
