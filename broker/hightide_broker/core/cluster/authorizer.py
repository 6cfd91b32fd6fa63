"""Who may do what: the decision over all rules. Pure.

A super user may do anything. Otherwise: who is denied by any rule may not; who is allowed by any
may; where no rule names the resource, it is as allow.everyone.if.no.acl.found says; everybody else
may not. The length of a prefix never ranks one rule above another. Source: StandardAuthorizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hightide_broker.core.cluster.acls import (
    EVERYBODY,
    EVERYTHING,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
)
from hightide_broker.core.cluster.names import NAME_CHARACTERS_MAX

REMEMBERED_MAX = 20_000
"""Decisions that are kept, all of them until a rule changes."""


class _Named(NamedTuple):
    """The rules about resources of a kind: by what they name, and by who is meant."""

    names: dict[str, dict[str, list[Acl]]]
    prefixes: dict[str, dict[str, list[Acl]]]
    lengths: list[int]
    """Those of the prefixes, ascending."""


class Verdict(NamedTuple):
    """A decision, and what it rests on."""

    allowed: bool
    reason: str
    rule: Acl | None = None


class Authorizer:
    """The rules of one moment."""

    def __init__(
        self, acls: Iterable[Acl], *, super_users: frozenset[str], everyone_if_none: bool = False
    ) -> None:
        self._super_users = super_users
        self._everyone_if_none = everyone_if_none
        self._all: dict[Resource, list[Acl]] = {kind: [] for kind in Resource}
        for acl in acls:
            self._all[acl.resource].append(acl)
        self._named = {kind: _by_what_they_name(some) for kind, some in self._all.items()}
        self._known: dict[tuple[str, str, Operation, Resource, str], bool] = {}
        self._known_any: dict[tuple[str, str, Operation, Resource], bool] = {}

    def allows(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Whether it may be done."""
        asked = (principal, host, operation, resource, name)
        known = self._known.get(asked)
        if known is None:
            known = self.verdict(*asked).allowed
            if len(name) > NAME_CHARACTERS_MAX:
                return known  # nothing is called so; it is not kept for who asks
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[asked] = known
        return known

    def verdict(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> Verdict:
        """The decision, with the rule that makes it."""
        if principal in self._super_users:
            return Verdict(True, f"{principal} is one of super.users")
        allowing = None
        about = self._about(resource, name)
        for acl in (acl for rules in about for acl in _meant(rules, principal)):
            if acl.is_about(principal, host, operation):
                if acl.permission is Permission.DENY:
                    return Verdict(False, "a rule denies it", acl)
                allowing = allowing or acl
        if allowing is not None:
            return Verdict(True, "a rule allows it, and none denies it", allowing)
        if self._everyone_if_none and not about:
            return Verdict(
                True, "no rule names the resource, and allow.everyone.if.no.acl.found is true"
            )
        return Verdict(False, "no rule allows it")

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool:
        """Whether it may be done to any resource of a kind, whether or not there is one now: some
        rule allows it, and none denies it everywhere that the rule does (KIP-11's
        authorizeByResourceType)."""
        if principal in self._super_users:
            return True
        asked = (principal, host, operation, resource)
        if (known := self._known_any.get(asked)) is None:
            if len(self._known_any) >= REMEMBERED_MAX:
                self._known_any.clear()
            known = self._known_any[asked] = self._finds_any(*asked)
        return known

    def _finds_any(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool:
        if self._everyone_if_none and EVERYTHING not in self._named[resource].names:
            return True  # something is called as nothing that any rule names
        about = [a for a in self._all[resource] if a.is_about(principal, host, operation)]
        denials = {(a.pattern, a.name) for a in about if a.permission is Permission.DENY}
        allowing = (a for a in about if a.permission is Permission.ALLOW)
        return any(not _is_covered(acl, denials) for acl in allowing)

    def _about(self, resource: Resource, name: str) -> list[dict[str, list[Acl]]]:
        """The rules that name a resource, by who is meant."""
        names, prefixes, lengths = self._named[resource]
        found = [names.get(name), names.get(EVERYTHING) if name != EVERYTHING else None]
        found += [prefixes.get(name[:length]) for length in lengths if length <= len(name)]
        return [rules for rules in found if rules]


def _meant(rules: dict[str, list[Acl]], principal: str) -> list[Acl]:
    """Those about somebody, or everybody."""
    return rules.get(principal, []) + rules.get(EVERYBODY, [])


def _by_what_they_name(acls: Iterable[Acl]) -> _Named:
    names: dict[str, dict[str, list[Acl]]] = {}
    prefixes: dict[str, dict[str, list[Acl]]] = {}
    for acl in acls:
        found = prefixes if acl.pattern is Pattern.PREFIXED else names
        found.setdefault(acl.name, {}).setdefault(acl.principal, []).append(acl)
    return _Named(names, prefixes, sorted({len(prefix) for prefix in prefixes}))


def _is_covered(yes: Acl, denials: set[tuple[Pattern, str]]) -> bool:
    """Whether one of these is about everything that a rule that allows is about."""
    if (Pattern.LITERAL, EVERYTHING) in denials:
        return True
    is_literal = yes.pattern is Pattern.LITERAL
    if is_literal and yes.name == EVERYTHING:
        return False
    if is_literal and (Pattern.LITERAL, yes.name) in denials:
        return True
    prefixes = (yes.name[:length] for length in range(1, len(yes.name) + 1))
    return any((Pattern.PREFIXED, prefix) in denials for prefix in prefixes)
