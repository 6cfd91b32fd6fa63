"""Who is waited for before somebody leads, and who is not any more.

Goal: a setting, a stop, a damaged log or a broker that says nothing yet never makes a replica lead
that lacks what another one holds, nor keeps one out for ever. Method: one controller decides, one
partition is looked at after each thing that happened.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, ControlledCluster, cluster_of

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import FenceBroker
from hightide_broker.core.cluster.controller import Decision

OFFLINE = c.OfflineReplica(topic_id="id-1", partition=0)
MIN_ISR = "min.insync.replicas"


def who(cluster: ControlledCluster) -> dict[str, Any]:
    state = cluster.partition("a")
    known = {"elr": state.elr, "last_known": state.last_known_elr}
    return {"leader": state.leader, "isr": state.isr} | {k: v for k, v in known.items() if v}


def says(cluster: ControlledCluster, broker: int, end: int) -> None:
    cluster.heartbeat(broker, leaderless=cluster.leaderless(broker, (0, end)))


# --- settings that change together ----------------------------------------------------------------


@pytest.mark.parametrize("cluster_first", [True, False])
def test_settings_of_one_request_are_judged_as_they_are_together(cluster_first: bool) -> None:
    """The cluster's minimum falls, and the topic follows the cluster from now on: each by itself
    would leave two needed."""
    cluster = ControlledCluster(0, 1)
    both = [
        m.ConfigChange(kind="cluster", name="", set={MIN_ISR: "1"}),
        m.ConfigChange(kind="topic", name="a", unset=[MIN_ISR]),
    ]
    cluster.alter_all(m.ConfigChange(kind="cluster", name="", set={MIN_ISR: "2"}))
    cluster.create("a", assignment=[[0, 1]], configs={MIN_ISR: "2"})
    cluster.fence(1)
    assert who(cluster) == {"leader": 0, "isr": (0,), "elr": (1,)}
    results = cluster.alter_all(*(both if cluster_first else both[::-1]))
    assert [each.error for each in results] == [None, None]
    assert who(cluster) == {"leader": 0, "isr": (0,)}, "0 commits alone, and 1 misses that"


# --- damage ---------------------------------------------------------------------------------------


def test_who_stopped_uncleanly_and_is_damaged_is_not_relied_on_while_somebody_leads() -> None:
    """It begins again from the leader, and until then nobody waits for it."""
    cluster = cluster_of(0, 1, 2, min_insync_replicas="2", flush="replicated")
    cluster.fence(1)
    cluster.fence(2)
    cluster.register(2)
    assert who(cluster)["last_known"] == (2,)
    cluster.heartbeat(2, offline=[OFFLINE])
    assert who(cluster) == {"leader": 0, "isr": (0,)}


def test_who_stopped_uncleanly_and_is_damaged_is_waited_for_while_nobody_leads() -> None:
    cluster = cluster_of(0, 1, min_insync_replicas="2", flush="replicated")
    cluster.fence(1)
    cluster.register(1)
    cluster.register(0)
    assert who(cluster) == {"leader": NONE, "isr": (), "last_known": (0, 1)}
    cluster.heartbeat(1, offline=[OFFLINE])
    says(cluster, 0, 50)
    assert who(cluster) == {"leader": NONE, "isr": (), "last_known": (0, 1)}, "1 may have more"


# --- brokers that are silent ----------------------------------------------------------------------


def test_a_log_of_which_nothing_is_known_yet_may_be_the_longest() -> None:
    """2 was not in sync, and had fetched what 0 and 1 lost with their power."""
    cluster = cluster_of(0, 1, 2, min_insync_replicas="2", flush="replicated")
    cluster.alter_isr("a", 0, 1)
    cluster.now += 20
    assert cluster.fence_silent() == [0, 1, 2]
    for broker in (0, 1, 2):
        cluster.register(broker)
    cluster.heartbeat(2, leaderless=[])
    says(cluster, 0, 50)
    says(cluster, 1, 50)
    assert who(cluster)["leader"] == NONE
    says(cluster, 2, 90)
    assert who(cluster)["leader"] == 2


def stopped(cluster: ControlledCluster, broker: int = 0) -> None:
    cluster.begin_stop(broker)


def killed(cluster: ControlledCluster, broker: int = 0) -> None:
    gone = {broker: cluster.image.brokers[broker].epoch}
    decision = Decision(cluster.controller.brokers.fence_gone(gone, cluster.now), m.Message())
    cluster.commit(decision)
    assert any(isinstance(change, FenceBroker) for change in cluster.changes)


@pytest.mark.parametrize("leaves", [stopped, killed])
@pytest.mark.parametrize("flush", ["replicated", "synced"])
def test_who_leaves_hands_nothing_to_a_broker_that_may_be_dead(leaves: Any, flush: str) -> None:
    """1 lost its power 5 s ago, and with it what it had not synced, or its disk."""
    cluster = cluster_of(0, 1, min_insync_replicas="1", flush=flush)
    cluster.join(2)
    cluster.now += 5
    for broker in (0, 2):
        cluster.heartbeat(broker)
    epoch = cluster.image.brokers[0].epoch
    leaves(cluster)
    assert who(cluster) == {"leader": NONE, "isr": (), "elr": (0, 1)}
    cluster.now += 5
    cluster.heartbeat(2)
    cluster.fence_silent()
    cluster.register(1, directory="disk-1" if flush == "replicated" else "a new one")
    says(cluster, 1, 50)
    assert who(cluster)["leader"] == NONE
    previous = epoch if leaves is stopped or flush == "synced" else -1
    cluster.register(0, previous=previous)
    says(cluster, 0, 100)
    assert who(cluster)["leader"] == 0
