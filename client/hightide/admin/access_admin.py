"""Who may do what, as an administrator sees and changes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from hightide.admin.descriptions import AccessVerdict, Acl, AclPattern, described
from hightide.net.cluster import Cluster, first_refusal
from hightide.protocol import access_messages as a
from hightide.protocol.messages import Message


class AccessAdmin(ABC):
    """The part of `Admin` that is about permissions. Every method raises `ApiError` with the first
    refusal: SECURITY_DISABLED where brokers ask for none."""

    @property
    @abstractmethod
    def cluster(self) -> Cluster:
        """The way to the brokers."""

    @abstractmethod
    async def _call(self, request: Message) -> Any:
        """The answer of some broker."""

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Make rules; one that is there already stays. Those that are refused spoil no others."""
        rules = [a.AclRule(**asdict(acl)) for acl in acls]
        reply: a.CreateAclsResponse = await self._call(a.CreateAclsRequest(acls=rules))
        if (refusal := first_refusal(reply.acls)) is not None:
            refusal.broker = self.cluster.last_asked
            raise refusal

    async def describe_acls(self, wanted: AclPattern | None = None) -> list[Acl]:
        """The rules that are meant; all, if nothing is said."""
        request = a.DescribeAclsRequest(filter=_filter(wanted or AclPattern()))
        return [described(Acl, rule) for rule in (await self._call(request)).acls]

    async def delete_acls(self, wanted: AclPattern) -> list[Acl]:
        """Remove the rules that are meant; those that there were."""
        request = a.DeleteAclsRequest(filters=[_filter(wanted)])
        return [described(Acl, rule) for rule in (await self._call(request)).acls]

    async def explain_access(
        self, principal: str, operation: str, resource: str, name: str, *, host: str = ""
    ) -> AccessVerdict:
        """Whether `principal`, as `User:alice`, may do something from a host, and which rule
        decides."""
        request = a.ExplainAccessRequest(
            principal=principal, host=host, operation=operation, resource=resource, name=name
        )
        return described(AccessVerdict, await self._call(request))


def _filter(wanted: AclPattern) -> a.AclFilter:
    return a.AclFilter(**asdict(wanted))
