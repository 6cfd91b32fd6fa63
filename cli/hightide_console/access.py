"""Users, rules and quotas: what a page shows of them, and changes, said in words before they are
made.

What a user may see and change of them is for the cluster to say: each is asked for by who has
signed in. Of a password nothing is kept, and no answer repeats one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from hightide import Acl, AclPattern, ApiError, HightideError, Quota
from hightide_console.views import View

if TYPE_CHECKING:
    from hightide import Admin

RULE = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
HOLDERS = ("user", "client_id", "ip")


class Change(NamedTuple):
    """What is about to change."""

    told: list[str]
    """In words."""
    command: str
    """How a shell would do it."""
    make: Callable[[], Awaitable[Any]]


async def access_view(admin: Admin) -> View:
    """All of it, as far as it may be seen; where it may not, why."""
    users, no_users = await _seen(admin.list_users)
    rules, no_rules = await _seen(admin.describe_acls)
    quotas, no_quotas = await _seen(admin.describe_quotas)
    return {
        "users": [
            {"user": each.user, "mechanisms": [c.mechanism for c in each.credentials]}
            for each in users
        ],
        "rules": [asdict(each) for each in rules],
        "quotas": [asdict(each) for each in quotas],
        "why": {"users": no_users, "rules": no_rules, "quotas": no_quotas},
    }


async def _seen(ask: Callable[[], Awaitable[list[Any]]]) -> tuple[list[Any], str]:
    try:
        return await ask(), ""
    except ApiError as error:
        return [], error.message  # an answer: how often it was asked for says nothing here
    except HightideError as error:
        return [], str(error)


async def explained(admin: Admin, asked: Mapping[str, str]) -> View:
    """Whether somebody may do something, and by which rule."""
    verdict = await admin.explain_access(
        asked["principal"], asked["operation"], asked["resource"], asked["name"]
    )
    rule = "" if verdict.rule is None else rule_text(verdict.rule)
    return {"allowed": verdict.allowed, "reason": verdict.reason, "rule": rule}


async def change_of(admin: Admin, said: Mapping[str, Any]) -> Change:
    """What a page asks for; raises `KeyError` or `ValueError` for what it should not have sent."""
    match said["what"]:
        case "password":
            return await _password(admin, _text(said, "user"), str(said.get("password") or ""))
        case "delete-user":
            return await _delete_user(admin, _text(said, "user"))
        case "add-rule":
            return await _add_rule(admin, Acl(**{name: _text(said, name) for name in RULE}))
        case "delete-rule":
            return await _delete_rule(admin, Acl(**{name: _text(said, name) for name in RULE}))
        case "quota":
            return await _quota(admin, said)
    raise ValueError("there is no such change")


def _text(said: Mapping[str, Any], name: str) -> str:
    """A text that must be there."""
    found = said[name]
    if not isinstance(found, str) or not found:
        raise ValueError(f"{name} is missing")
    return found


async def _password(admin: Admin, user: str, password: str) -> Change:
    known = {each.user: each.credentials for each in await admin.list_users()}
    if user in known:
        told = [f"{user} gets another password; the one that it has is none any more"]
    else:
        told = [f"{user} may log in from now on, and do what rules let it"]

    async def make() -> None:
        await admin.set_password(user, password)

    verb = "alter" if user in known else "create"
    return Change(told, f"hightide users {verb} {quote(user)}", make)


async def _delete_user(admin: Admin, user: str) -> Change:
    rules, _ = await _seen(admin.describe_acls)
    named = sum(each.principal == f"User:{user}" for each in rules)
    told = [
        f"{user} logs in no more; where it is logged in, it stays so until that connection ends",
        f"rules that name {user} stay: {named}",
    ]

    async def make() -> None:
        await admin.delete_user(user)

    return Change(told, f"hightide users delete {quote(user)}", make)


async def _add_rule(admin: Admin, rule: Acl) -> Change:
    is_there = rule in await admin.describe_acls()
    told = [rule_text(rule) + (": that is a rule already" if is_there else "")]
    if rule.permission == "DENY":
        told.append("it goes before every rule that allows")

    async def make() -> None:
        await admin.create_acls([rule])

    verb = "deny" if rule.permission == "DENY" else "allow"
    return Change(told, f"hightide acls {verb} {' '.join(map(quote, _words(rule)))}", make)


async def _delete_rule(admin: Admin, rule: Acl) -> Change:
    if rule not in await admin.describe_acls():
        raise ValueError("there is no such rule any more")
    told = [f"no rule says any more: {rule_text(rule)}"]

    async def make() -> None:
        await admin.delete_acls(AclPattern(**asdict(rule)))

    user, operation, resource = map(quote, _words(rule))
    words = f"--user {user} --operation {operation} --resource {resource}"
    return Change(told, f"hightide acls delete {words} --permission {quote(rule.permission)}", make)


async def _quota(admin: Admin, said: Mapping[str, Any]) -> Change:
    value = None if said.get("value") is None else int(said["value"])
    holder = {name: str(said[name]) for name in HOLDERS if said.get(name)}
    quota = Quota(_text(said, "key"), value, **holder)
    whose = " ".join(f"{name.replace('_', ' ')} {value}" for name, value in holder.items())
    at_most = "is limited no more" if value is None else f"is limited to {value} a second"
    known = {each.key: each.value for each in await _quotas_of(admin, holder)}
    before = f", {known[quota.key]} until now" if quota.key in known else ""

    async def make() -> None:
        await admin.alter_quotas([quota])

    named = [f"--{name.replace('_', '-')} {quote(value)}" for name, value in holder.items()]
    options = " ".join(named)
    verb = f"delete {options}" if value is None else f"set {options} {quota.key}={value}"
    return Change([f"{quota.key} of {whose} {at_most}{before}"], f"hightide quotas {verb}", make)


async def _quotas_of(admin: Admin, holder: Mapping[str, str]) -> list[Quota]:
    return [
        each
        for each in await admin.describe_quotas()
        if {name: value for name in HOLDERS if (value := getattr(each, name))} == holder
    ]


def rule_text(rule: Acl) -> str:
    """A rule in words."""
    may = "may" if rule.permission == "ALLOW" else "may not"
    names = f"whose name begins with {rule.name}" if rule.pattern == "PREFIXED" else rule.name
    where = "" if rule.host == "*" else f" from {rule.host}"
    return f"{rule.principal} {may} {rule.operation} {rule.resource} {names}{where}"


def _words(rule: Acl) -> tuple[str, str, str]:
    """User, operation and resource as `hightide acls` has them."""
    name = f"{rule.name}*" if rule.pattern == "PREFIXED" else rule.name
    resource = rule.resource if rule.resource == "cluster" else f"{rule.resource}:{name}"
    return rule.principal.removeprefix("User:"), rule.operation, resource
