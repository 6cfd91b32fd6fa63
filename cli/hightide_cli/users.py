"""`hightide users`: who may log in with a password."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.login_messages import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS
from hightide_cli.failures import CONFLICT, NOT_FOUND
from hightide_cli.options import ask, client_options
from hightide_cli.output import say, show

if TYPE_CHECKING:
    from hightide import Admin, UserDescription

EXAMPLES = (
    "Examples: hightide users create alice --password-file alice.secret · hightide users list · "
    "hightide users alter alice · hightide users delete alice"
)


@click.group(epilog=EXAMPLES)
def users() -> None:
    """Show and change who may log in, where brokers ask for it (security.protocol = SASL_SSL).

    A password is salted and hashed here: brokers never see it."""


@users.command("list", epilog=EXAMPLES)
@client_options
def list_(bootstrap: str, output: str, timeout_s: float) -> None:
    """Everybody who has a password."""
    found = ask(bootstrap, timeout_s, _everybody)
    rows = [
        {
            "user": each.user,
            "mechanisms": [credential.mechanism for credential in each.credentials],
        }
        for each in found
    ]
    show(rows, output, columns=["user", "mechanisms"], key="user")


async def _everybody(admin: Admin) -> list[UserDescription]:
    return await admin.list_users()


def password_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The password, and how it is kept."""
    for option in (
        click.option(
            "--iterations",
            type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
            default=ITERATIONS_MIN,
            show_default=True,
            help="How often the password is hashed.",
        ),
        click.option(
            "--mechanism",
            "mechanisms",
            type=click.Choice(MECHANISMS),
            multiple=True,
            help="By which it is used; repeatable.  [default: all]",
        ),
        click.option(
            "--password-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True),
            help="Where the password stands, - for standard input; it is asked for otherwise.",
        ),
    ):
        command = option(command)
    return command


def _password(path: Path | None) -> str:
    if path is None and not sys.stdin.isatty():
        raise click.UsageError(
            "no terminal to ask for a password: --password-file FILE, or - for standard input"
        )
    if path is None:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    with click.open_file(str(path), encoding="utf-8") as file:
        return str(file.read()).rstrip("\r\n")


@users.command(epilog=EXAMPLES)
@click.argument("user")
@password_options
@client_options
def create(**said: Any) -> None:
    """Let USER log in. A new user may do nothing yet, where brokers ask for permissions."""
    _set(is_new=True, **said)


@users.command(epilog=EXAMPLES)
@click.argument("user")
@password_options
@client_options
def alter(**said: Any) -> None:
    """Give USER another password."""
    _set(is_new=False, **said)


def _set(
    *,
    is_new: bool,
    user: str,
    password_file: Path | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    from hightide.admin.passwords import prepared

    user, password = prepared("user", user), _password(password_file)

    async def change(admin: Admin) -> bool:
        is_there = user in {each.user for each in await admin.list_users()}
        if is_there is not is_new:
            await admin.set_password(
                user, password, mechanisms=mechanisms or MECHANISMS, iterations=iterations
            )
        return is_there

    if ask(bootstrap, timeout_s, change) is not is_new:
        say(f"user {user} may log in" if is_new else f"user {user} has another password")
        return
    if is_new:
        say(f"user {user!r} is there already: hightide users alter {user}")
        raise click.exceptions.Exit(CONFLICT)
    say(f"there is no user {user!r}: hightide users create {user}")
    raise click.exceptions.Exit(NOT_FOUND)


@users.command(epilog=EXAMPLES)
@click.argument("user")
@client_options
def delete(user: str, bootstrap: str, output: str, timeout_s: float) -> None:
    """Let USER log in no more; connections that it has stay (connections.max.reauth.ms)."""

    async def remove(admin: Admin) -> None:
        await admin.delete_user(user)

    ask(bootstrap, timeout_s, remove)
    say(f"user {user} does not log in any more")
