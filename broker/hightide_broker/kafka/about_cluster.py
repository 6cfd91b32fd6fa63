"""Who is in the cluster, which topics there are, and who coordinates a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, RemoteProtocolError
from hightide_broker.core.cluster.limits import check_count
from hightide_broker.kafka.asked import (
    Asked,
    asked_each,
    at_once,
    errand,
    question,
    told,
)
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.named import as_asked
from hightide_broker.kafka.numbers import (
    MISMATCHED_ENDPOINT_TYPE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNSUPPORTED_ENDPOINT_TYPE,
    number_of,
)
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.topics_told import partition_told, topic_told
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Ask, Heard

GROUP, TRANSACTION = 0, 1
"""Types of a coordinator's key (KIP-98)."""
BROKERS, CONTROLLERS = 1, 2
"""Types of endpoints (KIP-919)."""
SEVERAL_FROM = 4
"""The first version of find_coordinator that asks for several (KIP-699)."""
IDS_FROM = 12
"""The first version of metadata that may name topics by their ids."""
KEYS_MAX = 1000
"""Coordinators that are looked for in one request."""


def metadata(asked: Asked, facts: Facts) -> Heard:
    """Brokers and topics; topics by their ids, too (KIP-516). Raises `RemoteProtocolError`."""
    wanted = asked.fields["topics"]
    every = wanted is None or (asked.version == 0 and not wanted)
    if asked.version < IDS_FROM and any(topic["name"] is None for topic in wanted or ()):
        raise RemoteProtocolError(f"a topic by its id before version {IDS_FROM} of metadata")
    names, name_of = facts.named(wanted or ())
    request = m.MetadataRequest(
        topics=None if every else names,
        auto_create=asked.fields.get("allow_auto_topic_creation", True),
    )

    def answer(body: m.MetadataResponse, _parts: Sequence[Attached]) -> Fields:
        listed = {broker.id for broker in body.brokers}
        one = partial(_topic, listed=listed)
        topics = (
            [*map(one, body.topics)]
            if every
            else as_asked(wanted, name_of, body.topics, one, _unknown_id)
        )
        return {
            "brokers": [_broker(broker, "node_id") for broker in body.brokers],
            "cluster_id": body.cluster_id,
            "controller_id": _controller(body.controller, listed, facts),
            "topics": topics,
            "error_code": 0,
        }

    return question(asked, request, answer)


def _controller(controller: int, listed: set[int], facts: Facts) -> int:
    """Who passes on what the controller decides: itself, where clients reach it, or this broker."""
    return controller if controller in listed else facts.broker


def _broker(broker: m.BrokerInfo, id_field: str) -> Fields:
    return {
        id_field: broker.id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack or None,
    }


def _unknown_id(topic_id: str) -> Fields:
    error = number_of(ErrorCode.UNKNOWN_TOPIC_ID)
    return {"error_code": error, "name": None, "topic_id": topic_id, "partitions": []}


def _topic(topic: m.TopicMetadata, listed: set[int]) -> Fields:
    parts = [partition_told(part, listed, _number_of(part, listed)) for part in topic.partitions]
    return topic_told(topic, number_of(topic.error), parts)


def _number_of(part: m.PartitionMetadata, listed: set[int]) -> int:
    return number_of(part.error if part.leader in listed else ErrorCode.LEADER_NOT_AVAILABLE)


def describe_cluster(asked: Asked, facts: Facts) -> Heard:
    """Every broker, and who is the controller (KIP-700)."""
    kind = asked.fields.get("endpoint_type", BROKERS)
    if kind != BROKERS:
        error = MISMATCHED_ENDPOINT_TYPE if kind == CONTROLLERS else UNSUPPORTED_ENDPOINT_TYPE
        nothing = {"cluster_id": "", "brokers": [], "endpoint_type": kind}
        return at_once(asked, {"error_code": error, **nothing})
    fenced_too = asked.fields.get("include_fenced_brokers", False)

    def answer(body: m.DescribeClusterResponse, _parts: Sequence[Attached]) -> Fields:
        listed = {broker.id for broker in body.brokers if not broker.fenced}
        return {
            "error_code": 0,
            "cluster_id": body.cluster_id,
            "controller_id": _controller(body.controller, listed, facts),
            "brokers": [
                {**_broker(broker, "broker_id"), "is_fenced": broker.fenced}
                for broker in body.brokers
                if fenced_too or not broker.fenced
            ],
        }

    return question(asked, m.DescribeClusterRequest(), answer)


def find_coordinator(asked: Asked, _facts: Facts) -> Heard:
    """Who coordinates a group; from version 4 on, several (KIP-699)."""
    kind = asked.fields.get("key_type", GROUP)
    if asked.version < SEVERAL_FROM:
        if kind != GROUP:
            return at_once(asked, _no_coordinator(*_of_groups_alone(asked, kind)))
        return question(
            asked,
            g.FindCoordinatorRequest(group=asked.fields["key"]),
            lambda body, _parts: _coordinator(body),
            _no_coordinator,
        )
    keys: list[str] = asked.fields["coordinator_keys"]

    async def run(ask: Ask) -> Fields:
        check_count(len(keys), KEYS_MAX, "keys")
        if kind != GROUP:
            why = _of_groups_alone(asked, kind)
            return {"coordinators": [{"key": key, **_no_coordinator(*why)} for key in keys]}
        found = await asked_each(
            ask,
            [g.FindCoordinatorRequest(group=key) for key in keys],
            lambda place, number, message: {"key": keys[place], **_no_coordinator(number, message)},
            lambda place, body: {"key": keys[place], **_coordinator(body)},
        )
        return {"coordinators": found}

    def refuse(number: int, message: str) -> Fields:
        return {"coordinators": [{"key": key, **_no_coordinator(number, message)} for key in keys]}

    return errand(asked, run, refuse)


def _of_groups_alone(asked: Asked, kind: int) -> tuple[int, str]:
    """An error that is final, and comes with its sentence, for whoever asks: librdkafka, which asks
    for one key, would ask again for as long as it may after any but this one; of it Java, which
    asks for several, does not show the sentence."""
    number = number_of(ErrorCode.INVALID_REQUEST)
    if asked.version < SEVERAL_FROM and kind == TRANSACTION:
        number = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return number, f"a coordinator of type {kind}, expected {GROUP}: there are no transactions here"


def _coordinator(body: g.FindCoordinatorResponse) -> Fields:
    return {
        "error_code": number_of(body.error),
        "error_message": told(body.message) or None,
        "node_id": body.broker,
        "host": body.host,
        "port": body.port,
    }


def _no_coordinator(number: int, message: str) -> Fields:
    return {
        "error_code": number,
        "error_message": message,
        "node_id": -1,
        "host": "",
        "port": -1,
    }


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    3: metadata,
    10: find_coordinator,
    60: describe_cluster,
}
