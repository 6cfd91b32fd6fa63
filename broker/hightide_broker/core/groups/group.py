"""One consumer group, as its coordinator sees it: who is in it, and who gets what. Pure.

Kafka's classic protocol. Members join; when all known ones have (or time is up), a generation
begins, and its leader, some member, says who gets what; the others hear it in the answer to their
sync. A member that goes silent, leaves or subscribes to something else begins the next rebalance,
and its cause is kept.

    Empty ─join─► PreparingRebalance ─all joined─► CompletingRebalance ─assignment kept─► Stable
      ▲                 ▲     │ nobody left              │                                 │
      └─────────────────┼─────┘                          │                                 │
                        └───────── a member comes, goes, or changes its mind ◄─────────────┘

`step(event, now)` takes one event and gives its `Outcome` (`parts.py`): answers to requests, also
to those that waited (they are tickets), and what has to be kept. `now` is monotonic, in seconds;
`next_at` says when a `Tick` is due. Sources: Kafka's ClassicGroup; KIP-62, 134, 345, 394.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.groups.members import NEVER, Member, Members, metadata_of
from hightide_broker.core.groups.parts import (
    Cause,
    Commit,
    Event,
    Heartbeat,
    Join,
    Leave,
    Limits,
    Moved,
    Outcome,
    State,
    Sync,
    Tick,
    Ticket,
    Why,
    Write,
    Written,
    leave_result,
)
from hightide_broker.core.groups.records import I32_MAX, GroupValue, is_sound

REBALANCES_KEPT = 20
"""How many causes of rebalances are remembered."""
NEW_MEMBER_S = 300.0
"""How long somebody new may have to wait for the generation that it joins."""


@dataclass(slots=True)
class Group:
    """A group; made empty, or `restore`d from what was kept."""

    group_id: str
    limits: Limits
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    empty_since_ms: int = -1
    members: Members = field(default_factory=Members)
    causes: deque[Cause] = field(default_factory=lambda: deque(maxlen=REBALANCES_KEPT))
    _outcome: Outcome = field(default_factory=Outcome)
    _join_until: float = NEVER
    _initial_left: float | None = None
    """What is left to extend the delay of the first rebalance by; None: it is another one."""
    _has_grown: bool = False
    _sync_until: float = NEVER
    _unsynced: set[str] = field(default_factory=set)
    _replaced: dict[str, Member] = field(default_factory=dict)
    """Static members as they were before the process that takes their place, by its member id."""
    _assignments: dict[str, bytes] | None = None
    """From the leader, while they are being kept."""

    def step(self, event: Event, now: float) -> Outcome:
        """Take one event into account; what comes of it. Raises `Refused` for a request that cannot
        be: then nothing comes of it, but that its member was heard of."""
        outcome = self._outcome = Outcome()
        match event:
            case Join():
                outcome.reply = self._join(event, now)
            case Sync(request=request, ticket=ticket):
                outcome.reply = self._sync(request, ticket, now)
            case Heartbeat(request=request):
                self._heartbeat(request, now)
            case Commit(request=request):
                self._check_commit(request, now)
            case Leave(request=request):
                left = [self._leave(leaving, now) for leaving in request.members]
                outcome.reply = g.LeaveGroupResponse(members=left)
            case Written(token=token, refusal=refusal):
                self._written(token, refusal, now)
            case Tick():
                self._time_passed(now)
            case Moved(refusal=refusal):
                for member in self.members:
                    self._answer_parked(member, refusal.code, refusal.message)
        self._assert_consistent()
        return outcome

    def _assert_consistent(self) -> None:
        """What holds after every event; `groupkit.check` of the tests looks at each member, too."""
        if self.state is State.EMPTY:
            assert not self.members, f"{self.group_id} is empty, with {list(self.members.by_id)}"
            assert (self.leader, self.protocol) == ("", "")
        elif self.state is not State.PREPARING:
            assert self.leader in self.members.by_id, f"{self.leader!r} leads, and is no member"
        assert self._assignments is None or self.state is State.COMPLETING
        assert self._join_until < NEVER or self.state is not State.PREPARING

    # -- joining ---------------------------------------------------------------------------------

    def _join(self, event: Join, now: float) -> g.JoinGroupResponse | None:
        request, ticket, new_id, host = event
        self.limits.check(request)
        self.members.check_protocols(request, self.protocol_type)
        if not request.member_id and request.instance_id:
            return self._join_static(request, ticket, now, new_id, host)
        if not request.member_id:
            self.members.check_room(self.limits.size_max)
            self.members.pending[new_id] = now + request.session_timeout_ms / 1000
            code, why = ErrorCode.MEMBER_ID_REQUIRED, "join again with this member id"
            return g.JoinGroupResponse(error=code, message=why, member_id=new_id)
        if request.member_id in self.members.pending:
            self.members.check_instance(request.member_id, request.instance_id)
            del self.members.pending[request.member_id]
            self._enter(request, request.member_id, ticket, now, host)
            return None
        return self._join_again(request, ticket, now)

    def _join_again(
        self, request: g.JoinGroupRequest, ticket: Ticket, now: float
    ) -> g.JoinGroupResponse | None:
        member = self.members.find(request.member_id, request.instance_id)
        same = member.protocols == request.protocols
        leads_stable = self.state is State.STABLE and member.member_id == self.leader
        settled = self.state in (State.COMPLETING, State.STABLE) and not leads_stable
        if same and settled:
            # Its answer was lost. A stable group's leader rather wants to share out once more.
            member.touch(now)
            return self._joined(member)
        if self.state is State.PREPARING and member.joining is None:
            self.members.check_joining(self.limits.size_max)
        self._update(member, request, ticket)
        why = f"{member.name} {'joined again' if same else 'joined with other words'}"
        self._begin(Why.of("rejoined" if same else "changed", why, request.reason), now)
        return None

    def _join_static(
        self, request: g.JoinGroupRequest, ticket: Ticket, now: float, new_id: str, host: str
    ) -> g.JoinGroupResponse | None:
        """A process with an instance id begins, maybe in the place of another (KIP-345)."""
        old_id = self.members.static.get(request.instance_id)
        if old_id is None:
            self.members.check_room(self.limits.size_max)
            self._enter(request, new_id, ticket, now, host)
            return None
        member = self.members.by_id[old_id]
        before = replace(member, joining=None, syncing=None)
        same = member.metadata(self.protocol) == metadata_of(request.protocols, self.protocol)
        self._rename(member, new_id)
        self._update(member, request, ticket)
        if self.state is State.STABLE and same and self.members.elect_protocol() == self.protocol:
            self._replaced[new_id] = before
            self._outcome.writes.append(Write(self.to_value(), ("static", new_id, old_id)))
        else:
            self._begin(Why("replaced", f"static member {member.name} began again"), now)
        return None

    def _rename(self, member: Member, new_id: str) -> None:
        """The process before is fenced from here on."""
        refusal = (ErrorCode.FENCED_INSTANCE_ID, f"{member.instance_id!r} began again elsewhere")
        self._answer_parked(member, *refusal)
        old_id = member.member_id
        self.members.rename(member, new_id)
        self.leader = new_id if self.leader == old_id else self.leader
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)

    def _enter(
        self, request: g.JoinGroupRequest, member_id: str, ticket: Ticket, now: float, host: str
    ) -> None:
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            host=host,
            session_s=request.session_timeout_ms / 1000,
            rebalance_s=request.rebalance_timeout_ms / 1000,
            protocols=request.protocols,
            session_until=now + NEW_MEMBER_S,
            joining=ticket,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self.leader = self.leader or member_id
        self._has_grown = True
        self._begin(Why.of("joined", f"{member.name} joined", request.reason), now)

    def _update(self, member: Member, request: g.JoinGroupRequest, ticket: Ticket) -> None:
        self._answer_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, "it asked again")
        member.session_s = request.session_timeout_ms / 1000
        member.rebalance_s = request.rebalance_timeout_ms / 1000
        member.protocols, member.client_id = request.protocols, request.client_id
        member.joining, member.session_until = ticket, NEVER

    # -- a rebalance -----------------------------------------------------------------------------

    def _begin(self, why: Why, now: float) -> None:
        """Members have to join again; or, where they do already, the missing ones may be here."""
        if self.state is not State.PREPARING:
            self.causes.append(Cause(now, self.generation, why.text, why.reason))
            if self.state is State.COMPLETING:
                self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, why.text, now)
            delay_s = self.limits.initial_delay_s
            longest = self.members.longest_rebalance_s
            if self.state is State.EMPTY and delay_s > 0:
                self._initial_left = max(longest - delay_s, 0.0)
                self._join_until = now + min(delay_s, longest)
                self._has_grown = False
            else:
                self._initial_left = None
                self._join_until = now + longest
            self.state = State.PREPARING
            self._sync_until, self._assignments = NEVER, None
            self._unsynced.clear()
        self._look_for_all(now)

    def _look_for_all(self, now: float) -> None:
        """The generation begins once everybody is here; the first one also waits for its delay."""
        if self.state is not State.PREPARING or self._initial_left is not None:
            return
        if self.members.all_joined:
            self._begin_generation(now)

    def _time_to_join_is_over(self, now: float) -> None:
        left = self._initial_left
        if left and self._has_grown:
            # Others came meanwhile, and more may: as long again, within the longest timeout.
            more = min(self.limits.initial_delay_s, left)
            self._initial_left, self._join_until = left - more, now + more
            self._has_grown = False
            return
        self._initial_left = None
        self._begin_generation(now)

    def _begin_generation(self, now: float) -> None:
        late = [m for m in self.members if m.joining is None and not m.instance_id]
        for member in late:
            self._forget(member)  # a static one keeps its place until its session ends (KIP-345)
        here = [member for member in self.members if member.joining is not None]
        if self.members and not here:
            self._join_until = now + self.members.longest_rebalance_s
            return  # they are static and all away: nobody is there who could lead
        self.generation += 1
        self._join_until = NEVER
        if not self.members:
            self.state, self.protocol, self.leader = State.EMPTY, "", ""
            self._outcome.writes.append(Write(self.to_value(), ("empty",)))
            return
        if self.leader not in {member.member_id for member in here}:
            self.leader = here[0].member_id
        self.protocol = self.members.elect_protocol()
        self.state = State.COMPLETING
        self._sync_until = now + self.members.longest_rebalance_s
        self._unsynced = {member.member_id for member in here}
        for member in self.members:
            member.assignment = b""
            if member.joining is not None:
                self._answer_join(member, now)

    def _answer_join(self, member: Member, now: float, *, skip: bool = False) -> None:
        ticket, member.joining = member.joining, None
        member.touch(now)
        self._outcome.replies.append((ticket, self._joined(member, skip=skip)))

    def _joined(self, member: Member, *, skip: bool = False) -> g.JoinGroupResponse:
        leads = member.member_id == self.leader
        return g.JoinGroupResponse(
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            member_id=member.member_id,
            skip_assignment=skip and leads,
            members=[
                g.JoinedMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    metadata=each.metadata(self.protocol),
                )
                for each in (self.members if leads else ())
            ],
        )

    # -- the assignment --------------------------------------------------------------------------

    def _sync(
        self, request: g.SyncGroupRequest, ticket: Ticket, now: float
    ) -> g.SyncGroupResponse | None:
        member = self.members.find(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        if request.protocol and request.protocol != self.protocol:
            raise Refused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"protocol {request.protocol!r}, the group chose {self.protocol!r}",
            )
        if self.state is State.PREPARING:
            raise self._rebalancing()
        member.touch(now)
        self._unsynced.discard(member.member_id)
        if self.state is State.STABLE:
            return g.SyncGroupResponse(protocol=self.protocol, assignment=member.assignment)
        if member.syncing is not None:
            self._answer_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, "it asked again")
        member.syncing, member.session_until = ticket, NEVER
        if member.member_id == self.leader and self._assignments is None:
            given = {each.member_id: each.assignment for each in request.assignments}
            self._assignments = {m: given.get(m, b"") for m in self.members.by_id}
            value = self.to_value(self._assignments)
            self._outcome.writes.append(Write(value, ("sync", str(self.generation))))
        return None

    def _written(self, token: tuple[str, ...], refusal: Refused | None, now: float) -> None:
        match token:
            case ("sync", generation):
                if self.state is State.COMPLETING and generation == str(self.generation):
                    self._assignments_are_kept(refusal, now)  # of an older one nobody waits
            case ("static", new_id, old_id):
                self._static_is_kept(new_id, old_id, refusal, now)

    def _assignments_are_kept(self, refusal: Refused | None, now: float) -> None:
        if refusal is not None:
            self._refuse_syncs(refusal.code, refusal.message, now)
            self._begin(Why.of("unkept", "the assignment could not be kept", refusal.message), now)
            return
        assert self._assignments is not None
        self.state = State.STABLE
        for member in self.members:
            member.assignment = self._assignments.get(member.member_id, b"")
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                member.touch(now)
                answer = g.SyncGroupResponse(protocol=self.protocol, assignment=member.assignment)
                self._outcome.replies.append((ticket, answer))
        self._assignments = None

    def _static_is_kept(
        self, new_id: str, old_id: str, refusal: Refused | None, now: float
    ) -> None:
        member, before = self.members.by_id.get(new_id), self._replaced.pop(new_id, None)
        if member is None or member.joining is None or self.state is not State.STABLE:
            return  # it was overtaken, and is answered by what came
        if refusal is None:
            self._answer_join(member, now, skip=True)
            return
        self._answer_parked(member, refusal.code, refusal.message)
        self._rename(member, old_id)
        if before is not None:
            member.protocols, member.client_id = before.protocols, before.client_id
            member.session_s, member.rebalance_s = before.session_s, before.rebalance_s
        member.touch(now)

    def _refuse_syncs(self, code: ErrorCode, why: str, now: float) -> None:
        for member in self.members:
            if member.syncing is not None:
                self._answer_parked(member, code, why)
                member.touch(now)
        self._assignments = None

    # -- being there, and going ------------------------------------------------------------------

    def _heartbeat(self, request: g.GroupHeartbeatRequest, now: float) -> None:
        member = self.members.find(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        member.touch(now)
        if self.state is State.PREPARING:
            raise self._rebalancing()

    def _leave(self, leaving: g.LeavingMember, now: float) -> g.LeaveResult:
        try:
            self._let_out(leaving, now)
        except Refused as refusal:
            return leave_result(leaving, refusal)
        return leave_result(leaving)

    def _let_out(self, leaving: g.LeavingMember, now: float) -> None:
        member_id = leaving.member_id
        if leaving.instance_id and not member_id:
            member_id = self.members.static.get(leaving.instance_id, "")
        if member_id in self.members.pending:
            del self.members.pending[member_id]
            self._look_for_all(now)
            return
        member = self.members.find(member_id, leaving.instance_id)
        self._remove(member, Why.of("left", f"{member.name} left", leaving.reason), now)

    def _time_passed(self, now: float) -> None:
        """A member that was silent for too long is out, and nobody waits for ever."""
        for member_id in [m for m, until in self.members.pending.items() if until <= now]:
            del self.members.pending[member_id]
        for member in [m for m in self.members if m.session_until <= now]:
            if self.members.by_id.get(member.member_id) is member:
                why = f"{member.name} was silent for {member.session_s:g} s (session.timeout.ms)"
                self._remove(member, Why("silent", why), now)
        if self._sync_until <= now:
            self._sync_until = NEVER
            for member_id in sorted(self._unsynced & self.members.by_id.keys()):
                why = f"{member_id} never asked for its assignment"
                self._remove(self.members.by_id[member_id], Why("unsynced", why), now)
        if self.state is State.PREPARING and self._join_until <= now:
            self._time_to_join_is_over(now)
        self._look_for_all(now)

    def next_at(self) -> float:
        """When a `Tick` has something to do, if nothing else happens."""
        sessions = (member.session_until for member in self.members)
        sync_until = self._sync_until if self._unsynced else NEVER
        return min(self._join_until, sync_until, *self.members.pending.values(), *sessions, NEVER)

    def _remove(self, member: Member, why: Why, now: float) -> None:
        self._forget(member)
        if self.state is State.EMPTY:
            return
        self._begin(why, now)

    def _forget(self, member: Member) -> None:
        self._answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, "it is no member any more")
        self.members.remove(member)
        self._unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members.by_id), "")

    def _answer_parked(self, member: Member, code: ErrorCode, why: str) -> None:
        if member.joining is not None:
            ticket, member.joining = member.joining, None
            self._outcome.replies.append((ticket, g.JoinGroupResponse(error=code, message=why)))
        if member.syncing is not None:
            ticket, member.syncing = member.syncing, None
            self._outcome.replies.append((ticket, g.SyncGroupResponse(error=code, message=why)))

    # -- checks ----------------------------------------------------------------------------------

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise Refused(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {generation}, group {self.group_id!r} is in {self.generation}",
            )

    def _check_commit(self, request: g.OffsetCommitRequest, now: float) -> None:
        """Offsets are committed by members in the present generation, or by anybody while there is
        no member."""
        if request.generation < 0 and self.state is State.EMPTY:
            return
        member = self.members.find(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        if self.state is State.COMPLETING:
            raise self._rebalancing()
        member.touch(now)

    def _rebalancing(self) -> Refused:
        why = f": {self.causes[-1].text}" if self.causes else ""
        is_not_stable = f"group {self.group_id!r} is {self.state}{why}"
        return Refused(ErrorCode.REBALANCE_IN_PROGRESS, is_not_stable)

    # -- what is kept ----------------------------------------------------------------------------

    def to_value(self, assignments: dict[str, bytes] | None = None) -> GroupValue:
        """The group as it is kept."""
        return GroupValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            members=self.members.to_values(assignments or {}),
        )

    def restore(self, value: GroupValue, now: float) -> None:
        """Take over what another coordinator kept: everybody is a member, and has a whole session
        to show up. Members that no coordinator wrote down so have to join again."""
        self.protocol_type, self.empty_since_ms = value.protocol_type, value.written_at_ms
        self.generation = min(max(value.generation, 0), I32_MAX)
        if value.members and is_sound(value):
            for kept in value.members:
                self.members.add(Member.of_value(kept, now))
            self.state, self.protocol, self.leader = State.STABLE, value.protocol, value.leader
        if len(self.members) > (most := self.limits.size_max):
            self._begin(Why("size", f"more members than group.max.size {most}"), now)
        self._assert_consistent()

    def empty_since(self, now_ms: int) -> None:
        """Nobody is a member, as of now: what is committed is kept for a retention from here."""
        assert not self.members, f"{self.group_id} has members {list(self.members.by_id)}"
        self.empty_since_ms = now_ms
