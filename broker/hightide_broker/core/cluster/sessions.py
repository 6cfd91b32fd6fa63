"""When brokers were last heard of, and how far they have followed the metadata. Pure.

The active controller's memory, not part of the image: a new controller begins with a fresh session
for everybody. Source: KIP-631.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    """One broker's session. `heard_at` is of the controller's monotonic clock."""

    broker_epoch: int
    heard_at: float
    metadata_offset: int = -1
    stop_offset: int = -1
    """What the others must have applied before it may stop; -1 while it does not want to."""


class Sessions:
    """The sessions of brokers, those that were just fenced among them."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._sessions: dict[int, Session] = {}

    def touch(self, broker: int, broker_epoch: int, metadata_offset: int, now: float) -> Session:
        """A broker was heard of."""
        session = self._sessions.get(broker)
        # Another epoch is another process: what the one before had applied, this one may not have.
        if session is None or session.broker_epoch != broker_epoch:
            session = self._sessions[broker] = Session(broker_epoch, now)
        assert now >= session.heard_at, f"broker {broker} was heard of later, at {session.heard_at}"
        session.heard_at = now
        # Heartbeats may overtake each other.
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        return session

    def is_alive(self, broker: int, now: float) -> bool:
        """Whether a broker was heard of within the session timeout."""
        session = self._sessions.get(broker)
        return session is not None and now < session.heard_at + self.timeout_s

    def is_recent(self, broker: int, now: float) -> bool:
        """Whether a broker itself spoke to this controller within half a session."""
        session = self._sessions.get(broker)
        spoke = session is not None and session.metadata_offset >= 0
        return spoke and session is not None and now < session.heard_at + self.timeout_s / 2

    def end(self, broker: int) -> None:
        """Whatever was heard of a broker counts for nothing from here on."""
        assert broker >= 0, f"{broker} is no broker"
        self._sessions.pop(broker, None)

    def expired(self, now: float) -> list[int]:
        """The brokers that have been silent for longer than the timeout, the longest first."""
        sessions = sorted(self._sessions.items(), key=lambda entry: entry[1].heard_at)
        return [b for b, session in sessions if now >= session.heard_at + self.timeout_s]

    def next_expiry(self) -> float:
        """When the next session would end."""
        heard = (session.heard_at for session in self._sessions.values())
        return min(heard, default=float("inf")) + self.timeout_s

    def offset_of(self, broker: int) -> int:
        """How far a broker has followed the metadata, -1 if it has not said it yet."""
        session = self._sessions.get(broker)
        return -1 if session is None else session.metadata_offset

    def lowest_offset(self, brokers: Iterable[int]) -> int | None:
        """How far all of these have followed the metadata; None if there are none, -1 if one has
        not said it yet."""
        return min(map(self.offset_of, brokers), default=None)
