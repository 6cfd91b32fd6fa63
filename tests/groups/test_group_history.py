"""A consumer group under any events in any order: silence, lost writes, other coordinators.

Goal: whatever happens, a generation has one leader and everybody in it gets what that leader gave
him, and once; generations never fall; a request that waits is answered once, and always when time
passes; every rebalance ends. Method: a Hypothesis state machine. What each leader gave is written
down when it says so, and every answer is compared with it.
"""

from __future__ import annotations

import pytest
from groupkit import BROKEN_DISK, Coordinator
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tries import tries

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.groups.group import State
from hightide_broker.core.groups.members import NEVER

E = ErrorCode
back = st.integers(0, 30)
sessions = st.sampled_from([6.0, 10.0, 30.0])
patience = st.sampled_from([2.0, 20.0, 60.0])
offers = st.sampled_from(["range:x rr:x"] * 12 + ["rr:x range:x", "range:y rr:x", "rr:x", "sticky"])
instances = st.sampled_from(["", "", "", "i", "j"])
seldom = st.sampled_from([False, False, True])
QUIET_S = 30 + 4 * 60
"""The longest session, and more rebalances than the silent ones can begin."""


def offered(member):
    """What a member says to assignors, as it would be said to the coordinator."""
    return " ".join(f"{p.name}:{p.metadata.decode()}" for p in member.protocols)


class AnyHistory(RuleBasedStateMachine):
    """Members are ids; whose id is of no use any more goes on asking, as zombies do."""

    @initialize(
        delay=st.sampled_from([0.0, 3.0]),
        size_max=st.sampled_from([100, 5, 2]),
        crowd=st.lists(st.sampled_from(["", "i", "j"]), min_size=1, max_size=4),
    )
    def begin(self, delay, size_max, crowd):
        self.on = Coordinator(initial_delay_s=delay, size_max=size_max)
        self.ids = []
        """Member id and instance id of all that ever were."""
        self.kept = None
        self.leaders, self.given, self.asked_in = {}, {}, {}
        self.highest = 0
        for instance in crowd:
            self.begin_a_process(instance, "range:x rr:x", 30.0, 60.0)
        self.a_calm_brings_everybody_together(True)

    def forget_from(self, generation):
        """What was said of later generations was not kept, and is of no meaning."""
        self.leaders, self.given = (
            {at: what for at, what in each.items() if at <= generation}
            for each in (self.leaders, self.given)
        )
        self.asked_in = {asked: at for asked, at in self.asked_in.items() if at <= generation}

    def who(self, back):
        """Mostly somebody who is a member; or anybody, by how far back."""
        members = [(m.member_id, m.instance_id) for m in self.on.group.members]
        among = members if members and back % 3 else self.ids
        return among[-1 - back % len(among)]

    def lasting(self, member_id):
        """The name of a member that a restart does not change."""
        return dict(self.ids)[member_id] or member_id

    # -- members ---------------------------------------------------------------------------------

    @rule(instance=instances, protocols=offers, session=sessions, rebalance=patience)
    def begin_a_process(self, instance, protocols, session, rebalance):
        new = f"m{len(self.ids)}"
        said = {"protocols": protocols, "session": session, "rebalance": rebalance}
        self.ids.append((new, instance))
        asked = self.on.join(new=new, instance=instance, **said)
        if asked.error == E.MEMBER_ID_REQUIRED and protocols != "rr:x":
            self.on.join(new, **said)

    @precondition(lambda self: self.on.group.members.static)
    @rule(back=back, changes=seldom)
    def restart_a_static_process(self, back, changes):
        static = sorted(self.on.group.members.static.items())
        instance, old = static[back % len(static)]
        member, new = self.on.group.members.by_id[old], f"m{len(self.ids)}"
        self.ids.append((new, instance))
        protocols = "range:z rr:z" if changes else offered(member)
        self.on.join(new=new, instance=instance, protocols=protocols)

    @precondition(lambda self: self.ids)
    @rule(back=back, protocols=offers, session=sessions, rebalance=patience)
    def join(self, back, protocols, session, rebalance):
        member, instance = self.who(back)
        said = {"protocols": protocols, "session": session, "rebalance": rebalance}
        self.on.join(member, instance=instance, **said)

    @precondition(lambda self: self.ids)
    @rule(back=back, omit=seldom, behind=st.sampled_from([0] * 6 + [1, -1]))
    def sync(self, back, omit, behind):
        member, instance = self.who(back)
        self.do_sync(member, instance, omit=omit, behind=behind)

    def do_sync(self, member, instance, *, omit=False, behind=0):
        group, before = self.on.group, len(self.on.writes)
        generation = group.generation - behind
        ids = self.on.ids[1:] if omit else self.on.ids
        given = {each: f"{self.on.now} {len(self.on.asked)} {each}" for each in ids}
        asked = self.on.sync(member, instance=instance, generation=generation, **given)
        self.asked_in[asked] = generation
        if len(self.on.writes) > before:
            assert member == group.leader
            assert generation not in self.given, "one leader, one assignment"
            by_name = {self.lasting(each): what.encode() for each, what in given.items()}
            self.given[generation] = by_name

    @rule()
    def the_leader_and_another_sync(self):
        for member in list(self.on.group.members)[:2]:
            self.do_sync(member.member_id, member.instance_id)

    @precondition(lambda self: self.ids)
    @rule(back=back, behind=st.sampled_from([0, 0, 0, 1]))
    def heartbeat(self, back, behind):
        member, instance = self.who(back)
        generation = self.on.generation - behind
        error = self.on.heartbeat(member, instance=instance, generation=generation)
        if error is None:
            assert behind == 0
            assert self.on.state in (State.COMPLETING, State.STABLE)
            assert member in self.on.ids

    @precondition(lambda self: self.ids)
    @rule(back=back, behind=st.sampled_from([0, 0, 0, 1]))
    def commit(self, back, behind):
        member, instance = self.who(back)
        generation = self.on.generation - behind
        error = self.on.commit(member, instance=instance, generation=generation)
        if error is None and generation >= 0:
            assert behind == 0
            assert member in self.on.ids
            assert self.on.state in (State.PREPARING, State.STABLE)

    @precondition(lambda self: self.ids)
    @rule(back=back, by_instance=st.booleans())
    def leave(self, back, by_instance):
        member, instance = self.who(back)
        if by_instance and instance:
            self.on.leave(instance=instance)
            assert instance not in self.on.group.members.static
        else:
            self.on.leave(member, instance=instance)
            assert member not in self.on.ids or instance

    # -- the coordinator -------------------------------------------------------------------------

    @rule(fails=seldom)
    def written(self, fails):
        if self.on.writes:
            write = self.on.written(BROKEN_DISK if fails else None)
            self.kept = self.kept if fails else write.value

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 5.0, 10.0, 61.0]))
    def wait(self, seconds):
        self.on.wait(seconds)

    @rule(now=seldom)
    def fail_over(self, now):
        if now:
            self.on.fail_over(self.kept)
            self.highest = self.on.generation
            self.forget_from(self.highest)
            assert self.on.parked == []

    # -- promises --------------------------------------------------------------------------------

    @rule(now=seldom)
    def silence_ends_everything(self, now):
        if now:
            self.all_is_written()
            for _ in range(4):
                self.on.wait(QUIET_S / 4)
                self.all_is_written()
            assert self.on.parked == []
            assert (self.on.state, self.on.ids) == (State.EMPTY, [])
            assert self.on.group.next_at() == NEVER

    @rule(now=st.booleans())
    def a_calm_brings_everybody_together(self, now):
        if not now:
            return
        self.all_is_written()
        for member in list(self.on.group.members.pending):
            self.on.leave(member)
        for _ in range(2):
            for member in self.on.group.members:
                if member.joining is None:
                    self.join_unchanged(member)
        self.on.wait(6 if self.on.state is State.PREPARING else 0)
        assert self.on.state in (State.COMPLETING, State.STABLE, State.EMPTY)
        self.all_sync()

    def join_unchanged(self, member):
        self.on.join(
            member.member_id,
            instance=member.instance_id,
            protocols=offered(member),
            session=member.session_s,
            rebalance=member.rebalance_s,
        )

    def all_sync(self):
        """All that are still there ask for its assignment, and all get theirs."""
        on = self.on
        if on.state is State.COMPLETING:
            for member in list(on.group.members):
                self.do_sync(member.member_id, member.instance_id)
            self.all_is_written()
            assert on.state is State.STABLE
            given = self.given[on.generation]
            for member in on.group.members:
                name = member.instance_id or member.member_id
                assert member.assignment == given.get(name, b"")

    def all_is_written(self):
        while self.on.writes:
            self.kept = self.on.written().value

    @invariant()
    def a_generation_has_one_leader_and_one_assignment(self):
        for asked in self.on.asked:
            if asked.waits or asked.error:
                continue
            answer = asked.answer
            if asked.kind == "join":
                leader = self.lasting(answer.leader)
                assert self.leaders.setdefault(answer.generation, leader) == leader
                ids = [member.member_id for member in answer.members]
                assert (answer.leader in ids) is (answer.leader == answer.member_id)
                assert len(ids) == len({*ids})
            elif asked in self.asked_in:
                given = self.given[self.asked_in.pop(asked)]
                assert answer.assignment == given.get(self.lasting(asked.member), b"")
        self.on.asked = [asked for asked in self.on.asked if asked.waits]

    @invariant()
    def generations_never_fall(self):
        assert self.on.generation >= self.highest
        self.highest = self.on.generation

    @invariant()
    def whoever_is_told_nothing_is_told_something_later(self):
        """Somebody will look: a clock, or a write that comes back."""
        on, waiting = self.on, []
        for member in on.group.members:
            waiting += [each for each in (member.joining, member.syncing) if each is not None]
        assert {*waiting} == {*on.parked}
        assert not waiting or on.writes or on.group.next_at() < NEVER

    @invariant()
    def in_stable_everybody_has_what_the_leader_gave_and_it_is_kept(self):
        if self.on.state is State.STABLE:
            given = self.given[self.on.generation]
            for member in self.on.group.members:
                name = member.instance_id or member.member_id
                assert member.assignment == given.get(name, b""), member
            assert self.kept is not None
            assert self.kept.generation == self.on.generation
            has = {m.instance_id or m.member_id: m.assignment for m in self.on.group.members}
            kept = {m.instance_id or m.member_id: m.assignment for m in self.kept.members}
            assert has == kept, "the next coordinator knows it"


@pytest.mark.slow
def test_a_group_keeps_its_promises_whatever_happens():
    run_state_machine_as_test(
        AnyHistory,
        settings=settings(max_examples=tries(150), stateful_step_count=50, deadline=None),
    )
