"""Requests about who may do what: the rules as this node knows them, and what they come to.

Making and removing them is the controller's, as every change.
"""

from __future__ import annotations

from collections.abc import Callable

from hightide.protocol import access_messages as a
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster import quotas, users
from hightide_broker.core.cluster.acls import Operation, Resource, check_filter, is_wanted, word_of
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.runtime.base.call import Call, Reply
from hightide_broker.runtime.server.gate import Gate


class AccessHandlers:
    """What is known here of rules, users and quotas."""

    def __init__(self, gate: Gate, image: Callable[[], ClusterImage]) -> None:
        self._gate = gate
        self._image = image

    def too_late(self, call: Call[m.Message]) -> Reply:
        """Nobody logs in twice on one connection, or where nobody logs in."""
        raise Refused(
            ErrorCode.ILLEGAL_SASL_STATE,
            f"this connection is open, as {call.peer.principal}: there is nothing to log in to",
        )

    def describe_quotas(self) -> Reply:
        """How much users and clients may send and read."""
        return Reply(quotas.described(self._image().quotas))

    def describe_users(self, call: Call[u.DescribeUserScramCredentialsRequest]) -> Reply:
        """Who has a password, by which mechanisms."""
        return Reply(users.described(self._image().users, call.request.users))

    def describe_acls(self, call: Call[a.DescribeAclsRequest]) -> Reply:
        """The rules that a filter means."""
        self.check_on()
        wanted = call.request.filter
        check_filter(wanted)
        known = self._image().acls.items()
        found = [acl.told(number) for number, acl in known if is_wanted(acl, wanted)]
        return Reply(a.DescribeAclsResponse(acls=found))

    def explain_access(self, call: Call[a.ExplainAccessRequest]) -> Reply:
        """Whether somebody may do something, and why."""
        self.check_on()
        asked = call.request
        verdict = self._gate.authorizer.verdict(
            asked.principal,
            asked.host,
            word_of(Operation, asked.operation),
            word_of(Resource, asked.resource),
            asked.name,
        )
        rule = None if verdict.rule is None else verdict.rule.told()
        return Reply(
            a.ExplainAccessResponse(allowed=verdict.allowed, reason=verdict.reason, rule=rule)
        )

    def check_on(self) -> None:
        """Raise `Refused` where nobody asks for permissions."""
        if not self._gate.is_on:
            raise Refused(
                ErrorCode.SECURITY_DISABLED,
                "authorizer.enable is false here: everybody may do everything",
            )
