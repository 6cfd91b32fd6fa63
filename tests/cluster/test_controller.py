"""The controller's answers about topics, configurations and producer ids.

Goal: every request is answered by Kafka's rules. Method: a small cluster
commits each decision at once, through the bytes of its log. The life of brokers and requests in any
order have files of their own.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import ControlledCluster, epochs, isrs, leaders

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.changes import (
    SetConfig,
)
from hightide_broker.core.cluster.controller import PARTITIONS_MAX, check_partition_count
from hightide_broker.core.cluster.image import PartitionState

# Topic names.


@pytest.mark.parametrize("name", ["a", "Z-9._", "...", "a.b", "__x", "x" * 249, "0"])
def test_a_topic_may_be_called(name: str) -> None:
    assert ControlledCluster(1).create(name).error is None


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\0", "a\nb", "../x", "a:b", "\n", "\u0661"],
)
def test_a_topic_may_not_be_called(name: str) -> None:
    cluster = ControlledCluster(1)
    result = cluster.create(name)
    assert (result.error, cluster.changes) == (ErrorCode.INVALID_TOPIC, [])
    assert repr(name) in result.message


def test_a_topic_name_may_not_end_in_a_line_break() -> None:
    cluster = ControlledCluster(1)
    assert cluster.create("orders\n").error == ErrorCode.INVALID_TOPIC
    assert cluster.changes == []


def test_nobody_may_create_the_metadata_log() -> None:
    """`__cluster_metadata-0/` is where a node keeps its metadata."""
    cluster = ControlledCluster(1)
    assert cluster.create("__cluster_metadata").error == ErrorCode.INVALID_TOPIC
    assert cluster.changes == []


@pytest.mark.parametrize(
    ("first", "second", "clashes"),
    [
        ("a.b", "a_b", True),
        ("a_b", "a.b", True),
        ("a.b_c", "a_b.c", True),
        ("...", "___", True),
        ("a.b", "a-b", False),
        ("a.b", "A_b", False),
        ("ab", "a.b", False),
    ],
)
def test_a_dot_and_an_underscore_count_as_the_same(first: str, second: str, clashes: bool) -> None:
    expected = ErrorCode.INVALID_TOPIC if clashes else None
    cluster = ControlledCluster(1)
    cluster.create(first)
    assert cluster.create(second).error == expected
    both = ControlledCluster(1).create_all(m.NewTopic(topic=first), m.NewTopic(topic=second))
    assert [result.error for result in both] == [None, expected]
    cluster.delete(first)
    assert cluster.create(second).error == (None if clashes else ErrorCode.TOPIC_ALREADY_EXISTS)


def test_a_topic_exists_once() -> None:
    cluster = ControlledCluster(1)
    twice = cluster.create_all(m.NewTopic(topic="a"), m.NewTopic(topic="a"))
    assert [result.error for result in twice] == [ErrorCode.INVALID_REQUEST] * 2
    assert "a" not in cluster.image.topics
    first = cluster.create("a")
    again = cluster.create("a")
    assert again.error == ErrorCode.TOPIC_ALREADY_EXISTS
    assert cluster.image.topics["a"].topic_id == first.topic_id


# Placement.


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_partition_i_starts_at_broker_i_plus_shift_and_its_replicas_follow(
    shift: int, factor: int
) -> None:
    cluster = ControlledCluster(30, 10, 40, 20)
    cluster.fence(40)
    cluster.shift, active = shift, [10, 20, 30]
    result = cluster.create("a", partitions=6, replication_factor=factor)
    assert (result.partitions, result.replication_factor, result.error) == (6, factor, None)
    for number, partition in enumerate(cluster.partitions("a")):
        replicas = tuple(active[(number + shift + r) % 3] for r in range(factor))
        assert partition == PartitionState(replicas, replicas, replicas[0], 0, 0)
    assert sorted(leaders(cluster, "a")) == [10, 10, 20, 20, 30, 30]


def test_added_partitions_go_on_where_their_number_says() -> None:
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", partitions=2, replication_factor=2)
    old = list(cluster.partitions("a"))
    result = cluster.more("a", 5)
    assert (result.partitions, result.replication_factor) == (5, 2)
    assert result.topic_id == cluster.image.topics["a"].topic_id
    assert cluster.partitions("a")[:2] == old
    assert [p.replicas for p in cluster.partitions("a")[2:]] == [(3, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": PARTITIONS_MAX + 1}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 5}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignment": []}, ErrorCode.INVALID_PARTITIONS),
        ({"assignment": [[]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [[1], []]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [[1, 1]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [[1, 9]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [[1, 2], [3]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [[1], [4]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"configs": {"flush": "later"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_created_leaves_nothing_and_harms_no_other_topic(
    facts: dict[str, Any], error: ErrorCode
) -> None:
    cluster = ControlledCluster(1, 2, 3, 4)
    cluster.fence(4)
    good, bad = m.NewTopic(topic="good"), m.NewTopic(topic="bad", **facts)
    results = cluster.create_all(bad, good)
    assert [(r.topic, r.error) for r in results] == [("bad", error), ("good", None)]
    assert results[0].message
    assert list(cluster.image.topics) == ["good"]
    assert not any("bad" in str(change) for change in cluster.changes)


def test_the_largest_partition_count_is_allowed() -> None:
    check_partition_count(1)
    check_partition_count(PARTITIONS_MAX)


def test_what_a_topic_does_not_say_is_the_default() -> None:
    cluster = ControlledCluster(1, 2, partitions=4, replication=2)
    result = cluster.create("a")
    assert (result.partitions, result.replication_factor) == (4, 2)
    assert [len(p.replicas) for p in cluster.partitions("a")] == [2] * 4
    cluster.fence(2)
    assert cluster.create("b").error is None
    cluster.fence(1)
    assert cluster.create("c", replication_factor=1).error == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_manual_assignment_is_kept_and_only_active_replicas_are_in_sync() -> None:
    """The leader is the first that is active."""
    cluster = ControlledCluster(1, 2, 3)
    cluster.fence(2)
    result = cluster.create("a", assignment=[[2, 3, 1], [1, 2, 3]])
    assert (result.partitions, result.replication_factor) == (2, 3)
    assert [p.replicas for p in cluster.partitions("a")] == [(2, 3, 1), (1, 2, 3)]
    assert (isrs(cluster, "a"), leaders(cluster, "a")) == ([(3, 1), (1, 3)], [3, 1])
    assert cluster.create("b", assignment=[[2]]).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT


# More partitions.


@pytest.mark.parametrize(
    ("topic", "count", "error"),
    [
        ("b", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", 3, ErrorCode.INVALID_PARTITIONS),
        ("a", 2, ErrorCode.INVALID_PARTITIONS),
        ("a", 0, ErrorCode.INVALID_PARTITIONS),
        ("a", -1, ErrorCode.INVALID_PARTITIONS),
        ("a", PARTITIONS_MAX + 1, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_partitions_are_only_ever_added(topic: str, count: int, error: ErrorCode) -> None:
    cluster = ControlledCluster(1)
    cluster.create_all(m.NewTopic(topic="a", partitions=3), m.NewTopic(topic="c"))
    bad, good = cluster.more_all((topic, count), ("c", 2))
    assert (bad.error, good.error) == (error, None)
    assert (len(cluster.partitions("a")), len(cluster.partitions("c"))) == (3, 2)


def test_added_partitions_need_as_many_brokers_as_the_old_ones() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.create("a", replication_factor=2)
    cluster.fence(2)
    cluster.fence(1)
    assert cluster.more("a", 2).error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.changes == []


def test_brokers_that_are_down_get_replicas_after_all_others_and_are_not_in_sync() -> None:
    cluster = ControlledCluster(1, 2, 3, 4)
    cluster.fence(2)
    cluster.fence(4)
    cluster.create("a", partitions=2, replication_factor=3)
    assert [p.replicas for p in cluster.partitions("a")] == [(1, 3, 2), (3, 1, 4)]
    assert (isrs(cluster, "a"), leaders(cluster, "a")) == ([(1, 3), (3, 1)], [1, 3])
    cluster.create("b", partitions=2, replication_factor=4)
    assert [p.replicas for p in cluster.partitions("b")] == [(1, 3, 2, 4), (3, 1, 4, 2)]


def test_a_topic_that_is_named_twice_in_one_request_breaks_nothing() -> None:
    """What is written must replay, whichever of the two wishes is granted."""
    cluster = ControlledCluster(1)
    cluster.create("a")
    results = cluster.more_all(("a", 3), ("a", 4))
    granted = [result.partitions for result in results if result.error is None]
    assert len(cluster.partitions("a")) == max(granted, default=1)


# The end of a topic.


def test_who_means_a_topic_by_its_id_deletes_no_other_one_of_its_name() -> None:
    cluster = ControlledCluster(0)
    cluster.create("a")
    before = cluster.image.topics["a"].topic_id
    cluster.delete("a")
    cluster.create("a")
    (result,) = cluster.delete("a", a=before)
    assert (result.error, cluster.changes) == (ErrorCode.UNKNOWN_TOPIC_ID, [])
    (result,) = cluster.delete("a", a=cluster.image.topics["a"].topic_id)
    assert (result.error, "a" in cluster.image.topics) == (None, False)


def test_a_deleted_topic_leaves_nothing_behind() -> None:
    cluster = ControlledCluster(1)
    old = cluster.create("a", partitions=3, configs={"flush": "replicated"})
    cluster.create("b")
    assert [(r.topic, r.topic_id, r.error) for r in cluster.delete("a")] == [
        ("a", old.topic_id, None)
    ]
    assert list(cluster.image.topics) == ["b"]
    assert old.topic_id not in cluster.image.topics_by_id
    new = cluster.create("a")
    assert new.topic_id != old.topic_id
    assert cluster.image.topic_config("a") == {}
    assert epochs(cluster, "a") == [(0, 0)]


def test_deleting_tells_of_each_name_once() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a")
    results = cluster.delete("a", "b", "a", "b")
    assert [(r.topic, r.error) for r in results] == [
        ("a", None),
        ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert len(cluster.changes) == 1


# Configurations.


def test_keys_are_set_and_taken_back() -> None:
    cluster = ControlledCluster(1)
    cluster.create("a", configs={"flush": "replicated", "retention.ms": "1"})
    assert cluster.image.topic_config("a") == {"flush": "replicated", "retention.ms": "1"}
    assert cluster.alter("a", "flush", retention_ms="5", segment_ms="9").error is None
    assert cluster.image.topic_config("a") == {"retention.ms": "5", "segment.ms": "9"}
    assert cluster.alter("a", "retention.ms", "segment.ms", "flush").error is None
    assert cluster.image.topic_config("a") == {}
    assert cluster.image.topic_config("nobody") == {}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"set": {"retention.m": "1"}}, ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        ({"unset": ["flsh"]}, ErrorCode.INVALID_CONFIG, "'flsh', did you mean flush?"),
        ({"set": {"zookeeper": "1"}}, ErrorCode.INVALID_CONFIG, "key 'zookeeper'"),
        ({"set": {"retention.ms": "-2"}}, ErrorCode.INVALID_CONFIG, "retention.ms is '-2'"),
        ({"set": {"flush": "later"}}, ErrorCode.INVALID_CONFIG, "one of synced, replicated"),
        ({"name": "b"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "'b' does not exist"),
        ({"kind": "broker", "name": "1"}, ErrorCode.INVALID_REQUEST, "broker"),
        ({"kind": "Topic"}, ErrorCode.INVALID_REQUEST, "Topic"),
    ],
)
def test_one_mistake_refuses_its_resource_and_no_other(
    change: dict[str, Any], error: ErrorCode, words: str
) -> None:
    cluster = ControlledCluster(1)
    cluster.create_all(m.NewTopic(topic="a"), m.NewTopic(topic="c"))
    facts = {"kind": "topic", "name": "a", **change}
    facts["set"] = {"segment.ms": "7", **change.get("set", {})}
    good = m.ConfigChange(kind="topic", name="c", set={"segment.ms": "8"})
    first, second = cluster.alter_all(m.ConfigChange(**facts), good)
    assert (first.name, first.error, second.error) == (facts["name"], error, None)
    assert words in first.message
    assert cluster.changes == [SetConfig(kind="topic", name="c", key="segment.ms", value="8")]


def test_a_wrong_configuration_creates_no_topic_and_says_what_was_meant() -> None:
    cluster = ControlledCluster(1)
    result = cluster.create("a", configs={"flush": "synced", "segment.bites": "1"})
    assert (result.error, cluster.changes) == (ErrorCode.INVALID_CONFIG, [])
    assert "did you mean segment.bytes?" in result.message


# Only asking.


def test_validate_only_answers_the_same_and_writes_nothing() -> None:
    cluster = ControlledCluster(1, 2)
    cluster.create("a")
    asks = [
        (cluster.create_all, (m.NewTopic(topic="b", partitions=2), m.NewTopic(topic="a"))),
        (cluster.more_all, (("a", 3), ("nobody", 3))),
        (
            cluster.alter_all,
            (
                m.ConfigChange(kind="topic", name="a", set={"flush": "replicated"}),
                m.ConfigChange(kind="topic", name="a", set={"flush": "later"}),
            ),
        ),
    ]
    for ask, arguments in asks:
        before = cluster.replayed()
        asked = ask(*arguments, validate_only=True)
        assert (cluster.changes, cluster.image) == ([], before)
        done = ask(*arguments)
        assert cluster.changes
        assert [r.error for r in asked] == [r.error for r in done]
        assert [r.message for r in asked] == [r.message for r in done]


# What the log keeps.


# Producer ids.


def test_no_producer_id_is_handed_out_twice() -> None:
    cluster = ControlledCluster(1, 2)
    given = [cluster.allocate(broker) for broker in (1, 2, 2, 1, 2)]
    assert [len(block) for block in given] == [1000] * 5
    ids = [producer_id for block in given for producer_id in block]
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 0
    assert cluster.image.next_producer_id > max(ids)
    cluster.take_over()
    assert set(cluster.allocate(1)).isdisjoint(ids)
