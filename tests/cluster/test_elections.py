"""Who leads: when nobody is left, when somebody asks, and when the preferred replica is back.

Goal: an unclean election happens only where it is allowed or asked for, a preferred one only when
the preferred replica is in sync, and both say why they did nothing. Method: a small cluster commits
each decision at once; cases are those of ReplicationControlManagerTest, written out by hand.
"""

from __future__ import annotations

import pytest
from controller_cluster import NONE, ControlledCluster, elrs, epochs, isrs, leaders

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.changes import ChangePartition, UnfenceBroker
from hightide_broker.core.cluster.image import PartitionState
from hightide_broker.core.cluster.partitions import REBALANCE_MAX

E = ErrorCode
UNCLEAN = {"unclean.leader.election.enable": "true"}


def five_brokers(**configs: str) -> ControlledCluster:
    cluster = ControlledCluster(0, 1, 2, 3, 4)
    cluster.create("a", assignment=[[1, 2, 3], [2, 3, 4], [0, 2, 1]], configs=configs)
    return cluster


def all_gone(**configs: str) -> ControlledCluster:
    """1, 4 and 1 led last."""
    cluster = five_brokers(**configs)
    cluster.fence(2, 3)
    cluster.fence(0, 1, 4)
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([NONE] * 3, [()] * 3)
    assert elrs(cluster, "a") == [(1,), (4,), (1,)]
    return cluster


def two(*brokers: int, **configs: str) -> ControlledCluster:
    """One partition on 1 and 2; 2 leads, and 1 is back but not in sync."""
    cluster = ControlledCluster(1, 2, *brokers)
    cluster.create("a", assignment=[[1, 2]], configs=configs)
    cluster.fence(1)
    cluster.unfence(1)
    assert cluster.partition("a") == PartitionState((1, 2), (2,), 2, 1, 2)
    return cluster


# Nobody is left.


def test_the_first_active_member_in_the_order_of_the_assignment_leads() -> None:
    cluster = five_brokers()
    cluster.fence(2, 3)
    assert leaders(cluster, "a") == [1, 4, 0]
    assert isrs(cluster, "a") == [(1,), (4,), (0, 1)]


def test_who_may_miss_records_does_not_lead_where_that_is_not_allowed() -> None:
    cluster = all_gone()
    before = cluster.partitions("a").copy()
    cluster.unfence(2, 3, 0)
    assert cluster.partitions("a") == before
    cluster.unfence(4)
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([NONE, 4, NONE], [(), (4,), ()])


def test_who_is_back_first_leads_where_unclean_elections_are_allowed() -> None:
    cluster = all_gone(**UNCLEAN)
    before = epochs(cluster, "a")
    cluster.unfence(2)
    assert cluster.partitions("a") == [
        PartitionState(replicas, (2,), 2, leader_epoch + 1, partition_epoch + 1)
        for replicas, (leader_epoch, partition_epoch) in zip(
            [(1, 2, 3), (2, 3, 4), (0, 2, 1)], before, strict=True
        )
    ], "who was eligible has lost its claim"
    cluster.unfence(0, 1, 3, 4)
    assert leaders(cluster, "a") == [2, 2, 2]


def test_an_unclean_election_leaves_partitions_of_others_alone() -> None:
    cluster = all_gone(**UNCLEAN)
    cluster.unfence(4)
    assert leaders(cluster, "a") == [NONE, 4, NONE]
    touched = [c.partition for c in cluster.changes if isinstance(c, ChangePartition)]
    assert touched == [1]


def test_unclean_elections_may_be_allowed_while_nobody_leads() -> None:
    cluster = all_gone()
    cluster.unfence(3)
    assert (cluster.rebalance(), leaders(cluster, "a")) == ([], [NONE] * 3)
    cluster.alter("a", unclean_leader_election_enable="true")
    cluster.rebalance()
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([3, 3, NONE], [(3,), (3,), ()])


def test_the_brokers_default_allows_unclean_elections_for_topics_that_say_nothing() -> None:
    cluster = ControlledCluster(1, 2, topic_defaults=UNCLEAN)
    cluster.create("a", assignment=[[1, 2]])
    cluster.create("b", assignment=[[1, 2]], configs={"unclean.leader.election.enable": "false"})
    cluster.fence(2, 1)
    cluster.unfence(2)
    assert leaders(cluster, "a") + leaders(cluster, "b") == [2, NONE]


def test_a_member_in_sync_is_preferred_to_an_unclean_leader() -> None:
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2, 3]], configs=UNCLEAN)
    cluster.alter_isr("a", 1, 3)
    cluster.fence(1)
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([3], [(3,)])


# By hand, unclean.


def test_an_unclean_election_by_hand_needs_no_permission_and_takes_the_first_alive() -> None:
    cluster = all_gone()
    cluster.unfence(3, 2)
    (first, second) = cluster.elect(("a", 0), ("a", 1), unclean=True)
    assert (first.error, first.leader, second.error, second.leader) == (None, 2, None, 2)
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([2, 2, NONE], [(2,), (2,), ()])
    assert elrs(cluster, "a")[:2] == [(), ()]


def test_an_unclean_election_is_not_needed_where_somebody_leads() -> None:
    cluster = two()
    (result,) = cluster.elect(("a", 0), unclean=True)
    assert (result.error, cluster.changes) == (E.ELECTION_NOT_NEEDED, [])


def test_an_unclean_election_needs_somebody_alive() -> None:
    cluster = all_gone()
    cluster.unfence(3)
    (result,) = cluster.elect(("a", 2), unclean=True)
    assert (result.error, cluster.changes) == (E.ELIGIBLE_LEADERS_NOT_AVAILABLE, [])
    assert "[0, 2, 1]" in result.message


def test_an_unclean_election_of_everything_asks_for_what_has_no_leader() -> None:
    cluster = all_gone()
    cluster.unfence(3)
    cluster.create("led", assignment=[[3]])
    results = cluster.elect(unclean=True)
    assert [(r.partition, r.error, r.leader) for r in results] == [
        (0, None, 3),
        (1, None, 3),
        (2, E.ELIGIBLE_LEADERS_NOT_AVAILABLE, NONE),
    ]


def test_a_replica_that_stops_is_not_elected() -> None:
    cluster = all_gone()
    cluster.unfence(3)
    cluster.create("led", assignment=[[3]])
    cluster.begin_stop(3)
    (result,) = cluster.elect(("a", 0), unclean=True)
    assert result.error == E.ELIGIBLE_LEADERS_NOT_AVAILABLE


# By hand, preferred.


@pytest.mark.parametrize(("topic", "number"), [("b", 0), ("a", 1), ("a", -1)])
@pytest.mark.parametrize("unclean", [True, False])
def test_what_does_not_exist_elects_nobody(topic: str, number: int, unclean: bool) -> None:
    cluster = two()
    (result,) = cluster.elect((topic, number), unclean=unclean)
    assert (result.topic, result.partition) == (topic, number)
    assert (result.error, cluster.changes) == (E.UNKNOWN_TOPIC_OR_PARTITION, [])


def test_a_preferred_election_waits_until_the_preferred_replica_is_in_sync() -> None:
    cluster = two()
    (result,) = cluster.elect(("a", 0))
    assert (result.error, cluster.changes) == (E.PREFERRED_LEADER_NOT_AVAILABLE, [])
    cluster.alter_isr("a", 1, 2)
    (result,) = cluster.elect(("a", 0))
    assert (result.error, result.leader) == (None, 1)
    assert cluster.partition("a") == PartitionState((1, 2), (1, 2), 1, 2, 4)
    (result,) = cluster.elect(("a", 0))
    assert (result.error, cluster.changes) == (E.ELECTION_NOT_NEEDED, [])


@pytest.mark.parametrize("is_back", [True, False])
def test_a_preferred_election_is_never_unclean(is_back: bool) -> None:
    """Even where unclean elections are allowed."""
    cluster = two(**UNCLEAN)
    if not is_back:
        cluster.fence(1)
    (result,) = cluster.elect(("a", 0))
    assert (result.error, cluster.changes) == (E.PREFERRED_LEADER_NOT_AVAILABLE, [])


def test_a_preferred_election_makes_no_leader_out_of_who_may_miss_records() -> None:
    cluster = all_gone()
    cluster.unfence(2)
    cluster.alter("a", unclean_leader_election_enable="true")
    assert cluster.partition("a", 1).replicas[0] == 2
    (result,) = cluster.elect(("a", 1))
    assert (result.error, cluster.changes) == (E.PREFERRED_LEADER_NOT_AVAILABLE, [])


def test_a_preferred_election_of_everything_asks_for_what_others_lead() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.create("a", assignment=[[1, 2], [2, 1], [1, 2]])
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter_isr("a", 1, 2, number=2)
    results = cluster.elect()
    assert [(r.partition, r.error) for r in results] == [
        (0, E.PREFERRED_LEADER_NOT_AVAILABLE),
        (2, None),
    ]
    assert leaders(cluster, "a") == [2, 2, 1]


def test_a_partition_that_is_named_twice_is_elected_once() -> None:
    cluster = two()
    cluster.alter_isr("a", 1, 2)
    results = cluster.elect(("a", 0), ("a", 0))
    assert [r.error for r in results] == [None]
    assert epochs(cluster, "a") == [(2, 4)]


# By timer.


def test_leaders_move_back_to_their_preferred_replicas_once_these_are_in_sync() -> None:
    cluster = two()
    assert cluster.rebalance() == []
    cluster.alter_isr("a", 1, 2)
    assert cluster.rebalance() == [ChangePartition(topic_id="id-1", partition=0, leader=1)]
    assert epochs(cluster, "a") == [(2, 4)]
    assert cluster.rebalance() == []


def test_a_leader_that_has_to_stay_keeps_no_other_from_moving_back() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.create("a", assignment=[[1, 2]] * 3)
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter_isr("a", 1, 2, number=1)
    assert [change.partition for change in cluster.rebalance()] == [1]
    assert leaders(cluster, "a") == [2, 1, 2]


def test_moving_leaders_back_comes_in_bounded_batches() -> None:
    count = REBALANCE_MAX + 1
    cluster = ControlledCluster(1, 2)
    cluster.create("a", assignment=[[1, 2]] * count)
    cluster.fence(1)
    cluster.unfence(1)
    for number in range(count):
        cluster.alter_isr("a", 1, 2, number=number)
    assert len(cluster.rebalance()) == REBALANCE_MAX
    assert leaders(cluster, "a").count(2) == 1
    assert len(cluster.rebalance()) == 1
    assert leaders(cluster, "a") == [1] * count


def test_a_broker_that_comes_back_is_unfenced_before_it_leads() -> None:
    """The changes of one batch are applied in order; who leads is active by then."""
    cluster = all_gone()
    cluster.unfence(1)
    assert isinstance(cluster.changes[0], UnfenceBroker)
    assert [type(change) for change in cluster.changes[1:]] == [ChangePartition] * 2
