"""A consumer group and who joins it: from the first request to the next generation.

Goal: Kafka's rules of joining, each on its own: who may join, which assignor is chosen, what a join
is answered in each state, when a generation begins and without whom (KIP-62, 134, 394). Method: a
group is driven by hand, with a clock that stands still if not told; after each event its fields
have to fit together. What happens between two rebalances is in `test_group_members.py`.
"""

from __future__ import annotations

import pytest
from groupkit import REBALANCE_S, SESSION_S, Coordinator, started

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.groups.group import REBALANCES_KEPT, State
from hightide_broker.core.groups.members import NEVER

E = ErrorCode


def preparing(*members, **limits):
    """A Stable group in whose generation 1 one more, z, has just joined."""
    on = started(*members, **limits)
    on.enter("z")
    assert on.state is State.PREPARING
    return on


def completing(*members, **limits):
    """Generation 1 has begun, and nobody has asked for an assignment."""
    on = Coordinator(**limits)
    joins = [on.enter(member) for member in members]
    on.wait(2 * on.limits.initial_delay_s)
    assert on.state is State.COMPLETING
    return on, joins


# --- who may join ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("session", "error"), [(5.999, True), (6, False), (30, False), (31, True)])
def test_a_session_timeout_has_bounds(session, error):
    on = Coordinator(session_max_s=30.0)
    refused = on.join(new="a", session=session).error
    assert refused == (E.INVALID_SESSION_TIMEOUT if error else E.MEMBER_ID_REQUIRED)


@pytest.mark.parametrize("rebalance", [0, (1 << 31) / 1000, float(1 << 54)])
def test_a_rebalance_timeout_has_bounds(rebalance):
    """What is kept of a member must fit into its record."""
    on = Coordinator()
    assert on.join(new="a", rebalance=rebalance).error == E.INVALID_REQUEST
    assert on.join(new="a", rebalance=((1 << 31) - 1) / 1000).error == E.MEMBER_ID_REQUIRED


def test_who_has_no_id_is_given_one_and_is_no_member_before_it_joins_with_it():
    on = Coordinator()
    first = on.join(new="a")
    assert (first.error, first.answer.member_id) == (E.MEMBER_ID_REQUIRED, "a")
    assert (on.state, on.ids) == (State.EMPTY, [])
    assert on.heartbeat("a") == E.UNKNOWN_MEMBER_ID
    assert on.join("a").waits
    assert (on.state, on.ids) == (State.PREPARING, ["a"])


def test_an_id_that_is_not_used_is_forgotten_after_its_session():
    on = Coordinator()
    on.join(new="a")
    assert on.group.next_at() == SESSION_S
    on.wait(SESSION_S)
    assert on.join("a").error == E.UNKNOWN_MEMBER_ID
    assert on.group.next_at() == NEVER


def test_a_full_group_takes_nobody_else():
    on = started("a", "b", size_max=2)
    assert on.join(new="c").error == E.GROUP_MAX_SIZE_REACHED
    assert on.join(new="c", instance="i").error == E.GROUP_MAX_SIZE_REACHED
    assert (on.state, on.ids) == (State.STABLE, ["a", "b"])


def test_known_members_may_rejoin_a_full_group():
    on = started("a", static=["s"], size_max=2)
    first = on.join("a")
    second = on.join(new="s2", instance="i-s")
    assert (first.answer.generation, second.answer.generation) == (2, 2)


def test_ids_that_were_given_out_take_room_until_they_are_forgotten():
    on = Coordinator(size_max=1)
    on.join(new="a")
    assert on.join(new="b").error == E.GROUP_MAX_SIZE_REACHED
    on.wait(SESSION_S)
    assert on.join(new="b").error == E.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("state", ["empty", "stable", "preparing", "completing"])
def test_an_id_that_nobody_gave_out_is_unknown(state):
    on = {
        "empty": Coordinator,
        "stable": lambda: started("a"),
        "preparing": lambda: preparing("a"),
        "completing": lambda: completing("a")[0],
    }[state]()
    before = on.state, on.generation, on.ids
    assert on.join("stranger").error == E.UNKNOWN_MEMBER_ID
    assert on.sync("stranger").error == E.UNKNOWN_MEMBER_ID
    assert on.heartbeat("stranger") == E.UNKNOWN_MEMBER_ID
    assert on.leave("stranger") == E.UNKNOWN_MEMBER_ID
    assert on.commit("stranger", generation=on.generation) == E.UNKNOWN_MEMBER_ID
    assert (on.state, on.generation, on.ids) == before


def test_an_instance_id_has_to_be_the_members_own():
    on = started("a", static=["s"])
    assert on.join("a", instance="i-s").error == E.FENCED_INSTANCE_ID
    assert on.join("s", instance="i-other").error == E.UNKNOWN_MEMBER_ID
    assert on.join("a", instance="i-other").error == E.UNKNOWN_MEMBER_ID
    assert on.state is State.STABLE


def test_an_id_that_was_given_out_takes_no_instance_id_from_a_member():
    on = started("a", static=["s"])
    on.join(new="b")
    assert on.join("b", instance="i-s").error == E.FENCED_INSTANCE_ID


# --- protocols ------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [{"protocols": ""}, {"kind": ""}])
@pytest.mark.parametrize("begin", [Coordinator, lambda: started("a")])
def test_something_has_to_be_offered(said, begin):
    assert begin().join(new="b", **said).error == E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("said", [{"kind": "connect"}, {"protocols": "rr"}])
def test_who_cannot_agree_with_the_members_does_not_join(said):
    on = started("a", "b")
    assert on.join(new="c", **said).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert on.join("b", **said).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert on.join(new="c", instance="i", **said).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert on.state is State.STABLE


def test_an_assignor_has_to_be_known_to_all_members_not_to_some():
    on = Coordinator()
    on.enter("a", protocols="range rr")
    on.enter("b", protocols="rr sticky")
    assert on.join(new="c", protocols="range sticky").error == E.INCONSISTENT_GROUP_PROTOCOL
    assert on.join(new="c", protocols="sticky rr").error == E.MEMBER_ID_REQUIRED


def test_an_empty_group_takes_any_type_and_assignor():
    on = started("a")
    on.leave("a")
    assert on.state is State.EMPTY
    assert on.enter("b", kind="connect", protocols="own").waits
    assert on.group.protocol_type == "connect"


def test_a_lone_member_does_not_change_the_type_of_its_group():
    on = started("a")
    assert on.join("a", kind="connect").error == E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        (["range rr", "rr range", "rr range"], "rr"),
        (["sticky range rr", "range rr", "rr range"], "range"),
        (["a b c", "b c", "c b"], "b"),
        (["x rr", "y rr", "z rr"], "rr"),
    ],
)
def test_most_votes_win_among_what_all_know(offers, chosen):
    on = Coordinator()
    joins = [on.enter(f"m{at}", protocols=offer) for at, offer in enumerate(offers)]
    on.wait(6)
    assert {join.answer.protocol for join in joins} == {chosen}


def test_the_leader_hears_what_all_say_to_the_chosen_assignor():
    on = Coordinator()
    leader = on.enter("a", protocols="range:ax rr:ay")
    other = on.enter("b", protocols="rr:by")
    static = on.join(new="s", instance="i", protocols="rr:sy range:sx")
    on.wait(6)
    told = [(m.member_id, m.instance_id, m.metadata) for m in leader.answer.members]
    assert told == [("a", "", b"ay"), ("b", "", b"by"), ("s", "i", b"sy")]
    assert other.answer.members == static.answer.members == []
    assert {join.answer.leader for join in (leader, other, static)} == {"a"}
    assert not leader.answer.skip_assignment


# --- joining again, by state ----------------------------------------------------------------------


def test_joining_again_while_others_are_waited_for_takes_the_place_of_the_first_request():
    on = started("a", "b")
    first = on.join("a")
    second = on.join("a", protocols="range:y")
    assert first.error == E.REBALANCE_IN_PROGRESS
    assert second.waits
    on.join("b")
    assert second.answer.generation == 2
    assert second.answer.members[0].metadata == b"y"


def test_a_lost_answer_is_given_again_while_assignments_are_awaited():
    on, joins = completing("a", "b")
    assert on.join("a").answer == joins[0].answer
    assert on.join("b").answer == joins[1].answer
    assert len(joins[0].answer.members) == 2
    assert (on.state, on.generation) == (State.COMPLETING, 1)


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_changed_subscription_begins_a_rebalance_while_assignments_are_awaited(who):
    on, _ = completing("a", "b")
    sync = on.sync("a" if who == "b" else "b")
    assert on.join(who, protocols="range:y").waits
    assert on.state is State.PREPARING
    assert sync.error == E.REBALANCE_IN_PROGRESS


def test_in_stable_a_follower_that_changes_nothing_is_told_the_generation():
    on = started("a", "b")
    join = on.join("b")
    assert (join.answer.generation, join.answer.leader, join.answer.members) == (1, "a", [])
    assert on.state is State.STABLE


def test_in_stable_a_rebalance_begins_with_the_leader_or_a_changed_subscription():
    for who, said in (("a", {}), ("b", {"protocols": "range:y"})):
        on = started("a", "b")
        assert on.join(who, **said).waits
        assert on.state is State.PREPARING


def test_a_newcomer_begins_a_rebalance_wherever_the_group_is():
    for on in (started("a"), completing("a")[0]):
        assert on.enter("b").waits
        assert on.state is State.PREPARING
        assert on.heartbeat("a") == E.REBALANCE_IN_PROGRESS


# --- when a generation begins ---------------------------------------------------------------------


def test_the_first_rebalance_waits_for_its_delay():
    on = Coordinator(initial_delay_s=3.0)
    join = on.enter("a")
    on.wait(2.5)
    assert join.waits
    on.wait(0.5)
    assert (join.answer.generation, join.answer.leader, on.now) == (1, "a", 3.0)


def test_who_comes_during_the_delay_lengthens_it():
    on = Coordinator(initial_delay_s=3.0)
    joins = [on.enter("a")]
    on.wait(2)
    joins.append(on.enter("b"))
    on.wait(3.5)
    assert all(join.waits for join in joins)
    on.wait(0.5)
    assert [join.answer.generation for join in joins] == [1, 1]


def test_the_delay_is_never_longer_than_the_longest_rebalance():
    on = Coordinator(initial_delay_s=3.0)
    join = on.enter("m0", rebalance=8)
    for at in range(1, 8):
        on.wait(1)
        assert join.waits
        on.enter(f"m{at}", rebalance=8)
    on.wait(0.5)
    assert join.waits
    on.wait(0.5)
    assert join.answer.generation == 1


def test_a_rebalance_timeout_below_the_delay_ends_it():
    on = Coordinator(initial_delay_s=3.0)
    join = on.enter("a", rebalance=1)
    on.wait(1)
    assert join.answer.generation == 1


def test_without_a_delay_the_first_one_begins_a_generation_at_once():
    on = Coordinator(initial_delay_s=0.0)
    assert on.enter("a").answer.generation == 1


def test_the_delay_is_for_the_first_rebalance_only():
    on = started("a")
    on.enter("b")
    assert on.join("a").answer.generation == 2
    on.leave("a")
    on.leave("b")
    assert (on.state, on.generation) == (State.EMPTY, 3)
    on.enter("c")
    on.wait(2)
    assert (on.state, on.generation) == (State.PREPARING, 3)


def test_a_generation_begins_when_the_last_known_member_joins():
    on = preparing("a", "b")
    on.join("a")
    assert on.generation == 1
    last = on.join("b")
    assert last.answer.generation == on.generation == 2
    assert on.state is State.COMPLETING


@pytest.mark.parametrize("how", ["joins", "leaves", "is forgotten"])
def test_an_id_that_was_given_out_is_waited_for(how):
    on = preparing("a")
    on.join(new="p")
    join = on.join("a")
    assert join.waits
    if how == "joins":
        on.join("p")
    elif how == "leaves":
        assert on.leave("p") is None
    else:
        on.wait(SESSION_S)
    assert join.answer.generation == 2
    assert on.ids == (["a", "z", "p"] if how == "joins" else ["a", "z"])


def test_who_does_not_join_in_time_is_out_and_the_others_go_on():
    on = preparing("a", "b")
    join = on.join("a")
    for _ in range(11):
        on.wait(5)
        assert on.heartbeat("b") == E.REBALANCE_IN_PROGRESS
    assert join.waits
    on.wait(5)
    assert (join.answer.generation, on.ids) == (2, ["a", "z"])
    assert on.heartbeat("b") == E.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_join_is_replaced_by_one_who_did():
    on = preparing("a", "b")
    join = on.join("b")
    on.wait(SESSION_S)
    assert join.answer.leader == "b"
    assert [member.member_id for member in join.answer.members] == on.ids == ["b", "z"]


def test_the_most_patient_member_sets_the_time_to_join():
    on = Coordinator()
    on.enter("a", rebalance=20)
    on.enter("b", rebalance=40, session=1000)
    on.wait(6)
    on.complete()
    join = on.join("a", rebalance=20)
    on.wait(39)
    assert join.waits
    on.wait(1)
    assert join.answer.generation == 2


def test_a_static_member_that_does_not_join_stays_until_its_session_ends():
    on = Coordinator()
    on.enter("a")
    on.join(new="s", instance="i", session=100)
    on.wait(6)
    on.complete()
    join = on.join("a", protocols="range:y")
    on.wait(REBALANCE_S)
    assert (join.answer.generation, on.ids) == (2, ["a", "s"])
    on.sync("a", a="x0", s="x1")
    on.written()
    for _ in range(8):
        on.heartbeat("a")
        on.wait(5)
    assert (on.state, on.ids) == (State.PREPARING, ["a"])


def test_a_static_leader_that_does_not_join_leads_no_more_but_stays():
    on = Coordinator()
    on.join(new="s", instance="i", session=100)
    on.enter("a")
    on.wait(6)
    on.complete()
    join = on.join("a", protocols="range:y")
    on.wait(REBALANCE_S)
    assert (join.answer.leader, on.ids) == ("a", ["s", "a"])
    assert [m.member_id for m in join.answer.members] == ["s", "a"]


def test_with_nobody_there_the_time_to_join_begins_again():
    on = Coordinator()
    on.enter("a")
    on.join(new="s", instance="i", session=100)
    on.wait(6)
    on.complete()
    on.leave("a")
    assert on.state is State.PREPARING
    on.wait(REBALANCE_S)
    assert (on.state, on.generation, on.ids) == (State.PREPARING, 1, ["s"])
    assert on.join("s", instance="i").answer.generation == 2


def test_a_parked_join_counts_as_alive():
    on = preparing("a", "b")
    join = on.join("a")
    for _ in range(11):
        on.wait(5)
        on.heartbeat("b")
    assert join.waits
    assert "z" in on.ids


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param(lambda on: on.heartbeat("a"), id="heartbeat"),
        pytest.param(lambda on: on.commit("a", generation=1), id="commit"),
    ],
)
def test_a_parked_join_counts_as_alive_whatever_else_was_heard(asks):
    on = preparing("a", "b")
    on.join("a")
    asks(on)
    for _ in range(3):
        on.wait(5)
        on.heartbeat("b")
    assert "a" in on.ids


def test_a_newcomer_waits_for_at_most_five_minutes():
    on = Coordinator()
    on.enter("a", rebalance=1800, session=1800)
    on.wait(6)
    on.complete()
    join = on.enter("b")
    on.wait(301)
    assert join.error == E.UNKNOWN_MEMBER_ID


def test_a_rebalance_timeout_of_zero_keeps_nobody_busy():
    on = Coordinator()
    on.enter("a")
    on.join(new="s", instance="i", rebalance=0)
    on.wait(6)
    on.complete()
    on.leave("a")
    on.wait(SESSION_S)
    assert on.ids == []


# --- why ------------------------------------------------------------------------------------------


def test_the_causes_of_rebalances_are_kept():
    on = started("a", "b")
    on.now = 100.0
    on.join("a", reason="a topic grew")
    on.leave("b", reason="bye")
    on.complete()
    on.leave("a", reason="the end")
    texts = [cause.text for cause in on.group.causes]
    assert [(cause.at, cause.generation) for cause in on.group.causes] == [
        (0.0, 0),
        (100.0, 1),
        (100.0, 2),
    ]
    assert texts == ["a joined", "a joined again: a topic grew", "a left: the end"]


def test_at_most_so_many_causes_are_kept():
    on = started("a")
    for turn in range(2 * REBALANCES_KEPT):
        on.join("a", reason=f"turn {turn}")
        on.complete()
    assert REBALANCES_KEPT == len(on.group.causes) == 20
    assert on.group.causes[-1].text.endswith("turn 39")
    assert on.group.causes[0].text.endswith("turn 20")
