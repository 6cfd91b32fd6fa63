"""What members and operators are told of a group: refusals, causes, events of a trace.

Goal: who looks at a group learns why it is not stable, and of each rebalance why it began, once.
Method: as in `test_group.py`; the sentences are compared whole.
"""

from __future__ import annotations

import pytest
from groupkit import SESSION_S, Coordinator, started
from test_group import completing, preparing

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.groups import parts
from hightide_broker.core.groups.group import State
from hightide_broker.core.groups.group_events import group_changed, last_cause
from hightide_broker.core.groups.records import GroupValue
from hightide_broker.trace.events import GroupChanged

E = ErrorCode


def test_who_has_no_id_is_told_to_join_again_with_the_one_it_is_given():
    answer = Coordinator().join(new="a").answer
    assert answer == g.JoinGroupResponse(
        error=E.MEMBER_ID_REQUIRED, message="join again with this member id", member_id="a"
    )


def refused(on, event):
    with pytest.raises(Refused) as caught:
        on.group.step(event, on.now)
    return caught.value.code, caught.value.message


def test_who_asks_during_a_rebalance_is_told_why_there_is_one():
    on = preparing("a")
    why = "group 'g' is PreparingRebalance: z joined"
    beats = parts.Heartbeat(g.GroupHeartbeatRequest(group="g", member_id="a", generation=1))
    assert refused(on, beats) == (E.REBALANCE_IN_PROGRESS, why)
    sync = g.SyncGroupRequest(group="g", member_id="a", generation=1)
    assert refused(on, parts.Sync(sync, object())) == (E.REBALANCE_IN_PROGRESS, why)
    on, _ = completing("a")
    commit = g.OffsetCommitRequest(group="g", member_id="a", generation=1, partitions=[])
    not_yet = "group 'g' is CompletingRebalance: a joined"
    assert refused(on, parts.Commit(commit)) == (E.REBALANCE_IN_PROGRESS, not_yet)


@pytest.mark.parametrize(
    ("again", "cause"),
    [
        ({}, "a joined again"),
        ({"reason": "a new topic"}, "a joined again: a new topic"),
        ({"protocols": "range:y"}, "a joined with other words"),
    ],
)
def test_a_leader_that_joins_again_says_whether_it_said_something_else(again, cause):
    on = started("a")
    on.join("a", **again)
    assert on.group.causes[-1].text == cause


def test_who_joined_a_group_that_is_too_large_may_ask_again():
    """Its first request is answered, and it keeps its place; who had none gets none."""
    on = started("a", "b", "c")
    on.limits = on.limits._replace(size_max=2)
    on.fail_over(on.group.to_value())
    first, _ = on.join("a"), on.join("b")
    second = on.join("a")
    assert (first.error, second.waits) == (E.REBALANCE_IN_PROGRESS, True)
    assert on.join("c").error == E.GROUP_MAX_SIZE_REACHED


def test_who_asks_again_in_a_stable_group_that_is_full_begins_a_rebalance():
    on = started("a", "b", size_max=2)
    assert on.join("b", protocols="range:y").waits
    assert on.join("a").answer.generation == 2


def test_a_group_that_is_just_as_large_as_may_be_is_taken_over_as_it_is():
    on = started("a", "b", size_max=2)
    on.fail_over(on.group.to_value())
    assert (on.state, on.ids, list(on.group.causes)) == (State.STABLE, ["a", "b"], [])


def test_a_group_that_never_had_a_generation_begins_its_first_one():
    on = Coordinator()
    on.fail_over(GroupValue(protocol_type="consumer", generation=0))
    assert on.generation == 0
    join = on.enter("a")
    on.wait(3)
    assert join.answer.generation == 1


def test_a_session_of_less_than_a_second_is_one():
    """As another coordinator may have allowed it."""
    on = started("a", session_min_s=0.1)
    on.group.members.by_id["a"].session_s = 0.5
    on.fail_over(on.group.to_value())
    on.wait(0.25)
    assert on.heartbeat("a") is None
    assert on.group.next_at() == on.now + 0.5


def test_a_session_of_no_time_at_all_ends_as_soon_as_it_begins():
    """Where group.min.session.timeout.ms is 0 somebody may ask for it."""
    on = Coordinator(session_min_s=0.0)
    on.join(new="a", instance="i", session=0)
    on.now = on.group.next_at()
    on.group.step(parts.Tick(), on.now)
    assert (on.state, on.ids) == (State.COMPLETING, ["a"])
    on.group.step(parts.Tick(), on.now)
    assert (on.state, on.ids) == (State.EMPTY, [])


# --- events of a trace ----------------------------------------------------------------------------


def test_a_group_that_changes_tells_its_cause_with_the_rebalance_that_it_began():
    on = started("a", "b")
    begun = last_cause(on.group)
    assert begun == on.group.causes[-1]
    stable = GroupChanged(group="g", state="Stable", generation=1, members=2)
    assert group_changed(on.group, begun) == stable
    on.leave("a")
    changed = GroupChanged(
        group="g", state="PreparingRebalance", generation=1, members=1, cause="a left"
    )
    assert group_changed(on.group, begun) == changed
    again = group_changed(on.group, last_cause(on.group))
    assert again.cause == "", "it was told before"


def test_a_group_that_nobody_joined_has_no_cause():
    on = Coordinator()
    assert last_cause(on.group) is None
    nobody = GroupChanged(group="g", state="Empty", generation=0, members=0)
    assert group_changed(on.group, None) == nobody
    on.enter("a")
    assert group_changed(on.group, None).cause == "a joined", "the first one there was"


def test_a_group_is_empty_only_without_members():
    on = started("a")
    with pytest.raises(AssertionError, match=r"g has members \['a'\]"):
        on.group.empty_since(5)
    on.wait(SESSION_S)
    on.group.empty_since(5)
    assert on.group.empty_since_ms == 5
