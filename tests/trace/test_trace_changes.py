"""What the active controller decides, as events: how a leader was found, and why.

Goal: an election is called what it was, the more is lost the worse its name; every decision has its
cause. Method: a small cluster commits each decision of the real controller at once; an active
controller in a simulated world.
"""

from __future__ import annotations

import pytest
from controller_cluster import NONE, ControlledCluster, cluster_of
from election_story import Told
from small_worlds import in_world, new_topic, registration, until, until_led
from tracekit import of_kind

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.cluster.change_events import ELECTIONS, cause_of, event_of
from hightide_broker.core.cluster.changes import AnyChange, ChangePartition
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.trace.events import BrokerChanged, PartitionChanged, TopicChanged
from hightide_broker.trace.text import sentence

UNCLEAN = {"unclean_leader_election_enable": "true"}


def test_a_new_partition_has_a_leader_that_nobody_had_to_find() -> None:
    told = Told(ControlledCluster(1, 2))
    told.cluster.create("a", assignment=[[1, 2]])
    assert (told.last.leader, told.last.leader_before, told.last.isr) == (1, -1, (1, 2))
    assert told.elections == []


def test_a_member_of_the_isr_follows_a_leader_that_is_gone() -> None:
    told = Told(cluster_of(1, 2))
    told.cluster.fence(1)
    last = told.last
    assert (last.leader, last.leader_before, last.leader_epoch) == (2, 1, 1)
    assert (last.isr, last.isr_before) == ((2,), (1, 2))
    assert told.elections == ["isr"]
    assert sentence(9, last).endswith("(from the ISR), ISR 1,2 -> 2, ELR nobody -> 1: why")


@pytest.mark.parametrize("by_hand", [True, False])
def test_the_preferred_replica_leads_again(by_hand: bool) -> None:
    told = Told(cluster_of(1, 2))
    told.cluster.fence(1)
    told.cluster.unfence(1)
    told.cluster.alter_isr("a", 1, 2)
    if by_hand:
        told.cluster.elect(("a", 0))
    else:
        told.cluster.rebalance()
    assert told.elections == ["isr", "preferred"]
    assert (told.last.leader, told.last.leader_before) == (1, 2)


def test_the_first_replica_is_not_preferred_to_one_that_had_to_go() -> None:
    told = Told(cluster_of(1, 2))
    told.cluster.fence(1)
    told.cluster.unfence(1)
    told.cluster.alter_isr("a", 1, 2)
    told.cluster.fence(2)
    assert told.elections == ["isr", "isr"]


def test_who_was_eligible_leads_when_it_is_back() -> None:
    told = Told(cluster_of(1, 2))
    told.cluster.fence(1, 2)
    assert (told.last.leader, told.last.isr, told.last.elr) == (NONE, (), (2,))
    assert told.elections == ["isr"]
    assert set(told.elections) <= set(ELECTIONS)
    told.cluster.unfence(2)
    assert (told.last.leader, told.last.leader_before) == (2, -1)
    assert told.elections == ["isr", "elr"]


def test_whom_no_rule_names_leads_uncleanly() -> None:
    told = Told(cluster_of(1, 2, **UNCLEAN))
    told.cluster.fence(2)
    told.cluster.fence(1)
    told.cluster.unfence(2)
    assert told.elections == ["unclean"]
    assert told.last.elr_before == (1,)


def test_of_those_who_were_eligible_before_they_stopped_one_leads_when_all_are_back() -> None:
    told = Told(cluster_of(1, 2, min_isr=2, flush="replicated"))
    told.cluster.fence(2)
    told.cluster.register(2)
    told.cluster.register(1)
    assert told.cluster.partition("a").last_known_elr == (1, 2)
    for broker, end in ((1, (0, 5)), (2, (0, 7))):
        told.cluster.heartbeat(broker, leaderless=told.cluster.leaderless(broker, end))
    assert (told.last.leader, told.elections) == (2, ["last_known"])


def test_what_leaves_leader_isr_and_elr_as_they_were_is_told_all_the_same() -> None:
    told = Told(cluster_of(1, 2))
    image = told.cluster.image
    topic_id = image.topics["a"].topic_id
    change = ChangePartition(topic_id=topic_id, partition=0, elr=(), last_known_elr=())
    event = event_of(change, image, told.heard, offset=99, cause="why")
    assert isinstance(event, PartitionChanged)
    assert (event.leader, event.leader_epoch, event.election) == (1, 0, "")
    assert sentence(9, event).endswith("changed: why")


def test_brokers_and_topics_come_and_go_with_their_names() -> None:
    told = Told(ControlledCluster(1))
    epoch = told.cluster.image.brokers[1].epoch
    told.cluster.fence(1)
    told.cluster.unfence(1)
    told.cluster.create("a", assignment=[[1]])
    told.cluster.begin_stop(1)
    told.cluster.delete("a")
    brokers = [(e.state, e.broker_epoch, e.cause) for e in of_kind(told.events, BrokerChanged)]
    assert brokers[:2] == [("fenced", epoch, "why"), ("unfenced", epoch, "")]
    assert brokers[2][:2] == ("stopping", epoch)
    told.cluster.register(1)
    registered = [e for e in of_kind(told.events, BrokerChanged) if e.state == "registered"]
    assert [(e.offset, e.cause) for e in registered] == [
        (registered[0].broker_epoch, "its last stop was not orderly")
    ]
    told.cluster.register(1, previous=told.cluster.image.brokers[1].epoch)
    assert of_kind(told.events, BrokerChanged)[-1].cause == ""
    topics = [(e.topic, e.state) for e in of_kind(told.events, TopicChanged)]
    assert topics == [("a", "created"), ("a", "deleted")]


def test_what_no_trace_tells_of_is_none() -> None:
    cluster = cluster_of(1, 2)
    cluster.alter("a", flush="synced")
    changes: list[AnyChange] = cluster.changes
    assert changes
    image, heard = ClusterImage(), Told(cluster).heard
    told = [event_of(each, image, heard, offset=5, cause="why") for each in changes]
    assert told == [None] * len(changes)


def heartbeat(**facts: object) -> c.BrokerHeartbeatRequest:
    return c.BrokerHeartbeatRequest(broker=2, broker_epoch=1, metadata_offset=1, **facts)


@pytest.mark.parametrize(
    ("request_", "cause"),
    [
        (heartbeat(), "broker 2 is back"),
        (heartbeat(want_shut_down=True), "broker 2 stops"),
        (
            heartbeat(offline=[c.OfflineReplica(topic_id="x", partition=0)]),
            "broker 2 has replicas that serve nobody",
        ),
        (registration(2), "broker 2 came up"),
        (
            c.AlterPartitionRequest(broker=2, broker_epoch=1, partitions=[]),
            "broker 2, which leads it, asked for that",
        ),
        (m.ElectLeadersRequest(), "an election was asked for"),
        (m.AlterConfigsRequest(resources=[]), "a configuration was altered"),
        (m.MetadataRequest(), ""),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_a_request_is_a_cause_in_a_few_words(request_: m.Message, cause: str) -> None:
    assert cause_of(request_) == cause


def test_the_active_controller_counts_the_leaders_that_it_found() -> None:
    async def body(world) -> None:
        leader = await until_led(world)
        broker = world.machines[-1]
        await until(lambda: broker.node and broker.node.serving.is_set())
        controller = leader.node.controller
        await controller.submit(new_topic("a"))
        assert controller.elections == {}, "nobody had to be found"
        await broker.crash(power=False)
        image = leader.node.image
        await until(lambda: image.topics["a"].partitions[0].leader == NONE)
        assert controller.elections == {}
        broker.start_again()
        await until(lambda: image.topics["a"].partitions[0].leader == broker.id)
        assert controller.elections == {"elr": 1}

    in_world(body, controllers=1, observers=1, broker_session_timeout_ms="2s")
