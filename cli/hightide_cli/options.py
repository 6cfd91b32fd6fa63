"""Options that every command shares, and how results are printed: table, json, ndjson or quiet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hightide_cli.client_config import (
    client_config_option,
    client_settings,
    configured_bootstrap,
    use_client_file,
)
from hightide_cli.failures import NOT_FOUND
from hightide_cli.output import TellOnce

if TYPE_CHECKING:
    from hightide import Admin

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:19092"
DATA = ".hightide"
"""The directory of a cluster, unless `--data` or HIGHTIDE_DATA names another."""

TOLD_AFTER_S = 1.0
"""A command that tries for so long says what it waits for."""
BOOTSTRAP = "hightide.bootstrap"
"""Under this name a command's context knows which brokers it asks."""


def _remember(ctx: click.Context, _: click.Parameter, value: str) -> str:
    ctx.meta[BOOTSTRAP] = value
    return value


def _settings(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.UsageError(f"-X {pair!r}, expected NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def check_own(settings: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raise `UsageError` for a setting of the client that the command has a word of its own for."""
    for name, word in own.items():
        if name in settings:
            raise click.UsageError(f"-X {name}={settings[name]}: say it by {word}")


config_option = click.option(
    "-X",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="A setting of the client by Kafka's name, as linger.ms=20.",
)


def _nearby() -> str:
    """The brokers of the cluster in the directory that `up` takes if it is told no other; empty if
    nobody named it, and there is none. Raises `PlanDamaged`, or `click.UsageError`: another cluster
    is not asked in its place."""
    try:
        from hightide_cli.processes import brokers_of
    except ModuleNotFoundError:  # no broker runs on such a system
        return ""
    named = os.environ.get("HIGHTIDE_DATA")
    if not (found := brokers_of(Path(named or DATA))) and named:
        raise click.UsageError(
            f"HIGHTIDE_DATA is {named!r}, and no cluster is there: hightide up starts one; -b "
            f"names the brokers of another"
        )
    return ",".join(found)


def _nearby_brokers() -> str:
    """The same; a secure cluster's administrator is taken for its user's own."""
    found = _nearby()
    file = Path(os.environ.get("HIGHTIDE_DATA") or DATA) / "client.toml"
    if found and file.exists():
        use_client_file(file)
    return found


def found_bootstrap() -> str:
    """The brokers to ask if the command line names none."""
    return configured_bootstrap() or _nearby_brokers() or DEFAULT_BOOTSTRAP


def bootstrap_by(default: Callable[[], str | None]) -> Callable[[F], F]:
    """-b, with what is taken where nobody says it."""
    return click.option(
        "-b",
        "--bootstrap",
        default=default,
        callback=_remember,
        envvar="HIGHTIDE_BOOTSTRAP",
        show_default=f"--config's, the cluster in {DATA}, or {DEFAULT_BOOTSTRAP}",
        metavar="HOST:PORT[,…]",
        help="Brokers to ask first.",
    )


bootstrap_option = bootstrap_by(found_bootstrap)


class Seconds(click.FloatRange):
    """A number of seconds; `nan` is none."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if isnan(found):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return found


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(min=0.1),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after so long.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "ndjson", "quiet"]),
    default="table",
    show_default=True,
    help="How to print the result.",
)
yes_option = click.option("--yes", is_flag=True, help="Really do it.")


def client_options(command: F) -> F:
    """-b, --config, -o and --timeout."""
    return client_config_option(shared_options(command))


def shared_options(command: F) -> F:
    """-b, -o and --timeout, for commands whose --config is another one."""
    return bootstrap_option(output_option(timeout_option(command)))


def run(function: Callable[..., Any], *args: Any) -> Any:
    """Run an async function to its end; one exception leaves as itself, not as a group.

    Ctrl-C strikes it where it waits: between the lines it would strike at times where a block of a
    client's is left, and what that has begun would never end."""
    import trio

    try:
        return trio.run(function, *args, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        raise _only(group) from group


async def until_interrupted(work: Callable[[], Any]) -> int:
    """Await `work()`; the signal that ended it, Ctrl-C or SIGTERM, or 0. What is around it can then
    end in order: nothing is raised at whatever happened to run."""
    import trio

    stopped = 0
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal stopped
                async for number in signals:
                    stopped = number
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await work()
            nursery.cancel_scope.cancel()
    return stopped


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found


def admin(bootstrap: str, timeout_s: float) -> Admin:
    """An admin client for a command."""
    from hightide import Admin

    tell = TellOnce(after_s=TOLD_AFTER_S)
    timeout_ms = timeout_s * 1000
    return Admin(bootstrap, default_api_timeout_ms=timeout_ms, on_retry=tell, **client_settings())


def ask(bootstrap: str, timeout_s: float, work: Callable[..., Any], *args: Any) -> Any:
    """What `work(admin, *args)` returns, run to its end with an admin client."""

    async def ask_admin() -> Any:
        async with admin(bootstrap, timeout_s) as opened:
            return await work(opened, *args)

    return run(ask_admin)


def parse_partition(text: str) -> tuple[str, int]:
    """TOPIC:PARTITION; raises `UsageError`."""
    topic, colon, number = text.rpartition(":")
    if not (colon and topic and number.isdecimal()):
        raise click.UsageError(f"{text!r}, expected TOPIC:PARTITION")
    return topic, int(number)


def check_partition(topic: str, partition: int, count: int) -> None:
    """End the command unless a topic with `count` partitions has this one."""
    if not 0 <= partition < count:
        last = f"{topic}:0" if count == 1 else f"{topic}:0 to {topic}:{count - 1}"
        raise _NoSuchPartition(f"there is no {topic}:{partition}: {topic} has {last}")


class _NoSuchPartition(click.ClickException):
    exit_code = NOT_FOUND
