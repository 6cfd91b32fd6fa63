"""Quotas: whose holds for a request, and what becomes of changes to them. Pure.

The most specific one that is set holds: of a client of a user before a user's, a user's before a
client's, a name before whoever has none of their own. Source: KIP-13, KIP-546.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.changes import AnyChange, SetQuota
from hightide_broker.core.cluster.names import check_name

QUOTAS_MAX = 10_000
Entity = tuple[str | None, str | None]
"""User and client id; None: it does not matter."""
Quotas = Mapping[Entity, Mapping[str, int]]


class Quota(NamedTuple):
    """The one that holds for somebody."""

    holder: Entity
    """Who shares it: each user, each client, or each client of each user."""
    value: int


def quota_for(quotas: Quotas, user: str, client_id: str, key: str) -> Quota | None:
    """The most specific one; None: there is none."""
    if not quotas:
        return None
    for of_user in (user, k.DEFAULT, None):
        for of_client in (client_id, k.DEFAULT, None):
            value = quotas.get((of_user, of_client), {}).get(key)
            if value is not None:
                holder = (
                    None if of_user is None else user,
                    None if of_client is None else client_id,
                )
                return Quota(holder, value)
    return None


def alter(
    known: Quotas, request: k.AlterClientQuotasRequest
) -> tuple[list[AnyChange], k.AlterClientQuotasResponse]:
    """Each quota is set or refused by itself."""
    changes: list[AnyChange] = []
    results = []
    for number, wish in enumerate(request.quotas):
        try:
            _check(known, wish)
        except Refused as refusal:
            results.append(
                k.AlteredQuota(number=number, error=refusal.code, message=refusal.message)
            )
            continue
        changes.append(
            SetQuota(key=wish.key, user=wish.user, client_id=wish.client_id, value=wish.value)
        )
        results.append(k.AlteredQuota(number=number))
    return changes, k.AlterClientQuotasResponse(quotas=results)


def _check(known: Quotas, wish: k.QuotaSetting) -> None:
    if wish.key not in k.QUOTA_KEYS:
        expected = ", ".join(k.QUOTA_KEYS)
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"quota {wish.key[:60]!r}, expected one of {expected}"
        )
    for what, name in (("user", wish.user), ("client id", wish.client_id)):
        if name is not None:
            check_name(what, name)
    if wish.user is None and wish.client_id is None:
        raise Refused(ErrorCode.INVALID_REQUEST, "a quota is of a user, of a client, or of both")
    if wish.value is None:
        return
    if wish.value <= 0:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{wish.key} {wish.value}, expected more than 0")
    if (wish.user, wish.client_id) not in known and len(known) >= QUOTAS_MAX:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{QUOTAS_MAX} have quotas, and may be no more")


def described(known: Quotas) -> k.DescribeClientQuotasResponse:
    """All of them."""
    return k.DescribeClientQuotasResponse(
        quotas=[
            k.QuotaSetting(key=key, user=user, client_id=client, value=value)
            for (user, client), settings in known.items()
            for key, value in settings.items()
        ]
    )
