"""`hightide acls`: who may do what, by rules of allowing and denying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.access_messages import ANY
from hightide.protocol.words import counted
from hightide_cli.failures import DENIED, NOT_FOUND
from hightide_cli.options import ask, client_options
from hightide_cli.output import say, show, show_one

if TYPE_CHECKING:
    from hightide import Acl, AclPattern, Admin

EXAMPLES = (
    "Examples: hightide acls allow alice READ topic:orders · hightide acls allow alice READ "
    "group:'billing*' · hightide acls deny mallory ALL topic:'*' · hightide acls explain alice "
    "WRITE topic:orders"
)
KINDS = ("topic", "group", "cluster")
COLUMNS = ["principal", "permission", "operation", "resource", "name", "pattern", "host"]


@click.group(epilog=EXAMPLES)
def acls() -> None:
    """Show and change who may do what, where brokers ask for permissions (authorizer.enable).

    A RESOURCE is topic:NAME, group:NAME, or cluster; NAME* stands for all names that begin so, and
    * for all. Who is denied by a rule may not, whatever others allow."""


def principal_of(user: str) -> str:
    """`alice` is `User:alice`."""
    return user if user.startswith("User:") else f"User:{user}"


def resource_of(text: str) -> tuple[str, str, str]:
    """Kind, name and pattern."""
    kind, colon, name = text.partition(":")
    if kind == "cluster":
        name = name or "cluster"
    elif not (colon and name):
        kind = ""
    if kind not in KINDS:
        raise click.UsageError(f"{text!r} is no resource, expected topic:NAME, group:NAME, cluster")
    if name.endswith("*") and name != "*":
        return kind, name.removesuffix("*"), "PREFIXED"
    return kind, name, "LITERAL"


def rule_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Who, what, and what to."""
    command = click.option(
        "--host", default="*", show_default=True, help="The address that it is about."
    )(command)
    command = click.argument("resources", metavar="RESOURCE…", nargs=-1, required=True)(command)
    command = click.argument("operations", metavar="OPERATION[,…]")(command)
    return click.argument("user")(command)


def _make(
    permission: str,
    *,
    user: str,
    operations: str,
    resources: tuple[str, ...],
    host: str,
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    from hightide import Acl

    wanted = [each.strip() for each in operations.upper().replace("-", "_").split(",")]
    rules = [
        Acl(*resource_of(resource), principal_of(user), host, operation, permission)
        for resource in resources
        for operation in wanted
    ]

    async def create(admin: Admin) -> None:
        await admin.create_acls(rules)

    ask(bootstrap, timeout_s, create)
    show([asdict(rule) for rule in rules], output, columns=COLUMNS, key="principal")


@acls.command(epilog=EXAMPLES)
@rule_arguments
@client_options
def allow(**said: Any) -> None:
    """Let USER do an operation.

    READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS,
    IDEMPOTENT_WRITE, ALL. Who may READ, WRITE, DELETE or ALTER may DESCRIBE."""
    _make("ALLOW", **said)


@acls.command(epilog=EXAMPLES)
@rule_arguments
@client_options
def deny(**said: Any) -> None:
    """Keep USER from an operation, whatever else allows it."""
    _make("DENY", **said)


def pattern_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which rules are meant."""
    for option in (
        click.option("--permission", type=click.Choice(["ALLOW", "DENY"]), help="Only such rules."),
        click.option("--operation", help="Only rules about it."),
        click.option("--user", help="Only rules that name this user."),
        click.option("--resource", help="Only rules that name it just so."),
        click.option("--concerning", metavar="RESOURCE", help="All rules that concern it."),
    ):
        command = option(command)
    return command


def _pattern(
    concerning: str | None,
    resource: str | None,
    user: str | None,
    operation: str | None,
    permission: str | None,
) -> AclPattern:
    from hightide import AclPattern

    if concerning and resource:
        raise click.UsageError("--concerning and --resource exclude each other")
    kind, name, pattern = ANY, None, ANY
    if concerning:
        kind, name, _ = resource_of(concerning)
        pattern = "MATCH"
    elif resource:
        kind, name, pattern = resource_of(resource)
    return AclPattern(
        resource=kind,
        name=name,
        pattern=pattern,
        principal=principal_of(user) if user else None,
        operation=operation.upper() if operation else ANY,
        permission=permission or ANY,
    )


@acls.command("list", epilog="Example: hightide acls list --concerning topic:orders")
@pattern_options
@client_options
def list_(bootstrap: str, output: str, timeout_s: float, **which: str | None) -> None:
    """Rules, all or some."""
    wanted = _pattern(**which)

    async def describe(admin: Admin) -> list[Acl]:
        return await admin.describe_acls(wanted)

    found = ask(bootstrap, timeout_s, describe)
    show([asdict(rule) for rule in found], output, columns=COLUMNS, key="principal")


@acls.command(epilog="Example: hightide acls delete --user mallory --yes")
@pattern_options
@click.option("--yes", is_flag=True, help="Without it, only show what would be removed.")
@client_options
def delete(bootstrap: str, output: str, timeout_s: float, yes: bool, **which: str | None) -> None:
    """Remove rules. What only they denied is allowed from then on."""
    wanted = _pattern(**which)

    async def remove(admin: Admin) -> list[Acl]:
        return await (admin.delete_acls(wanted) if yes else admin.describe_acls(wanted))

    found = ask(bootstrap, timeout_s, remove)
    show([asdict(rule) for rule in found], output, columns=COLUMNS, key="principal")
    if not found:
        say("no rule is meant by this")
        raise click.exceptions.Exit(NOT_FOUND)
    if not yes:
        say(f"{counted(len(found), 'rule')} would be removed: --yes removes them")


@acls.command(epilog="Example: hightide acls explain alice WRITE topic:orders")
@click.argument("user")
@click.argument("operation")
@click.argument("resource")
@click.option("--host", default="", help="From where.")
@client_options
def explain(
    user: str,
    operation: str,
    resource: str,
    host: str,
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    """Whether USER may do OPERATION to RESOURCE, and which rule decides; exits 8 if not."""
    kind, name, pattern = resource_of(resource)
    name += "*" if pattern == "PREFIXED" else ""

    async def look(admin: Admin) -> Any:
        return await admin.explain_access(
            principal_of(user), operation.upper(), kind, name, host=host
        )

    found = ask(bootstrap, timeout_s, look)
    rule = found.rule and _sentence(found.rule)
    show_one({"allowed": found.allowed, "reason": found.reason, "rule": rule}, output)
    if not found.allowed:
        raise click.exceptions.Exit(DENIED)


def _sentence(rule: Acl) -> str:
    star = "*" if rule.pattern == "PREFIXED" else ""
    host = "" if rule.host == "*" else f" from {rule.host}"
    what = f"{rule.operation} {rule.resource}:{rule.name}{star}{host}"
    return f"{rule.permission} {rule.principal} {what}"
