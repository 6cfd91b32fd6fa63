"""What people are told when the controller says no.

Goal: each refusal of the controller has its code and its sentence, word for word, names what was
asked for, and changes nothing. Method: tables of requests to a small cluster; answers are compared
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from controller_cluster import NONE, ControlledCluster

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused

E = ErrorCode
POLICY = "cleanup.policy"
OFFSETS = "__consumer_offsets"
KEPT = (
    f"{POLICY} of {OFFSETS} is delete, expected compact: what groups committed would be deleted "
    "(offsets.retention.ms says how long it stays)"
)
NAME_RULE = "1 to 249 of a-z A-Z 0-9 . _ - and neither '.' nor '..'"
NO_FLUSH = "flush is 'later', expected one of synced, replicated"
NO_DEFAULT = (
    "'retention.ms' is no default of the cluster, expected one of min.insync.replicas, flush, "
    "unclean.leader.election.enable: others are each broker's, or a topic's"
)


def table(names: str, rows: dict[str, tuple[Any, ...]]) -> Any:
    """A test for each row, named by what is wrong."""
    return pytest.mark.parametrize(names.split(), rows.values(), ids=rows)


def said(do: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[ErrorCode, str]:
    """With what a whole request is refused."""
    with pytest.raises(Refused) as caught:
        do(*args, **kwargs)
    return caught.value.code, caught.value.message


# Topics.


def four_brokers() -> ControlledCluster:
    """The last one is down; a topic of three partitions exists."""
    cluster = ControlledCluster(1, 2, 3, 4)
    cluster.fence(4)
    cluster.create("a.b", partitions=3)
    return cluster


@table(
    "facts code sentence",
    {
        "letters": ({"topic": "a b"}, E.INVALID_TOPIC, f"topic name 'a b': {NAME_RULE}"),
        "length": (
            {"topic": 300 * "x"},
            E.INVALID_TOPIC,
            f"topic name '{260 * 'x'}': {NAME_RULE}",
        ),
        "the metadata log": (
            {"topic": "__cluster_metadata"},
            E.INVALID_TOPIC,
            "topic name '__cluster_metadata' is the cluster's own",
        ),
        "it exists": ({"topic": "a.b"}, E.TOPIC_ALREADY_EXISTS, "topic 'a.b' exists"),
        "a clash": (
            {"topic": "a_b"},
            E.INVALID_TOPIC,
            "topic name 'a_b' clashes with 'a.b': '.' and '_' count as the same",
        ),
        "an unknown key": (
            {"configs": {"flsh": "synced"}},
            E.INVALID_CONFIG,
            "unknown configuration key 'flsh', did you mean flush?",
        ),
        "a wrong value": ({"configs": {"flush": "later"}}, E.INVALID_CONFIG, NO_FLUSH),
        "committed offsets": (
            {"topic": OFFSETS, "configs": {POLICY: "delete"}},
            E.INVALID_CONFIG,
            KEPT,
        ),
        "both": (
            {"assignment": [[1]], "partitions": 1},
            E.INVALID_REQUEST,
            "topic 't': an assignment excludes partitions and factor",
        ),
        "no partitions": (
            {"assignment": []},
            E.INVALID_PARTITIONS,
            "0 partitions, expected 1 to 10000",
        ),
        "too many": (
            {"partitions": 10_001},
            E.INVALID_PARTITIONS,
            "10001 partitions, expected 1 to 10000",
        ),
        "one broker twice": (
            {"assignment": [[2, 2]]},
            E.INVALID_REPLICA_ASSIGNMENT,
            "replicas [2, 2]: each broker once, registered ones only",
        ),
        "uneven": (
            {"assignment": [[1, 2], [3]]},
            E.INVALID_REPLICA_ASSIGNMENT,
            "replicas [3] and [1, 2]: one replication factor for all",
        ),
        "down": (
            {"assignment": [[4]]},
            E.INVALID_REPLICA_ASSIGNMENT,
            "no broker of [4] is active",
        ),
        "replication": (
            {"replication_factor": 5},
            E.INVALID_REPLICATION_FACTOR,
            "replication factor 5, expected 1 to 4 (the registered brokers, of which 3 are active)",
        ),
    },
)
def test_a_topic_is_not_created(facts: dict[str, Any], code: ErrorCode, sentence: str) -> None:
    cluster = four_brokers()
    wish = m.NewTopic(**{"topic": "t", **facts})
    assert cluster.create_all(wish) == [
        m.TopicResult(topic=wish.topic, error=code, message=sentence)
    ]
    assert cluster.changes == []


@table(
    "topic count code sentence",
    {
        "no topic": ("b", 5, E.UNKNOWN_TOPIC_OR_PARTITION, "topic 'b' does not exist"),
        "as many": ("a.b", 3, E.INVALID_PARTITIONS, "topic a.b has 3 partitions, 3 is not more"),
        "none": ("a.b", 0, E.INVALID_PARTITIONS, "0 partitions, expected 1 to 10000"),
        "committed offsets": (
            OFFSETS,
            2,
            E.INVALID_PARTITIONS,
            f"{OFFSETS} keeps its partitions: groups would be looked for in others, and what they "
            "committed would not be found (offsets.topic.num.partitions holds when it is made)",
        ),
    },
)
def test_a_topic_gets_no_more_partitions(
    topic: str, count: int, code: ErrorCode, sentence: str
) -> None:
    cluster = four_brokers()
    cluster.create(OFFSETS, configs={POLICY: "compact"})
    assert cluster.more_all((topic, count)) == [
        m.TopicResult(topic=topic, error=code, message=sentence)
    ]
    assert cluster.changes == []


def test_partitions_are_not_added_while_all_brokers_are_down() -> None:
    cluster = four_brokers()
    cluster.fence(1, 2, 3)
    told = cluster.more("a.b", 4)
    assert (told.error, told.message) == (
        E.INVALID_REPLICATION_FACTOR,
        "replication factor 1, expected 1 to 4 (the registered brokers, of which 0 are active)",
    )


def test_a_topic_that_nobody_made_is_not_deleted() -> None:
    sentence = "topic 'b' does not exist"
    unknown = m.TopicResult(topic="b", error=E.UNKNOWN_TOPIC_OR_PARTITION, message=sentence)
    assert four_brokers().delete("b") == [unknown]


@pytest.mark.parametrize("request_of", ["creation", "more partitions"])
def test_a_topic_is_named_once_in_a_request(request_of: str) -> None:
    cluster = ControlledCluster(1)
    if request_of == "creation":
        results = cluster.create_all(m.NewTopic(topic="a"), m.NewTopic(topic="a"))
    else:
        cluster.create("a")
        results = cluster.more_all(("a", 2), ("a", 3))
    sentence = "topic 'a' is named more than once in the request"
    twice = m.TopicResult(topic="a", error=E.INVALID_REQUEST, message=sentence)
    assert results == [twice, twice]
    assert cluster.changes == []


@pytest.mark.parametrize("request_of", ["creation", "more partitions"])
def test_one_request_creates_so_many_partitions_and_no_more(request_of: str) -> None:
    cluster = ControlledCluster(1)
    if request_of == "creation":
        wishes = [m.NewTopic(topic=name, partitions=9_998) for name in "ab"]
        _, told = cluster.create_all(*wishes, validate_only=True)
    else:
        cluster.create_all(m.NewTopic(topic="a"), m.NewTopic(topic="b"))
        _, told = cluster.more_all(("a", 9_999), ("b", 9_999), validate_only=True)
    assert told == m.TopicResult(
        topic="b",
        error=E.INVALID_PARTITIONS,
        message="9998 partitions more in one request, which may create 10000 in all",
    )


# Configurations.


@table(
    "change code sentence",
    {
        "a broker's": (
            {"kind": "broker", "name": "1"},
            E.INVALID_REQUEST,
            "configs of a broker cannot be altered while it runs, only those of a topic, or of the "
            "cluster for all topics that do not say themselves",
        ),
        "no topic": ({"name": "b"}, E.UNKNOWN_TOPIC_OR_PARTITION, "topic 'b' does not exist"),
        "set to what it cannot be": ({"set": {"flush": "later"}}, E.INVALID_CONFIG, NO_FLUSH),
        "an unknown key set": (
            {"set": {"zookeeper": "1"}},
            E.INVALID_CONFIG,
            "unknown configuration key 'zookeeper'",
        ),
        "an unknown key unset": (
            {"unset": ["flsh"]},
            E.INVALID_CONFIG,
            "unknown configuration key 'flsh', did you mean flush?",
        ),
        "committed offsets": (
            {"name": OFFSETS, "set": {POLICY: "delete"}},
            E.INVALID_CONFIG,
            KEPT,
        ),
        "no default set": (
            {"kind": "cluster", "name": "", "set": {"retention.ms": "1"}},
            E.INVALID_CONFIG,
            NO_DEFAULT,
        ),
        "no default unset": (
            {"kind": "cluster", "name": "", "unset": ["retention.ms"]},
            E.INVALID_CONFIG,
            NO_DEFAULT,
        ),
        "a default that it cannot be": (
            {"kind": "cluster", "name": "", "set": {"flush": "later"}},
            E.INVALID_CONFIG,
            NO_FLUSH,
        ),
    },
)
def test_a_configuration_is_not_altered(
    change: dict[str, Any], code: ErrorCode, sentence: str
) -> None:
    cluster = four_brokers()
    cluster.create(OFFSETS, configs={POLICY: "compact"})
    wish = m.ConfigChange(**{"kind": "topic", "name": "a.b", **change})
    assert cluster.alter_all(wish) == [
        m.ConfigResult(kind=wish.kind, name=wish.name, error=code, message=sentence)
    ]
    assert cluster.changes == []


# A leader's wish.


@table(
    "facts code sentence",
    {
        "no topic": ({"topic_id": "x"}, E.UNKNOWN_TOPIC_ID, "no topic has id x"),
        "no partition": (
            {"partition": 1},
            E.UNKNOWN_TOPIC_OR_PARTITION,
            "topic a has 1 partition, not 1",
        ),
        "a leader epoch to come": (
            {"leader_epoch": 2},
            E.NOT_CONTROLLER,
            "a-0: epochs 2/4 are newer than ours, 1/4",
        ),
        "a partition epoch to come": (
            {"partition_epoch": 9},
            E.NOT_CONTROLLER,
            "a-0: epochs 1/9 are newer than ours, 1/4",
        ),
        "a leader epoch before": (
            {"leader_epoch": 0},
            E.FENCED_LEADER_EPOCH,
            "a-0: leader epoch 0 is over, this is 1",
        ),
        "no leader": ({"sender": 3}, E.INVALID_REQUEST, "a-0 is led by 2, not by 3"),
        "a partition epoch before": (
            {"partition_epoch": 0},
            E.INVALID_UPDATE_VERSION,
            "a-0: partition epoch 0, ours is 4",
        ),
        "no replica": (
            {"isr": [2, 5]},
            E.INVALID_REQUEST,
            "a-0: ISR [2, 5], expected some of [1, 2, 3, 4], each once",
        ),
        "without itself": ({"isr": [3]}, E.INVALID_REQUEST, "a-0: ISR [3] without leader 2"),
        "a broker that is down": (
            {"isr": [2, 3, 4]},
            E.INELIGIBLE_REPLICA,
            "a-0: broker 4 of the ISR is fenced, stopping, or not registered",
        ),
        "a process before": (
            {"broker_epochs": [NONE, 6]},
            E.INELIGIBLE_REPLICA,
            "a-0: broker 3 of the ISR has epoch 7, not 6",
        ),
    },
)
def test_a_wish_for_an_isr_is_not_granted(
    facts: dict[str, Any], code: ErrorCode, sentence: str
) -> None:
    cluster = ControlledCluster(1, 2, 3, 4)
    cluster.create("a", assignment=[[1, 2, 3, 4]])
    cluster.fence(1, 4)
    result = cluster.alter_isr("a", *facts.get("isr", [2, 3]), **facts)
    assert result == c.AlterPartitionResult(
        topic_id=facts.get("topic_id", "id-1"),
        partition=facts.get("partition", 0),
        error=code,
        message=sentence,
    )
    assert cluster.changes == []


def test_a_partition_is_named_once_in_a_request() -> None:
    """Its first wish is granted, and so is that for another one."""
    cluster = ControlledCluster(1, 2)
    cluster.create("a", assignment=[[1, 2], [1, 2]])
    facts = {"topic_id": "id-1", "leader_epoch": 0, "partition_epoch": 0, "isr": [1]}
    request = c.AlterPartitionRequest(
        broker=1,
        broker_epoch=cluster.image.brokers[1].epoch,
        partitions=[c.AlterPartition(partition=number, **facts) for number in (0, 0, 1)],
    )
    results = cluster.commit(cluster.controller.alter_partition(request)).partitions
    assert [each.error for each in results] == [None, E.INVALID_REQUEST, None]
    assert results[1] == c.AlterPartitionResult(
        topic_id="id-1",
        partition=0,
        error=E.INVALID_REQUEST,
        message="the partition is named twice",
    )
    assert [each.partition_epoch for each in cluster.partitions("a")] == [2, 2]


# Elections.


def unelected() -> ControlledCluster:
    """3 and 4 are down; 2 has an offline replica that nobody else can follow."""
    cluster = ControlledCluster(1, 2, 3, 4)
    cluster.create("led", assignment=[[1, 2]])
    cluster.create("moved", assignment=[[3, 1]])
    cluster.create("offline", assignment=[[2]])
    cluster.create("gone", assignment=[[3]])
    cluster.create("untold", assignment=[[4, 1]])
    cluster.alter_isr("untold", 4)
    topic_id = cluster.image.topics["offline"].topic_id
    cluster.heartbeat(2, offline=[c.OfflineReplica(topic_id=topic_id, partition=0)])
    cluster.fence(3, 4)
    return cluster


@table(
    "topic unclean leader code sentence",
    {
        "no topic": ("b", True, NONE, E.UNKNOWN_TOPIC_OR_PARTITION, "b-0 does not exist"),
        "the preferred leads": (
            *("led", False, 1, E.ELECTION_NOT_NEEDED),
            "led-0 is led by its preferred replica: 1",
        ),
        "somebody leads": ("moved", True, 1, E.ELECTION_NOT_NEEDED, "moved-0 has a leader: 1"),
        "the preferred is down": (
            *("moved", False, 1, E.PREFERRED_LEADER_NOT_AVAILABLE),
            "moved-0: broker 3 is not alive and in sync",
        ),
        "an offline one leads": (
            *("offline", True, 2, E.ELIGIBLE_LEADERS_NOT_AVAILABLE),
            "offline-0 is led by broker 2, whose replica is offline: stop that broker first, then "
            "what the others have is known",
        ),
        "nobody is alive": (
            *("gone", True, NONE, E.ELIGIBLE_LEADERS_NOT_AVAILABLE),
            "gone-0: no replica of [3] is alive and has a log",
        ),
        "a log is not known": (
            *("untold", True, NONE, E.REQUEST_TIMED_OUT),
            "untold-0: brokers [1] have not said yet how far their logs reach, and the longest is "
            "to lead: try again",
        ),
    },
)
def test_nobody_is_elected_and_who_leads_is_told(
    topic: str, unclean: bool, leader: int, code: ErrorCode, sentence: str
) -> None:
    cluster = unelected()
    assert cluster.elect((topic, 0), unclean=unclean) == [
        m.ElectLeadersResult(topic=topic, partition=0, error=code, message=sentence, leader=leader)
    ]
    assert cluster.changes == []


# Brokers.


@table(
    "broker facts code sentence",
    {
        "another cluster": (
            *(2, {"cluster": "theirs"}, E.INCONSISTENT_CLUSTER_ID),
            "broker 2 belongs to cluster theirs, this is cluster cluster-1",
        ),
        "a host that cannot be one": (
            *(2, {"host": ".x"}, E.INVALID_REQUEST),
            "host '.x', expected a name, or an address of IPv4 or IPv6",
        ),
        "a label that is too long": (
            *(2, {"host": "x" * 64}, E.INVALID_REQUEST),
            f"host '{'x' * 64}', expected a name, or an address of IPv4 or IPv6",
        ),
        "nodes' host that cannot be one": (
            *(2, {"internal": ("a b", 1)}, E.INVALID_REQUEST),
            "host 'a b', expected a name, or an address of IPv4 or IPv6",
        ),
        "a port that cannot be one": (
            *(2, {"internal": ("::1", 65_536)}, E.INVALID_REQUEST),
            "port 65536, expected 1 to 65535",
        ),
        "a number below 0": (-1, {}, E.INVALID_REQUEST, "broker -1, expected 0 or more"),
        "a second process": (
            *(1, {"directory": "another"}, E.DUPLICATE_BROKER_REGISTRATION),
            "broker 1 is alive at localhost:19092; another process with this node.id may register "
            "9 s after its last heartbeat (broker.session.timeout.ms)",
        ),
    },
)
def test_a_broker_is_not_registered(
    broker: int, facts: dict[str, Any], code: ErrorCode, sentence: str
) -> None:
    cluster = ControlledCluster(1)
    before = cluster.replayed()
    assert said(cluster.register, broker, **facts) == (code, sentence)
    assert cluster.image == before


@table(
    "broker epoch code sentence",
    {
        "nobody": (7, 0, E.BROKER_ID_NOT_REGISTERED, "broker 7 is not registered"),
        "a process before": (
            *(1, 2, E.STALE_BROKER_EPOCH),
            "broker 1 sent epoch 2, its registration has 3",
        ),
    },
)
def test_who_speaks_for_no_registration_is_not_heard(
    broker: int, epoch: int, code: ErrorCode, sentence: str
) -> None:
    cluster = ControlledCluster(1)
    altering = c.AlterPartitionRequest(broker=broker, broker_epoch=epoch, partitions=[])
    refused = (code, sentence)
    assert said(cluster.heartbeat, broker, epoch=epoch) == refused
    assert said(cluster.allocate, broker, epoch=epoch) == refused
    assert said(cluster.controller.alter_partition, altering) == refused
