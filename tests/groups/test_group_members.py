"""The members of a consumer group: assignments, signs of life, leaving, commits, what is kept.

Goal: each rule of Kafka's classic protocol for what is asked between two rebalances: what a sync, a
heartbeat, a leave and a commit are answered in each state, and what another coordinator takes over.
Method: as in `test_group.py`.
"""

from __future__ import annotations

import msgspec
import pytest
from groupkit import (
    BROKEN_DISK,
    REBALANCE_S,
    SESSION_S,
    Coordinator,
    protocols_of,
    started,
)
from test_group import completing, preparing
from test_group_static import with_static

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.groups import parts
from hightide_broker.core.groups.group import State
from hightide_broker.core.groups.records import GroupValue, MemberValue, encode

E = ErrorCode


# --- the assignment -------------------------------------------------------------------------------


def test_syncs_wait_for_the_leaders_and_for_the_write():
    on, _ = completing("a", "b", "c")
    before = on.sync("b")
    leaders = on.sync("a", a="x0", b="x1")
    after = on.sync("c")
    assert on.parked == [before, leaders, after]
    assert on.state is State.COMPLETING
    write = on.written()
    assert on.state is State.STABLE
    given = [sync.answer.assignment for sync in (leaders, before, after)]
    assert given == [b"x0", b"x1", b""]
    assert [member.assignment for member in write.value.members] == given
    assert {sync.answer.protocol for sync in (leaders, before, after)} == {"range"}


def test_what_a_follower_says_about_assignments_counts_for_nothing():
    on, _ = completing("a", "b")
    on.sync("b", a="mine", b="mine")
    assert on.writes == []


def test_assignments_of_strangers_are_dropped():
    on, _ = completing("a")
    on.sync("a", a="x0", stranger="x1")
    assert [member.member_id for member in on.written().value.members] == ["a"]


def test_in_stable_a_sync_is_answered_with_what_is_kept():
    on = started("a", "b")
    assert on.sync("b").answer.assignment == b"x-b"
    assert on.sync("a", a="other", b="other").answer.assignment == b"x-a"
    assert on.writes == []


def test_a_member_that_asks_again_waits_once():
    on, _ = completing("a", "b")
    first, second = on.sync("b"), on.sync("b")
    assert first.error == E.REBALANCE_IN_PROGRESS
    on.sync("a", b="x1")
    again = on.sync("a", b="other")
    assert len(on.writes) == 1
    on.written()
    assert second.answer.assignment == b"x1"
    assert again.answer.assignment == b""


def test_a_sync_is_of_this_generation_and_its_assignor():
    on, _ = completing("a")
    assert on.sync("a", generation=0).error == E.ILLEGAL_GENERATION
    assert on.sync("a", generation=2).error == E.ILLEGAL_GENERATION
    assert on.sync("a", protocol="rr").error == E.INCONSISTENT_GROUP_PROTOCOL
    assert on.sync("a", protocol="range").waits
    assert preparing("a").sync("a").error == E.REBALANCE_IN_PROGRESS


def test_an_assignment_that_cannot_be_kept_is_nobodys():
    on, _ = completing("a", "b")
    syncs = on.sync("b"), on.sync("a", a="x0", b="x1")
    on.written(BROKEN_DISK)
    assert [sync.error for sync in syncs] == [E.COORDINATOR_NOT_AVAILABLE] * 2
    assert (on.state, on.generation) == (State.PREPARING, 1)
    assert "could not be kept" in on.group.causes[-1].text
    joins = on.join("a"), on.join("b")
    assert [join.answer.generation for join in joins] == [2, 2]
    assert on.sync("b").waits
    assert on.writes == []


@pytest.mark.parametrize("refusal", [None, BROKEN_DISK])
@pytest.mark.parametrize("how_far", ["preparing", "completing", "syncing"])
def test_a_write_of_an_older_generation_means_nothing(how_far, refusal):
    on, _ = completing("a")
    on.sync("a", a="old")
    on.enter("b")
    if how_far != "preparing":
        on.join("a")
    sync = on.sync("a", a="new") if how_far == "syncing" else None
    state = on.state
    on.written(refusal)
    assert on.state is state
    if sync is not None:
        assert sync.waits
        on.written()
        assert sync.answer.assignment == b"new"


def test_who_never_asks_for_its_assignment_is_out():
    on, _ = completing("a", "b", "c")
    syncs = on.sync("a", a="x0"), on.sync("b")
    on.written()
    for _ in range(11):
        on.wait(5)
        assert [on.heartbeat(member) for member in "abc"] == [None] * 3
    assert (on.state, on.now) == (State.STABLE, 61.0)
    on.wait(5)
    assert (on.state, on.ids) == (State.PREPARING, ["a", "b"])
    assert "never asked" in on.group.causes[-1].text
    assert [sync.error for sync in syncs] == [None, None]


def test_a_leader_that_never_says_who_gets_what_is_out():
    on, _ = completing("a", "b")
    sync = on.sync("b")
    for _ in range(12):
        on.wait(5)
        on.heartbeat("a")
    assert (sync.error, on.ids) == (E.REBALANCE_IN_PROGRESS, ["b"])
    assert on.join("b").answer.leader == "b"


# --- signs of life --------------------------------------------------------------------------------


def test_what_a_heartbeat_is_answered():
    assert started("a").heartbeat("a") is None
    assert completing("a")[0].heartbeat("a") is None
    assert preparing("a").heartbeat("a") == E.REBALANCE_IN_PROGRESS
    assert Coordinator().heartbeat("a") == E.UNKNOWN_MEMBER_ID
    for on in (started("a"), completing("a")[0], preparing("a")):
        assert on.heartbeat("a", generation=0) == E.ILLEGAL_GENERATION
        assert on.heartbeat("a", generation=2) == E.ILLEGAL_GENERATION


@pytest.mark.parametrize("begin", [started, preparing, lambda *who: completing(*who)[0]])
def test_a_heartbeat_keeps_a_session_alive_in_every_state(begin):
    on = begin("a", "b")
    for _ in range(5):
        on.wait(5)
        on.heartbeat("a")
    assert "a" in on.ids
    assert "b" not in on.ids


@pytest.mark.parametrize("asks", ["sync", "commit"])
def test_other_requests_are_signs_of_life_too(asks):
    on = started("a", "b")
    for _ in range(5):
        on.wait(5)
        on.heartbeat("b")
        if asks == "sync":
            on.sync("a")
        else:
            assert on.commit("a", generation=1) is None
    assert on.ids == ["a", "b"]


def test_silence_ends_a_membership_and_begins_a_rebalance():
    on = started("a", "b")
    on.wait(5)
    on.heartbeat("b")
    on.wait(4.5)
    assert on.state is State.STABLE
    on.wait(0.5)
    assert (on.state, on.ids) == (State.PREPARING, ["b"])
    assert on.group.causes[-1].text == "a was silent for 10 s (session.timeout.ms)"


def test_silence_while_assignments_are_awaited_begins_a_rebalance():
    on, _ = completing("a", "b")
    sync = on.sync("b")
    on.wait(SESSION_S)
    assert (sync.error, on.state, on.ids) == (E.REBALANCE_IN_PROGRESS, State.PREPARING, ["b"])


def test_silence_may_end_a_rebalance():
    on = preparing("a", "b")
    join = on.join("a")
    on.wait(SESSION_S)
    assert (join.answer.generation, on.ids) == (2, ["a", "z"])


def test_a_parked_sync_counts_as_alive_whatever_else_was_heard():
    on, _ = completing("a", "b")
    on.sync("b")
    on.heartbeat("b")
    for _ in range(3):
        on.wait(5)
        on.heartbeat("a")
    assert on.ids == ["a", "b"]


# --- leaving --------------------------------------------------------------------------------------


def test_who_leaves_begins_a_rebalance():
    for on in (started("a", "b"), completing("a", "b")[0]):
        assert on.leave("a", reason="closed") is None
        assert (on.state, on.ids, on.group.leader) == (State.PREPARING, ["b"], "b")
        assert on.group.causes[-1].text == "a left: closed"


def test_who_leaves_is_answered_whatever_it_waits_for():
    on = started("a", "b")
    join = on.join("a")
    on.leave("a")
    assert join.error == E.UNKNOWN_MEMBER_ID
    on, _ = completing("a", "b")
    sync = on.sync("b")
    on.leave("b")
    assert sync.error == E.UNKNOWN_MEMBER_ID


def test_leaving_may_end_a_rebalance():
    on = preparing("a", "b")
    join = on.join("b")
    on.leave("a")
    assert (join.answer.generation, join.answer.leader) == (2, "b")


def test_the_last_one_leaves_an_empty_group():
    on = started("a")
    on.leave("a")
    assert (on.state, on.generation) == (State.EMPTY, 2)
    (write,) = on.writes
    assert write.value == GroupValue(protocol_type="consumer", generation=2)
    assert on.leave("a") == E.UNKNOWN_MEMBER_ID


def test_all_leave_before_the_first_generation():
    on = Coordinator()
    join = on.enter("a")
    on.leave("a")
    assert join.error == E.UNKNOWN_MEMBER_ID
    on.wait(6)
    assert (on.state, on.generation) == (State.EMPTY, 1)


def test_a_static_member_leaves_by_its_instance_id():
    on = with_static()
    assert on.leave(instance="i-other") == E.UNKNOWN_MEMBER_ID
    assert on.leave("a", instance="i") == E.FENCED_INSTANCE_ID
    assert on.leave() == E.UNKNOWN_MEMBER_ID
    assert on.state is State.STABLE
    assert on.leave(instance="i") is None
    assert (on.state, on.ids) == (State.PREPARING, ["a"])


# --- commits --------------------------------------------------------------------------------------


def test_commits_of_nobody_are_for_empty_groups():
    assert Coordinator().commit() is None
    for on in (started("a"), preparing("a"), completing("a")[0]):
        assert on.commit() == E.UNKNOWN_MEMBER_ID
        assert on.commit("a") == E.ILLEGAL_GENERATION


def test_commits_of_members_are_of_this_generation():
    on = with_static()
    assert on.commit("a", generation=1) is None
    assert on.commit("s", generation=1, instance="i") is None
    assert on.commit("a", generation=0) == E.ILLEGAL_GENERATION
    assert on.commit("a", generation=2) == E.ILLEGAL_GENERATION
    assert on.commit("a", generation=1, instance="i") == E.FENCED_INSTANCE_ID
    assert Coordinator().commit("a", generation=1) == E.UNKNOWN_MEMBER_ID


def test_members_commit_before_they_join_again_but_not_before_they_know_what_is_theirs():
    on = preparing("a")
    assert on.commit("a", generation=1) is None
    on.join("a")
    assert on.commit("a", generation=1) == E.ILLEGAL_GENERATION
    assert on.commit("a", generation=2) == E.REBALANCE_IN_PROGRESS
    on.complete()
    assert on.commit("a", generation=2) is None


# --- what is kept, and who takes over -------------------------------------------------------------


def test_what_is_kept_of_a_group():
    on = with_static(session=30)
    on.group.members.by_id["a"].host = "/10.0.0.2"
    protocols = protocols_of("range:x rr:x")
    every = {"rebalance_ms": 60_000, "protocols": protocols}
    a = {"member_id": "a", "client_id": "client of a", "host": "/10.0.0.2", "session_ms": 10_000}
    s = {"member_id": "s", "client_id": "client of s", "host": "/10.0.0.1", "session_ms": 30_000}
    assert on.group.to_value() == GroupValue(
        generation=1,
        protocol_type="consumer",
        protocol="range",
        leader="a",
        members=[
            MemberValue(**every, **a, assignment=b"x-a"),
            MemberValue(**every, **s, assignment=b"x-s", instance_id="i"),
        ],
    )


def test_another_coordinator_takes_over_and_members_go_on():
    on = with_static()
    kept = on.group.to_value()
    on.now = 1000.0
    on.fail_over(kept)
    assert (on.state, on.generation, on.group.to_value()) == (State.STABLE, 1, kept)
    assert on.heartbeat("a") is None
    assert on.sync("s", instance="i").answer.assignment == b"x-s"
    assert on.heartbeat("other", instance="i") == E.FENCED_INSTANCE_ID
    assert on.join("a").waits, "it leads"


def test_who_does_not_show_up_at_the_next_coordinator_is_out_after_a_session():
    on = with_static(session=30)
    on.now = 1000.0
    on.fail_over(on.group.to_value())
    assert on.group.next_at() == 1010.0
    on.wait(10)
    assert on.ids == ["s"]
    on.wait(20)
    assert on.state is State.EMPTY


def test_an_empty_group_is_taken_over_empty():
    on = Coordinator()
    on.fail_over(GroupValue(generation=7, protocol_type="consumer", written_at_ms=123))
    assert (on.state, on.generation, on.group.empty_since_ms) == (State.EMPTY, 7, 123)
    assert on.commit() is None
    join = on.enter("a")
    on.wait(3)
    assert join.answer.generation == 8


@pytest.mark.parametrize("begin", [preparing, lambda *who: completing(*who)[0]])
def test_who_waits_hears_that_another_broker_coordinates(begin):
    on = begin("a", "b")
    waiting = on.sync("b") if on.state is State.COMPLETING else on.join("b")
    on.fail_over(None)
    assert waiting.error == E.NOT_COORDINATOR
    assert on.parked == []


def test_a_group_that_is_too_large_is_rebalanced_by_who_takes_over():
    on = started("a", "b", "c")
    on.limits = on.limits._replace(size_max=2)
    on.fail_over(on.group.to_value())
    assert on.state is State.PREPARING
    assert "group.max.size 2" in on.group.causes[-1].text


def test_the_last_to_join_a_group_that_is_too_large_are_out():
    on = started("a", "b", "c")
    on.limits = on.limits._replace(size_max=2)
    on.fail_over(on.group.to_value())
    joins = [on.join(member) for member in "abc"]
    assert [join.error for join in joins][2] == E.GROUP_MAX_SIZE_REACHED
    on.wait(REBALANCE_S)
    assert len(joins[0].answer.members) == 2


AS_KEPT = MemberValue(
    member_id="a",
    session_ms=10_000,
    rebalance_ms=60_000,
    protocols=[g.Protocol(name="range", metadata=b"x")],
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"leader": "nobody"},
        {"protocol": "unknown"},
        {"members": []},
        {"generation": -7},
        {"generation": (1 << 64) - 1},
        {"members": [MemberValue(member_id="a", session_ms=500, rebalance_ms=0, protocols=[])]},
        {"members": [AS_KEPT, msgspec.structs.replace(AS_KEPT, instance_id="i")]},
        {"members": [msgspec.structs.replace(AS_KEPT, session_ms=(1 << 64) - 1)]},
        {"members": [msgspec.structs.replace(AS_KEPT, protocols=[])]},
    ],
    ids=str,
)
def test_a_value_that_no_coordinator_wrote_harms_nobody(wrong):
    on = with_static()
    on.fail_over(msgspec.structs.replace(on.group.to_value(), **wrong))
    on.wait(1000)
    assert on.state is State.EMPTY
    while on.writes:
        on.written()
    joins = [on.enter("b"), on.join(new="c", instance="i")]
    on.wait(6)
    assert joins[0].answer.leader == "b"
    on.complete()
    encode(on.group.to_value())


def test_a_value_is_kept_as_it_was_after_a_round_trip():
    kept = with_static().group.to_value()
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=GroupValue)
    on = Coordinator()
    on.fail_over(again)
    assert on.group.to_value() == kept


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"session": 5.999}, "5999, expected 6000 to 1800000 "),
        ({"session": 1800.001}, "1800001, expected 6000 to 1800000 "),
        ({"rebalance": 0}, "rebalance_timeout_ms is 0, expected 1 to 2147483647 "),
        ({"protocols": ""}, "no protocol is offered"),
    ],
    ids=["short", "long", "rebalance", "protocols"],
)
def test_a_refused_join_names_the_value_and_what_was_expected(said, told):
    assert told in Coordinator().join(new="a", **said).answer.message


def test_the_shortest_and_the_longest_times_are_taken():
    on = Coordinator(initial_delay_s=0)
    on.enter("a", session=6.0, rebalance=0.001)
    on.enter("b", session=1800.0, rebalance=2147483.647)
    assert set(on.ids) == {"a", "b"}


def test_who_is_refused_hears_of_whom_and_by_what():
    on = started("a", size_max=1, initial_delay_s=0)
    assert "the group has 1 member and 0 that may join, group.max.size is 1" in (
        on.join(new="b").answer.message
    )
    assert "the group is of type 'consumer', not 'connect'" in (
        on.join(new="b", kind="connect").answer.message
    )
    refused = on.join(new="b", protocols="rr:x").answer.message
    assert "the assignors ['rr'] are offered, the members agree on ['range']" in refused
    assert "protocol 'rr', the group chose 'range'" in on.sync("a", protocol="rr").answer.message
    assert on.sync("a").answer.protocol == "range"
    for who, named in ((("b", ""), "b"), (("", "i"), "i"), (("", ""), "nobody")):
        (result,) = on._step(leaving(*who)).members
        assert (result.member_id, result.instance_id) == who
        assert named in result.message
    (result,) = on._step(leaving("a", "")).members
    assert (result.error, result.message) == (None, "")


def leaving(member, instance):
    one = g.LeavingMember(member_id=member, instance_id=instance, reason="")
    return parts.Leave(g.LeaveGroupRequest(group="g", members=[one]))


def test_a_member_that_the_leader_gives_nothing_has_nothing():
    on, _ = completing("a", "b")
    syncs = on.sync("a", a="x0"), on.sync("b")
    on.written()
    assert [sync.answer.assignment for sync in syncs] == [b"x0", b""]
