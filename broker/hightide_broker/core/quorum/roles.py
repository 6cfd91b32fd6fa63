"""The roles a node can have in the metadata quorum, and how it may go from one to another. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec


class Role(Enum):
    """What a node is to the quorum, in one epoch."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


_R = Role
TRANSITIONS: dict[Role, frozenset[Role]] = {
    # A higher epoch; an election timeout; a leader made itself known.
    _R.UNATTACHED: frozenset({_R.UNATTACHED, _R.PROSPECTIVE, _R.FOLLOWER}),
    # A higher epoch, or lost without knowing a leader; a leader; a majority would vote.
    _R.PROSPECTIVE: frozenset({_R.UNATTACHED, _R.FOLLOWER, _R.CANDIDATE}),
    # A higher epoch; timed out or rejected; a leader; a majority voted.
    _R.CANDIDATE: frozenset({_R.UNATTACHED, _R.PROSPECTIVE, _R.FOLLOWER, _R.LEADER}),
    # A higher epoch; lost its majority, or stops; a leader of a higher epoch.
    _R.LEADER: frozenset({_R.UNATTACHED, _R.RESIGNED, _R.FOLLOWER}),
    # A higher epoch, or its own timeout.
    _R.RESIGNED: frozenset({_R.UNATTACHED, _R.FOLLOWER}),
    # A higher epoch; a fetch timeout; a leader of a higher epoch.
    _R.FOLLOWER: frozenset({_R.UNATTACHED, _R.PROSPECTIVE, _R.FOLLOWER}),
}
"""Every legal transition. Observers are unattached or followers."""


class Voter(msgspec.Struct, frozen=True, kw_only=True):
    """A voter of the metadata quorum: a node *and* its directory, so that a disk that was lost or
    replaced is another voter (KIP-853)."""

    id: int
    directory: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Who this node is, who votes, and how long it waits. Kafka's names and defaults."""

    node: int
    voters: tuple[int, ...]
    """By configuration: who votes while no record says so."""
    addresses: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """Where those listen."""
    directory: str = ""
    """The id of this node's data directory."""
    joining: bool = False
    """Whether that was made for a cluster that exists: it observes until a record admits it."""
    cluster_id: str = ""
    election_timeout_s: float = 1.0
    first_pause_s: float | None = 0.1
    """The longest a voter that knows neither leader nor vote waits before it asks for the first
    time; None: as long as for any election."""
    fetch_timeout_s: float = 2.0
    election_backoff_max_s: float = 1.0
    retry_backoff_s: float = 0.02
    fetch_wait_ms: int = 500
    fetch_bytes_max: int = 8 << 20

    def backoff_s(self, elections_lost: int, random: float) -> float:
        """How long a candidate waits: longer and longer with each election lost, and never the same
        for two voters."""
        slots = min(1 << min(elections_lost, 10), 1 << 10)
        return self.retry_backoff_s + min(0.1 * slots, self.election_backoff_max_s) * random
