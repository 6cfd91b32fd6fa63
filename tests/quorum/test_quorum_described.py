"""Goal: what a leader says of the other nodes is so, to the millisecond, and what it does not know
it says as -1.

Method: a view driven by hand; then leaders of a small world, asked at moments that are known.
"""

from __future__ import annotations

import pytest
from quorum_node import Node
from quorum_storm import Storm
from test_quorum_voters import recorded

from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.progress import Progress
from hightide_broker.core.quorum.ready import NOBODY


def told(seen: Progress, log_end: int, now: float) -> tuple[int, int, int, int]:
    """(log end, lag, ms since its fetch, ms since it had everything)."""
    found = seen.describe(log_end, now)
    assert (found.id, found.directory) == (seen.id, seen.directory)
    return (
        found.log_end_offset,
        found.lag,
        found.last_fetch_ms_ago,
        found.last_caught_up_ms_ago,
    )


def test_nothing_is_known_of_a_node_that_has_not_fetched_in_this_epoch() -> None:
    assert told(Progress(4, heard_at=10.0, directory="d"), 100, 10.5) == (-1, -1, -1, -1)


def test_a_node_that_fetches_is_as_far_as_it_asks() -> None:
    seen = Progress(4, heard_at=10.0, directory="d")
    seen.fetched(0, log_end=100, now=11.0)
    assert told(seen, 100, 11.5) == (0, 100, 500, -1)
    seen.fetched(99, log_end=120, now=12.0)
    assert told(seen, 120, 12.0) == (99, 21, 0, -1)
    seen.fetched(120, log_end=130, now=13.0)
    assert told(seen, 140, 13.25) == (120, 20, 250, 1250), "it has all there was when it asked"
    seen.fetched(140, log_end=140, now=14.0)
    assert told(seen, 140, 14.5) == (140, 0, 500, 500)


def test_the_beginning_of_time_is_a_time() -> None:
    seen = Progress(4, heard_at=0.0)
    seen.fetched(0, log_end=0, now=0.0)
    assert told(seen, 0, 2.0) == (0, 0, 2000, 2000)


def fetched_by_all() -> tuple[Storm, Node, Progress]:
    """Voters 1 to 3 and observer 4 have everything, just now; the leader, and the observer as it
    sees it."""
    storm, leader = recorded(3, observers=1)
    (observer,) = leader.up._peers.observers.values()
    observer.directory = "4a"
    end = leader.log.log_end
    for peer in (*leader.up._peers.voters.values(), observer):
        peer.fetched(end, log_end=end, now=storm.world.now)
    return storm, leader, observer


def test_a_leader_tells_of_everybody_and_of_itself() -> None:
    storm, leader, _ = fetched_by_all()
    storm.world.now += 0.5
    voters, observers = leader.up.describe(storm.world.now)
    assert [voter.id for voter in voters] == [1, 2, 3]
    assert [voter.directory for voter in voters] == ["1a", "2a", "3a"]
    assert {(voter.host, voter.port) for voter in voters} == {
        leader.up.membership.addresses[voter.id] for voter in voters
    }
    (me,) = (voter for voter in voters if voter.id == leader.id)
    assert (me.log_end_offset, me.lag) == (leader.log.log_end, 0)
    assert (me.last_fetch_ms_ago, me.last_caught_up_ms_ago) == (0, 0)
    others = {(v.lag, v.last_fetch_ms_ago) for v in voters if v.id != leader.id}
    assert others == {(0, 500)}
    assert [(each.id, each.directory) for each in observers] == [(4, "4a")]
    follower = next(node for node in storm.up if node is not leader)
    with pytest.raises(Refused, match="lead"):
        follower.up.describe(storm.world.now)


def test_where_nobody_leads_a_node_tells_who_votes_and_how_far_it_is_itself() -> None:
    _, leader, _ = fetched_by_all()
    voters = leader.up.describe_alone()
    assert [(voter.id, voter.directory) for voter in voters] == [(1, "1a"), (2, "2a"), (3, "3a")]
    ends = {voter.id: voter.log_end_offset for voter in voters}
    assert ends == {1: -1, 2: -1, 3: -1} | {leader.id: leader.log.log_end}
    assert {voter.last_fetch_ms_ago for voter in voters} == {-1}


def test_a_leader_is_heard_by_itself_and_by_who_it_has_answered_until_they_miss_it() -> None:
    storm, leader = recorded(3)
    follower = next(node for node in storm.up if node is not leader)
    assert {leader.up.leader_that_is_heard, follower.up.leader_that_is_heard} == {leader.id}
    follower.up._follower.leader_gone = True
    assert follower.up.leader_that_is_heard == NOBODY
    assert follower.up.leader == leader.id, "of that epoch"


@pytest.mark.parametrize(("away_s", "admitted"), [(-0.001, True), (0.0, False), (0.001, False)])
def test_an_observer_may_vote_that_was_heard_of_within_two_fetch_timeouts(
    away_s: float, admitted: bool
) -> None:
    """`away_s`: from the moment at which it counts as silent."""
    _, leader, seen = fetched_by_all()
    limit = seen.heard_at + 2 * leader.up.config.fetch_timeout_s
    now = limit + away_s
    request = q.AddVoterRequest(id=4, host="there", port=4)
    if admitted:
        assert [voter.id for voter in leader.up.adding(request, now)] == [1, 2, 3, 4]
        return
    with pytest.raises(Refused) as refused:
        leader.up.adding(request, now)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
