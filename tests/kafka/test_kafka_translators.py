"""What becomes of answers and refusals, for every request and version, without a node.

Goal: numbers that a version knows, who leads instead and where that is, and words for a refusal of
the whole wherever a message has room for them. Method: translators by hand, answers read by tables.
"""

from random import Random

import pytest
from kafkakit import API_BY_NAME, answer_in, records, rows
from test_kafka_connection import senseless

from hightide.protocol import messages as m
from hightide.protocol.codecs import at_once
from hightide.protocol.errors import ERRORS, ErrorCode, Refused, RemoteProtocolError
from hightide_broker.core.cluster.image import BrokerState, ClusterImage
from hightide_broker.kafka.asked import Asked
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.fields import fields_of
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.kafka.tongue import TRANSLATORS
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Errand


def state(broker, host, *, fenced):
    port = 11 * broker
    more = {"rack": "", "roles": ("broker",), "incarnation": "i"}
    return BrokerState(broker=broker, epoch=1, host=host, port=port, fenced=fenced, **more)


IMAGE = ClusterImage(brokers={2: state(2, "two", fenced=False), 3: state(3, "three", fenced=True)})
FACTS = Facts(lambda: IMAGE, broker=1, now_ms=lambda: 5000)
EVERY = [
    pytest.param(API_BY_KEY[key], version, id=f"{API_BY_KEY[key].name}-{version}")
    for key in TRANSLATORS
    for version in range(API_BY_KEY[key].versions.first, API_BY_KEY[key].versions.last + 1)
]
WORDLESS = ("metadata", "api_versions", "describe_cluster", "find_coordinator", "offset_fetch")
"""Answers without room for an error of the whole, some of them in their last versions alone."""
SETTLED = ("list_partition_reassignments",)
"""What needs nothing of ours."""


def heard(name, version, **fields):
    api = API_BY_NAME[name]
    return TRANSLATORS[api.key](Asked(api, version, 7, "kit", fields), FACTS)


def received(value):
    """A message whose records are views, as in what was read."""
    if isinstance(value, dict):
        return {name: received(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(received, value)]
    return memoryview(value.part) if isinstance(value, Attached) else value


def read(name, version, framing):
    whole = b"".join(map(bytes, at_once(framing)))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    correlation_id, answer = answer_in(name, version, whole[4:])
    assert correlation_id == 7
    return answer


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_refusal_of_the_whole_is_told_or_closes(api, version):
    chance, told = Random(version), 0
    for _ in range(20):
        fields = received(senseless(chance, fields_of(api.request), version))
        try:
            question = heard(api.name, version, **fields)
        except RemoteProtocolError:
            continue
        ticket = question.ticket
        closing = Refused(ErrorCode.BROKER_NOT_AVAILABLE, "not yet")
        assert ticket.refusing(closing) is None
        refusing = ticket.refusing(Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no " * 1000))
        if refusing is None:
            # What needs nothing of ours cannot be refused.
            is_settled = isinstance(question, Errand)
            assert is_settled or api.name in WORDLESS or fields.get("acks") == 0
            continue
        told += "31" in str(read(api.name, version, refusing))
    assert told or api.name in (*WORDLESS, *SETTLED, "produce", "fetch")


def test_every_code_that_clients_may_hear_has_kafkas_number():
    for code, info in ERRORS.items():
        assert number_of(code) == info.number
    assert number_of(None) == 0
    assert number_of("A_NEWER_CODE") == -1


@pytest.mark.parametrize(("version", "number"), [(4, 5), (5, 78)])
def test_an_offset_that_is_not_available_yet(version, number):
    question = heard("list_offsets", version, replica_id=-1, isolation_level=0, topics=[])
    refused = m.ListOffsetsResult(topic="t", partition=0, error=ErrorCode.OFFSET_NOT_AVAILABLE)
    frame = question.ticket.framing(m.ListOffsetsResponse(partitions=[refused]), ())
    (topic,) = read("list_offsets", version, frame)["topics"]
    assert topic["partitions"][0]["error_code"] == number


FETCH = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 9, "topics": [], "session_id": 0}


@pytest.mark.parametrize(("version", "number"), [(5, 6), (6, 56)])
def test_a_disk_that_failed(version, number):
    refused = m.FetchResult(topic="t", partition=0, error=ErrorCode.KAFKA_STORAGE_ERROR)
    frame = heard("fetch", version, **FETCH).ticket.framing(
        m.FetchResponse(partitions=[refused]), ()
    )
    (topic,) = read("fetch", version, frame)["responses"]
    assert topic["partitions"][0]["error_code"] == number


@pytest.mark.parametrize("leader", [2, 3])
def test_who_leads_instead_is_told_with_where_it_is(leader):
    hint = m.LeaderHint(leader=leader, leader_epoch=5)
    why = {"error": ErrorCode.NOT_LEADER_OR_FOLLOWER, "current_leader": hint}
    where = [{"node_id": 2, "host": "two", "port": 22, "rack": None}] if leader == 2 else []
    body = m.FetchResponse(partitions=[m.FetchResult(topic="t", partition=0, **why)])
    answer = read("fetch", 16, heard("fetch", 16, **FETCH).ticket.framing(body, ()))
    assert answer["node_endpoints"] == where
    (part,) = answer["responses"][0]["partitions"]
    assert part["current_leader"] == {"leader_id": leader, "leader_epoch": 5}
    data = {"index": 0, "records": memoryview(rows(b"v"))}
    question = heard(
        "produce",
        10,
        transactional_id=None,
        acks=-1,
        timeout_ms=1,
        topic_data=[{"name": "t", "partition_data": [data]}],
    )
    body = m.ProduceResponse(partitions=[m.ProduceResult(topic="t", partition=0, **why)])
    answer = read("produce", 10, question.ticket.framing(body, ()))
    assert answer["node_endpoints"] == where
    (part,) = answer["responses"][0]["partition_responses"]
    assert part["current_leader"] == {"leader_id": leader, "leader_epoch": 5}


def test_records_are_sent_as_they_are_between_what_is_written_around_them():
    part = m.FetchResult(topic="t", partition=0, high_watermark=9, records=0)
    data = memoryview(b"records")
    ticket, body = heard("fetch", 12, **FETCH).ticket, m.FetchResponse(partitions=[part])
    assert any(each is data for each in at_once(ticket.framing(body, [data])))
    (topic,) = read("fetch", 12, ticket.framing(body, [data]))["responses"]
    assert bytes(topic["partitions"][0]["records"]) == b"records" == records(data).part
