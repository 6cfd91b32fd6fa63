"""What a consumer group's state is made of, what happens to it, and what comes of that. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.messages import Message
from hightide_broker.core.groups.records import I32_MAX, GroupValue

Ticket = Hashable
"""A request that waits for its answer."""


class State(StrEnum):
    """Where a group is; Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Limits(NamedTuple):
    """What a coordinator allows; times in seconds."""

    session_min_s: float = 6.0
    session_max_s: float = 1800.0
    initial_delay_s: float = 3.0
    size_max: int = 10_000

    def check(self, request: g.JoinGroupRequest) -> None:
        """Raise `Refused` for a request to join that no group allows."""
        session_s = request.session_timeout_ms / 1000
        if not self.session_min_s <= session_s <= self.session_max_s:
            raise Refused(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms is {request.session_timeout_ms}, expected "
                f"{self.session_min_s * 1000:.0f} to {self.session_max_s * 1000:.0f} "
                f"(group.min.session.timeout.ms, group.max.session.timeout.ms)",
            )
        if not 1 <= request.rebalance_timeout_ms <= I32_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"rebalance_timeout_ms is {request.rebalance_timeout_ms}, expected 1 to {I32_MAX} "
                f"(max_poll_interval_ms)",
            )
        if not request.protocol_type or not request.protocols:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol is offered")


REASONS = {
    "joined": "a member came",
    "rejoined": "a member joined again, as it was",
    "changed": "a member joined again with other subscriptions",
    "replaced": "a static member began again",
    "left": "a member said that it goes",
    "silent": "a member was not heard of for its session",
    "unsynced": "a member never asked for its assignment",
    "unkept": "the assignment could not be kept",
    "size": "there are more members than there may be",
}
"""Why rebalances begin, as they are counted."""


class Why(NamedTuple):
    """Why a rebalance begins."""

    reason: str
    """Of `REASONS`."""
    text: str

    @classmethod
    def of(cls, reason: str, text: str, said: str) -> Why:
        """With what a member said of it."""
        return cls(reason, text + because(said))


class Cause(NamedTuple):
    """Why a rebalance began, when, and which generation it ended."""

    at: float
    generation: int
    text: str
    reason: str


# -- events ---------------------------------------------------------------------------------------


class Join(NamedTuple):
    """A member joins, or joins again."""

    request: g.JoinGroupRequest
    ticket: Ticket
    new_id: str
    """For a member that has no id yet."""
    host: str


class Sync(NamedTuple):
    """A member asks what it gets; the leader says who gets what."""

    request: g.SyncGroupRequest
    ticket: Ticket


class Heartbeat(NamedTuple):
    """A member is alive."""

    request: g.GroupHeartbeatRequest


class Commit(NamedTuple):
    """Somebody is about to commit offsets: a member, or anybody while there is none."""

    request: g.OffsetCommitRequest


class Leave(NamedTuple):
    """Members go; each has its own answer."""

    request: g.LeaveGroupRequest


class Written(NamedTuple):
    """A `Write` is committed, or could not be kept (`refusal`)."""

    token: tuple[str, ...]
    refusal: Refused | None


class Tick(NamedTuple):
    """Time passed."""


class Moved(NamedTuple):
    """Another broker coordinates this group now: everybody who waits hears so."""

    refusal: Refused


Event = Join | Sync | Heartbeat | Commit | Leave | Written | Tick | Moved


# -- what comes of them ---------------------------------------------------------------------------


class Write(NamedTuple):
    """A state of the group that is to be kept; `token` comes back in `Written`."""

    value: GroupValue
    token: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """What one event leads to."""

    reply: Message | None = None
    """The answer to the `Join`, `Sync` or `Leave` that was the event; None: it comes later."""
    replies: list[tuple[Ticket, Message]] = field(default_factory=list)
    """Answers to requests that waited."""
    writes: list[Write] = field(default_factory=list)
    """What is to be kept, in this order."""


def leave_result(leaving: g.LeavingMember, refusal: Refused | None = None) -> g.LeaveResult:
    """The answer to one member that goes."""
    return g.LeaveResult(
        member_id=leaving.member_id,
        instance_id=leaving.instance_id,
        error=refusal.code if refusal else None,
        message=refusal.message if refusal else "",
    )


def because(reason: str) -> str:
    """What a member said of its reason, behind what it did."""
    return f": {reason}" if reason else ""
