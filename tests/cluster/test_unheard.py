"""After all power was lost: nobody leads of whom the controller has heard nothing, or bad news.

Goal: the longest log that is left leads, whoever comes back first, and a whole disk is not given up
for one that is damaged or dead. Method: one controller takes over from another and has heard of
nobody, though the metadata says that all serve; brokers come back in every order.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from controller_cluster import NONE, SESSION_S, ControlledCluster, cluster_of
from test_waited_for import OFFLINE, says, who

from hightide.protocol.errors import ErrorCode

ENDS = {0: 200, 1: 150, 2: 100}


def darkened(flush: str) -> ControlledCluster:
    """All three were in sync when everything stopped; the next controller is up at once."""
    cluster = cluster_of(0, 1, 2, flush=flush)
    cluster.take_over()
    return cluster


@pytest.mark.parametrize("heard", list(permutations(ENDS)))
@pytest.mark.parametrize("registered", list(permutations(ENDS)))
def test_the_longest_log_leads_whoever_is_back_first(registered, heard) -> None:
    cluster = darkened("replicated")
    for broker in registered:
        cluster.register(broker)
    assert who(cluster) == {"leader": NONE, "isr": (), "last_known": (0, 1, 2)}
    for broker in heard:
        assert cluster.partition("a").leader == NONE
        says(cluster, broker, ENDS[broker])
    assert cluster.partition("a").leader == 0


def in_sync_alone() -> ControlledCluster:
    """The two others were fenced; then the last one lost its power, too, and is the first that is
    back: of those that were in sync it is all."""
    cluster = cluster_of(0, 1, 2, flush="replicated")
    cluster.fence(1, 2)
    cluster.take_over()
    cluster.register(0)
    assert who(cluster) == {"leader": NONE, "isr": (), "last_known": (0,)}
    says(cluster, 0, 1)
    return cluster


def test_a_new_controller_hears_those_that_were_fenced_too() -> None:
    """What the last controller wrote may have been committed by this one only: nobody need have
    led without those."""
    cluster = in_sync_alone()
    for broker, end in ((1, 32), (2, 3)):
        assert cluster.partition("a").leader == NONE
        cluster.register(broker)
        says(cluster, broker, end)
    assert cluster.partition("a").leader == 1


def test_it_waits_for_them_no_longer_than_a_session() -> None:
    cluster = in_sync_alone()
    cluster.register(1)
    says(cluster, 1, 32)
    assert cluster.partition("a").leader == NONE
    cluster.now += SESSION_S
    says(cluster, 1, 32)
    says(cluster, 0, 1)
    assert cluster.partition("a").leader == 1


def test_who_is_just_back_is_heard_before_another_one_leads() -> None:
    """Its first heartbeat unfences it, and says nothing yet of a log that may be the longest."""
    cluster = in_sync_alone()
    cluster.register(1)
    cluster.now += SESSION_S - 0.2
    says(cluster, 0, 1)
    cluster.now += 0.2
    cluster.heartbeat(1, leaderless=[])
    assert cluster.image.is_active(1)
    assert cluster.partition("a").leader == NONE
    says(cluster, 1, 32)
    assert cluster.partition("a").leader == 1


def test_who_finds_its_log_damaged_hands_it_to_nobody_unheard() -> None:
    cluster = darkened("synced")
    cluster.register(0)
    cluster.heartbeat(0, offline=[OFFLINE])
    assert who(cluster)["leader"] == NONE, "1 may be dead"
    cluster.register(2)
    cluster.unfence(2)
    assert who(cluster)["leader"] == 2


def test_an_older_copy_of_a_directory_hands_nothing_to_who_is_unheard() -> None:
    cluster = darkened("synced")
    cluster.register(2)
    cluster.register(1, runs=["one before"])
    assert who(cluster)["leader"] == NONE, "0 may be dead"
    cluster.unfence(2)
    assert who(cluster)["leader"] == 2


def test_by_hand_nobody_is_elected_who_is_unheard() -> None:
    cluster = darkened("synced")
    cluster.register(1)
    assert who(cluster)["leader"] == NONE
    (result,) = cluster.elect(("a", 0))
    assert result.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.unfence(1)
    assert who(cluster)["leader"] == 1


def test_who_says_that_its_log_is_damaged_is_not_elected_by_the_same_word() -> None:
    cluster = darkened("synced")
    cluster.now += 2 * SESSION_S
    assert cluster.fence_silent() == [0, 1, 2]
    for broker in (0, 1):
        cluster.register(broker)
    assert not cluster.heartbeat(0, offline=[OFFLINE]).fenced
    assert who(cluster)["leader"] == NONE
    cluster.unfence(1)
    assert who(cluster)["leader"] == 1, "not 0, though it comes first"


def test_whose_damaged_log_is_the_only_one_tells_so_as_its_leader() -> None:
    cluster = cluster_of(0)
    cluster.fence(0)
    cluster.register(0)
    cluster.heartbeat(0, offline=[OFFLINE])
    assert who(cluster)["leader"] == 0


def test_who_stopped_in_order_and_cannot_open_its_log_is_waited_for() -> None:
    """The other one lost its power, and what it had not synced."""
    cluster = cluster_of(0, 1, min_isr=2, flush="replicated")
    cluster.heartbeat(0)
    cluster.register(1)
    says(cluster, 1, 50)
    cluster.begin_stop(0)
    before = cluster.image.brokers[0].epoch
    cluster.now += 1
    for _ in range(2):
        cluster.heartbeat(0, want_shut_down=True)
    cluster.register(0, previous=before)
    assert who(cluster) == {"leader": NONE, "isr": (), "elr": (0,), "last_known": (1,)}
    cluster.heartbeat(0, offline=[OFFLINE])
    says(cluster, 1, 50)
    assert who(cluster)["leader"] == NONE, "its disk is there, and nobody may say otherwise"
    cluster.unfence(0)
    assert who(cluster)["leader"] == 0
