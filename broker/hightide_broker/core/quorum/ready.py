"""What goes into the quorum's state machine and what comes out of it. Pure.

`Quorum.step(event, now)` takes one `Event` and gives one `Ready`: the duties of its driver, in the
order in which they must be carried out. The order is what makes the quorum safe, and this is the
one place where it is written down:

1. persist - `election_state` is durable in `quorum-state` before anything below happens;
2. change  - the log is cut, begun again from a snapshot, or appended to, as told;
3. send    - the answer to the request that was the event, and requests of our own;
4. apply   - everything below `committed` is committed;
5. wake    - step a `Tick` no later than `wake_at`.

Whenever the log was changed, the driver syncs it and then steps `LogSynced`; what was appended
counts from then on, and not before. It does so, too, when it has kept a piece of a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hightide.protocol.messages import Message
from hightide_broker.core.quorum.roles import Voter

NOBODY = -1


class SnapshotId(NamedTuple):
    """A metadata snapshot: it contains everything below `end_offset`, whose last record is of
    `epoch`."""

    end_offset: int
    epoch: int


class LogView(Protocol):
    """What the state machine reads of the metadata log; it never writes."""

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    @property
    def synced_end(self) -> int:
        """Everything below it survives a power loss."""
        ...

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, 0 if there never was one."""
        ...

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        """By the last record of them, whether it is committed or not; None if there is none."""
        ...

    @property
    def voters_end(self) -> int:
        """The offset after that record."""
        ...

    @property
    def earlier_voters(self) -> tuple[Voter, ...]:
        """By the record before it, while that is known; else empty."""
        ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    def is_boundary(self, offset: int) -> bool:
        """Whether a batch begins at this offset, or the log ends there."""
        ...

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch ≤ `epoch`, where it ends). Below all known epochs: `epoch` and the
        start of the first one; above all: (-1, -1)."""
        ...


class ElectionState(NamedTuple):
    """What a voter must never forget: the epoch, its leader if known, and whom it voted for."""

    epoch: int = 0
    leader: int = NOBODY
    voted: int = NOBODY
    voted_directory: str = ""
    """That of the node it voted for: another node may have its id by now (KIP-853)."""


# -- events ---------------------------------------------------------------------------------------


class Tick(NamedTuple):
    """Time passed."""


class LogSynced(NamedTuple):
    """`log_end` or `synced_end` moved, and nothing of the log is unsynced but what a leader
    appended meanwhile."""


class Requested(NamedTuple):
    """A request of another node, or of this one's clients."""

    request: Message
    parked: bool = False
    """Whether this is a second look at a fetch that had to wait."""


class Answered(NamedTuple):
    """A node answered what we asked, or did not."""

    peer: int
    request: Message
    response: Message | None
    attachments: Sequence[memoryview] = ()
    gone: bool = False
    """No answer, because nobody listens there: the process is dead, not slow."""


class Unusable(NamedTuple):
    """The batches or the snapshot that the last answer gave did not pass their checks: ask again,
    later."""


class Unreadable(NamedTuple):
    """Something in this node's log or snapshot, which another one asked for, cannot be read."""


class Resign(NamedTuple):
    """This node is about to stop."""


Event = Tick | LogSynced | Requested | Answered | Unusable | Unreadable | Resign


# -- duties ---------------------------------------------------------------------------------------


class Sending(NamedTuple):
    """A request for `peer`; its answer comes back as `Answered`."""

    peer: int
    request: Message


class SnapshotPiece(NamedTuple):
    """Bytes of a snapshot that is being fetched."""

    snapshot: SnapshotId
    position: int
    data: memoryview


@dataclass(slots=True)
class Ready:
    """The duties of one step, in order; see the module's docstring."""

    election_state: ElectionState | None = None
    truncate_to: int | None = None
    """Cut the log here, durably."""
    append: Sequence[memoryview] = ()
    """Batches from the leader, for the end of the log."""
    set_voters: tuple[Voter, ...] = ()
    """Append that these are the voters from now on."""
    begin_epoch: bool = False
    """Append the leader change record of this node's new epoch."""
    piece: SnapshotPiece | None = None
    """Keep these bytes of a snapshot; position 0 begins again."""
    install: SnapshotId | None = None
    """The snapshot is whole: check it, and begin the log again behind it."""
    reply: Message | None = None
    serve: bool = False
    """The fetch is valid: answer it from the log (or the snapshot), or park it."""
    send: list[Sending] = field(default_factory=list)
    committed: int = -1
    """The high watermark; -1: unchanged."""
    wake_at: float = float("inf")
