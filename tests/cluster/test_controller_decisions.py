"""What the controller decides at its edges: several wishes at once, silence, and what came before.

Goal: a request's wishes are counted together and harm each other in nothing else, and a broker that
leaves, returns, stops or tells of a loss changes what is its own and nothing more. Method: a small
cluster commits each decision at once; what was changed is compared whole.
"""

from __future__ import annotations

import pytest
from controller_cluster import (
    NONE,
    SESSION_S,
    ControlledCluster,
    cluster_of,
    elrs,
    epochs,
    isrs,
    leaders,
    nobody_leads,
    who,
)

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.changes import ChangePartition, RegisterBroker

E = ErrorCode
OFFLINE = c.OfflineReplica(topic_id="id-1", partition=0)


# Several topics in one request.


def test_new_topics_share_the_room_of_their_request() -> None:
    """What was refused takes none of it, and the rest may be used to the last partition."""
    cluster = ControlledCluster(1)
    counts = {"a": 6000, "b": 4001, "c": 4000, "d": 1}
    wishes = [m.NewTopic(topic=name, partitions=count) for name, count in counts.items()]
    results = cluster.create_all(*wishes, validate_only=True)
    assert [each.error for each in results] == [None, E.INVALID_PARTITIONS] * 2


def test_more_partitions_share_the_room_of_their_request() -> None:
    """Those that a topic has already do not count."""
    cluster = ControlledCluster(1)
    for name in "abcd":
        cluster.create(name, partitions=3)
    wishes = [("a", 6003), ("b", 4004), ("c", 4003), ("d", 4)]
    results = cluster.more_all(*wishes, validate_only=True)
    assert [each.error for each in results] == [None, E.INVALID_PARTITIONS] * 2


def test_more_partitions_lie_where_they_are_wanted() -> None:
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", replication_factor=2)
    for wanted in ([[3, 1]], [[3, 1], [2, 3], [1, 2]], [[3, 1], [2]], [[3], [2]], [[3, 1], [2, 2]]):
        more = m.MorePartitions(topic="a", count=3, assignment=wanted)
        request = m.CreatePartitionsRequest(topics=[more])
        decided = cluster.controller.create_partitions(request, shift=lambda _: 0)
        (told,) = cluster.commit(decided).topics
        assert told.error == E.INVALID_REPLICA_ASSIGNMENT
    more = m.MorePartitions(topic="a", count=3, assignment=[[3, 1], [2, 3]])
    request = m.CreatePartitionsRequest(topics=[more])
    (told,) = cluster.commit(
        cluster.controller.create_partitions(request, shift=lambda _: 0)
    ).topics
    assert (told.error, told.partitions) == (None, 3)
    assert [state.replicas for state in cluster.partitions("a")[1:]] == [(3, 1), (2, 3)]
    assert [state.leader for state in cluster.partitions("a")[1:]] == [3, 2]


def test_several_topics_get_more_partitions_at_once() -> None:
    cluster = ControlledCluster(1, 2)
    for name in "abc":
        cluster.create(name, replication_factor=2)
    assert cluster.more_all(("a", 2), ("b", 3), ("c", 4)) == [
        m.TopicResult(
            topic=name, topic_id=f"id-{count - 1}", partitions=count, replication_factor=2
        )
        for name, count in [("a", 2), ("b", 3), ("c", 4)]
    ]
    assert [len(cluster.partitions(name)) for name in "abc"] == [2, 3, 4]


def test_a_topic_that_is_named_twice_keeps_no_other_from_more_partitions() -> None:
    cluster = ControlledCluster(1)
    cluster.create_all(m.NewTopic(topic="a"), m.NewTopic(topic="b"))
    results = cluster.more_all(("a", 2), ("a", 3), ("b", 2))
    assert [each.error for each in results] == [E.INVALID_REQUEST, E.INVALID_REQUEST, None]
    assert [len(cluster.partitions(name)) for name in "ab"] == [1, 2]


def test_an_unknown_topic_keeps_no_other_from_being_deleted() -> None:
    cluster = ControlledCluster(1)
    cluster.create_all(m.NewTopic(topic="a"), m.NewTopic(topic="b"))
    results = cluster.delete("nobody's", "a", "b")
    assert [each.error for each in results] == [E.UNKNOWN_TOPIC_OR_PARTITION, None, None]
    assert cluster.image.topics == {}


def test_replicas_on_brokers_that_are_down_go_around() -> None:
    cluster = ControlledCluster(1, 2, 3, 4)
    cluster.fence(2, 3, 4)
    cluster.create("a", partitions=3, replication_factor=3)
    assert [p.replicas for p in cluster.partitions("a")] == [(1, 2, 3), (1, 3, 4), (1, 4, 2)]


def test_a_lower_minimum_of_one_topic_leaves_those_of_others_eligible() -> None:
    cluster = ControlledCluster(0, 1)
    for name in "ab":
        cluster.create(name, assignment=[[0, 1]], configs={"min.insync.replicas": "2"})
    cluster.fence(1)
    cluster.alter("a", min_insync_replicas="1")
    assert (elrs(cluster, "a"), elrs(cluster, "b")) == ([()], [(1,)])


# Brokers that leave and return while others are silent.


def test_who_returns_with_all_it_had_has_no_silent_broker_elected() -> None:
    cluster = nobody_leads()
    cluster.register(0, previous=cluster.image.brokers[0].epoch)
    assert [type(change) for change in cluster.changes] == [RegisterBroker]
    assert who(cluster) == (NONE, (), (0, 1, 2))


def test_who_returns_without_all_it_had_is_not_waited_for() -> None:
    """What 0 committed, 1 has as well; it leads once this controller has heard of it."""
    cluster = cluster_of(0, 1, flush="replicated")
    cluster.take_over()
    cluster.register(0)
    assert who(cluster) == (NONE, (), (1,))
    cluster.heartbeat(1)
    assert who(cluster) == (1, (1,), ())


def test_who_returns_takes_nothing_from_a_leader_that_is_silent_for_a_moment() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.fence(3)
    cluster.now += SESSION_S * 3 / 4
    cluster.heartbeat(2)
    before = cluster.partition("a")
    cluster.unfence(3)
    assert cluster.partition("a") == before


def test_a_copy_from_before_a_process_that_served_has_forgotten() -> None:
    """Nobody noticed the stop: it was not fenced."""
    cluster = cluster_of(0, 1)
    cluster.alter_isr("a", 0)
    served = cluster.image.brokers[0]
    cluster.register(0, previous=served.epoch, runs=["-", served.incarnation])
    assert who(cluster) == (NONE, (), ())
    assert not cluster.image.brokers[0].clean


def test_a_process_that_has_only_registered_has_no_session() -> None:
    """Nor has the one before it any more."""
    cluster = ControlledCluster(1)
    cluster.register(1)
    assert cluster.controller.brokers.next_expiry == float("inf")


# Elections.


def test_a_leader_moves_back_to_its_preferred_replica_only_once_that_is_heard_of() -> None:
    cluster = cluster_of(1, 2)
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter_isr("a", 1, 2)
    cluster.now += SESSION_S * 3 / 4
    cluster.heartbeat(2)
    assert (cluster.rebalance(), who(cluster)) == ([], (2, (1, 2), ()))
    cluster.heartbeat(1)
    cluster.rebalance()
    assert who(cluster) == (1, (1, 2), ())


@pytest.mark.parametrize("heard", [(), (3,)], ids=["of nobody", "of another one"])
def test_by_timer_no_leader_is_taken_away_for_a_moment_of_silence(heard: tuple[int, ...]) -> None:
    """Only its session decides whether it is gone; half of it is over when the timer looks."""
    cluster = cluster_of(1, 2, 3)
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter_isr("a", 1, 2, 3)
    cluster.now += SESSION_S * 3 / 4
    for broker in heard:
        cluster.heartbeat(broker)
    assert (cluster.rebalance(), who(cluster)) == ([], (2, (1, 2, 3), ()))


def test_by_timer_only_who_is_heard_of_leads_what_nobody_leads() -> None:
    cluster = nobody_leads()
    assert cluster.rebalance() == []
    cluster.heartbeat(2, leaderless=[])
    cluster.rebalance()
    assert who(cluster) == (2, (2,), ())


def test_an_unclean_election_of_everything_passes_over_what_is_led_by_anybody() -> None:
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2], [3, 2]])
    cluster.alter_isr("a", 3, number=1)
    cluster.fence(1, 3)
    assert leaders(cluster, "a") == [2, NONE]
    assert [each.partition for each in cluster.elect(unclean=True)] == [1]


def test_a_preferred_election_forgets_nobody_who_stopped_uncleanly() -> None:
    cluster = cluster_of(0, 1, 2, min_insync_replicas="3", flush="replicated")
    cluster.register(2)
    cluster.fence(0)
    cluster.unfence(0)
    cluster.alter_isr("a", 0, 1)
    (result,) = cluster.elect(("a", 0))
    assert (result.error, result.leader) == (None, 0)
    state = cluster.partition("a")
    assert (state.isr, state.last_known_elr) == ((0, 1), (2,))


# Replicas that are offline.


@pytest.mark.parametrize("end", [(-1, 0), (0, 1)], ids=["empty", "short"])
def test_an_offline_replica_is_shorter_than_any_log(end: tuple[int, int]) -> None:
    """0 was alone in sync and stopped uncleanly; 1 lives, and comes first in the assignment."""
    cluster = cluster_of(1, 0, flush="replicated")
    cluster.fence(1)
    cluster.unfence(1)
    cluster.register(0)
    cluster.heartbeat(1, offline=[OFFLINE])
    assert cluster.partition("a").last_known_elr == (0,)
    cluster.heartbeat(0, leaderless=cluster.leaderless(0, end))
    assert who(cluster) == (0, (0,), ())


def test_who_stopped_uncleanly_is_waited_for_though_its_replica_is_offline() -> None:
    """0 has said already how far its log reaches, and 1 may have more."""
    cluster = cluster_of(0, 1, min_insync_replicas="2", flush="replicated")
    cluster.fence(1)
    cluster.register(1)
    cluster.register(0)
    cluster.heartbeat(0)
    cluster.heartbeat(1, offline=[OFFLINE])
    state = cluster.partition("a")
    assert (state.leader, state.last_known_elr) == (NONE, (0, 1))


@pytest.mark.parametrize("serves", [True, False])
def test_who_tells_of_a_loss_is_told_how_it_stands(serves: bool) -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="2")
    if not serves:
        cluster.register(2, previous=cluster.image.brokers[2].epoch)
    reply = cluster.heartbeat(2, offline=[OFFLINE], seen=None if serves else 0)
    assert [type(change) for change in cluster.changes] == [ChangePartition]
    assert reply == c.BrokerHeartbeatResponse(
        caught_up=serves, fenced=not serves, should_shut_down=False
    )


def test_a_loss_that_is_told_of_during_a_stop_does_not_delay_it() -> None:
    """The others need to know what they knew already, not that the replica is offline."""
    cluster = cluster_of(2, 3, 1, min_insync_replicas="3")
    cluster.begin_stop(1)
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down
    for broker in (2, 3):
        cluster.heartbeat(broker)
    cluster.heartbeat(1, want_shut_down=True, offline=[OFFLINE])
    assert (isrs(cluster, "a"), elrs(cluster, "a"), epochs(cluster, "a")) == (
        *([(2, 3)], [()]),
        [(0, 2)],
    )
    assert cluster.heartbeat(1, want_shut_down=True, offline=[OFFLINE]).should_shut_down
