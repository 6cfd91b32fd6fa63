"""Quotas: whose holds for a request, and what becomes of changes to them. Pure.

The most specific one that is set holds: of a client of a user before a user's, a user's before a
client's, a name before those who have none of their own. An address has its quota for itself.
Sources: KIP-13, KIP-546, KIP-599, KIP-612.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from math import isfinite
from typing import NamedTuple

from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.changes import AnyChange, SetQuota
from hightide_broker.core.cluster.features import QUOTAS
from hightide_broker.core.cluster.limits import check_count
from hightide_broker.core.cluster.names import NAME_CHARACTERS_MAX, address, check_name

QUOTAS_MAX = 10_000
CHANGES_MAX = 10_000
"""Quotas that one request may set or remove."""


class Entity(NamedTuple):
    """Whose a quota is: a user's, a client's, a client's of a user, or an address's."""

    user: str | None = None
    """None: it does not matter."""
    client_id: str | None = None
    ip: str | None = None


Quotas = Mapping[Entity, Mapping[str, int | float]]


class Quota(NamedTuple):
    """The one that holds for somebody."""

    holder: Entity
    """Who shares it: each user, each client, each client of each user, or each address."""
    value: int | float


def quota_for(quotas: Quotas, user: str, client_id: str, key: str) -> Quota | None:
    """The most specific one; None: there is none."""
    if not quotas:
        return None
    client_id = client_id[: NAME_CHARACTERS_MAX + 1]  # no quota names a longer one
    for of_user in (user, k.DEFAULT, None):
        for of_client in (client_id, k.DEFAULT, None):
            value = quotas.get(Entity(of_user, of_client), {}).get(key)
            if value is not None:
                holder = Entity(
                    None if of_user is None else user,
                    None if of_client is None else client_id,
                )
                return Quota(holder, value)
    return None


def quota_of_address(quotas: Quotas, ip: str, key: str) -> Quota | None:
    """The one of an address, or of all that have none; None: there is none."""
    for of_ip in (ip, k.DEFAULT) if quotas else ():
        value = quotas.get(Entity(ip=of_ip), {}).get(key)
        if value is not None:
            return Quota(Entity(ip=ip), value)
    return None


def alter(
    known: Quotas, request: k.AlterClientQuotasRequest, feature_levels: Mapping[str, int]
) -> tuple[list[AnyChange], k.AlterClientQuotasResponse]:
    """What one holder is given is set whole or not at all (KIP-546). Raises `Refused` for too many
    at once, and then none is set. `feature_levels`: what all brokers can read."""
    wishes = request.quotas
    check_count(len(wishes), CHANGES_MAX, "quotas")
    changes: dict[Entity, list[AnyChange]] = {}
    whys: dict[Entity, Refused] = {}
    holders = set(known)
    for wish in wishes:
        try:
            holder = _holder(wish)
            _check(holders, holder, wish)
            _check_fraction(wish, feature_levels)
        except Refused as why:
            whys.setdefault(_said(wish), why)
        else:
            if wish.value is not None:
                holders.add(holder)
            change = SetQuota(key=wish.key, value=wish.value, **holder._asdict())
            changes.setdefault(_said(wish), []).append(change)
    granted = [made for said, made in changes.items() if said not in whys]
    results = [_result(number, whys.get(_said(wish))) for number, wish in enumerate(wishes)]
    return [*chain(*granted)], k.AlterClientQuotasResponse(quotas=results)


def _said(wish: k.QuotaSetting) -> Entity:
    """Whose it is to be, as it was asked for."""
    return Entity(wish.user, wish.client_id, wish.ip)


def _result(number: int, why: Refused | None) -> k.AlteredQuota:
    if why is None:
        return k.AlteredQuota(number=number)
    return k.AlteredQuota(number=number, error=why.code, message=why.message)


def _holder(wish: k.QuotaSetting) -> Entity:
    """Whose quota it is; raises `Refused` if it can be nobody's."""
    for what, name in (("user", wish.user), ("client id", wish.client_id)):
        if name is not None:
            check_name(what, name)
    is_of_address = wish.ip is not None
    if is_of_address and not (wish.user is None and wish.client_id is None):
        raise Refused(
            ErrorCode.INVALID_REQUEST, "a quota of an address is of no user, and of no client"
        )
    if not is_of_address and wish.user is None and wish.client_id is None:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "a quota is of a user, of a client, or of both; or of an address",
        )
    if is_of_address != (wish.key == k.CONNECTION_CREATION_RATE):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"{wish.key[:60]!r} of {'an address' if is_of_address else 'a user or client'}: only "
            f"{k.CONNECTION_CREATION_RATE} is of addresses, and it is of nobody else",
        )
    if wish.ip in (None, k.DEFAULT):
        return Entity(wish.user, wish.client_id, wish.ip)
    return Entity(ip=address("ip", wish.ip or "", k.DEFAULT))


def _check(known: Collection[Entity], holder: Entity, wish: k.QuotaSetting) -> None:
    if wish.key not in k.QUOTA_KEYS:
        expected = ", ".join(k.QUOTA_KEYS)
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"quota {wish.key[:60]!r}, expected one of {expected}"
        )
    if wish.value is None:
        return
    if wish.value <= 0:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{wish.key} {wish.value}, expected more than 0")
    if holder not in known and len(known) >= QUOTAS_MAX:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{QUOTAS_MAX} have quotas, and may be no more")


def _check_fraction(wish: k.QuotaSetting, feature_levels: Mapping[str, int]) -> None:
    value = wish.value
    if value is None or isinstance(value, int):
        return
    if wish.key not in k.FRACTIONAL or not isfinite(value):
        raise Refused(ErrorCode.INVALID_REQUEST, f"{wish.key} {value:g}, expected a whole number")
    if feature_levels.get(QUOTAS, 0) < 1:
        raise Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{wish.key} {value:g}: feature {QUOTAS} has level {feature_levels.get(QUOTAS, 0)}, "
            "expected 1 for a fraction; upgrade all brokers first",
        )


def described(known: Quotas) -> k.DescribeClientQuotasResponse:
    """The answer that lists every quota."""
    return k.DescribeClientQuotasResponse(
        quotas=[
            k.QuotaSetting(key=key, value=value, **holder._asdict())
            for holder, settings in known.items()
            for key, value in settings.items()
        ]
    )
