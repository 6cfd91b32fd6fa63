"""Goal: the controller hears by heartbeat which replicas are offline, and gives their roles away
where somebody else can take them. Method: decisions of a controller committed at once.
"""

from __future__ import annotations

import pytest
from controller_cluster import SESSION_S, ControlledCluster, elrs, epochs, isrs, leaders, refusal

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.image import PartitionState


def three_brokers(*isr, min_isr=1):
    """Broker 1 leads a partition of three; who is in sync."""
    cluster = ControlledCluster(1, 2, 3, topic_defaults={"min.insync.replicas": str(min_isr)})
    cluster.create("a", assignment=[[1, 2, 3]])
    if isr and isr != (1, 2, 3):
        cluster.alter_isr("a", *isr)
    return cluster


def report(cluster, broker, *partitions, **facts):
    """A heartbeat that calls these partitions of the topic offline."""
    topic_id = cluster.image.topics["a"].topic_id
    offline = [c.OfflineReplica(topic_id=topic_id, partition=number) for number in partitions]
    return cluster.heartbeat(broker, offline=offline, **facts)


@pytest.mark.parametrize(
    ("broker", "isr", "after"),
    [
        (1, (1, 2, 3), PartitionState((1, 2, 3), (2, 3), 2, 1, 1)),
        (2, (1, 2, 3), PartitionState((1, 2, 3), (1, 3), 1, 0, 1)),
        (3, (1, 2), PartitionState((1, 2, 3), (1, 2), 1, 0, 2)),
        (1, (1, 3), PartitionState((1, 2, 3), (3,), 3, 1, 3)),
    ],
    ids=["leader", "follower", "out of sync", "leader of two"],
)
def test_who_is_offline_leaves_the_isr_and_the_next_in_sync_leads(broker, isr, after):
    cluster = three_brokers(*isr)
    assert not report(cluster, broker, 0).fenced
    assert cluster.partition("a") == after
    assert cluster.image.is_active(broker), "its other replicas serve"


def test_one_report_names_several_partitions_and_only_those_move():
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2, 3], [1, 3, 2], [2, 3, 1], [1, 2, 3]])
    report(cluster, 1, 0, 1, 2)
    assert leaders(cluster, "a") == [2, 3, 2, 1]
    assert isrs(cluster, "a") == [(2, 3), (3, 2), (2, 3), (1, 2, 3)]
    assert epochs(cluster, "a") == [(1, 1), (1, 1), (0, 1), (0, 0)]


def test_a_repeated_report_changes_nothing():
    cluster = three_brokers()
    report(cluster, 1, 0)
    after, size = cluster.partition("a"), len(cluster.log)
    for _ in range(3):
        assert not report(cluster, 1, 0).fenced
    assert (cluster.partition("a"), len(cluster.log)) == (after, size)


def test_who_is_alone_in_sync_stays_leader_though_its_replica_is_offline():
    cluster = three_brokers(1)
    before = cluster.partition("a")
    report(cluster, 1, 0)
    assert (cluster.changes, cluster.partition("a")) == ([], before)
    cluster.alter_isr("a", 1, 2)
    report(cluster, 1, 0)
    assert cluster.partition("a").leader == 2, "as soon as there is somebody else"


def test_where_everybody_else_in_sync_is_fenced_things_stay_as_they_are():
    cluster = three_brokers(1, 2, min_isr=2)
    cluster.fence(2, 3)
    assert (isrs(cluster, "a"), elrs(cluster, "a")) == ([(1,)], [(2,)])
    before = cluster.partition("a")
    report(cluster, 1, 0)
    assert cluster.partition("a") == before
    cluster.unfence(2)
    report(cluster, 1, 0)
    assert cluster.partition("a") == PartitionState(
        (1, 2, 3), (2,), 2, 1, before.partition_epoch + 1
    )


@pytest.mark.parametrize(("broker", "leader"), [(1, 2), (2, 1)])
def test_who_is_offline_is_eligible_no_more_and_others_may_lead(broker, leader):
    cluster = three_brokers(1, min_isr=2)
    assert elrs(cluster, "a") == [(2, 3)]
    report(cluster, broker, 0)
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([leader], [(leader,)])
    assert elrs(cluster, "a") == [(3,)]


def test_what_a_report_names_that_is_not_there_is_ignored():
    cluster = three_brokers()
    cluster.create("b", assignment=[[2, 3]])
    ids = {name: topic.topic_id for name, topic in cluster.image.topics.items()}
    wrong = [("no-such-id", 0), (ids["a"], 1), (ids["a"], -1), (ids["b"], 0)]
    offline = [c.OfflineReplica(topic_id=topic, partition=number) for topic, number in wrong]
    assert not cluster.heartbeat(1, offline=offline).fenced
    assert cluster.changes == []
    cluster.heartbeat(1, offline=[*offline, c.OfflineReplica(topic_id=ids["a"], partition=0)])
    assert (leaders(cluster, "a"), leaders(cluster, "b")) == ([2], [2])


@pytest.mark.parametrize("off", [-1, 1])
def test_a_report_from_another_process_of_the_broker_is_refused(off):
    cluster = three_brokers()
    epoch = cluster.image.brokers[1].epoch + off
    before, size = cluster.partition("a"), len(cluster.log)
    assert refusal(report, cluster, 1, 0, epoch=epoch) == ErrorCode.STALE_BROKER_EPOCH
    assert (cluster.partition("a"), len(cluster.log)) == (before, size)


def test_who_reports_something_lost_and_wants_to_stop_may_stop_with_a_later_heartbeat():
    cluster = three_brokers()
    assert not report(cluster, 1, 0, want_shut_down=True).should_shut_down
    assert report(cluster, 1, 0, want_shut_down=True).should_shut_down


def test_a_report_that_changes_nothing_keeps_the_session_alive():
    cluster = three_brokers(1)
    for _ in range(4):
        cluster.now += SESSION_S / 2
        cluster.heartbeat(2)
        cluster.heartbeat(3)
        report(cluster, 1, 0)
        assert cluster.fence_silent() == []


def test_a_broker_that_loses_one_replica_after_the_other_is_alive():
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2, 3]] * 10)
    for lost in range(1, 7):
        cluster.now += SESSION_S / 4
        cluster.heartbeat(2)
        cluster.heartbeat(3)
        report(cluster, 1, *range(lost))
        assert cluster.fence_silent() == []


def test_a_partition_that_is_reported_twice_is_moved_once():
    cluster = three_brokers()
    report(cluster, 1, 0, 0)
    assert epochs(cluster, "a") == [(1, 1)]
