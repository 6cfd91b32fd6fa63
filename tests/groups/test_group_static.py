"""Static members of a consumer group: a process that is restarted takes the place of the last one.

Goal: within its session such a restart begins no rebalance unless it changes what the group agreed
on, the process before is fenced, and a new id counts only once it is kept (KIP-345, KIP-814).
Method: as in `test_group.py`.
"""

from __future__ import annotations

import pytest
from groupkit import BROKEN_DISK, SESSION_S, Coordinator

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.groups.group import State

E = ErrorCode


def with_static(*, protocols="range:x rr:x", session=SESSION_S):
    """Stable in generation 1: `a` leads, `s` is static as `i`."""
    on = Coordinator()
    on.enter("a", protocols=protocols)
    on.join(new="s", instance="i", protocols=protocols, session=session)
    on.wait(6)
    on.complete()
    return on


def test_a_static_member_that_begins_again_keeps_its_place():
    on = with_static()
    join = on.join(new="s2", instance="i", protocols="range:x rr:x")
    assert join.waits, "before its id is kept"
    write = on.written()
    assert [m.member_id for m in write.value.members] == ["a", "s2"]
    assert (write.value.generation, write.value.members[1].assignment) == (1, b"x-s")
    assert (join.answer.generation, join.answer.member_id) == (1, "s2")
    assert (join.answer.leader, join.answer.members) == ("a", [])
    assert on.sync("s2", instance="i").answer.assignment == b"x-s"
    assert (on.state, on.generation) == (State.STABLE, 1)


def test_the_process_before_is_fenced():
    on = with_static()
    on.join(new="s2", instance="i", protocols="range:x rr:x")
    on.written()
    assert on.heartbeat("s", instance="i") == E.FENCED_INSTANCE_ID
    assert on.commit("s", instance="i", generation=1) == E.FENCED_INSTANCE_ID
    assert on.leave("s", instance="i") == E.FENCED_INSTANCE_ID
    assert on.sync("s", instance="i").error == E.FENCED_INSTANCE_ID
    assert on.join("s", instance="i").error == E.FENCED_INSTANCE_ID
    assert on.heartbeat("s") == E.UNKNOWN_MEMBER_ID
    assert on.heartbeat("s2", instance="i") is None


def test_a_static_leader_that_begins_again_assigns_nothing():
    on = Coordinator()
    on.join(new="s", instance="i")
    on.enter("a")
    on.wait(6)
    on.complete()
    join = on.join(new="s2", instance="i")
    assert on.written().value.leader == "s2"
    assert join.answer.skip_assignment
    assert join.answer.leader == on.group.leader == "s2"
    assert [m.member_id for m in join.answer.members] == ["s2", "a"]


def test_a_static_member_whose_new_id_cannot_be_kept_keeps_the_old_one():
    on = with_static()
    join = on.join(new="s2", instance="i", protocols="range:x rr:x")
    on.written(BROKEN_DISK)
    assert join.error == E.COORDINATOR_NOT_AVAILABLE
    assert (on.state, on.ids) == (State.STABLE, ["a", "s"])
    assert on.heartbeat("s", instance="i") is None
    assert on.heartbeat("s2", instance="i") == E.FENCED_INSTANCE_ID


def test_a_static_member_whose_new_id_cannot_be_kept_stays_as_it_was():
    on = with_static()
    before = on.group.to_value()
    on.join(new="s2", instance="i", protocols="range:x", session=30)
    on.written(BROKEN_DISK)
    assert on.group.to_value() == before


def test_a_static_member_that_reads_something_else_begins_a_rebalance():
    for protocols in ("range:y rr:x", "rr:x"):
        on = with_static()
        assert on.join(new="s2", instance="i", protocols=protocols).waits
        assert (on.state, on.ids) == (State.PREPARING, ["a", "s2"])


def test_a_static_member_may_change_what_it_says_to_assignors_that_are_not_chosen():
    on = with_static()
    join = on.join(new="s2", instance="i", protocols="range:x rr:y")
    on.written()
    assert join.answer.generation == 1


def test_a_static_member_that_makes_another_assignor_win_begins_a_rebalance():
    on = Coordinator()
    on.join(new="s", instance="i", protocols="range:x rr:x")
    on.wait(3)
    on.complete()
    on.join(new="s2", instance="i", protocols="rr:x range:x")
    assert on.state is not State.STABLE


def test_a_static_member_that_begins_again_before_it_has_its_assignment_begins_a_rebalance():
    on = Coordinator()
    on.enter("a")
    on.join(new="s", instance="i")
    on.wait(6)
    sync = on.sync("s", instance="i")
    join = on.join(new="s2", instance="i")
    assert (sync.error, on.state) == (E.FENCED_INSTANCE_ID, State.PREPARING)
    on.join("a")
    assert (join.answer.generation, on.ids) == (2, ["a", "s2"])


def test_a_static_member_that_begins_again_during_a_rebalance_is_just_replaced():
    on = with_static()
    on.join("a")
    begun = len(on.group.causes)
    on.enter("b")
    first = on.join("s", instance="i", protocols="range:x rr:x")
    assert first.answer.generation == 2
    on.join("a", protocols="range:y rr:y")
    on.join("s", instance="i")
    second = on.join(new="s2", instance="i")
    assert on.ids == ["a", "s2", "b"]
    on.join("b")
    assert second.answer.generation == 3
    assert len(on.group.causes) == begun + 1


def test_a_parked_join_of_the_process_before_is_fenced():
    on = with_static()
    on.enter("b")
    parked = on.join("s", instance="i", protocols="range:x rr:x")
    newer = on.join(new="s2", instance="i", protocols="range:x rr:x")
    assert parked.error == E.FENCED_INSTANCE_ID
    on.join("a")
    assert newer.answer.member_id == "s2"


@pytest.mark.parametrize("refusal", [None, BROKEN_DISK])
def test_a_rebalance_overtakes_the_write_of_a_static_member(refusal):
    on = with_static()
    join = on.join(new="s2", instance="i", protocols="range:x rr:x")
    on.join("a")
    assert (join.answer.generation, on.state) == (2, State.COMPLETING)
    on.written(refusal)
    assert (on.state, on.ids) == (State.COMPLETING, ["a", "s2"])


def test_a_static_member_that_begins_again_twice_is_the_last_one():
    on = with_static()
    first = on.join(new="s2", instance="i", protocols="range:x rr:x")
    second = on.join(new="s3", instance="i", protocols="range:x rr:x")
    assert first.error == E.FENCED_INSTANCE_ID
    on.written()
    assert second.waits
    on.written()
    assert second.answer.member_id == "s3"


def test_a_restart_before_the_assignment_was_asked_for_does_not_end_the_wait_for_that():
    on = Coordinator()
    on.enter("a")
    on.join(new="s", instance="i")
    on.wait(6)
    on.sync("a", a="x-a", s="x-s")
    on.written()
    assert on.state is State.STABLE
    join = on.join(new="s2", instance="i")
    on.written()
    assert (join.answer.member_id, join.answer.generation) == ("s2", 1)
    for _ in range(12):
        on.wait(5)
        on.heartbeat("a")
        on.heartbeat("s2", instance="i")
    assert on.ids == ["a"]
    assert "s2 never asked" in on.group.causes[-1].text
