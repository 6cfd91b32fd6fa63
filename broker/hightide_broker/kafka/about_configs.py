"""Settings of topics, of brokers and of the cluster, and what lies in a broker's directory.

Kafka calls what holds for all brokers a broker without a name (KIP-226); here that is the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker import config_keys as keys
from hightide_broker.core.cluster.config_key import Key
from hightide_broker.core.cluster.image import CLUSTER
from hightide_broker.core.cluster.topic_keys import TOPIC_KEYS
from hightide_broker.kafka.asked import Asked, at_once, errand, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.grouped import by_topic
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Ask, Heard

TOPIC, BROKER = 2, 4
"""Kinds of resources."""
CLIENT_METRICS = (16,)
"""The only kind that the first version of list_config_resources knows."""
WITHOUT_ANY = (8, *CLIENT_METRICS, 32)
"""Kinds of which there are none here: loggers of brokers, metrics of clients, groups."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""What may be done to a key (KIP-339)."""
FROM_TOPIC, FROM_CLUSTER, FROM_FILE, DEFAULT = 1, 3, 4, 5
"""Where a value comes from: set on a topic, for all brokers, in a broker's file, or nowhere."""
ERROR_FROM = 3
"""The first version of describe_log_dirs with an error of the whole."""
TYPES = {bool: 1, str: 2, int: 5, float: 6, frozenset: 7}
"""Kafka's numbers for the types of values (KIP-569): boolean, string, long, double, list."""


class Resource(NamedTuple):
    """What has settings, in Kafka's words and in ours."""

    kind: int
    name: str

    @property
    def ours(self) -> tuple[str, str]:
        """Our kind and name. Raises `Refused`."""
        if self.kind == TOPIC:
            return "topic", self.name
        if self.kind == BROKER:
            return ("broker", self.name) if self.name else CLUSTER
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"a resource of type {self.kind}, expected {TOPIC}, a topic, or {BROKER}, a broker",
        )

    def result(self, number: int, message: str) -> Fields:
        """What became of it."""
        return {
            "error_code": number,
            "error_message": told(message) or None,
            "resource_type": self.kind,
            "resource_name": self.name,
        }


def _resource(fields: Fields) -> Resource:
    return Resource(fields["resource_type"], fields["resource_name"])


def describe_configs(asked: Asked, _facts: Facts) -> Heard:
    """Every key of some resources, or those that are asked for, with where its value comes from."""
    wanted: dict[tuple[str, str], tuple[Resource, Sequence[str] | None]] = {}
    refused: list[Fields] = []
    for fields in asked.fields["resources"]:
        resource = _resource(fields)
        try:
            wanted[resource.ours] = resource, fields["configuration_keys"]
        except Refused as why:
            result = resource.result(number_of(why.code), why.message)
            refused.append({**result, "configs": []})
    with_docs = asked.fields.get("include_documentation", False)

    def one(result: m.ConfigResult) -> Fields:
        resource, names = wanted[result.kind, result.name]
        chosen = None if names is None else set(names)
        entries = [each for each in result.entries if chosen is None or each.name in chosen]
        configs = [_entry(result.kind, each, with_docs) for each in entries]
        told_of = resource.result(number_of(result.error), result.message)
        return {**told_of, "configs": configs}

    def answer(body: m.DescribeConfigsResponse, _parts: Sequence[Attached]) -> Fields:
        return {"results": [*map(one, body.resources), *refused]}

    def refuse(number: int, message: str) -> Fields:
        results = [resource.result(number, message) for resource, _ in wanted.values()]
        return {"results": [{**result, "configs": []} for result in results]}

    request = m.DescribeConfigsRequest(
        resources=[m.ConfigResource(kind=kind, name=name) for kind, name in wanted]
    )
    return question(asked, request, answer, refuse)


def _entry(kind: str, entry: m.ConfigEntry, with_docs: bool) -> Fields:
    key = (keys.KEYS if kind == "broker" else TOPIC_KEYS).get(entry.name)
    sources = {"topic": FROM_TOPIC, "broker": FROM_FILE}
    return {
        "name": entry.name,
        "value": entry.value if key is None else _shown(key, entry.value),
        "read_only": entry.read_only,
        "config_source": DEFAULT if entry.default else sources.get(kind, FROM_CLUSTER),
        "is_sensitive": False,
        "synonyms": [],
        "config_type": 0 if key is None else TYPES[type(key.value(key.default))],
        "documentation": entry.doc if with_docs else None,
    }


def _shown(key: Key[object], text: str) -> str:
    """Numbers without the units that people wrote: Kafka's tools know none."""
    value = key.value(text)
    return str(value) if type(value) is int else text


def list_config_resources(asked: Asked, _facts: Facts) -> Heard:
    """What has settings, of some kinds or of all (KIP-1142)."""
    kinds: Sequence[int] = asked.fields.get("resource_types", CLIENT_METRICS)

    def refuse(number: int, _message: str) -> Fields:
        return {"error_code": number, "config_resources": []}

    if not set(kinds) <= {TOPIC, BROKER, *WITHOUT_ANY}:
        return at_once(asked, refuse(number_of(ErrorCode.UNSUPPORTED_VERSION), ""))

    async def run(ask: Ask) -> Fields:
        found: list[tuple[str, int]] = []
        if not kinds or TOPIC in kinds:
            metadata: Any = (await ask(m.MetadataRequest())).body
            found += [(topic.topic, TOPIC) for topic in metadata.topics]
        if not kinds or BROKER in kinds:
            cluster: Any = (await ask(m.DescribeClusterRequest())).body
            found += [(str(each.id), BROKER) for each in cluster.brokers if not each.fenced]
        resources = [{"resource_name": name, "resource_type": kind} for name, kind in found]
        return {"error_code": 0, "config_resources": resources}

    return errand(asked, run, refuse)


def incremental_alter_configs(asked: Asked, facts: Facts) -> Heard:
    """Set and unset single keys."""

    def change(fields: Fields, kind: str, name: str) -> m.ConfigChange:
        _check_keys_once(fields["configs"])
        known, given, unset = facts.set_on(kind, name), {}, []
        for each in fields["configs"]:
            key, operation, value = each["name"], each["config_operation"], each["value"]
            if operation == DELETE:
                unset.append(key)
            elif operation == SET and value is not None:
                given[key] = value
            elif operation in (APPEND, SUBTRACT) and value is not None:
                given[key] = _listed(key, known.get(key), value, operation)
            else:
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"operation {operation} on {key} with value {value!r}, expected 0 to 3, and "
                    "a value for all but 1",
                )
        return m.ConfigChange(kind=kind, name=name, set=given, unset=unset)

    return _altering(asked, change)


def _check_keys_once(configs: Sequence[Fields]) -> None:
    """Raise `Refused` where a key is named twice, as Kafka does: words behind words would make a
    list that takes longer than a request may."""
    if len({each["name"] for each in configs}) < len(configs):
        raise Refused(ErrorCode.INVALID_REQUEST, "a key is named twice, expected once a resource")


def _listed(name: str, before: str | None, value: str, operation: int) -> str:
    """A list with more or fewer words in it. Raises `Refused` where it is none."""
    key = TOPIC_KEYS.get(name)
    if key is None or not isinstance(key.value(key.default), frozenset):
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is no list: set it")
    words = [word for word in (before or key.default).split(",") if word]
    given = value.split(",")
    kept = [word for word in words if word not in given]
    return ",".join(kept + given if operation == APPEND else kept)


def alter_configs(asked: Asked, facts: Facts) -> Heard:
    """Set some keys, and unset all others: but none of the cluster's, some of which the first
    controller took from its file. Kafka's brokers keep what their files say."""

    def change(fields: Fields, kind: str, name: str) -> m.ConfigChange:
        _check_keys_once(fields["configs"])
        given = {
            each["name"]: each["value"] for each in fields["configs"] if each["value"] is not None
        }
        unset = [key for key in facts.set_on(kind, name) if key not in given]
        if unset and (kind, name) == CLUSTER:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"this would set back {', '.join(unset)}, which may come from the brokers' files: "
                "use IncrementalAlterConfigs",
            )
        return m.ConfigChange(kind=kind, name=name, set=given, unset=unset)

    return _altering(asked, change)


def _altering(asked: Asked, change: Callable[[Fields, str, str], m.ConfigChange]) -> Heard:
    changes: list[m.ConfigChange] = []
    refused: list[Fields] = []
    known: dict[tuple[str, str], Resource] = {}
    named = Counter(map(_resource, asked.fields["resources"]))
    for fields in asked.fields["resources"]:
        resource = _resource(fields)
        try:
            kind, name = resource.ours
            if named[resource] > 1:
                why = f"{resource.name[:60]!r} is named {named[resource]} times, expected once"
                raise Refused(ErrorCode.INVALID_REQUEST, why)
            changes.append(change(fields, kind, name))
            known[kind, name] = resource
        except Refused as refusal:
            refused.append(resource.result(number_of(refusal.code), refusal.message))

    def one(result: m.ConfigResult) -> Fields:
        resource = known[result.kind, result.name]
        return resource.result(number_of(result.error), result.message)

    def answer(body: m.AlterConfigsResponse, _parts: Sequence[Attached]) -> Fields:
        return {"responses": [*map(one, body.resources), *refused]}

    def refuse(number: int, message: str) -> Fields:
        return {"responses": [each.result(number, message) for each in known.values()]}

    request = m.AlterConfigsRequest(resources=changes, validate_only=asked.fields["validate_only"])
    return question(asked, request, answer, refuse)


def describe_log_dirs(asked: Asked, _facts: Facts) -> Heard:
    """This broker's replicas, and the room beside them (KIP-113, KIP-827)."""
    topics = asked.fields["topics"]
    wanted = None if topics is None else {each["topic"]: {*each["partitions"]} for each in topics}

    def one(replica: m.ReplicaInfo) -> Fields:
        return {
            "partition_index": replica.partition,
            "partition_size": max(replica.size_bytes, 0),
            "offset_lag": 0,
            "is_future_key": False,
        }

    def answer(body: m.DescribeLogDirsResponse, _parts: Sequence[Attached]) -> Fields:
        replicas = [
            each
            for each in body.replicas
            if wanted is None or each.partition in wanted.get(each.topic, ())
        ]
        directory = {
            "error_code": 0,
            "log_dir": body.path,
            "topics": by_topic(replicas, one),
            "usable_bytes": body.free_bytes,
        }
        return {"error_code": 0, "results": [directory]}

    def refuse(number: int, _message: str) -> Fields:
        nowhere = {"error_code": number, "log_dir": "", "topics": []}
        return {"error_code": number, "results": [] if asked.version >= ERROR_FROM else [nowhere]}

    request = m.DescribeLogDirsRequest(topics=None if wanted is None else [*wanted])
    return question(asked, request, answer, refuse)


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    32: describe_configs,
    33: alter_configs,
    35: describe_log_dirs,
    44: incremental_alter_configs,
    74: list_config_resources,
}
