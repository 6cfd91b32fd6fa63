"""A consumer group driven by hand: requests, the answers they get, writes and time. Not a test.

A request is an `Asked`, and is its own ticket; its answer is there at once, comes later, or is a
refusal. `protocols` are written as `range:x rr:y`, an assignor and what is said to it. Times are in
seconds. `check` says what holds for every group after every event.
"""

from __future__ import annotations

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.groups import parts
from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.members import NEVER, common
from hightide_broker.core.groups.parts import Limits, State

SESSION_S = 10.0
REBALANCE_S = 60.0
BROKEN_DISK = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too few replicas")


class Asked:
    """A request of a member, and what became of it."""

    def __init__(self, kind, member="", instance=""):
        self.kind, self.member, self.instance = kind, member, instance
        self.answer = None

    def __repr__(self):
        return f"{self.kind} of {self.member or self.instance}: {self.answer}"

    @property
    def waits(self):
        return self.answer is None

    @property
    def error(self):
        """The code of a refusal; None also while the request waits."""
        return None if self.answer is None else self.answer.error

    def take(self, answer):
        assert self.answer is None, f"answered twice: {self}, then {answer}"
        self.answer = answer


def protocols_of(text):
    pairs = (word.partition(":") for word in text.split())
    return [g.Protocol(name=name, metadata=metadata.encode()) for name, _, metadata in pairs]


class Coordinator:
    """One group, the requests that wait in it, and the writes that are on their way."""

    def __init__(self, **limits):
        self.limits = Limits(**{"session_min_s": 6.0, "session_max_s": 1800.0, **limits})
        self.group = Group("g", self.limits)
        self.now = 0.0
        self.writes, self.asked = [], []

    # -- what happens ----------------------------------------------------------------------------

    def _step(self, event):
        """The answer, if it is there at once."""
        done = self.group.step(event, self.now)
        for ticket, answer in done.replies:
            ticket.take(answer)
        self.writes += done.writes
        check(self.group)
        return done.reply

    def _ask(self, asked, refused, event):
        try:
            answer = self._step(event)
        except Refused as refusal:
            answer = refused(error=refusal.code, message=refusal.message)
        if answer is not None:
            asked.take(answer)
        self.asked.append(asked)
        return asked

    def join(
        self,
        member="",
        *,
        new="",
        instance="",
        protocols="range:x",
        kind="consumer",
        session=SESSION_S,
        rebalance=REBALANCE_S,
        reason="",
    ):
        """`new` is the id that is given to who has none."""
        request = g.JoinGroupRequest(
            group="g",
            member_id=member,
            instance_id=instance,
            protocols=protocols_of(protocols),
            protocol_type=kind,
            session_timeout_ms=round(session * 1000),
            rebalance_timeout_ms=round(rebalance * 1000),
            client_id=f"client of {new or member}",
            reason=reason,
        )
        asked = Asked("join", member or new, instance)
        event = parts.Join(request, asked, new_id=new, host="/10.0.0.1")
        return self._ask(asked, g.JoinGroupResponse, event)

    def enter(self, member, **said):
        """A dynamic member gets its id and joins with it."""
        first = self.join(new=member, **said)
        assert first.error == ErrorCode.MEMBER_ID_REQUIRED, first
        assert first.answer.member_id == member
        return self.join(member, **said)

    def sync(self, member, *, generation=None, instance="", protocol="", **given):
        """Assignments are given as `a="x0"`."""
        request = g.SyncGroupRequest(
            group="g",
            member_id=member,
            generation=self.group.generation if generation is None else generation,
            instance_id=instance,
            protocol=protocol,
            assignments=[
                g.MemberAssignment(member_id=each, assignment=what.encode())
                for each, what in given.items()
            ],
        )
        asked = Asked("sync", member, instance)
        return self._ask(asked, g.SyncGroupResponse, parts.Sync(request, asked))

    def heartbeat(self, member, *, generation=None, instance=""):
        """The error, if there is one."""
        request = g.GroupHeartbeatRequest(
            group="g",
            member_id=member,
            generation=self.group.generation if generation is None else generation,
            instance_id=instance,
        )
        return self._refusal(parts.Heartbeat(request))

    def leave(self, member="", *, instance="", reason=""):
        leaving = g.LeavingMember(member_id=member, instance_id=instance, reason=reason)
        answer = self._step(parts.Leave(g.LeaveGroupRequest(group="g", members=[leaving])))
        (result,) = answer.members
        return result.error

    def commit(self, member="", *, generation=-1, instance=""):
        request = g.OffsetCommitRequest(
            group="g",
            member_id=member,
            generation=generation,
            instance_id=instance,
            partitions=[g.CommitPartition(topic="x", partition=0, offset=7)],
        )
        return self._refusal(parts.Commit(request))

    def _refusal(self, event):
        try:
            self._step(event)
        except Refused as refusal:
            check(self.group)
            return refusal.code
        return None

    def written(self, refusal=None):
        """The oldest write is done, or could not be."""
        write = self.writes.pop(0)
        self._step(parts.Written(write.token, refusal))
        return write

    def wait(self, seconds):
        """Time passes; a tick comes whenever it is due, and only then."""
        end = self.now + seconds
        while self.group.next_at() <= end:
            self.now = max(self.now, self.group.next_at())
            self._step(parts.Tick())
            assert self.group.next_at() > self.now, "what is due is done"
        self.now = end

    def fail_over(self, value):
        """Another broker takes over what was kept; all who wait here hear so."""
        gone = Refused(ErrorCode.NOT_COORDINATOR, "another broker")
        for ticket, answer in self.group.step(parts.Moved(gone), self.now).replies:
            ticket.take(answer)
        self.writes.clear()
        self.group = Group("g", self.limits)
        if value is not None:
            self.group.restore(value, self.now)
        check(self.group)

    # -- where it is -----------------------------------------------------------------------------

    @property
    def state(self):
        return self.group.state

    @property
    def generation(self):
        return self.group.generation

    @property
    def ids(self):
        return list(self.group.members.by_id)

    @property
    def parked(self):
        return [asked for asked in self.asked if asked.waits]

    def complete(self, *joins):
        """All sync, the leader first; member a gets `x-a`; and it is kept."""
        leader = self.group.leader
        members = [(m.member_id, m.instance_id) for m in self.group.members]
        given = {member: f"x-{member}" for member, _ in members}
        syncs = [self.sync(leader, **given)]
        syncs += [self.sync(m, instance=i) for m, i in members if m != leader]
        self.written()
        assert self.state is State.STABLE
        return [*joins, *syncs]


def started(*members, static=(), **limits):
    """A group that is Stable in generation 1; the first one leads. Of static ones the instance
    id of `a` is `i-a`."""
    on = Coordinator(**limits)
    for member in members:
        on.enter(member)
    for member in static:
        on.join(new=member, instance=f"i-{member}")
    on.wait(2 * on.limits.initial_delay_s)
    on.complete()
    return on


def check(group):
    """What holds for every group at any time."""
    members, state = group.members, group.state
    everybody = list(members)
    assert list(members.by_id) == [member.member_id for member in everybody]
    known = {member.instance_id: member.member_id for member in everybody if member.instance_id}
    assert members.static == known
    assert not members.pending.keys() & members.by_id.keys()
    for member in everybody:
        assert member.joining is None or member.syncing is None, f"{member} waits twice"
        if member.joining is None and member.syncing is None:
            assert member.session_until < NEVER, f"nobody notices the silence of {member.name}"
        assert member.syncing is None or state is State.COMPLETING
        if state is State.COMPLETING:
            assert member.joining is None
        if state is State.STABLE:
            assert member.joining is None or member.instance_id
    if state is State.EMPTY:
        assert (everybody, group.leader, group.protocol) == ([], "", "")
    elif state is State.PREPARING:
        assert group.next_at() < NEVER, "nobody ends this rebalance"
    else:
        assert group.leader in members.by_id
        assert group.protocol in common(everybody)
    assert len(group.causes) <= 20
