"""Who may do what: the decision over all rules. Pure.

A super user may do anything. Otherwise: who is denied by any rule may not; who is allowed by any
may; where no rule names the resource, it is as allow.everyone.if.no.acl.found says; everybody else
may not. The length of a prefix never ranks one rule above another. Source: StandardAuthorizer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from hightide_broker.core.cluster.acls import (
    EVERYBODY,
    EVERYTHING,
    EVERYWHERE,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
)
from hightide_broker.core.cluster.names import NAME_CHARACTERS_MAX

ALLOW, DENY = Permission.ALLOW, Permission.DENY
REMEMBERED_MAX = 20_000
"""Decisions that are kept, all of them until a rule changes."""


class _Rules(NamedTuple):
    """Some rules about resources of a kind, by what they name."""

    names: dict[str, list[Acl]]
    prefixes: list[str]
    """In their order."""
    shorter: list[int]
    """For each, where the longest other one is that it begins with; -1: nowhere."""
    about_each: list[list[Acl]]

    def about(self, name: str) -> list[Acl]:
        """Those that name a resource."""
        found = [*self.names.get(name, ()), *self.names.get(EVERYTHING, ())]
        # Whatever lies between a prefix of a name and the name begins with that prefix, too: the
        # last one before the name leads to all.
        at = bisect_right(self.prefixes, name) - 1
        while at >= 0 and not name.startswith(self.prefixes[at]):
            at = self.shorter[at]
        while at >= 0:
            found += self.about_each[at]
            at = self.shorter[at]
        return found


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
        self._of: dict[tuple[Resource, str], list[Acl]] = {}
        by_kind: dict[Resource, list[Acl]] = {kind: [] for kind in Resource}
        for acl in acls:
            by_kind[acl.resource].append(acl)
            self._of.setdefault((acl.resource, acl.principal), []).append(acl)
        self._named = {kind: _by_name(some) for kind, some in by_kind.items() if everyone_if_none}
        self._said: dict[tuple[Operation, Resource, str], _Rules] = {}
        """By whom they mean, what rules say of an operation: gathered when it is asked first, so
        that a decision meets no rule about another one. Of who is in no rule, nothing is kept."""
        self._known: dict[tuple[str, str, Operation, Resource, str], bool] = {}
        self._known_any: dict[tuple[str, str, Operation, Resource], bool] = {}

    def allows(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Whether it may be done."""
        asked = (principal, host, operation, resource, name)
        known = self._known.get(asked)
        if known is None:
            known, _ = self._decided(*asked)
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
        allowed, rule = self._decided(principal, host, operation, resource, name)
        if principal in self._super_users:
            why = f"{principal} is one of super.users"
        elif rule is not None:
            why = "a rule allows it, and none denies it" if allowed else "a rule denies it"
        elif allowed:
            why = "no rule names the resource, and allow.everyone.if.no.acl.found is true"
        else:
            why = "no rule allows it"
        return Verdict(allowed, why, rule)

    def _decided(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> tuple[bool, Acl | None]:
        """The decision and its rule, without words."""
        if principal in self._super_users:
            return True, None
        rule = self._decisive(principal, host, operation, resource, name)
        if rule is None:  # everybody may do everything to what no rule names, if that is set
            return self._everyone_if_none and not self._named[resource].about(name), None
        return rule.permission is ALLOW, rule

    def _decisive(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> Acl | None:
        """The first rule that denies it, or else that allows it."""
        allowing = None
        for acl in self._about(principal, operation, resource, name):
            if acl.host == EVERYWHERE or acl.host == host:
                if acl.permission is DENY:
                    return acl
                allowing = allowing or acl
        return allowing

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
        every = (self._of.get((resource, who), ()) for who in (principal, EVERYBODY))
        about = [a for a in chain(*every) if a.is_about(principal, host, operation)]
        denials = {(a.pattern, a.name) for a in about if a.permission is DENY}
        allowing = (a for a in about if a.permission is ALLOW)
        return any(not _is_covered(acl, denials) for acl in allowing)

    def _about(
        self, principal: str, operation: Operation, resource: Resource, name: str
    ) -> list[Acl]:
        """The rules about a resource that say something of the operation, to somebody or all."""
        its_own = self._rules(principal, operation, resource)
        for_all = self._rules(EVERYBODY, operation, resource)
        found = its_own.about(name) if its_own else []
        return found + for_all.about(name) if for_all else found

    def _rules(self, who: str, operation: Operation, resource: Resource) -> _Rules | None:
        asked = operation, resource, who
        if (found := self._said.get(asked)) is None and (rules := self._of.get((resource, who))):
            found = self._said[asked] = _by_name(acl for acl in rules if acl.is_of(operation))
        return found


def _by_name(acls: Iterable[Acl]) -> _Rules:
    names: dict[str, list[Acl]] = {}
    prefixed: dict[str, list[Acl]] = {}
    for acl in acls:
        found = prefixed if acl.pattern is Pattern.PREFIXED else names
        found.setdefault(acl.name, []).append(acl)
    prefixes, shorter = sorted(prefixed), list[int]()
    for number, prefix in enumerate(prefixes):
        at = number - 1
        while at >= 0 and not prefix.startswith(prefixes[at]):
            at = shorter[at]
        shorter.append(at)
    return _Rules(names, prefixes, shorter, [prefixed[prefix] for prefix in prefixes])


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
