"""The pieces of which the controller is made, each by itself.

Goal: sessions end when they say, what one broker told of its logs outlives what others tell, the
rule for one partition holds where nobody is alive, and an image takes only what a controller may
have decided and names whatever differs. Method: each piece is given what it must tell apart.
"""

from __future__ import annotations

import pytest
from controller_cluster import NONE, ControlledCluster

from hightide.protocol import controller_messages as c
from hightide_broker.core.cluster.changes import (
    AllocateProducerIds,
    Change,
    ChangePartition,
    RegisterBroker,
    RemoveTopic,
    SetConfig,
)
from hightide_broker.core.cluster.image import ClusterImage, PartitionState, differences
from hightide_broker.core.cluster.log_ends import LogEnds
from hightide_broker.core.cluster.partition_changes import (
    Election,
    Forgot,
    LogEnd,
    Rules,
    change_partition,
)
from hightide_broker.core.cluster.sessions import Sessions

# Sessions.


@pytest.mark.parametrize(("now", "is_recent"), [(0.0, True), (4.99, True), (5.0, False)])
def test_a_broker_is_recent_for_half_a_session(now: float, is_recent: bool) -> None:
    sessions = Sessions(10.0)
    sessions.touch(1, 5, 0, 0.0)
    assert sessions.is_recent(1, now) is is_recent


def test_a_broker_that_has_not_spoken_yet_is_not_recent() -> None:
    sessions = Sessions(10.0)
    sessions.touch(1, 5, -1, 0.0)
    assert not sessions.is_recent(1, 0.0)
    assert not sessions.is_recent(2, 0.0)


@pytest.mark.parametrize(
    ("brokers", "lowest"), [((), None), ((1,), 0), ((2, 1), 0), ((2,), 7), ((1, 3), -1)]
)
def test_the_lowest_offset_is_that_of_the_slowest_or_of_who_said_nothing(
    brokers: tuple[int, ...], lowest: int | None
) -> None:
    sessions = Sessions(10.0)
    sessions.touch(1, 5, 0, 0.0)
    sessions.touch(2, 6, 7, 0.0)
    assert sessions.lowest_offset(brokers) == lowest


# Log ends.


def told(end: int) -> list[c.LeaderlessReplica]:
    facts = {"topic_id": "t", "partition": 0, "last_epoch": 1, "leader_epoch": 7}
    return [c.LeaderlessReplica(log_end=end, **facts)]


def test_what_one_broker_says_takes_back_nothing_of_what_others_said() -> None:
    ends = LogEnds()
    ends.heard(1, told(5))
    ends.heard(2, told(6))
    ends.heard(2, told(8))
    assert ends.of("t", 0, 7) == {1: LogEnd(1, 5), 2: LogEnd(1, 8)}
    ends.forget(2)
    assert ends.of("t", 0, 7) == {1: LogEnd(1, 5)}


def test_another_process_of_a_broker_is_not_offline_before_it_says_so() -> None:
    ends = LogEnds()
    ends.heard(1, [], [c.OfflineReplica(topic_id="t", partition=0)])
    assert ends.is_offline(1, "t", 0)
    ends.forget(1)
    assert not ends.is_offline(1, "t", 0)


# The rule of one partition.

ALIVE = frozenset({1, 2, 3})


def decided(
    state: PartitionState, *, alive: frozenset[int] = ALIVE, min_isr: int = 1, **wish: object
) -> PartitionState:
    change = change_partition("x", 0, state, Rules(alive.__contains__, min_isr), **wish)
    return state if change is None else state.changed(change)


def test_while_nobody_is_alive_the_isr_is_empty_and_all_of_it_is_eligible() -> None:
    state = PartitionState((1, 2, 3), (1, 2), 1, 5, 7)
    assert decided(state, alive=frozenset()) == PartitionState(
        (1, 2, 3), (), NONE, 6, 8, elr=(1, 2), last_leader=1
    )


def test_who_leaves_an_isr_stays_eligible_however_large_it_is() -> None:
    state = PartitionState((1, 2, 3), (1, 2, 3), 1, 5, 7)
    assert decided(state, isr=(1, 2)).elr == (3,)
    assert decided(state, alive=frozenset(), isr=(1, 2)).elr == (1, 2, 3)


def test_who_never_had_all_that_is_committed_is_not_waited_for() -> None:
    state = PartitionState((1, 2, 3), (1, 2), 1, 5, 7)
    stopped = {2: Forgot.UNSYNCED, 3: Forgot.UNSYNCED}
    after = decided(state, min_isr=3, isr=(1,), forgot=stopped)
    assert (after.isr, after.last_known_elr) == ((1,), (2,))


def test_a_preferred_replica_that_was_eligible_leaves_the_others_eligible() -> None:
    state = PartitionState((1, 2, 3), (), NONE, 5, 7, elr=(1, 2), last_leader=2)
    after = decided(state, min_isr=2, election=Election.PREFERRED)
    assert (after.leader, after.isr, after.elr) == (1, (1,), (2,))


# The image.


def test_a_change_that_an_image_does_not_know_is_not_passed_over() -> None:
    class Unheard(Change, tag="unheard", frozen=True, kw_only=True):
        pass

    image = ClusterImage()
    with pytest.raises(AssertionError, match="Unheard"):
        image.replay(Unheard(), 0)
    assert image == ClusterImage()


def test_producer_ids_only_rise() -> None:
    image = ClusterImage()
    image.replay(AllocateProducerIds(next_id=1000), 0)
    with pytest.raises(AssertionError, match=r"next_id=1000\) after 1000"):
        image.replay(AllocateProducerIds(next_id=1000), 1)


@pytest.mark.parametrize(("named", "epoch"), [(-1, 7), (0, 0), (5, 5)])
def test_a_registration_has_the_epoch_that_it_names_or_its_offset(named: int, epoch: int) -> None:
    image = ClusterImage()
    facts = {"incarnation": "i", "host": "h", "port": 9}
    image.replay(RegisterBroker(broker=1, broker_epoch=named, **facts), 7)
    assert image.broker_epoch(1) == epoch


def test_who_is_not_registered_has_no_epoch() -> None:
    assert ClusterImage().broker_epoch(1) == NONE


def test_a_broker_has_served_once_it_was_unfenced() -> None:
    cluster = ControlledCluster()
    cluster.register(1)
    served = [cluster.image.brokers[1].served]
    for happens in (cluster.unfence, cluster.fence, cluster.register):
        happens(1)
        served.append(cluster.image.brokers[1].served)
    assert served == [False, True, True, False]


def test_differences_are_changes_that_name_what_to_look_at() -> None:
    cluster = ControlledCluster(1)
    for name in "abc":
        cluster.create(name)
    old = cluster.image.copy()
    cluster.delete("b")
    cluster.more("a", 2)
    cluster.alter("c", flush="replicated")
    assert differences(old, cluster.image) == [
        RemoveTopic(topic_id="id-2"),
        ChangePartition(topic_id="id-1", partition=1),
        SetConfig(kind="topic", name="c", key="", value=None),
    ]
