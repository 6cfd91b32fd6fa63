"""A leader asks for another ISR, and what KIP-966 makes of those that leave it.

Goal: a wish is granted only as of the epochs that the controller has, refused for the first reason
that Kafka would name, and a refusal changes nothing; the eligible leader replicas are those of
ReplicationControlManagerTest, step by step. Method: a small cluster commits each decision at once;
partitions are written out by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, ControlledCluster, cluster_of, refusal

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.changes import ChangePartition
from hightide_broker.core.cluster.image import PartitionState
from hightide_broker.core.cluster.partition_changes import Election, Rules, change_partition

E = ErrorCode


def who(cluster: ControlledCluster) -> dict[str, Any]:
    """The one partition without its epochs."""
    state = cluster.partition("a")
    return {"leader": state.leader, "isr": state.isr, "elr": state.elr, "last": state.last_leader}


def is_(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = (), last: int = NONE) -> dict:
    return {"leader": leader, "isr": isr, "elr": elr, "last": last}


# Granted.


def test_an_isr_shrinks_and_grows_without_a_new_leader_epoch() -> None:
    cluster = cluster_of(1, 2, 3)
    for isr in ([1, 2], [1], [1, 3], [1, 2, 3]):
        before = cluster.partition("a")
        result = cluster.alter_isr("a", *isr)
        after = cluster.partition("a")
        assert (after.isr, after.leader, after.leader_epoch) == (tuple(isr), 1, 0)
        assert result == c.AlterPartitionResult(
            topic_id="id-1",
            partition=0,
            leader=1,
            leader_epoch=0,
            partition_epoch=before.partition_epoch + 1,
            isr=isr,
        )


def test_the_isr_that_is_there_already_is_granted_in_a_new_partition_epoch() -> None:
    # So that a proposal that was lost on the way is too old when it is found.
    cluster = cluster_of(1, 2, 3)
    cluster.alter_isr("a", 1, 3)
    result = cluster.alter_isr("a", 3, 1)
    assert (result.error, result.isr, result.partition_epoch) == (None, [1, 3], 3)
    assert cluster.partition("a").isr == (1, 3)


def test_an_isr_is_kept_in_the_order_of_the_assignment() -> None:
    cluster = cluster_of(3, 1, 2)
    assert cluster.alter_isr("a", 2, 3).isr == [3, 2]
    assert cluster.partition("a").isr == (3, 2)


def test_a_member_with_its_right_epoch_or_without_one_is_taken() -> None:
    for epoch in ("right", NONE, None):
        cluster = cluster_of(1, 2)
        cluster.alter_isr("a", 1)
        right = [cluster.image.brokers[b].epoch for b in (1, 2)]
        told = {"right": right, NONE: [NONE, NONE], None: []}[epoch]
        assert cluster.alter_isr("a", 1, 2, broker_epochs=told).error is None
        assert cluster.partition("a").isr == (1, 2)


def test_one_refused_partition_does_not_harm_the_others_of_a_request() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.create("a", assignment=[[1, 2], [1, 2]])
    wishes = [
        c.AlterPartition(
            topic_id="id-1", partition=number, leader_epoch=epoch, partition_epoch=0, isr=[1]
        )
        for number, epoch in ((0, 1), (1, 0))
    ]
    request = c.AlterPartitionRequest(
        broker=1, broker_epoch=cluster.image.brokers[1].epoch, partitions=wishes
    )
    results = cluster.commit(cluster.controller.alter_partition(request)).partitions
    assert [(r.partition, r.error) for r in results] == [(0, E.NOT_CONTROLLER), (1, None)]
    assert [p.isr for p in cluster.partitions("a")] == [(1, 2), (1,)]


# Refused: Kafka's reasons in Kafka's order. Each case has the mistakes of all that follow, too.

EVERY_LATER_MISTAKE = [
    ({"topic_id": "nobody's"}, E.UNKNOWN_TOPIC_ID),
    ({"partition": 1}, E.UNKNOWN_TOPIC_OR_PARTITION),
    ({"partition": -1}, E.UNKNOWN_TOPIC_OR_PARTITION),
    ({"leader_epoch": 2}, E.NOT_CONTROLLER),
    ({"leader_epoch": 0, "partition_epoch": 9}, E.NOT_CONTROLLER),
    ({"leader_epoch": 0}, E.FENCED_LEADER_EPOCH),
    ({"sender": 3}, E.INVALID_REQUEST),
    ({"partition_epoch": 0}, E.INVALID_UPDATE_VERSION),
    ({"isr": [2, 2]}, E.INVALID_REQUEST),
    ({"isr": [2, 5]}, E.INVALID_REQUEST),
    ({"isr": [4]}, E.INVALID_REQUEST),
    ({"isr": []}, E.INVALID_REQUEST),
    ({"isr": [2, 4]}, E.INELIGIBLE_REPLICA),
]


@pytest.mark.parametrize("number", range(len(EVERY_LATER_MISTAKE)))
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with every later mistake"])
def test_a_wish_is_refused_for_the_first_reason(number: int, alone: bool) -> None:
    cluster = cluster_of(1, 2, 3, 4)
    cluster.fence(1, 4)
    assert who(cluster) == is_(2, (2, 3))
    assert (cluster.partition("a").leader_epoch, cluster.partition("a").partition_epoch) == (1, 4)
    wrong, code = EVERY_LATER_MISTAKE[number]
    facts = dict(wrong)
    if not alone:
        for later, _ in reversed(EVERY_LATER_MISTAKE[number:]):
            facts |= later
        facts |= wrong
    isr = facts.pop("isr", [2, 3])
    before = cluster.replayed()
    result = cluster.alter_isr("a", *isr, **facts)
    assert (result.error, bool(result.message)) == (code, True)
    assert cluster.changes == []
    assert cluster.image == before


@pytest.mark.parametrize("epoch", [-1, 0, 99])
def test_a_request_of_an_older_process_of_the_broker_is_refused_as_a_whole(epoch: int) -> None:
    cluster = ControlledCluster(2, 1)
    cluster.create("a", assignment=[[1, 2]])
    request = c.AlterPartitionRequest(broker=1, broker_epoch=epoch, partitions=[])
    code = refusal(cluster.controller.alter_partition, request)
    assert code == E.STALE_BROKER_EPOCH
    unknown = c.AlterPartitionRequest(broker=9, broker_epoch=0, partitions=[])
    assert refusal(cluster.controller.alter_partition, unknown) == E.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("why", ["fenced", "stopping", "another epoch", "never registered"])
def test_only_who_is_alive_and_stays_may_join_an_isr(why: str) -> None:
    """KIP-841 and KIP-903; one such member refuses the whole wish."""
    cluster = cluster_of(1, 2, 3)
    cluster.alter_isr("a", 1)
    cluster.create("led", assignment=[[2]])
    told = [NONE, NONE, NONE]
    if why == "fenced":
        cluster.fence(2)
    elif why == "stopping":
        cluster.begin_stop(2)
    elif why == "another epoch":
        told[1] = cluster.image.brokers[2].epoch - 1
    else:
        del cluster.image.brokers[2]
    before = cluster.partition("a")
    result = cluster.alter_isr("a", 1, 2, 3, broker_epochs=told)
    assert (result.error, cluster.changes) == (E.INELIGIBLE_REPLICA, [])
    assert "broker 2 " in result.message
    assert cluster.partition("a") == before


# Eligible leader replicas.


def test_who_leaves_an_isr_that_becomes_too_small_stays_eligible_until_it_is_large_enough() -> None:
    """testEligibleLeaderReplicas_ShrinkAndExpandIsr."""
    cluster = cluster_of(0, 1, 2, min_isr=2)
    cluster.alter_isr("a", 0)
    assert who(cluster) == is_(0, (0,), elr=(1, 2))
    cluster.alter_isr("a", 0, 1)
    assert who(cluster) == is_(0, (0, 1))


def test_who_leaves_while_enough_are_left_is_not_eligible() -> None:
    """testEligibleLeaderReplicas_BrokerFence."""
    cluster = cluster_of(0, 1, 2, 3, min_isr=3)
    cluster.fence(2, 3)
    assert who(cluster) == is_(0, (0, 1), elr=(3,))
    cluster.fence(1)
    assert who(cluster) == is_(0, (0,), elr=(1, 3))
    before = cluster.partition("a")
    cluster.unfence(1, 2, 3)
    assert cluster.partition("a") == before, "only the leader can say who is in sync"
    cluster.alter_isr("a", 0, 1, 2, 3)
    assert who(cluster) == is_(0, (0, 1, 2, 3))


def one_left() -> ControlledCluster:
    cluster = cluster_of(0, 1, 2, 3, min_isr=3, flush="replicated")
    cluster.fence(1, 2, 3)
    assert who(cluster) == is_(0, (0,), elr=(2, 3))
    return cluster


def test_an_eligible_replica_leads_alone_and_the_others_stay_eligible() -> None:
    cluster = one_left()
    cluster.unfence(2)
    cluster.fence(0)
    assert who(cluster) == is_(2, (2,), elr=(0, 3))


def test_a_member_in_sync_comes_before_an_eligible_replica() -> None:
    """Whatever the order of the assignment, and even if the eligible one is preferred."""
    cluster = cluster_of(0, 1, 2, min_isr=3)
    cluster.fence(0)
    cluster.unfence(0)
    cluster.fence(1)
    assert who(cluster) == is_(2, (2,), elr=(0, 1))
    (result,) = cluster.elect(("a", 0))
    assert result.error == E.PREFERRED_LEADER_NOT_AVAILABLE
    assert cluster.rebalance() == []


def test_an_unclean_leader_ends_the_claims_of_all_others() -> None:
    cluster = cluster_of(0, 1, 2, min_isr=2, unclean_leader_election_enable="true")
    cluster.fence(2, 1, 0)
    assert who(cluster) == is_(NONE, (), elr=(0, 1), last=0)
    cluster.unfence(2)
    assert who(cluster) == is_(2, (2,))


def test_who_forgot_something_is_not_eligible_any_more() -> None:
    """testEligibleLeaderReplicas_UncleanShutdown, with restarts in place of -1 as epochs."""
    cluster = one_left()
    cluster.register(3)
    assert who(cluster) == is_(0, (0,), elr=(2,))
    cluster.register(0)
    assert who(cluster) == is_(NONE, (), elr=(2,), last=0)
    cluster.unfence(0, 3)
    assert who(cluster) == is_(NONE, (), elr=(2,), last=0), "2 is waited for"
    cluster.unfence(2)
    assert who(cluster) == is_(2, (2,))
    cluster.alter_isr("a", 0, 2)
    assert who(cluster) == is_(2, (0, 2))


def test_a_clean_restart_costs_nobody_its_eligibility() -> None:
    cluster = one_left()
    for broker in (3, 0):
        cluster.register(broker, previous=cluster.image.brokers[broker].epoch)
    assert who(cluster) == is_(NONE, (), elr=(0, 2, 3), last=0)


@pytest.mark.parametrize(
    ("flush", "directory", "is_eligible"),
    [
        ("synced", "disk-1", True),
        ("replicated", "disk-1", False),
        ("synced", "another", False),
        ("replicated", "another", False),
    ],
)
def test_an_unclean_restart_forgets_what_was_not_synced_and_another_disk_everything(
    flush: str, directory: str, is_eligible: bool
) -> None:
    for is_fenced_first in (False, True):
        cluster = cluster_of(0, 1, min_isr=2, flush=flush)
        if is_fenced_first:
            cluster.fence(1)
        cluster.now += 60
        cluster.heartbeat(0)
        cluster.register(1, directory=directory)
        assert who(cluster) == is_(0, (0,), elr=(1,) if is_eligible else ())


def test_another_disk_forgets_even_after_a_clean_stop() -> None:
    cluster = cluster_of(0, 1, min_isr=2)
    cluster.fence(1)
    cluster.register(1, previous=cluster.image.brokers[1].epoch, directory="another")
    assert who(cluster) == is_(0, (0,))
    assert not cluster.image.brokers[1].clean


def test_a_partition_cannot_need_more_in_sync_than_it_has_replicas() -> None:
    cluster = cluster_of(0, 1, 2, min_isr=5)
    cluster.alter_isr("a", 0, 1)
    assert who(cluster) == is_(0, (0, 1), elr=(2,))
    cluster.alter_isr("a", 0, 1, 2)
    assert who(cluster) == is_(0, (0, 1, 2))


def test_who_leads_alone_and_may_commit_ends_the_claims_of_all_others() -> None:
    """min.insync.replicas was lowered while nobody led."""
    cluster = cluster_of(0, 1, 2, min_isr=2)
    cluster.fence(2, 1, 0)
    cluster.alter("a", min_insync_replicas="1")
    cluster.unfence(1)
    assert who(cluster) == is_(1, (1,))


@pytest.mark.parametrize("how", ["set", "unset"])
def test_a_smaller_min_isr_that_is_met_makes_nobody_eligible(how: str) -> None:
    """KIP-966: from then on the ISR commits without those who left it."""
    cluster = cluster_of(0, 1, 2, min_isr=2)
    cluster.fence(1, 2)
    assert who(cluster) == is_(0, (0,), elr=(2,))
    if how == "set":
        cluster.alter("a", min_insync_replicas="1")
    else:
        cluster.alter("a", "min.insync.replicas")
    assert who(cluster) == is_(0, (0,)), "0 may commit records alone now, 2 misses them"
    cluster.unfence(1, 2)
    cluster.fence(0)
    assert who(cluster) == is_(NONE, (), elr=(0,), last=0)


def test_the_brokers_default_of_min_isr_counts_where_the_topic_says_nothing() -> None:
    cluster = ControlledCluster(0, 1, 2, topic_defaults={"min.insync.replicas": "2"})
    cluster.create("a", assignment=[[0, 1, 2]])
    cluster.alter_isr("a", 0)
    assert who(cluster) == is_(0, (0,), elr=(1, 2))


# The rule itself.


def test_nothing_to_change_is_no_change() -> None:
    state = PartitionState((1, 2), (1, 2), 1, 5, 7)
    rules = Rules(lambda broker: True, 1)
    for election in Election:
        assert change_partition("x", 0, state, rules, election=election) is None


def test_a_leader_that_stays_is_not_named() -> None:
    """Naming it would begin a new leader epoch."""
    state = PartitionState((1, 2, 3), (1, 2), 1, 5, 7)
    rules = Rules(lambda broker: True, 1)
    change = change_partition("x", 4, state, rules, isr=(1, 2, 3))
    assert change == ChangePartition(topic_id="x", partition=4, isr=(1, 2, 3))
    after = state.changed(change)
    assert (after.leader_epoch, after.partition_epoch) == (5, 8)


@pytest.mark.parametrize("election", Election)
def test_who_is_not_alive_leads_nothing_by_any_election(election: Election) -> None:
    state = PartitionState((1, 2), (1, 2), 1, 5, 7)
    change = change_partition(
        "x", 0, state, Rules(lambda broker: False, 1, True), election=election
    )
    assert change is not None
    assert state.changed(change).leader == NONE


def test_a_deleted_topic_is_unknown() -> None:
    cluster = cluster_of(1, 2)
    wish = {"topic_id": "id-1", "partition": 0, "leader_epoch": 0, "partition_epoch": 0}
    cluster.delete("a")
    request = c.AlterPartitionRequest(
        broker=1,
        broker_epoch=cluster.image.brokers[1].epoch,
        partitions=[c.AlterPartition(**wish, isr=[1])],
    )
    (result,) = cluster.commit(cluster.controller.alter_partition(request)).partitions
    assert (result.error, cluster.changes) == (E.UNKNOWN_TOPIC_ID, [])
    assert cluster.create_all(m.NewTopic(topic="a"))[0].error is None
