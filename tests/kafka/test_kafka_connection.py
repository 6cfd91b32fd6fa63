"""Kafka's protocol on the clients' listener: who is heard, in which order, within which limits.

Goal: §0 of what any Kafka client relies on - one port for both protocols, ApiVersions that always
answers, answers in the order of requests - and nothing that a connection of ours would not bear.
Method: a real node, and a bare client.
"""

import logging
import struct
from random import Random

import pytest
import trio
from brokers import client_of, new_node, settings
from kafkakit import KafkaClient, kafka_client, records, request_bytes
from patience import PATIENCE_S
from tries import tries

from hightide_broker.kafka.fields import STRUCT, fields_of, in_version
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.kafka.tongue import KEPT_BYTES_MAX, OTHERS_BYTES_MAX, TRANSLATORS
from hightide_broker.simulation.disk import SimDisk


def test_what_is_offered_has_a_table():
    assert TRANSLATORS.keys() <= API_BY_KEY.keys()


@pytest.mark.parametrize("version", range(5))
async def test_every_version_of_api_versions_is_answered(version):
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        answer = await client.call(
            "api_versions", version, client_software_name="kit", client_software_version="1"
        )
    assert answer["error_code"] == 0
    offered = {
        each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]
    }
    assert offered == {key: tuple(API_BY_KEY[key].versions) for key in TRANSLATORS}


async def test_a_newer_api_versions_hears_in_its_first_version_which_ones_there_are():
    newer = struct.pack(">hhih", 18, 9, 77, 3) + b"kit\0\0\0"
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        await client.stream.send_all(struct.pack(">i", len(newer)) + newer)
        assert await client.receive("api_versions", 0) == (
            77,
            {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]},
        )
        assert (await client.call("api_versions", 0))["error_code"] == 0


@pytest.mark.parametrize(
    ("key", "version", "words"),
    [
        (3, 99, "metadata version 99 of Kafka's protocol, offered are 0 to 13"),
        (3, -1, "metadata version -1"),
        (24, 0, "API 24 of Kafka's protocol is not offered here"),
        (-1, 0, "API -1"),
    ],
)
async def test_what_was_not_advertised_ends_the_connection(key, version, words, caplog):
    caplog.set_level(logging.INFO, "hightide.server")
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        await client.call("api_versions", 0)
        asked = struct.pack(">hhih", key, version, 1, -1)
        await client.stream.send_all(struct.pack(">i", len(asked)) + asked)
        assert await client.is_closed()
    assert words in caplog.text


async def test_both_protocols_are_spoken_on_one_port_at_a_time():
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as theirs:
        await ours.create("t")
        (topic,) = (await theirs.call("metadata", 0, topics=[]))["topics"]
        assert topic["name"] == "t"
        assert (await ours.produce(b"v")).error is None


async def test_where_it_is_not_enabled_the_log_says_who_knocked(caplog):
    caplog.set_level(logging.INFO, "hightide.server")
    over = settings({"kafka.protocol.enable": "false"})
    async with new_node(SimDisk(), over) as node, kafka_client(node) as client:
        await client.send("api_versions", 0)
        assert not await client.is_closed()  # it is told so, in the words of our own protocol
    assert "it speaks Kafka's own protocol" in caplog.text


async def test_by_the_nodes_own_door_nobody_speaks_it():
    over = settings({"internal.listen.port": "0"})
    async with new_node(SimDisk(), over) as node:
        assert node.internal_address[1] != node.port
        stream = await trio.open_tcp_stream("127.0.0.1", node.internal_address[1])
        async with stream:
            client = KafkaClient(stream)
            await client.send("metadata", 0, topics=[])
            (length,) = struct.unpack(">i", await client._exactly(4))
            assert (await client._exactly(length))[0] >= 0x80


async def test_who_spoke_kafkas_protocol_first_is_not_understood_in_ours():
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        await client.call("api_versions", 0)
        await client.stream.send_all(b"\0\0\0\4\x84\xa3api")
        assert await client.is_closed()


async def test_requests_that_come_byte_by_byte_and_all_at_once():
    one = request_bytes("metadata", 12, METADATA_OF_ALL, correlation_id=5)
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        for at in range(len(one)):
            await client.stream.send_all(one[at : at + 1])
            await trio.sleep(0)
        assert (await client.receive("metadata", 12))[0] == 5
        await client.stream.send_all(one * 20)
        for _ in range(20):
            assert (await client.receive("metadata", 12))[0] == 5


METADATA_OF_ALL = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


@pytest.mark.parametrize(
    ("key", "limit"), [(3, OTHERS_BYTES_MAX), (1, OTHERS_BYTES_MAX), (11, KEPT_BYTES_MAX)]
)
async def test_a_large_request_that_is_no_produce_is_refused_before_it_comes(caplog, key, limit):
    caplog.set_level(logging.INFO, "hightide.server")
    head = struct.pack(">ihh", limit + 1, key, 4)
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        await client.stream.send_all(head)
        assert await client.is_closed()
    assert f"the limit is {limit}" in caplog.text


async def test_a_client_that_leaves_in_the_middle_harms_nobody():
    one = request_bytes("metadata", 12, METADATA_OF_ALL)
    async with new_node(SimDisk()) as node, client_of(node) as ours:
        for length in (3, 5, 6, len(one) - 1):
            async with kafka_client(node) as client:
                await client.stream.send_all(one[:length])
        await ours.create("t")
        assert (await ours.produce(b"v")).error is None


async def test_any_bytes_are_answered_or_end_the_connection_and_harm_nobody(caplog):
    """Requests of every API with bits that were turned, and frames of any bytes."""
    caplog.set_level(logging.ERROR)

    async def attack(node, frames):
        async with kafka_client(node) as client:
            with trio.fail_after(PATIENCE_S):
                try:
                    await client.stream.send_all(b"".join(frames))
                    await client.stream.send_eof()
                    while await client.stream.receive_some(65536):
                        pass
                except trio.BrokenResourceError:
                    pass

    async with new_node(SimDisk()) as node, client_of(node) as ours:
        await ours.create("t")
        for frames in attacks():
            await attack(node, frames)
        assert (await ours.produce(b"v")).error is None
        assert await ours.values() == [b"v"]
    assert [record.message for record in caplog.records] == []


def attacks():
    """Some hundreds of them, the same each time: every API in any version."""
    chance = Random(7)
    for key in sorted(TRANSLATORS):
        for _ in range(tries(36)):
            yield [hostile_frame(chance, key) for _ in range(chance.randint(1, 3))]


def hostile_frame(chance, key):
    """A request that makes no sense; or one of which some bits were turned; or any bytes."""
    api = API_BY_KEY[key]
    version = chance.randint(*api.versions)
    kind = chance.randrange(3)
    if kind == 2:
        body = bytes(chance.randrange(4) for _ in range(chance.randint(0, 60)))
        frame = struct.pack(">ihhih", len(body) + 10, key, version, 1, -1) + body
    else:
        fields = senseless(chance, fields_of(api.request), version)
        frame = bytearray(request_bytes(api.name, version, fields))
        for _ in range(chance.randint(1, 3) if kind else 0):
            at = chance.randrange(32 if chance.randrange(4) else 0, len(frame) * 8)
            frame[at // 8] ^= 1 << at % 8
    return bytes(frame)


def senseless(chance, fields, version):
    """A message with anything in it that its types allow."""

    def one(field):
        if field.kind == STRUCT:
            return senseless(chance, field.fields, version)
        number = chance.choice([-2, -1, 0, 1, 2, 5, 100, chance.randrange(1 << 15)])
        words = chance.choice(["", "t", "g", "1", "range", "__consumer_offsets", "\0", "\u00e9"])
        data = chance.randbytes(chance.choice([0, 1, 61, 80]))
        return {
            "string": words,
            "bytes": data,
            "records": records(data),
            "uuid": chance.choice(["", "AAAAAAAAAAAAAAAAAAAAAQ"]),
            "bool": bool(number % 2),
            "int8": number % 100,
            "float64": float(number),
        }.get(field.kind, number)

    def value(field):
        if version in field.nullable and not chance.randrange(4):
            return None
        if field.is_array:
            return [one(field) for _ in range(chance.randint(0, 2))]
        return one(field)

    return {field.name: value(field) for field in in_version(fields, version)}


def test_the_attacks_reach_every_api():
    keys = {int.from_bytes(frame[4:6], "big") for frames in attacks() for frame in frames}
    assert keys >= TRANSLATORS.keys()
