"""The members of one consumer group: by member id, and static ones by instance id. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker.core.groups.parts import Ticket
from hightide_broker.core.groups.records import MemberValue

NEVER = float("inf")


@dataclass(slots=True, kw_only=True)
class Member:
    """A member, and the request of it that waits; times in seconds."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    session_s: float
    rebalance_s: float
    protocols: list[g.Protocol]
    assignment: bytes = b""
    session_until: float = NEVER
    """When its silence has been too long; never while it waits for us."""
    joining: Ticket | None = None
    syncing: Ticket | None = None

    @property
    def name(self) -> str:
        """How messages name it: by its id, and by its instance if it is static."""
        return f"{self.member_id} ({self.instance_id})" if self.instance_id else self.member_id

    def metadata(self, protocol: str) -> bytes:
        """What it subscribes to, in the words of a protocol."""
        return metadata_of(self.protocols, protocol) or b""

    def touch(self, now: float) -> None:
        """It was heard of: its session begins again, unless it waits for us."""
        # Who waits for us need not be heard of: its answer begins its session.
        if self.joining is None and self.syncing is None:
            assert self.session_s >= 0, f"{self.name} has a session of {self.session_s} s"
            self.session_until = now + self.session_s

    def to_value(self, assignment: bytes) -> MemberValue:
        """The member as it is kept."""
        return MemberValue(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            session_ms=round(self.session_s * 1000),
            rebalance_ms=round(self.rebalance_s * 1000),
            protocols=self.protocols,
            assignment=assignment,
        )

    @classmethod
    def of_value(cls, kept: MemberValue, now: float) -> Member:
        """A member as it was kept, with a whole session to show up in."""
        return cls(
            member_id=kept.member_id,
            instance_id=kept.instance_id,
            client_id=kept.client_id,
            host=kept.host,
            session_s=kept.session_ms / 1000,
            rebalance_s=kept.rebalance_ms / 1000,
            protocols=kept.protocols,
            assignment=kept.assignment,
            session_until=now + kept.session_ms / 1000,
        )


def metadata_of(protocols: Sequence[g.Protocol], name: str) -> bytes | None:
    """What is said in the words of a protocol; None if it is not among them."""
    return next((p.metadata for p in protocols if p.name == name), None)


@dataclass(slots=True)
class Members:
    """Who is in a group, in the order of joining."""

    by_id: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Instance id → member id."""
    pending: dict[str, float] = field(default_factory=dict)
    """Member ids that were given out and not used yet → when they are forgotten."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.by_id.values()))

    def find(self, member_id: str, instance_id: str) -> Member:
        """A member; raises `Refused` UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        self.check_instance(member_id, instance_id)
        member = self.by_id.get(member_id)
        if member is None or (instance_id and instance_id not in self.static):
            who = member_id or instance_id or "nobody"
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{who!r} is no member of this group")
        return member

    def check_protocols(self, request: g.JoinGroupRequest, protocol_type: str) -> None:
        """Raise `Refused` if the member that joins could not agree with the others."""
        if not self.by_id:
            return
        if request.protocol_type != protocol_type:
            raise Refused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group is of type {protocol_type!r}, not {request.protocol_type!r}",
            )
        others = [member for member in self if member.member_id != request.member_id]
        offered, known = {protocol.name for protocol in request.protocols}, common(others)
        if others and not offered & known:
            raise Refused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the assignors {sorted(offered)} are offered, the members agree on "
                f"{sorted(known)}",
            )

    def check_room(self, size_max: int) -> None:
        """Raise `Refused` if nobody more may join."""
        if len(self.by_id) + len(self.pending) >= size_max:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group has {counted(len(self.by_id), 'member')} and {len(self.pending)} "
                f"that may join, group.max.size is {size_max}",
            )

    def check_joining(self, size_max: int) -> None:
        """Raise `Refused` if enough members of a group that is too large have joined already."""
        if sum(member.joining is not None for member in self) >= size_max:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"{counted(size_max, 'member has', 'members have')} joined already, group.max.size "
                f"is {size_max}",
            )

    def check_instance(self, member_id: str, instance_id: str) -> None:
        """Raise `Refused` FENCED_INSTANCE_ID if a static member is somebody else."""
        holder = self.static.get(instance_id) if instance_id else None
        if holder is not None and holder != member_id:
            raise Refused(
                ErrorCode.FENCED_INSTANCE_ID, f"static member {instance_id!r} is {holder} now"
            )

    @property
    def all_joined(self) -> bool:
        """Whether everybody known waits for the next generation."""
        return not self.pending and all(member.joining is not None for member in self)

    def add(self, member: Member) -> None:
        """Take a member in; its id must be new."""
        assert member.member_id not in self.by_id, f"{member.name} is a member already"
        self.by_id[member.member_id] = member
        if member.instance_id:
            self.static[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        """Let a member go whose requests have been answered."""
        assert (member.joining, member.syncing) == (None, None), f"{member.name} still waits"
        del self.by_id[member.member_id]
        if self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]

    def rename(self, member: Member, new_id: str) -> None:
        """A static member got another member id; its place stays."""
        assert member.instance_id, f"{member.name} is not static, and keeps its id"
        member.member_id = new_id
        # In its old place, which `add` would not give it: a restart is not another member.
        self.by_id = {each.member_id: each for each in self}
        self.static[member.instance_id] = new_id

    @property
    def longest_rebalance_s(self) -> float:
        """How long the most patient member lets the others take to join."""
        return max((member.rebalance_s for member in self), default=0.0)

    def elect_protocol(self) -> str:
        """What most members like best among what all of them know."""
        known = common(self)
        # Of equals the first one counted wins, so each coordinator comes to the same.
        votes = Counter(
            next(p.name for p in member.protocols if p.name in known) for member in self
        )
        return max(votes, key=lambda name: votes[name])

    def to_values(self, assignments: Mapping[str, bytes]) -> list[MemberValue]:
        """All as they are kept, with these assignments in place of their present ones."""
        return [m.to_value(assignments.get(m.member_id, m.assignment)) for m in self]


def common(members: Iterable[Member]) -> set[str]:
    """The protocols that all of these members know."""
    known = [{protocol.name for protocol in member.protocols} for member in members]
    return set.intersection(*known) if known else set()
