"""Who else than those in sync may lead, until these are heard of: a machine may be without power.

Goal: whoever left the ISR last, or forgot something, stays eligible until the leader and as many as
have to be in sync were alive after that; and meanwhile nothing commits, or who is eligible would
miss it. Method: one controller decides, and hears brokers only when a test says so; one partition
is looked at. What the same does to real brokers is in `simulation/test_unsynced.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, ControlledCluster, cluster_of
from test_waited_for import OFFLINE, killed, says, stopped, who

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.cluster.image import ClusterImage, PartitionState
from hightide_broker.core.cluster.partition_changes import let_go


def heard_when_told(*brokers: int, **configs: Any) -> ControlledCluster:
    cluster = cluster_of(*brokers, flush="replicated", **configs)
    cluster.hears_all = False
    return cluster


def restarted(cluster: ControlledCluster, broker: int) -> None:
    cluster.register(broker)


LEAVES = pytest.mark.parametrize("leaves", [stopped, killed, restarted])


# --- who stays may be dead ------------------------------------------------------------------------


def test_of_two_without_power_the_first_who_is_back_loses_nothing_of_the_other() -> None:
    """Both were heard of a moment ago. 0 had 200 records on its disk, and 1 had 100."""
    cluster = heard_when_told(0, 1)
    cluster.now += 1
    cluster.register(0)
    assert who(cluster) == {"leader": 1, "isr": (1,), "last_known": (0,)}
    cluster.now += 1
    cluster.register(1)
    assert who(cluster) == {"leader": NONE, "isr": (), "last_known": (0, 1)}
    says(cluster, 1, 100)
    assert who(cluster)["leader"] == NONE
    says(cluster, 0, 200)
    assert who(cluster) == {"leader": 0, "isr": (0,), "last_known": (1,)}


@LEAVES
def test_who_leaves_in_good_order_or_not_is_eligible_before_one_who_lost_its_power(
    leaves: Any,
) -> None:
    """0 lost its power, and nobody knows yet; 1 has everything, whatever becomes of it."""
    cluster = heard_when_told(1, 0)
    cluster.now += 1
    leaves(cluster, 1)
    assert who(cluster) == {"leader": 0, "isr": (0,)} | (
        {"last_known": (1,)} if leaves is restarted else {"elr": (1,)}
    )
    cluster.register(0)
    says(cluster, 0, 100)
    says(cluster, 0, 100)
    assert who(cluster)["leader"] == NONE, "1 has more"
    if leaves is not restarted:
        cluster.register(1, previous=cluster.image.brokers[1].epoch)
    says(cluster, 1, 200)
    assert who(cluster)["leader"] == 1


def test_a_follower_that_is_gone_is_eligible_before_a_leader_that_may_be() -> None:
    """2 is killed, and nobody knows that the others are without power."""
    cluster = heard_when_told(0, 1, 2, min_isr=2)
    killed(cluster, 2)
    assert who(cluster) == {"leader": 0, "isr": (0, 1), "elr": (2,)}
    for broker in (0, 1):
        cluster.register(broker)
    assert who(cluster) == {"leader": NONE, "isr": (), "elr": (2,), "last_known": (0, 1)}
    cluster.register(2, previous=cluster.image.brokers[2].epoch)
    cluster.unfence(2)
    assert who(cluster)["leader"] == 2


def test_whom_the_leader_drops_is_eligible_until_the_others_are_heard_of() -> None:
    cluster = heard_when_told(0, 1, 2, min_isr=2)
    cluster.alter_isr("a", 0, 1)
    assert who(cluster) == {"leader": 0, "isr": (0, 1), "elr": (2,)}
    cluster.heartbeat(0)
    assert who(cluster)["elr"] == (2,), "1 may be dead"
    cluster.heartbeat(1)
    assert who(cluster) == {"leader": 0, "isr": (0, 1)}


# --- when they are let go -------------------------------------------------------------------------


@LEAVES
def test_nobody_is_let_go_before_enough_in_sync_are_heard_of(leaves: Any) -> None:
    cluster = heard_when_told(0, 1, 2, min_isr=2)
    leaves(cluster, 0)
    cluster.heartbeat(1)
    before = who(cluster)
    assert (before["leader"], before["isr"], len(before)) == (1, (1, 2), 3)
    cluster.heartbeat(2)
    assert who(cluster) == {"leader": 1, "isr": (1, 2)}


def test_one_who_is_not_in_sync_says_nothing_of_those_who_are() -> None:
    cluster = heard_when_told(0, 1, 2, min_isr=2)
    cluster.alter_isr("a", 0, 1)
    for _ in range(3):
        cluster.heartbeat(2)
        cluster.heartbeat(0)
    assert who(cluster)["elr"] == (2,)


def test_a_word_from_before_somebody_left_says_nothing_of_after() -> None:
    cluster = heard_when_told(0, 1, 2)
    before = cluster.image.offset
    killed(cluster, 0)
    for broker in (1, 2):
        cluster.heartbeat(broker, seen=before)
    assert who(cluster)["elr"] == (0,)
    # Up to the change, and not behind it; then all of it.
    at = cluster.image.contested["id-1", 0]
    for broker in (1, 2):
        cluster.heartbeat(broker, seen=at - 1)
    assert who(cluster)["elr"] == (0,)
    for broker in (1, 2):
        cluster.heartbeat(broker, seen=at)
    assert who(cluster) == {"leader": 1, "isr": (1, 2)}


@pytest.mark.parametrize("is_next_one", [True, False])
def test_a_controller_hears_everybody_itself(is_next_one: bool) -> None:
    cluster = heard_when_told(0, 1, 2, min_isr=2)
    killed(cluster, 0)
    cluster.heartbeat(1)
    if is_next_one:
        cluster.take_over()
    cluster.heartbeat(2)
    assert ("elr" in who(cluster)) is is_next_one
    cluster.heartbeat(1)
    assert "elr" not in who(cluster)


def test_as_many_as_are_needed_have_to_be_in_sync() -> None:
    cluster = heard_when_told(0, 1, 2, min_isr=2)
    cluster.alter_isr("a", 0)
    cluster.heartbeat(0)
    assert who(cluster) == {"leader": 0, "isr": (0,), "elr": (1, 2)}
    cluster.alter_isr("a", 0, 1)
    for broker in (0, 1):
        cluster.heartbeat(broker)
    assert who(cluster) == {"leader": 0, "isr": (0, 1)}


@pytest.mark.parametrize("kind", ["topic", "cluster"])
def test_who_is_in_sync_has_to_be_heard_of_after_fewer_are_needed(kind: str) -> None:
    """The one whom a lower minimum lets commit alone may be dead for a while."""
    cluster = heard_when_told(0, 1)
    two, one = ({"min.insync.replicas": number} for number in "21")
    name = "a" if kind == "topic" else ""
    if kind == "cluster":
        cluster.alter("a", "min.insync.replicas")
    cluster.alter_all(m.ConfigChange(kind=kind, name=name, set=two))
    killed(cluster, 1)
    cluster.heartbeat(0)
    before = cluster.image.offset
    cluster.alter_all(m.ConfigChange(kind=kind, name=name, set=one))
    cluster.heartbeat(0, seen=before)
    assert who(cluster) == {"leader": 0, "isr": (0,), "elr": (1,)}
    cluster.heartbeat(0)
    assert who(cluster) == {"leader": 0, "isr": (0,)}


def test_what_another_topic_needs_puts_nobody_off() -> None:
    """Or who makes one topic after the other would hold up all that is contested."""
    cluster = heard_when_told(0, 1, 2)
    killed(cluster, 0)
    since = cluster.image.offset
    cluster.create("b", assignment=[[1, 2]], configs={"min.insync.replicas": "2"})
    cluster.alter("b", min_insync_replicas="1")
    cluster.heartbeat(1, seen=since)
    assert who(cluster) == {"leader": 1, "isr": (1, 2)}


def test_the_word_of_a_leader_whose_log_is_offline_lets_nobody_go() -> None:
    """It stays leader only because nobody else is there; the other one has everything."""
    cluster = heard_when_told(0, 1, min_isr=2)
    stopped(cluster, 0)
    cluster.fence(0)
    cluster.heartbeat(1, offline=[OFFLINE])
    cluster.alter("a", min_insync_replicas="1")
    for _ in range(3):
        cluster.heartbeat(1, offline=[OFFLINE])
    assert who(cluster) == {"leader": 1, "isr": (1,), "elr": (0,)}
    cluster.register(0, previous=cluster.image.brokers[0].epoch)
    cluster.unfence(0)
    cluster.heartbeat(1, offline=[OFFLINE])
    assert who(cluster)["leader"] == 0


def test_one_word_that_changes_a_partition_settles_the_others_as_well() -> None:
    cluster = heard_when_told(0, 1, 2)
    cluster.create("b", assignment=[[1, 2, 0]])
    killed(cluster, 0)
    damaged = c.OfflineReplica(topic_id=cluster.image.topics["b"].topic_id, partition=0)
    cluster.heartbeat(1, offline=[damaged])
    assert who(cluster) == {"leader": 1, "isr": (1, 2)}
    other = cluster.partition("b")
    assert (other.leader, other.isr, other.elr) == (2, (2,), (0,)), "not by the same word"
    cluster.heartbeat(2)
    assert not cluster.partition("b").is_contested


def test_an_unclean_leader_ends_the_claims_of_all_others_at_once() -> None:
    """What it lacks is given up: who has it must not lead next."""
    cluster = heard_when_told(0, 1, 2, min_isr=2)
    cluster.alter_isr("a", 0, 1)
    for broker in (0, 1):
        cluster.heartbeat(broker)
    for broker in (0, 1):
        killed(cluster, broker)
    says(cluster, 2, 50)
    (result,) = cluster.elect(("a", 0), unclean=True)
    assert result.error is None
    assert who(cluster) == {"leader": 2, "isr": (2,)}


def test_a_damaged_replica_is_not_eligible_beside_those_in_sync() -> None:
    cluster = heard_when_told(0, 1, 2)
    cluster.heartbeat(0, offline=[OFFLINE])
    assert who(cluster) == {"leader": 1, "isr": (1, 2)}


def test_what_a_deleted_topic_waited_for_is_forgotten() -> None:
    cluster = heard_when_told(0, 1, 2)
    killed(cluster, 0)
    cluster.delete("a")
    assert not cluster.image.contested
    cluster.heartbeat(1)
    assert cluster.changes == []


# --- the rule, and where it is kept ---------------------------------------------------------------


def test_nothing_is_let_go_where_nobody_leads() -> None:
    state = PartitionState((1, 2), (), NONE, 5, 7, elr=(1, 2), last_leader=1)
    assert let_go("x", 0, state, 1, (1, 2)) is None


@pytest.mark.parametrize(
    ("heard", "min_isr", "lets_go"),
    [
        ((1,), 1, True),
        ((2, 3), 1, False),
        ((1, 3), 2, True),
        ((1,), 2, False),
        ((1, 2, 3), 3, True),
        ((1, 2, 3), 4, False),
    ],
)
def test_the_leader_is_heard_and_as_many_as_have_to_be_in_sync(
    heard: tuple[int, ...], min_isr: int, lets_go: bool
) -> None:
    """Who is in sync beyond that holds up no commit by not being heard."""
    state = PartitionState((1, 2, 3, 4), (1, 2, 3), 1, 5, 7, elr=(4,))
    change = let_go("x", 0, state, min_isr, heard)
    assert (change is not None) is lets_go
    if change is not None:
        assert not state.changed(change).is_contested


def test_an_image_of_a_snapshot_waits_for_words_from_behind_it() -> None:
    cluster = heard_when_told(0, 1, 2)
    killed(cluster, 0)
    since = cluster.image.contested["id-1", 0]
    assert cluster.image.copy().contested == cluster.replayed().contested == {("id-1", 0): since}
    loaded = ClusterImage.of_snapshot(cluster.image.changes(), since + 5)
    assert loaded.contested == {("id-1", 0): since + 5}
