"""Users and what they may do, as an administrator sees and changes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from hightide.admin.descriptions import (
    AccessVerdict,
    Acl,
    AclPattern,
    Quota,
    UserDescription,
    described,
)
from hightide.admin.passwords import prepared, salted
from hightide.net.cluster import Cluster, first_refusal, only
from hightide.protocol import access_messages as a
from hightide.protocol import login_messages as u
from hightide.protocol import quota_messages as k
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
        self._raise_first(reply.acls)

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

    # -- users -----------------------------------------------------------------------------------

    async def list_users(self) -> list[UserDescription]:
        """Everybody who has a password, by name."""
        found = await self._call(u.DescribeUserScramCredentialsRequest())
        return [described(UserDescription, user) for user in found.users]

    async def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Sequence[str] = u.MECHANISMS,
        iterations: int = u.ITERATIONS_MIN,
    ) -> None:
        """Give a user a password, a new one or the first. It is salted and hashed here: brokers
        never see it. Raises `UsageError` for one that cannot be."""
        wishes = salted(user, password, mechanisms=mechanisms, iterations=iterations)
        await self._alter(u.AlterUserScramCredentialsRequest(upsertions=wishes))

    async def delete_user(self, user: str) -> None:
        """Take all passwords of a user away: who is logged in stays so, nobody does again."""
        user = prepared("user", user)
        asked = u.DescribeUserScramCredentialsRequest(users=[user])
        found: u.DescribeUserScramCredentialsResponse = await self._call(asked)
        self._raise_first(found.users)
        gone = [
            u.ScramDeletion(user=user, mechanism=each.mechanism)
            for each in only(found.users).credentials
        ]
        await self._alter(u.AlterUserScramCredentialsRequest(deletions=gone))

    # -- quotas ----------------------------------------------------------------------------------

    async def describe_quotas(self) -> list[Quota]:
        """Every quota that is set."""
        found = await self._call(k.DescribeClientQuotasRequest())
        return [described(Quota, each) for each in found.quotas]

    async def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set quotas, or remove those whose value is None."""
        wishes = [k.QuotaSetting(**asdict(quota)) for quota in quotas]
        self._raise_first((await self._call(k.AlterClientQuotasRequest(quotas=wishes))).quotas)

    async def _alter(self, request: u.AlterUserScramCredentialsRequest) -> None:
        reply: u.AlterUserScramCredentialsResponse = await self._call(request)
        self._raise_first(reply.users)

    def _raise_first(self, results: Iterable[Any]) -> None:
        if (refusal := first_refusal(results)) is not None:
            refusal.broker = self.cluster.last_asked
            raise refusal


def _filter(wanted: AclPattern) -> a.AclFilter:
    return a.AclFilter(**asdict(wanted))
