"""Requests that name much hold nobody up: they are read, asked and answered in steps, or refused.

Method: the tongue by hand, with who asks in the test's own words; then a node and a bare client.
"""

import pytest
import trio
from kafkakit import API_BY_NAME, answer_in, both, records, request_bytes, rows
from test_kafka_translators import FACTS

from hightide.protocol import messages as m
from hightide.protocol.codecs import at_once
from hightide.protocol.errors import ErrorCode, Refused, RemoteProtocolError
from hightide_broker.kafka.portions import PLANS
from hightide_broker.kafka.reading import ELEMENTS_AT_ONCE, ELEMENTS_MAX
from hightide_broker.kafka.tongue import KafkaTongue
from hightide_broker.runtime.base.call import Reply
from hightide_broker.runtime.server.tongue import Errand

TOO_MANY = 42
"""INVALID_REQUEST."""


def steps_of(steps):
    """How often work pauses, and what it comes to."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return pauses, done.value
        pauses += 1


def hearing(name, version, **fields):
    body = bytearray(request_bytes(name, version, fields)[4:])
    return KafkaTongue(FACTS).hearing(body)


def offsets_of(*topics):
    """A question for the ends of some partitions, by topic and how many there are."""
    named = [
        {
            "name": name,
            "partitions": [{"partition_index": n, "timestamp": -1} for n in range(count)],
        }
        for name, count in topics
    ]
    return {"replica_id": -1, "isolation_level": 0, "topics": named}


def ends(request):
    """An answer that can be told from any other."""
    found = [
        m.ListOffsetsResult(topic=part.topic, partition=part.partition, offset=100 + part.partition)
        for part in request.partitions
    ]
    return Reply(m.ListOffsetsResponse(partitions=found))


@pytest.mark.parametrize("many", [10, 6 * ELEMENTS_AT_ONCE])
def test_a_request_is_read_in_steps_if_it_names_much(many):
    pauses, _ = steps_of(hearing("metadata", 4, topics=[{"name": f"t{n}"} for n in range(many)]))
    assert pauses == many // ELEMENTS_AT_ONCE


@pytest.mark.parametrize("many", [10, 6 * ELEMENTS_AT_ONCE])
def test_an_answer_is_written_in_steps_if_it_tells_much(many):
    _, question = steps_of(hearing("list_offsets", 7, **offsets_of(("t", 1))))
    told = [m.ListOffsetsResult(topic="t", partition=number) for number in range(many)]
    framing = question.ticket.framing(m.ListOffsetsResponse(partitions=told), ())
    pauses, _ = steps_of(framing)
    assert pauses == many // ELEMENTS_AT_ONCE


async def test_a_question_about_much_is_asked_in_portions_and_answered_as_one():
    topics = [("a", 600), ("b", 2300), ("c", 0), ("d", 1)]
    heard = at_once(hearing("list_offsets", 7, **offsets_of(*topics)))
    assert isinstance(heard, Errand)
    asked = []

    async def ask(request):
        asked.append(len(request.partitions))
        await trio.lowlevel.checkpoint()
        return ends(request)

    frame = b"".join(map(bytes, await heard.run(ask)))
    assert max(asked) <= PLANS[2].at_once < sum(asked) == 2901
    answer = answer_in("list_offsets", 7, frame[4:])[1]
    told = [(each["name"], [p["offset"] for p in each["partitions"]]) for each in answer["topics"]]
    assert told == [(name, [*range(100, 100 + count)]) for name, count in topics if count]


async def test_a_portion_that_is_refused_is_refused_alone():
    heard = at_once(hearing("list_offsets", 7, **offsets_of(("a", 1000), ("b", 1000))))

    async def ask(request):
        await trio.lowlevel.checkpoint()
        if request.partitions[0].topic == "a":
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "it took long")
        return ends(request)

    frame = b"".join(map(bytes, await heard.run(ask)))
    topics = answer_in("list_offsets", 7, frame[4:])[1]["topics"]
    codes = {each["name"]: {p["error_code"] for p in each["partitions"]} for each in topics}
    assert codes == {"a": {7}, "b": {0}}


async def test_a_portion_that_cannot_be_answered_ends_it():
    heard = at_once(hearing("list_offsets", 7, **offsets_of(("a", 2000))))

    async def ask(_request):
        await trio.lowlevel.checkpoint()
        raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, "not yet")

    with pytest.raises(Refused, match="not yet"):
        await heard.run(ask)


def test_more_than_a_message_may_have_ends_the_connection():
    at_once(hearing("metadata", 4, topics=[{"name": "t"}] * ELEMENTS_MAX))
    with pytest.raises(RemoteProtocolError, match=f"more than {ELEMENTS_MAX} elements"):
        at_once(hearing("metadata", 4, topics=[{"name": "t"}] * (ELEMENTS_MAX + 1)))


def produce_of(count, data):
    parts = [{"index": number, "records": records(data)} for number in range(count)]
    topics = [{"name": "t", "partition_data": parts}]
    return {"acks": -1, "timeout_ms": 1000, "topic_data": topics}


async def test_a_produce_for_more_partitions_than_one_may_be_for_is_refused_for_each():
    most = PLANS[0].most
    async with both() as (ours, client):
        answer = await client.call("produce", 9, **produce_of(most + 1, rows(b"v")))
        (topic,) = answer["responses"]
        assert len(topic["partition_responses"]) == most + 1
        assert {each["error_code"] for each in topic["partition_responses"]} == {TOO_MANY}
        why = topic["partition_responses"][-1]["error_message"]
        assert why == f"{most + 1} partition_data in one request, expected {most} or less"
        assert (await ours.fetch(0)).values == []
        answer = await client.call("produce", 9, **produce_of(most, rows(b"v")))
        codes = [each["error_code"] for each in answer["responses"][0]["partition_responses"]]
        assert (codes[0], {*codes[1:]}, len(codes)) == (0, {3}, most)
        await client.send("produce", 9, **{**produce_of(most + 1, rows(b"v")), "acks": 0})
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("name", "version", "listed", "told", "one"),
    [
        ("create_topics", 7, "topics", "topics", {"num_partitions": 1, "replication_factor": 1}),
        ("delete_topics", 5, "topic_names", "responses", None),
        ("incremental_alter_configs", 1, "resources", "responses", {"resource_type": 2}),
    ],
)
async def test_changes_of_more_than_one_request_may_change_are_refused(
    name, version, listed, told, one
):
    most = PLANS[API_BY_NAME[name].key].most
    field = "resource_name" if listed == "resources" else "name"
    more = {"assignments": [], "configs": []}
    named = [
        f"n{number}" if one is None else {field: f"n{number}", **one, **more}
        for number in range(most + 1)
    ]
    async with both() as (_ours, client):
        answer = await client.call(
            name, version, **{listed: named}, timeout_ms=1000, validate_only=False
        )
        found = answer[told]
        assert [each[field] for each in found] == [f"n{number}" for number in range(most + 1)]
        assert {each["error_code"] for each in found} == {TOO_MANY}
        (why,) = {each["error_message"] for each in found}
        assert why == f"{most + 1} {listed} in one request, expected {most} or less"


async def test_keys_of_more_coordinators_than_one_may_ask_for_are_refused_for_each():
    async with both() as (_ours, client):
        keys = [f"g{number}" for number in range(1001)]
        found = (await client.call("find_coordinator", 4, coordinator_keys=keys))["coordinators"]
        assert [each["key"] for each in found] == keys
        assert {each["error_code"] for each in found} == {TOO_MANY}
        groups = [{"group_id": key, "topics": None} for key in keys]
        found = (await client.call("offset_fetch", 8, groups=groups))["groups"]
        assert [each["group_id"] for each in found] == keys
        assert {each["error_code"] for each in found} == {TOO_MANY}


async def test_topics_that_a_page_has_no_room_for_are_on_the_next_one():
    names = [f"missing-{number:05}" for number in range(5000)]
    async with both() as (_ours, client):
        told, cursor = [], None
        for _page in range(3):
            answer = await client.call(
                "describe_topic_partitions",
                0,
                topics=[{"name": name} for name in reversed(names)],
                response_partition_limit=9999,
                cursor=cursor,
            )
            told += [each["name"] for each in answer["topics"]]
            cursor = answer["next_cursor"]
        assert (told, cursor) == (names, None)


async def test_producers_of_many_partitions_are_told_by_topic():
    async with both(partitions=3) as (_ours, client):
        topics = [{"name": "t", "partition_indexes": [*range(700)]}]
        answer = await client.call("describe_producers", 0, topics=topics)
        (topic,) = answer["topics"]
        found = [(each["partition_index"], each["error_code"]) for each in topic["partitions"]]
        assert found == [(number, 0 if number < 3 else 3) for number in range(700)]
