"""Rules about who may do what: their words, and what may be a rule. Pure.

Sources: KIP-11 (operations), KIP-290 (prefixes), Kafka's StandardAuthorizer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeVar

from hightide.protocol.access_messages import ANY, AclFilter, AclRule
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.names import TOPIC_NAME, USER, address, check_name

CLUSTER_NAME = "cluster"
"""The name of the only resource of its kind."""
EVERYBODY, EVERYWHERE, EVERYTHING = f"{USER}*", "*", "*"
ACLS_MAX = 50_000
"""The most rules that a cluster may have."""


class Operation(StrEnum):
    """What somebody may be permitted to do, in Kafka's words."""

    ALL = "ALL"
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"


class Resource(StrEnum):
    """What it may be done to."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Pattern(StrEnum):
    """How a rule names resources."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Permission(StrEnum):
    """What a rule says."""

    ALLOW = "ALLOW"
    DENY = "DENY"


IMPLIES: dict[Operation, tuple[Operation, ...]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Who is allowed one of those is allowed this; who is denied one of those is not denied this."""


class Acl(NamedTuple):
    """A rule."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def names(self, name: str) -> bool:
        """Whether a resource of its kind is meant."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, EVERYTHING)

    def is_about(self, principal: str, host: str, operation: Operation) -> bool:
        """Whether it says something about this being done."""
        is_meant = self.principal in (principal, EVERYBODY) and self.host in (host, EVERYWHERE)
        return is_meant and self.is_of(operation)

    def is_of(self, operation: Operation) -> bool:
        """Whether it says something about this operation."""
        if self.operation in (operation, Operation.ALL):
            return True
        is_allowed = self.permission is Permission.ALLOW
        return is_allowed and self.operation in IMPLIES.get(operation, ())

    def told(self, known_as: str = "") -> AclRule:
        """The rule as a message says it; `known_as` is its id."""
        return AclRule(id=known_as, **self._asdict())

    def __str__(self) -> str:
        which = f"{self.name}*" if self.pattern is Pattern.PREFIXED else self.name
        host = "" if self.host == EVERYWHERE else f" from {self.host}"
        verb = self.permission.lower()
        return f"{verb} {self.principal}{host} {self.operation} {self.resource}:{which}"


W = TypeVar("W", bound=StrEnum)


def word_of(kind: type[W], text: str) -> W:
    """One of the words of a kind; raises `Refused`."""
    try:
        return kind(text)
    except ValueError:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"{kind.__name__.lower()} {text[:60]!r}, expected one of {', '.join(kind)}",
        ) from None


def as_told(rule: AclRule) -> Acl:
    """The rule that a message says, whatever names are in it; raises `Refused` for words that there
    are not."""
    return Acl(
        word_of(Resource, rule.resource),
        rule.name,
        word_of(Pattern, rule.pattern),
        rule.principal,
        rule.host,
        word_of(Operation, rule.operation),
        word_of(Permission, rule.permission),
    )


def acl_of(rule: AclRule) -> Acl:
    """The rule that somebody asks for; raises `Refused` if it can be none."""
    acl = as_told(rule)._replace(host=_host(rule.host))
    for field in ("name", "principal", "host"):
        check_name(field, getattr(acl, field))
    if not acl.principal.startswith(USER) or acl.principal == USER:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"principal {acl.principal!r}, expected User:<name> or User:*",
        )
    if not _may_match(acl):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"a rule about {acl.resource} {acl.name!r}, {acl.pattern}, would never match anything: "
            f"expected a name or the beginning of one as there are, or '*'",
        )
    if acl.resource is Resource.CLUSTER and acl[1:3] != (CLUSTER_NAME, Pattern.LITERAL):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"the cluster's name is {CLUSTER_NAME!r}, LITERAL, not {acl.name!r}, {acl.pattern}",
        )
    return acl


def _may_match(acl: Acl) -> bool:
    """Whether there can be anything that a rule is about: one that denies would deny nothing."""
    if acl.name == EVERYTHING:
        return acl.pattern is Pattern.LITERAL
    if acl.resource is Resource.TOPIC:
        return TOPIC_NAME.fullmatch(acl.name) is not None
    return acl.name == acl.name.strip()


def _host(text: str) -> str:
    """An address, or everywhere; raises `Refused`: a rule that denies would deny nobody."""
    return text if text == EVERYWHERE else address("host", text, EVERYWHERE)


def check_filter(wanted: AclFilter) -> None:
    """Raise `Refused` for words that there are not."""
    kinds = ((Resource, wanted.resource), (Operation, wanted.operation))
    for kind, text in (*kinds, (Permission, wanted.permission)):
        if text != ANY:
            word_of(kind, text)
    if wanted.pattern not in (ANY, MATCH):
        word_of(Pattern, wanted.pattern)


MATCH = "MATCH"


def is_wanted(acl: Acl, wanted: AclFilter) -> bool:
    """Whether a filter means this rule."""
    words = (
        (wanted.resource, acl.resource),
        (wanted.operation, acl.operation),
        (wanted.permission, acl.permission),
    )
    if any(text not in (ANY, word) for text, word in words):
        return False
    if wanted.principal not in (None, acl.principal) or wanted.host not in (None, acl.host):
        return False
    if wanted.pattern == MATCH:
        return wanted.name is None or acl.names(wanted.name)
    return wanted.pattern in (ANY, acl.pattern) and wanted.name in (None, acl.name)
