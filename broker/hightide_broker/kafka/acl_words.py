"""Kafka's numbers for the words of rules, both ways (KIP-140, KIP-290). Pure.

Rules about transactions, delegation tokens and users are words that Kafka has and hightide does
not: nobody can make such a rule here, and a filter for them finds none.
"""

from __future__ import annotations

from collections.abc import Mapping

from hightide.protocol.access_messages import ANY, AclFilter, AclRule
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.acls import (
    CLUSTER_NAME,
    MATCH,
    Operation,
    Pattern,
    Permission,
    Resource,
)
from hightide_broker.kafka.reading import Fields

ANY_NUMBER = 1
RESOURCES = {2: Resource.TOPIC, 3: Resource.GROUP, 4: Resource.CLUSTER}
RESOURCES_ELSEWHERE = range(5, 8)
"""Transactional ids, delegation tokens, users."""
OPERATIONS = dict(enumerate(Operation, start=2))
OPERATIONS_ELSEWHERE = range(13, 16)
"""On tokens, and on transactions in two phases."""
PATTERNS = {2: MATCH, 3: Pattern.LITERAL, 4: Pattern.PREFIXED}
PERMISSIONS = {2: Permission.DENY, 3: Permission.ALLOW}
KAFKA_CLUSTER = "kafka-cluster"
"""What Kafka calls the only resource of its kind."""


def rule_of(fields: Fields) -> AclRule:
    """A rule that is to be made. Raises `Refused`."""
    resource = _word(RESOURCES, fields["resource_type"], "resource type")
    return AclRule(
        resource=resource,
        name=_our_name(resource, fields["resource_name"]),
        pattern=_word(PATTERNS, fields["resource_pattern_type"], "pattern type"),
        principal=fields["principal"],
        host=fields["host"],
        operation=_word(OPERATIONS, fields["operation"], "operation"),
        permission=_word(PERMISSIONS, fields["permission_type"], "permission type"),
    )


def filter_of(fields: Fields) -> AclFilter | None:
    """Which rules are meant; None: such as there are none of. Raises `Refused`."""
    kind, operation = fields["resource_type_filter"], fields["operation"]
    if kind in RESOURCES_ELSEWHERE or operation in OPERATIONS_ELSEWHERE:
        return None
    resource = _word_or_any(RESOURCES, kind, "resource type")
    name = fields["resource_name_filter"]
    return AclFilter(
        resource=resource,
        name=None if name is None else _our_name(resource, name),
        pattern=_word_or_any(PATTERNS, fields["pattern_type_filter"], "pattern type"),
        principal=fields["principal_filter"],
        host=fields["host_filter"],
        operation=_word_or_any(OPERATIONS, operation, "operation"),
        permission=_word_or_any(PERMISSIONS, fields["permission_type"], "permission type"),
    )


def resource_told(rule: AclRule) -> Fields:
    """What a rule is about."""
    is_cluster = rule.resource == Resource.CLUSTER
    return {
        "resource_type": _RESOURCE_NUMBERS[rule.resource],
        "resource_name": KAFKA_CLUSTER if is_cluster else rule.name,
        "pattern_type": _PATTERN_NUMBERS[rule.pattern],
    }


def permission_told(rule: AclRule) -> Fields:
    """What a rule says of it."""
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": _OPERATION_NUMBERS[rule.operation],
        "permission_type": _PERMISSION_NUMBERS[rule.permission],
    }


def _numbers(words: Mapping[int, str]) -> dict[str, int]:
    return {str(word): number for number, word in words.items()}


_RESOURCE_NUMBERS = _numbers(RESOURCES)
_OPERATION_NUMBERS = _numbers(OPERATIONS)
_PATTERN_NUMBERS = _numbers(PATTERNS)
_PERMISSION_NUMBERS = _numbers(PERMISSIONS)


def _our_name(resource: str, name: str) -> str:
    return CLUSTER_NAME if (resource, name) == (Resource.CLUSTER, KAFKA_CLUSTER) else name


def _word(words: Mapping[int, str], number: int, what: str) -> str:
    if number not in words:
        known = ", ".join(f"{known} ({word})" for known, word in words.items())
        raise Refused(ErrorCode.INVALID_REQUEST, f"{what} {number}, expected one of {known}")
    return str(words[number])


def _word_or_any(words: Mapping[int, str], number: int, what: str) -> str:
    return _word({ANY_NUMBER: ANY, **words}, number, what)
