"""Requests about permissions: who may do what to which resource. Pure.

The rules of `messages.py` hold here too. Kafka's words (KIP-11, KIP-140, KIP-290): a rule allows or
denies a principal (`User:alice`, `User:*`) an operation on a resource, by its whole name or by how
it begins, from one host or from any (`*`).
"""

from __future__ import annotations

from hightide.protocol.messages import Message

ANY = "ANY"
"""In a filter: whatever it is."""


class AclRule(Message, frozen=True, kw_only=True):
    """A rule; see `core/cluster/acls.py` for the words."""

    id: str = ""
    """Given by the cluster."""
    resource: str
    """topic, group or cluster."""
    name: str
    """The name that is meant; `*` with LITERAL: all. The cluster's is `cluster`."""
    pattern: str = "LITERAL"
    """Or PREFIXED: all whose names begin so."""
    principal: str
    host: str = "*"
    operation: str
    permission: str = "ALLOW"
    """Or DENY, which goes before."""


class AclFilter(Message, frozen=True, kw_only=True):
    """Which rules are meant."""

    resource: str
    name: str | None = None
    pattern: str = ANY
    """LITERAL or PREFIXED as written; MATCH: all that concern a resource of this name."""
    principal: str | None = None
    host: str | None = None
    operation: str = ANY
    permission: str = ANY


class CreateAclsRequest(Message, frozen=True, kw_only=True):
    acls: list[AclRule]


class AclResult(Message, frozen=True, kw_only=True):
    number: int
    """Of the rule in the request."""
    error: str | None = None
    message: str = ""


class CreateAclsResponse(Message, frozen=True, kw_only=True):
    acls: list[AclResult]
    """A rule that is there already is no error."""


class DescribeAclsRequest(Message, frozen=True, kw_only=True):
    filter: AclFilter = AclFilter(resource=ANY)


class DescribeAclsResponse(Message, frozen=True, kw_only=True):
    acls: list[AclRule]


class DeleteAclsRequest(Message, frozen=True, kw_only=True):
    filters: list[AclFilter]


class DeleteAclsResponse(Message, frozen=True, kw_only=True):
    acls: list[AclRule]
    """What there was, and is not any more."""


class ExplainAccessRequest(Message, frozen=True, kw_only=True):
    """Whether somebody may do something, and which rule decides."""

    principal: str
    host: str = ""
    operation: str
    resource: str
    name: str


class ExplainAccessResponse(Message, frozen=True, kw_only=True):
    allowed: bool
    reason: str
    """In words."""
    rule: AclRule | None = None
