"""How long a broker counts as alive, whom it keeps out, and how it stops in order.

Goal: a session lasts its timeout from the last heartbeat, a new controller begins with whole
sessions, two processes with one id never both serve, and a broker that stops leaves nothing behind
that others do not know. Method: a small cluster on a clock of its own commits each decision at
once.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, SESSION_S, ControlledCluster, epochs, isrs, leaders, refusal

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.brokers import Brokers
from hightide_broker.core.cluster.changes import (
    ChangePartition,
    FenceBroker,
    RegisterBroker,
    StopBroker,
)
from hightide_broker.core.cluster.sessions import Sessions

E = ErrorCode


def brokers_of(cluster: ControlledCluster) -> Brokers:
    return cluster.controller.brokers


# Sessions.


def test_a_silent_broker_is_fenced_when_its_session_is_over_and_not_before() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a")
    cluster.now += SESSION_S - 1
    cluster.heartbeat(1)
    assert brokers_of(cluster).next_expiry == cluster.now + SESSION_S
    cluster.now += SESSION_S - 0.001
    assert cluster.fence_silent() == []
    cluster.now += 0.001
    assert cluster.fence_silent() == [1]
    assert [type(change) for change in cluster.changes] == [ChangePartition, FenceBroker]
    assert (cluster.image.brokers[1].fenced, leaders(cluster, "a")) == (True, [NONE])
    assert cluster.fence_silent() == []
    assert brokers_of(cluster).next_expiry == float("inf")


def test_silent_brokers_are_fenced_together_the_most_silent_first() -> None:
    cluster = ControlledCluster(1, 2, 3)
    for broker in (3, 1, 2):
        cluster.now += 1
        cluster.heartbeat(broker)
    cluster.now += SESSION_S
    assert brokers_of(cluster).next_expiry < cluster.now
    assert cluster.fence_silent() == [3, 1, 2]
    assert all(broker.fenced for broker in cluster.image.brokers.values())
    assert cluster.fence_silent() == []


def test_a_fenced_broker_has_no_session_until_it_serves() -> None:
    cluster = ControlledCluster(1)
    cluster.fence(1)
    cluster.heartbeat(1, seen=0)
    cluster.now += 2 * SESSION_S
    assert cluster.fence_silent() == []
    cluster.unfence(1)
    cluster.now += SESSION_S - 1
    assert cluster.fence_silent() == []
    assert not cluster.image.brokers[1].fenced


def test_a_heartbeat_of_an_older_process_keeps_no_session_alive() -> None:
    cluster = ControlledCluster(1)
    old = cluster.image.brokers[1].epoch
    cluster.join(1)
    cluster.now += SESSION_S - 1
    assert refusal(cluster.heartbeat, 1, epoch=old) == E.STALE_BROKER_EPOCH
    cluster.now += 1
    assert cluster.fence_silent() == [1]


def test_a_new_controller_gives_everybody_a_whole_session() -> None:
    cluster = ControlledCluster(1, 2, 3)
    cluster.fence(3)
    cluster.now += 5 * SESSION_S
    cluster.take_over()
    assert cluster.fence_silent() == []
    assert brokers_of(cluster).next_expiry == cluster.now + SESSION_S
    cluster.now += SESSION_S - 1
    cluster.heartbeat(2)
    cluster.now += 1
    fenced = [cluster.fence_silent() for _ in range(3)]
    assert fenced == [[1], [], []], "2 was heard of, and 3 was fenced already"


def test_a_session_belongs_to_one_registration() -> None:
    sessions = Sessions(10.0)
    first = sessions.touch(1, 5, 100, 0.0)
    first.stop_offset = 7
    again = sessions.touch(1, 5, 90, 1.0)
    assert (again.stop_offset, again.metadata_offset) == (7, 100), "what was applied stays applied"
    other = sessions.touch(1, 6, 3, 2.0)
    assert (other.stop_offset, other.metadata_offset, other.heard_at) == (-1, 3, 2.0)
    assert (sessions.is_alive(1, 11.9), sessions.is_alive(1, 12.0)) == (True, False)
    assert (sessions.expired(11.9), sessions.expired(12.0)) == ([], [1])
    sessions.end(1)
    assert not sessions.is_alive(1, 2.0)


# Who may register.


def test_another_process_is_kept_out_while_the_first_one_lives() -> None:
    cluster = ControlledCluster(1)
    before = cluster.replayed()
    for seconds in (0.0, SESSION_S - 0.001):
        cluster.now = 1000.0 + seconds
        code = refusal(cluster.register, 1, directory="another disk")
        assert code == E.DUPLICATE_BROKER_REGISTRATION
    assert cluster.image == before
    cluster.now = 1000.0 + SESSION_S
    assert cluster.register(1, directory="another disk") > before.brokers[1].epoch
    assert cluster.image.brokers[1].fenced


def test_two_processes_without_a_directory_are_two_processes() -> None:
    cluster = ControlledCluster()
    cluster.register(1, directory="")
    cluster.unfence(1)
    code = refusal(cluster.register, 1, directory="")
    assert code == E.DUPLICATE_BROKER_REGISTRATION


def test_a_process_that_follows_on_the_same_disk_is_let_in_at_once() -> None:
    """The directory is locked: the process that has it has outlived the other."""
    cluster = ControlledCluster(1)
    old = cluster.image.brokers[1].epoch
    assert cluster.register(1) > old
    assert refusal(cluster.heartbeat, 1, epoch=old) == E.STALE_BROKER_EPOCH


def test_a_fenced_registration_keeps_nobody_out() -> None:
    cluster = ControlledCluster(1)
    cluster.fence(1)
    cluster.register(1, directory="another disk")
    assert cluster.image.brokers[1].directory == "another disk"


def test_a_new_controller_keeps_the_second_process_out_for_a_session() -> None:
    cluster = ControlledCluster(1)
    cluster.now += 5 * SESSION_S
    cluster.take_over()
    code = refusal(cluster.register, 1, directory="another disk")
    assert code == E.DUPLICATE_BROKER_REGISTRATION


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_registration_that_is_repeated_changes_nothing(is_fenced: bool) -> None:
    """Its first answer was lost."""
    cluster = ControlledCluster()
    epoch = cluster.register(1, incarnation="one")
    if not is_fenced:
        cluster.unfence(1)
        cluster.create("a")
    assert cluster.register(1, incarnation="one") == epoch
    assert cluster.changes == []
    assert cluster.image.brokers[1].fenced is is_fenced


def test_a_broker_of_another_cluster_is_refused_before_anything_else() -> None:
    cluster = ControlledCluster(1)
    code = refusal(cluster.register, 1, cluster="another", directory="another disk")
    assert code == E.INCONSISTENT_CLUSTER_ID


def test_a_new_process_has_to_catch_up_with_its_own_registration() -> None:
    cluster = ControlledCluster(1)
    old = cluster.image.brokers[1].epoch
    epoch = cluster.register(1)
    reply = cluster.heartbeat(1, seen=old + 1)
    assert (reply.caught_up, reply.fenced) == (False, True)
    assert not cluster.heartbeat(1, seen=epoch + 1).fenced


def test_leaders_move_before_the_new_registration_in_one_batch() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.create("a", assignment=[[1, 2]])
    cluster.register(1)
    assert [type(change) for change in cluster.changes] == [ChangePartition, RegisterBroker]
    assert (leaders(cluster, "a"), isrs(cluster, "a"), epochs(cluster, "a")) == (
        [2],
        [(2,)],
        [(1, 2)],
    )


# Stopping in order.


def three_with_a_leader() -> ControlledCluster:
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2], [2, 1], [2, 3]])
    return cluster


def wants_to_stop(
    cluster: ControlledCluster, broker: int, **facts: Any
) -> c.BrokerHeartbeatResponse:
    return cluster.heartbeat(broker, want_shut_down=True, **facts)


def test_a_broker_that_stops_hands_on_what_it_leads_in_one_batch() -> None:
    cluster = three_with_a_leader()
    reply = wants_to_stop(cluster, 1)
    assert (reply.should_shut_down, reply.fenced) == (False, False)
    assert [type(change) for change in cluster.changes] == [ChangePartition] * 2 + [StopBroker]
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([2, 2, 2], [(2,), (2,), (2, 3)])
    assert not cluster.image.is_active(1)


def test_a_broker_stops_only_when_all_others_have_seen_that_it_leads_nothing() -> None:
    cluster = three_with_a_leader()
    wants_to_stop(cluster, 1)
    moved = cluster.image.offset
    assert not wants_to_stop(cluster, 1).should_shut_down
    cluster.heartbeat(2, seen=moved)
    cluster.heartbeat(3, seen=moved - 1)
    assert not wants_to_stop(cluster, 1).should_shut_down
    assert cluster.changes == []
    cluster.heartbeat(3, seen=moved)
    reply = wants_to_stop(cluster, 1)
    assert (reply.should_shut_down, reply.fenced) == (True, True)
    assert [type(change) for change in cluster.changes] == [FenceBroker]
    assert not cluster.image.brokers[1].stopping


def test_what_happens_meanwhile_does_not_delay_a_stop() -> None:
    cluster = three_with_a_leader()
    wants_to_stop(cluster, 1)
    wants_to_stop(cluster, 1)
    known = cluster.image.offset
    cluster.create("b", assignment=[[2]])
    for broker in (2, 3):
        cluster.heartbeat(broker, seen=known)
    assert wants_to_stop(cluster, 1).should_shut_down


def test_silent_brokers_delay_a_stop_until_they_are_fenced() -> None:
    cluster = three_with_a_leader()
    wants_to_stop(cluster, 1)
    cluster.now += SESSION_S
    for broker in (1, 2):
        assert not cluster.heartbeat(broker, want_shut_down=broker == 1).should_shut_down
    assert cluster.fence_silent() == [3]
    assert wants_to_stop(cluster, 1).should_shut_down


@pytest.mark.parametrize("how", ["it asks to be", "it is a new process", "it was before"])
def test_a_fenced_broker_delays_no_stop(how: str) -> None:
    cluster = three_with_a_leader()
    if how == "it is a new process":
        cluster.register(3)
    else:
        cluster.fence(3)
    if how == "it was before":
        cluster.take_over()
    wants_to_stop(cluster, 1)
    cluster.heartbeat(2)  # a new controller has somebody elected only once it is heard of
    cluster.heartbeat(2)
    if how != "it was before":
        cluster.heartbeat(3, seen=0)
    assert wants_to_stop(cluster, 1).should_shut_down


def test_a_broker_that_stops_need_not_have_caught_up_itself() -> None:
    cluster = three_with_a_leader()
    cluster.take_over()
    wants_to_stop(cluster, 1, seen=0)
    for broker in (2, 3, 2, 3):
        cluster.heartbeat(broker)
    assert wants_to_stop(cluster, 1, seen=0).should_shut_down


def test_a_new_controller_lets_a_stop_go_on() -> None:
    cluster = three_with_a_leader()
    wants_to_stop(cluster, 1)
    cluster.take_over()
    assert not wants_to_stop(cluster, 1).should_shut_down, "nobody has been heard of"
    cluster.heartbeat(2)
    assert not wants_to_stop(cluster, 1).should_shut_down
    cluster.heartbeat(3)
    assert wants_to_stop(cluster, 1).should_shut_down


def test_two_brokers_that_stop_at_a_time_do_not_wait_for_ever() -> None:
    cluster = three_with_a_leader()
    serving = [1, 2, 3]
    for _ in range(4):
        for broker in serving.copy():
            if cluster.heartbeat(broker, want_shut_down=broker < 3).should_shut_down:
                serving.remove(broker)
    assert serving == [3]
    assert (leaders(cluster, "a"), isrs(cluster, "a")) == ([NONE, NONE, 3], [(), (), (3,)])


def test_the_last_broker_of_a_cluster_can_stop() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a")
    assert not wants_to_stop(cluster, 1).should_shut_down
    assert wants_to_stop(cluster, 1).should_shut_down
    assert cluster.partition("a").elr == (1,)


def test_a_fenced_broker_stops_at_once() -> None:
    cluster = three_with_a_leader()
    cluster.fence(1)
    reply = wants_to_stop(cluster, 1)
    assert (reply.should_shut_down, reply.fenced, cluster.changes) == (True, True, [])


def test_a_broker_that_does_not_serve_any_more_gets_nothing_new() -> None:
    """A broker that told of its wish to stop may not make it a leader again."""
    cluster = ControlledCluster(1, 2)
    cluster.heartbeat(2, seen=0)
    cluster.take_over()
    reply = wants_to_stop(cluster, 1)
    assert reply.should_shut_down or not cluster.image.is_active(1)
    assert cluster.create("a", assignment=[[1]]).error == E.INVALID_REPLICA_ASSIGNMENT


def test_a_stop_waits_for_what_the_broker_got_to_lead_after_its_first_wish() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.take_over()
    wants_to_stop(cluster, 1)
    cluster.heartbeat(2)
    seen_by_2 = cluster.image.offset
    cluster.create("a", assignment=[[1, 2]])
    led_until = 0
    for _ in range(3):
        is_leader = leaders(cluster, "a") == [1]
        may_stop = wants_to_stop(cluster, 1).should_shut_down
        if is_leader:
            led_until = cluster.image.offset
        if may_stop:
            break
    assert leaders(cluster, "a") == [2]
    assert not may_stop or led_until <= seen_by_2, "2 does not know yet that it leads"


def test_a_stopping_broker_goes_on_serving_until_it_may_stop() -> None:
    cluster = three_with_a_leader()
    wants_to_stop(cluster, 1)
    assert cluster.heartbeat(1).fenced is False
    assert cluster.image.brokers[1].stopping, "it cannot take its wish back"
    cluster.now += SESSION_S
    assert cluster.fence_silent() != []


@pytest.mark.parametrize("how", ["on its wish", "for its silence"])
def test_a_stop_that_was_given_up_begins_again(how: str) -> None:
    cluster = three_with_a_leader()
    wants_to_stop(cluster, 1)
    wants_to_stop(cluster, 1)
    if how == "on its wish":
        cluster.fence(1)
    else:
        cluster.now += SESSION_S - 1
        cluster.heartbeat(2)
        cluster.heartbeat(3)
        cluster.now += 1
        assert cluster.fence_silent() == [1]
    for broker in (1, 2, 3):
        cluster.heartbeat(broker)
    seen = cluster.image.offset
    cluster.alter_isr("a", 1, 2)
    cluster.elect(("a", 0))
    assert leaders(cluster, "a") == [1, 2, 2]
    wants_to_stop(cluster, 1)
    assert leaders(cluster, "a") == [2, 2, 2]
    for broker in (2, 3):
        cluster.heartbeat(broker, seen=seen)
    assert not wants_to_stop(cluster, 1).should_shut_down, "2 does not know yet that it leads"


def test_a_stopping_broker_may_be_fenced_for_its_silence() -> None:
    cluster = three_with_a_leader()
    wants_to_stop(cluster, 1)
    cluster.now += 1
    for broker in (2, 3):
        cluster.heartbeat(broker)
    cluster.now += SESSION_S - 1
    assert cluster.fence_silent() == [1]
    state = cluster.image.brokers[1]
    assert (state.fenced, state.stopping) == (True, False)
