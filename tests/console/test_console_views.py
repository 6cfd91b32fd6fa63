"""What the cluster said becomes what a page shows: lanes, and why a watermark is where it is.

Goal: nothing is shown that was not said, and what is old is marked; method: pure views.
"""

import pytest
from consolekit import broker, directory, made, part, replica, topic_of

from hightide import ClusterDescription, GroupDescription, GroupLag, TopicPartition
from hightide_console.views import (
    HOSTS_SHOWN_MAX,
    cluster_view,
    group_view,
    held_by,
    open_view,
    topic_view,
)


def lanes_of(partition, held, *, min_isr=2, before=None):
    view = topic_view(topic_of(partition), held_by(held), min_isr, before)
    (found,) = view["partitions"]
    return found


def held(**ends):
    """Each broker's log end and watermark, `b1=(10, 8)`."""
    return [directory(int(name[1:]), replica(*at)) for name, at in ends.items()]


WHY = {
    "nobody leads": (part(leader=-1, isr=()), held(), "nobody leads: no replica may"),
    "nobody leads, and why": (
        part(leader=-1, message="all are down"),
        held(),
        "nobody leads: all are down",
    ),
    "a leader that is silent": (
        part(),
        held(b2=(10, 8), b3=(10, 8)),
        "broker 1 leads, and did not answer",
    ),
    "all is committed": (
        part(),
        held(b1=(10, 10), b2=(10, 9), b3=(10, 10)),
        "everything is committed: all replicas in sync have every record",
    ),
    "too few in sync": (
        part(isr=(1,)),
        held(b1=(10, 8), b2=(8, 8)),
        "it stands: 1 in sync, and nothing is committed below 2 (min.insync.replicas)",
    ),
    "a slow follower": (
        part(),
        held(b1=(10, 7), b2=(10, 7), b3=(7, 7)),
        "it waits for broker 3, 3 records behind the leader",
    ),
    "one that is not in sync holds up nobody": (
        part(isr=(1, 2)),
        held(b1=(10, 9), b2=(9, 9), b3=(1, 1)),
        "it waits for broker 2, 1 record behind the leader",
    ),
    "a slow disk": (
        part(),
        [
            directory(1, replica(10, 7, synced=8)),
            *held(b2=(10, 7), b3=(10, 7)),
        ],
        "it waits for the leader's disk: synced up to 8",
    ),
    "about to rise": (
        part(),
        held(b1=(10, 7), b2=(10, 7), b3=(10, 7)),
        "it is about to rise: the replicas in sync have every record",
    ),
    "others may yet lead": (
        part(isr=(1, 2), elr=(3,)),
        held(b1=(10, 7), b2=(10, 7), b3=(10, 7)),
        "it stands: [3] may yet lead, until the controller has heard the leader and enough in sync",
    ),
    "fewer replicas than the minimum": (
        part(replicas=(1,), isr=(1,)),
        held(b1=(10, 7)),
        "it is about to rise: the replicas in sync have every record",
    ),
}


@pytest.mark.parametrize("name", WHY)
def test_why_the_watermark_is_there(name):
    partition, told, why = WHY[name]
    assert lanes_of(partition, told)["why"] == why


def test_a_lane_says_what_its_broker_said():
    found = lanes_of(part(isr=(1, 2), elr=(3,)), held(b1=(10, 8), b2=(9, 8), b3=(5, 4)))
    assert [(lane["broker"], lane["badge"], lane["leads"]) for lane in found["lanes"]] == [
        (1, "ISR", True),
        (2, "ISR", False),
        (3, "ELR", False),
    ]
    ends = [(lane["log_end"], lane["high_watermark"], lane["stale"]) for lane in found["lanes"]]
    assert ends == [(10, 8, False), (9, 8, False), (5, 4, False)]


def test_of_a_broker_that_is_silent_what_it_said_last_is_kept_and_marked_as_old():
    before = held_by(held(b1=(10, 8), b2=(9, 8)))
    found = lanes_of(part(isr=(1,)), held(b1=(12, 12)), before=before)["lanes"]
    assert [(lane["log_end"], lane["stale"]) for lane in found] == [
        (12, False),
        (9, True),
        (-1, True),
    ]
    assert found[1]["badge"] == "out"


def test_a_replica_that_is_offline_has_its_reason_and_no_offsets():
    told = [directory(1, replica(10, 10)), directory(2, replica(error="the disk is gone"))]
    lane = lanes_of(part(), told)["lanes"][1]
    assert (lane["error"], lane["log_end"], lane["stale"]) == ("the disk is gone", -1, False)


def test_the_overview_counts_leaders_replicas_and_what_is_wrong():
    topics = [
        topic_of(part(0, leader=1), part(1, leader=-1, isr=()), name="b"),
        topic_of(part(0, leader=1, isr=(1,), replicas=(1, 2)), name="a"),
    ]
    cluster = made(
        ClusterDescription,
        cluster_id="c",
        controller=1,
        brokers=[broker(2, fenced=True), broker(1)],
    )
    disks = {1: directory(1, replica(), replica(error="gone")), 2: directory(2, error="no answer")}
    view = cluster_view(cluster, topics, disks)
    assert [topic["topic"] for topic in view["topics"]] == ["a", "b"]
    assert [(t["leaderless"], t["under_replicated"]) for t in view["topics"]] == [(0, 1), (1, 1)]
    first, second = view["brokers"]
    assert (first["leads"], first["replicas"], first["offline"], first["silent"]) == (
        2,
        3,
        1,
        False,
    )
    assert (second["fenced"], second["silent"], second["free_bytes"]) == (True, True, -1)


def open_at(*hosts):
    brokers = [broker(number, host=host) for number, host in enumerate(hosts, 1)]
    return open_view(made(ClusterDescription, brokers=brokers))


@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["localhost", "::1", "127.0.0.2"]])
def test_of_an_open_cluster_on_one_machine_it_is_remarked(hosts):
    told = open_at(*hosts)
    assert told["calm"]
    assert "on one machine, and asks nobody there who they are" in told["told"]


def test_of_an_open_cluster_that_others_reach_it_is_said_where_and_what_to_set():
    told = open_at("127.0.0.1", "b.example", "10.0.0.7", "b.example")
    assert not told["calm"]
    assert told["told"].startswith("Whoever reaches 10.0.0.7, b.example needs no password")
    assert "security.protocol = SASL_SSL" in told["told"]


def test_of_many_hosts_some_are_named():
    told = open_at(*(f"b{number}" for number in range(HOSTS_SHOWN_MAX + 7)))["told"]
    assert told.startswith("Whoever reaches b0, b1, b2 and 7 more needs no password")


def test_a_group_tells_who_reads_what_and_nothing_of_a_member_that_left():
    group = made(GroupDescription, group="g", members=[], rebalances=[], state="Empty")
    at = {"topic": "orders", "partition": 0, "end": 10, "metadata": ""}
    lags = [
        GroupLag(**at, committed=None, lag=None, member_id="gone"),
        GroupLag(**{**at, "partition": 1}, committed=4, lag=6, member_id=None, behind_ms=700),
    ]
    parts = group_view(group, lags)["partitions"]
    names = ("committed", "lag", "behind_ms", "member")
    assert [tuple(each[name] for name in names) for each in parts] == [
        (-1, -1, -1, ""),
        (4, 6, 700, ""),
    ]
    assert TopicPartition("orders", 1) == (parts[1]["topic"], parts[1]["partition"])
