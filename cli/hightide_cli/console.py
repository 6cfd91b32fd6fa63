"""`hightide console`: a cluster to look at, in a browser."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hightide_cli.client_config import client_config_option, client_settings
from hightide_cli.console_process import NEEDS_MORE, hold, is_installed
from hightide_cli.failures import REFUSED
from hightide_cli.options import bootstrap_option, run
from hightide_cli.output import say

if TYPE_CHECKING:
    import trio

DEFAULT = "127.0.0.1:19080"


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT, or a PORT of loopback."""
    from hightide_broker.config import place_to_listen

    place = place_to_listen(text)
    if place is None:
        raise click.UsageError(f"--listen {text!r}, expected HOST:PORT or PORT")
    return place


@click.command(epilog="Example: hightide console --config client.toml --listen 127.0.0.1:8080")
@bootstrap_option
@client_config_option
@click.option("--listen", default=DEFAULT, show_default=True, metavar="HOST:PORT", help="Where.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Another name that browsers may reach it by; may be given more than once.",
)
@click.option(
    "--sign-in/--no-sign-in",
    default=None,
    help="Whether who looks says who he is, by the cluster's users [default: where they log in].",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let who looks move groups, and change users, rules and quotas, as far as he may.",
)
@click.option("--held", type=click.Path(path_type=Path), hidden=True)
def console(
    bootstrap: str,
    listen: str,
    hosts: tuple[str, ...],
    sign_in: bool | None,
    allow_changes: bool,
    held: Path | None,
) -> None:
    """Serve pages that show the cluster: lanes of replicas, groups, messages, what happened.

    It is a client like any other: what it may see is what its user, or who signs in, may. It
    changes nothing without --allow-changes. Keep it on loopback, or behind a proxy with TLS: it
    speaks plain HTTP.
    """
    if not is_installed():
        say(NEEDS_MORE)
        raise click.exceptions.Exit(REFUSED)
    from hightide_console.serving import listening, run_console

    options = client_settings()
    logs_in = str(options.get("security_protocol", "")).startswith("SASL_")
    where = parse_listen(listen)
    try:
        listener = listening(*where)
    except OSError as error:
        raise click.ClickException(f"--listen {listen}: {error.strerror}") from error
    host, port = listener.getsockname()[:2]

    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    holding = None if held is None else hold(held)

    def ready() -> None:
        click.echo(address)
        say("Ctrl-C stops it")
        if holding is not None:
            json.dump({"pid": os.getpid(), "address": address}, holding)
            holding.flush()

    async def serve() -> None:
        import trio

        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(_set_by_signals, stop)
            await run_console(
                listener,
                bootstrap,
                options,
                users_sign_in=logs_in if sign_in is None else sign_in,
                allows_changes=allow_changes,
                hosts=hosts,
                ready=ready,
                stop=stop,
            )
            nursery.cancel_scope.cancel()

    run(serve)
    say("stopped")


async def _set_by_signals(stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            stop.set()
