"""The controller and the life of brokers: who may serve, and who leads meanwhile.

Goal: brokers come and go by Kafka's rules: epochs fence what is stale, leaders move in the order of
the assignment, and where nobody is left, only those who have all that is committed may lead again.
Method: a small cluster commits each decision at once; partitions are written out by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, ControlledCluster, elrs, epochs, isrs, leaders, refusal

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.changes import (
    ChangePartition,
    FenceBroker,
    RegisterBroker,
    StopBroker,
    UnfenceBroker,
    decode_change,
)
from hightide_broker.core.cluster.image import BrokerState, PartitionState


def three_brokers() -> ControlledCluster:
    """Each of the three leads one partition and follows in the others."""
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    assert epochs(cluster, "a") == [(0, 0)] * 3
    return cluster


# Registration.


def test_a_registered_broker_is_fenced_and_its_epoch_is_the_offset_of_its_record() -> None:
    cluster = ControlledCluster(7)
    assert cluster.register(4, incarnation="a", directory="d") == 5
    assert cluster.image.brokers[4] == BrokerState(
        4, 5, "a", "localhost", 19092, "r1", ("broker",), fenced=True, directory="d"
    )
    assert not cluster.image.is_active(4)
    assert not cluster.image.is_active(99), "nobody knows it"


def test_a_broker_of_another_cluster_is_refused() -> None:
    cluster = ControlledCluster(1)
    size = len(cluster.log)
    code = refusal(cluster.register, 2, cluster="cluster-2")
    assert (code, len(cluster.log)) == (ErrorCode.INCONSISTENT_CLUSTER_ID, size)
    assert 2 not in cluster.image.brokers


def test_a_new_incarnation_has_a_larger_epoch_and_fences_the_old_one() -> None:
    cluster = ControlledCluster(1)
    old = cluster.image.brokers[1].epoch
    new = cluster.register(1, incarnation="b")
    assert new > old
    assert cluster.image.brokers[1].incarnation == "b"
    assert not cluster.image.is_active(1)
    for epoch in (old, new + 1):
        code = refusal(cluster.heartbeat, 1, epoch=epoch)
        assert code == ErrorCode.STALE_BROKER_EPOCH
    assert not cluster.heartbeat(1, epoch=new).fenced


def test_a_restart_is_clean_if_the_broker_knows_its_last_epoch() -> None:
    """KIP-966: a broker that comes back without it may have lost what it had."""
    cluster = ControlledCluster()
    told = []
    for previous in (None, "last", -1, "last", 0):
        last = cluster.image.brokers[1].epoch if previous is not None else -1
        cluster.register(1, previous=last if previous in (None, "last") else previous)
        told += [c.clean for c in cluster.changes if isinstance(c, RegisterBroker)]
    assert told == [True, True, False, True, False]


# Heartbeats.


def test_a_broker_is_unfenced_once_it_has_seen_its_own_registration() -> None:
    cluster = ControlledCluster(9)
    epoch = cluster.register(1)
    for seen in (0, epoch):
        reply = cluster.heartbeat(1, seen=seen)
        assert (reply.caught_up, reply.fenced, cluster.changes) == (False, True, [])
    reply = cluster.heartbeat(1, seen=epoch + 1)
    assert reply == c.BrokerHeartbeatResponse(caught_up=True, fenced=False, should_shut_down=False)
    assert cluster.changes == [UnfenceBroker(broker=1, broker_epoch=epoch)]
    assert cluster.heartbeat(1).fenced is False
    assert cluster.changes == [], "a heartbeat without news writes nothing"


def test_a_broker_that_falls_behind_stays_unfenced() -> None:
    cluster = ControlledCluster(1)
    reply = cluster.heartbeat(1, seen=0)
    assert (reply.caught_up, reply.fenced, cluster.changes) == (False, False, [])


@pytest.mark.parametrize("wish", ["want_fence", "want_shut_down"])
def test_a_broker_is_fenced_on_its_own_wish_once(wish: str) -> None:
    cluster = ControlledCluster(1)
    epoch = cluster.image.brokers[1].epoch
    for written in ([FenceBroker(broker=1, broker_epoch=epoch)], []):
        reply = cluster.heartbeat(1, **{wish: True})
        assert (reply.fenced, reply.should_shut_down) == (True, wish == "want_shut_down")
        assert cluster.changes == written
    assert not cluster.image.is_active(1)


def test_a_broker_that_never_registered_is_told_so() -> None:
    cluster = ControlledCluster(1)
    code = refusal(cluster.heartbeat, 2, epoch=0)
    assert code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("wish", [{}, {"want_fence": True}, {"want_shut_down": True}])
def test_a_stale_broker_changes_nothing(wish: dict[str, Any]) -> None:
    cluster = ControlledCluster(1)
    old = cluster.image.brokers[1].epoch
    cluster.join(1)
    cluster.create("a")
    before = cluster.replayed()
    assert refusal(cluster.heartbeat, 1, epoch=old, **wish) == ErrorCode.STALE_BROKER_EPOCH
    assert cluster.image == before


def test_a_stale_broker_gets_no_producer_ids() -> None:
    cluster = ControlledCluster(1)
    old = cluster.image.brokers[1].epoch
    cluster.join(1)
    assert refusal(cluster.allocate, 1, epoch=old) == ErrorCode.STALE_BROKER_EPOCH


# One broker.


def test_the_only_broker_comes_and_goes_and_keeps_its_partitions() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a", partitions=2)
    for round_number in (1, 2):
        cluster.fence(1)
        count = 2 * round_number
        waiting = PartitionState((1,), (), NONE, count - 1, count - 1, elr=(1,), last_leader=1)
        assert cluster.partitions("a") == [waiting] * 2
        cluster.unfence(1)
        assert cluster.partitions("a") == [PartitionState((1,), (1,), 1, count, count)] * 2


def test_a_restart_that_nobody_noticed_gives_new_leader_epochs() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a")
    epoch = cluster.register(1, incarnation="b")
    assert isinstance(cluster.changes[-1], RegisterBroker)
    assert epoch == len(cluster.log) - 1, "not the offset of what came before it"
    assert cluster.partition("a") == PartitionState((1,), (), NONE, 1, 1, (1,), 1)
    cluster.unfence(1)
    assert cluster.partition("a") == PartitionState((1,), (1,), 1, 2, 2)


def test_a_restart_of_a_fenced_broker_changes_no_partition() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a")
    cluster.fence(1)
    cluster.register(1)
    assert [type(change) for change in cluster.changes] == [RegisterBroker]


# Three brokers.


def test_a_fenced_broker_leaves_every_isr_and_the_next_in_order_leads() -> None:
    cluster = three_brokers()
    cluster.fence(1)
    assert isrs(cluster, "a") == [(2, 3), (2, 3), (3, 2)]
    assert leaders(cluster, "a") == [2, 2, 3]
    assert epochs(cluster, "a") == [(1, 2), (0, 2), (0, 2)], "only a new leader is a new epoch"
    assert [type(c) for c in cluster.changes] == [ChangePartition] * 3 + [FenceBroker]
    cluster.fence(2)
    assert (isrs(cluster, "a"), leaders(cluster, "a")) == ([(3,)] * 3, [3] * 3)
    assert epochs(cluster, "a") == [(2, 4), (1, 4), (0, 4)]


def test_the_last_member_of_the_isr_stays_eligible_and_nobody_else_may_lead() -> None:
    cluster = three_brokers()
    cluster.fence(1, 2, 3)
    assert (isrs(cluster, "a"), elrs(cluster, "a")) == ([()] * 3, [(3,)] * 3)
    assert leaders(cluster, "a") == [NONE] * 3
    assert [p.last_leader for p in cluster.partitions("a")] == [3] * 3
    before = cluster.partitions("a").copy()
    cluster.heartbeat(1)
    assert [type(change) for change in cluster.changes] == [UnfenceBroker]
    assert cluster.partitions("a") == before, "1 has missed what 3 may have taken"
    cluster.heartbeat(3)
    assert [type(c) for c in cluster.changes] == [UnfenceBroker] + [ChangePartition] * 3
    assert (isrs(cluster, "a"), leaders(cluster, "a")) == ([(3,)] * 3, [3] * 3)
    assert {(p.elr, p.last_leader) for p in cluster.partitions("a")} == {((), NONE)}
    assert [p.leader_epoch for p in cluster.partitions("a")] == [p.leader_epoch + 1 for p in before]
    cluster.fence(1)
    assert [type(change) for change in cluster.changes] == [FenceBroker], "1 was in no ISR"


def test_a_broker_that_comes_back_takes_no_leadership_from_others() -> None:
    cluster = three_brokers()
    cluster.fence(1)
    before = cluster.partitions("a").copy()
    assert not cluster.heartbeat(1).fenced
    assert cluster.partitions("a") == before


def test_a_restart_that_nobody_noticed_moves_the_leaders_at_once() -> None:
    cluster = three_brokers()
    cluster.register(2, incarnation="b")
    assert isrs(cluster, "a") == [(1, 3), (3, 1), (3, 1)]
    assert leaders(cluster, "a") == [1, 3, 3]
    assert epochs(cluster, "a") == [(0, 2), (1, 2), (0, 2)]


def test_leaders_move_in_the_order_of_the_assignment() -> None:
    """As in ReplicationControlManagerTest."""
    cluster = ControlledCluster(0, 1, 2, 3, 4)
    cluster.create("a", assignment=[[1, 2, 3], [2, 3, 4], [0, 2, 1]])
    cluster.fence(2, 3)
    assert leaders(cluster, "a") == [1, 4, 0]
    assert [set(isr) for isr in isrs(cluster, "a")] == [{1}, {4}, {0, 1}]
    cluster.fence(0, 1, 4)
    assert leaders(cluster, "a") == [NONE] * 3
    assert (isrs(cluster, "a"), elrs(cluster, "a")) == ([()] * 3, [(1,), (4,), (1,)])
    cluster.unfence(2)
    assert leaders(cluster, "a") == [NONE] * 3, "2 is not eligible, and unclean election is off"
    cluster.unfence(1)
    assert leaders(cluster, "a") == [1, NONE, 1]


def test_partitions_of_other_brokers_are_left_alone() -> None:
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2], [2, 3]])
    cluster.fence(3)
    touched = [c.partition for c in cluster.changes if isinstance(c, ChangePartition)]
    assert touched == [1]
    assert (isrs(cluster, "a"), leaders(cluster, "a")) == ([(1, 2), (2,)], [1, 2])


def test_one_of_three_that_has_to_stop_leaves_two_that_can_create_topics() -> None:
    cluster = three_brokers()
    cluster.begin_stop(2)
    assert not cluster.image.brokers[2].fenced
    assert cluster.create("b", partitions=2, replication_factor=2).error is None
    assert [p.replicas for p in cluster.partitions("b")] == [(1, 3), (3, 1)]
    assert cluster.create("c", replication_factor=3).error is None
    assert isrs(cluster, "c") == [(1, 3)]


# The image.


def test_the_image_goes_only_forward() -> None:
    cluster = ControlledCluster(1)
    with pytest.raises(AssertionError, match="replay of offset 1 at 5"):
        cluster.image.replay(decode_change(cluster.log[1]), 1)


def test_the_image_asserts_what_a_controller_guarantees() -> None:
    cluster = three_brokers()
    topic_id, at = cluster.image.topics["a"].topic_id, cluster.image.offset
    for wrong, words in (
        (ChangePartition(topic_id=topic_id, partition=0, isr=(1, 9)), "that have no replica"),
        (ChangePartition(topic_id=topic_id, partition=0, elr=(1, 2)), "in sync and eligible"),
        (ChangePartition(topic_id=topic_id, partition=0, isr=(2, 3)), "leader is not in sync"),
        (FenceBroker(broker=1, broker_epoch=99), "epoch=99.* but its epoch is 3"),
        (UnfenceBroker(broker=1, broker_epoch=99), "epoch=99.* but its epoch is 3"),
        (StopBroker(broker=1, broker_epoch=99), "epoch=99.* but its epoch is 3"),
    ):
        with pytest.raises(AssertionError, match=words):
            cluster.image.replay(wrong, at)
    assert cluster.image == cluster.replayed()
