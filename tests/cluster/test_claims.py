"""Who may lead a partition after disks, processes and settings were lost or changed.

Goal: a replica leads by itself only if it certainly has all that is committed, or if it has all
that survived; where neither can be known, nobody leads. Method: a small cluster commits each
decision at once; every story here once ended with committed records cut away.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, SESSION_S, ControlledCluster, cluster_of, refusal

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.image import ClusterImage, PartitionState
from hightide_broker.core.cluster.log_ends import LogEnds
from hightide_broker.core.cluster.partition_changes import LogEnd
from hightide_broker.core.cluster.topic_keys import FLUSH

LONGER, SHORTER = (3, 120), (3, 90)


def state(cluster: ControlledCluster) -> PartitionState:
    return cluster.partition("a")


def who(cluster: ControlledCluster) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, ISR and ELR of the one partition."""
    return state(cluster).leader, state(cluster).isr, state(cluster).elr


def returns(
    cluster: ControlledCluster, broker: int, end: tuple[int, int] | None = None, **how: Any
) -> None:
    """A broker's process starts, and serves; it says how far its log reaches, if it is asked."""
    cluster.register(broker, **how)
    if end is None:
        cluster.unfence(broker)
    else:
        says(cluster, broker, end)


def says(cluster: ControlledCluster, broker: int, end: tuple[int, int]) -> None:
    cluster.heartbeat(broker, leaderless=cluster.leaderless(broker, end))


# Disks that are gone.


def test_an_empty_disk_does_not_lead_although_its_broker_led_last() -> None:
    """ISR {0}; its directory is removed: the followers' logs were cut to nothing."""
    cluster = cluster_of(0, 1, 2)
    cluster.fence(1, 2)
    cluster.fence(0)
    assert who(cluster) == (NONE, (), (0,))
    returns(cluster, 0, directory="a new one")
    returns(cluster, 1)
    returns(cluster, 2)
    assert cluster.rebalance() == []
    assert who(cluster) == (NONE, (), ())
    assert state(cluster).last_leader == 0, "who held it last is told"


def test_a_human_decides_for_the_longest_log_that_is_left() -> None:
    cluster = cluster_of(0, 1, 2)
    cluster.fence(1, 2)
    cluster.fence(0)
    returns(cluster, 0, (-1, 0), directory="a new one")
    returns(cluster, 1, SHORTER)
    returns(cluster, 2, LONGER)
    assert who(cluster) == (NONE, (), ())
    (result,) = cluster.elect(("a", 0), unclean=True)
    assert (result.error, result.leader, who(cluster)) == (None, 2, (2, (2,), ()))


def test_an_offline_replica_that_is_waited_for_is_not_given_up_for_an_empty_disk() -> None:
    """ELR {1} has all, the last leader 2 has a new disk, and 1 says that its replica is offline."""
    cluster = cluster_of(2, 1, min_isr=2)
    cluster.fence(2)
    cluster.fence(1)
    assert who(cluster) == (NONE, (), (2, 1))
    returns(cluster, 2, directory="a new one")
    assert who(cluster) == (NONE, (), (1,))
    offline = [c.OfflineReplica(topic_id="id-1", partition=0)]
    cluster.register(1, previous=cluster.image.brokers[1].epoch)
    cluster.heartbeat(1, offline=offline)
    cluster.heartbeat(2)
    assert who(cluster) == (NONE, (), (1,))


def test_an_offline_replica_goes_where_somebody_else_leads() -> None:
    cluster = cluster_of(0, 1, min_isr=1)
    cluster.heartbeat(1, offline=[c.OfflineReplica(topic_id="id-1", partition=0)])
    assert who(cluster) == (0, (0,), ())


@pytest.mark.parametrize("runs", [["run-before", "run-tried"], None])
def test_an_older_copy_of_a_directory_has_forgotten(runs: list[str] | None) -> None:
    """The same directory id, but it knows nothing of the process that was registered last, or only
    that it tried to be."""
    cluster = cluster_of(0, 1, min_isr=1)
    cluster.fence(1)
    cluster.fence(0)
    assert who(cluster) == (NONE, (), (0,))
    last = cluster.image.brokers[0]
    returns(cluster, 0, previous=last.epoch, runs=runs or ["-", last.incarnation])
    assert who(cluster) == (NONE, (), ())


@pytest.mark.parametrize("runs", [["last"], ["last", "tried"], ["older", "last"], None])
def test_a_directory_that_knows_its_last_process_has_not(runs: list[str] | None) -> None:
    """One that was registered and never served stored nothing."""
    cluster = cluster_of(0, 1, min_isr=1)
    cluster.fence(1, 0)
    cluster.register(0, incarnation="last")
    returns(cluster, 0, runs=runs)
    assert who(cluster) == (0, (0,), ())


# Unclean elections: only the longest log will do.

OFFLINE = c.OfflineReplica(topic_id="id-1", partition=0)


def alone(how: str) -> ControlledCluster:
    """Broker 0 was alone in sync, and is gone for good; nobody has said yet what there is."""
    allowed = "true" if how == "allowed" else "false"
    cluster = cluster_of(0, 1, 2, unclean_leader_election_enable=allowed)
    cluster.alter_isr("a", 0)
    for broker in (1, 2):
        cluster.heartbeat(broker)
    cluster.fence(0)
    cluster.register(0, directory="a new one")
    return cluster


@pytest.mark.parametrize("how", ["allowed", "asked for"])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_nobody_is_elected_uncleanly_before_all_who_live_have_said_what_they_have(
    how: str, order: tuple[int, int]
) -> None:
    cluster = alone(how)
    ends = {1: SHORTER, 2: LONGER}
    for broker in order:
        assert cluster.rebalance() == []
        assert who(cluster)[0] == NONE
        if how == "asked for":
            (refused,) = cluster.elect(("a", 0), unclean=True)
            assert refused.error == ErrorCode.REQUEST_TIMED_OUT
        says(cluster, broker, ends[broker])
    if how == "asked for":
        cluster.elect(("a", 0), unclean=True)
    assert who(cluster) == (2, (2,), ())


def test_a_new_controller_asks_again_before_it_elects_uncleanly() -> None:
    cluster = alone("asked for")
    says(cluster, 1, SHORTER)
    says(cluster, 2, LONGER)
    cluster.take_over()
    says(cluster, 1, SHORTER)
    (refused,) = cluster.elect(("a", 0), unclean=True)
    assert refused.error == ErrorCode.REQUEST_TIMED_OUT
    assert "brokers [0, 2] have not said yet how far their logs reach" in refused.message
    cluster.now += SESSION_S  # 0 had time to come back
    says(cluster, 1, SHORTER)
    (refused,) = cluster.elect(("a", 0), unclean=True)
    assert "brokers [2] have not said yet" in refused.message
    says(cluster, 2, LONGER)
    (result,) = cluster.elect(("a", 0), unclean=True)
    assert (result.error, result.leader) == (None, 2)


def test_who_has_no_log_says_so_and_is_not_elected() -> None:
    cluster = alone("allowed")
    cluster.heartbeat(2, offline=[OFFLINE])
    assert who(cluster) == (NONE, (), ())
    says(cluster, 1, SHORTER)
    assert who(cluster) == (1, (1,), ())
    cluster = alone("asked for")
    for broker in (1, 2):
        cluster.heartbeat(broker, offline=[OFFLINE])
    (refused,) = cluster.elect(("a", 0), unclean=True)
    assert refused.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_an_unclean_election_says_what_is_in_its_way_where_an_offline_replica_leads() -> None:
    cluster = cluster_of(0, 1, 2)
    cluster.alter_isr("a", 0)
    cluster.heartbeat(0, offline=[OFFLINE])
    assert who(cluster)[0] == 0
    (refused,) = cluster.elect(("a", 0), unclean=True)
    assert refused.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert "led by broker 0, whose replica is offline: stop that broker first" in refused.message
    cluster.fence(0)
    says(cluster, 1, SHORTER)
    says(cluster, 2, LONGER)
    (result,) = cluster.elect(("a", 0), unclean=True)
    assert (result.error, result.leader) == (None, 2)


def test_who_is_gone_is_not_waited_for() -> None:
    cluster = alone("allowed")
    says(cluster, 1, SHORTER)
    cluster.fence(2)
    assert who(cluster)[0] == NONE
    says(cluster, 1, SHORTER)
    assert who(cluster) == (1, (1,), ())


def test_a_leader_whose_log_fails_is_followed_by_the_longest_where_that_is_allowed() -> None:
    for allowed, leader in (("true", NONE), ("false", 0)):
        cluster = cluster_of(0, 1, 2, unclean_leader_election_enable=allowed)
        cluster.alter_isr("a", 0)
        cluster.heartbeat(0, offline=[OFFLINE])
        assert who(cluster)[0] == leader
        says(cluster, 1, SHORTER)
        says(cluster, 2, LONGER)
        assert who(cluster)[0] == (2 if allowed == "true" else 0)


# Processes that are gone, and what they had not synced.


def test_the_last_of_a_topic_that_does_not_sync_waits_for_all_and_the_longest_log_leads() -> None:
    cluster = cluster_of(0, 1, 2, min_isr=2, flush="replicated")
    cluster.fence(2)
    cluster.fence(1)
    cluster.register(1)
    cluster.register(0)
    assert (who(cluster), state(cluster).last_known_elr) == ((NONE, (), ()), (0, 1))
    says(cluster, 0, SHORTER)
    assert who(cluster) == (NONE, (), ()), "1 may have more"
    says(cluster, 1, LONGER)
    assert who(cluster) == (1, (1,), ())
    assert state(cluster).last_known_elr == (0,), "1 alone commits nothing yet"
    cluster.unfence(2)
    cluster.alter_isr("a", 1, 2)
    assert state(cluster).last_known_elr == ()


def test_a_replica_that_was_not_in_sync_may_have_more_than_who_was() -> None:
    """0 was alone in sync, and lost what it had not synced; 1 had fetched more of it."""
    cluster = cluster_of(0, 1, flush="replicated")
    cluster.alter_isr("a", 0)
    cluster.register(0)
    says(cluster, 1, LONGER)
    assert who(cluster) == (NONE, (), ())
    says(cluster, 0, SHORTER)
    assert who(cluster) == (1, (1,), ())


def test_who_lost_its_disk_is_not_waited_for() -> None:
    cluster = cluster_of(0, 1, min_isr=2, flush="replicated")
    cluster.fence(1)
    cluster.register(1)
    cluster.register(0)
    assert state(cluster).last_known_elr == (0, 1)
    returns(cluster, 1, (-1, 0), directory="a new one")
    returns(cluster, 0, SHORTER)
    assert who(cluster) == (0, (0,), ())


def test_a_single_replica_leads_again_after_any_stop() -> None:
    """There is nobody else who could have more."""
    cluster = cluster_of(0, flush="replicated")
    returns(cluster, 0)
    assert who(cluster) == (0, (0,), ())


def test_what_was_said_of_a_log_ends_with_the_process() -> None:
    ends = LogEnds()
    told = c.LeaderlessReplica(topic_id="t", partition=0, last_epoch=1, log_end=5, leader_epoch=7)
    ends.heard(1, [told])
    ends.heard(2, [told])
    assert ends.of("t", 0, 7) == {1: LogEnd(1, 5), 2: LogEnd(1, 5)}
    assert (ends.of("t", 0, 8), ends.untold("t", 0, 8, [1, 2])) == ({}, (1, 2))
    ends.heard(1, [])
    ends.forget(2)
    assert ends.of("t", 0, 7) == {}


def test_what_was_said_of_a_log_ends_with_the_epoch_in_which_nobody_led() -> None:
    """1 says that it has much; 2 leads for a moment, and 1 is cut to what 2 has; 2 dies again."""
    cluster = cluster_of(0, 1, 2, unclean_leader_election_enable="true")
    cluster.alter_isr("a", 0)
    cluster.fence(0)
    old = cluster.leaderless(1, LONGER)
    cluster.register(0, directory="a new one")
    says(cluster, 1, SHORTER)
    says(cluster, 2, LONGER)
    assert who(cluster) == (2, (2,), ())
    cluster.fence(2)
    cluster.register(2, directory="a new one")
    cluster.heartbeat(1, leaderless=old)
    assert who(cluster) == (NONE, (), ()), "that was before"
    says(cluster, 2, LONGER)
    assert who(cluster) == (NONE, (), ())
    says(cluster, 1, SHORTER)
    assert who(cluster) == (2, (2,), ())


# Settings that changed.


def test_a_topic_that_is_synced_only_since_its_broker_died_may_have_forgotten() -> None:
    """`flush` is judged as of the time that the process lived, not as of today."""
    cluster = cluster_of(0, 1, min_isr=2, flush="replicated")
    cluster.alter("a", flush="synced")
    cluster.register(1)
    assert who(cluster) == (0, (0,), ())


def test_a_topic_that_was_synced_all_the_time_of_a_process_forgets_nothing() -> None:
    for how in ("from its creation", "before it was registered"):
        cluster = cluster_of(0, 1, min_isr=2, flush="synced")
        if how == "before it was registered":
            cluster.alter("a", flush="replicated")
            cluster.alter("a", flush="synced")
            cluster.join(1)
            cluster.alter_isr("a", 0, 1)
        cluster.register(1)
        assert who(cluster) == (0, (0,), (1,)), how


def test_a_snapshot_remembers_since_when_a_topic_is_synced() -> None:
    cluster = cluster_of(0, 1, min_isr=2, flush="replicated")
    for unset in ((), ("flush",)):
        cluster.alter("a", flush="replicated")
        cluster.alter("a", *unset, **({} if unset else {"flush": "synced"}))
        since = cluster.image.topics["a"].synced_since
        assert since == len(cluster.log) - 1
        image = ClusterImage.of_snapshot(cluster.image.changes(), cluster.image.offset)
        assert image == cluster.image


def test_the_defaults_that_all_must_agree_about_are_records_of_the_first_controller() -> None:
    """Nodes whose files differed lost committed records when another controller took over."""
    cluster = ControlledCluster(0, 1, 2, topic_defaults={"min.insync.replicas": "2"})
    cluster.create("a", assignment=[[0, 1, 2]])
    cluster._facts["topic_defaults"] = {"min.insync.replicas": "1", "flush": "replicated"}
    cluster.take_over()
    cluster.alter_isr("a", 0)
    assert who(cluster) == (0, (0,), (1, 2))
    assert cluster.image.setting("a", FLUSH) == "synced"


def test_the_default_of_the_cluster_is_changed_for_all_topics_that_do_not_say() -> None:
    cluster = cluster_of(0, 1, 2, min_isr=2)
    cluster.create("b", assignment=[[0, 1, 2]])
    change = m.ConfigChange(kind="cluster", name="", set={"min.insync.replicas": "3"})
    assert cluster.alter_all(change)[0].error is None
    cluster.fence(2)
    assert (cluster.partition("a").elr, cluster.partition("b").elr) == ((), (2,))
    back = m.ConfigChange(kind="cluster", name="", unset=["min.insync.replicas"])
    cluster.alter_all(back)
    assert cluster.partition("b").elr == (), "0 and 1 commit without it now"
    cluster.alter_all(m.ConfigChange(kind="cluster", name="", set={"flush": "replicated"}))
    cluster.alter_all(m.ConfigChange(kind="cluster", name="", set={"flush": "synced"}))
    since = {name: topic.synced_since for name, topic in cluster.image.topics.items()}
    assert since == dict.fromkeys("ab", len(cluster.log) - 1)


@pytest.mark.parametrize("key", ["retention.ms", "flsh"])
def test_what_nodes_need_not_agree_about_is_no_default_of_the_cluster(key: str) -> None:
    cluster = ControlledCluster(0)
    (result,) = cluster.alter_all(m.ConfigChange(kind="cluster", name="", set={key: "1"}))
    assert result.error == ErrorCode.INVALID_CONFIG
    assert "min.insync.replicas" in result.message


# All at once.


def blackout(cluster: ControlledCluster) -> None:
    """All brokers are gone at once, and so is the controller."""
    cluster.now += 60
    cluster.take_over()


def test_after_all_lost_power_who_comes_back_first_leads() -> None:
    """`min.insync.replicas` 1: registering took each of them out of the ISR but the last."""
    cluster = cluster_of(0, 1, 2)
    blackout(cluster)
    returns(cluster, 1)
    assert who(cluster) == (1, (1,), ())
    returns(cluster, 2)
    cluster.alter_isr("a", 1, 2)
    assert who(cluster) == (1, (1, 2), ())


def test_brokers_that_fall_silent_together_stay_eligible_together() -> None:
    cluster = cluster_of(0, 1, 2)
    cluster.take_over()
    cluster.now += SESSION_S
    assert cluster.fence_silent() == [0, 1, 2]
    assert who(cluster) == (NONE, (), (0, 1, 2))
    returns(cluster, 2)
    assert who(cluster) == (2, (2,), ())


def test_a_member_that_was_heard_of_leads_on_while_another_one_restarts() -> None:
    cluster = cluster_of(0, 1, 2)
    cluster.take_over()
    cluster.heartbeat(0)
    cluster.register(1)
    assert who(cluster) == (0, (0, 2), ())
    assert state(cluster).leader_epoch == 0


def test_an_older_process_says_nothing() -> None:
    cluster = cluster_of(0, 1)
    code = refusal(cluster.heartbeat, 0, epoch=0, leaderless=[])
    assert code == ErrorCode.STALE_BROKER_EPOCH
