"""`hightide lab`: how replicated records survive, played step by step."""

from __future__ import annotations

from typing import Any

import click

from hightide_cli.failures import NOT_FOUND
from hightide_cli.options import output_option
from hightide_cli.output import say, show


@click.group()
def lab() -> None:
    """Play lessons: real replicas, moved by hand, and an account of who has what, with the events
    that `hightide trace` would tell of a cluster.

    Some are played twice: with leader epochs, and with the rule that Kafka had before them.
    """


@lab.command(name="list", epilog="Example: hightide lab list")
@output_option
def list_(output: str) -> None:
    """List the lessons."""
    from hightide_broker.simulation.lab_scenarios import LESSONS

    rows: list[dict[str, Any]] = [{"name": one.name, "title": one.title} for one in LESSONS]
    show(rows, output, columns=["name", "title"], key="name")


@lab.command(name="run", epilog="Example: hightide lab run one-after-the-other")
@click.argument("name")
def run_(name: str) -> None:
    """Play one lesson, and print its account."""
    from hightide.protocol.errors import did_you_mean
    from hightide_broker.simulation.lab_scenarios import LESSONS, play

    names = [one.name for one in LESSONS]
    if name not in names:
        hint = did_you_mean(name, names) or ": see hightide lab list"
        say(f"there is no lesson {name!r}{hint}")
        raise click.exceptions.Exit(NOT_FOUND)
    for line in play(name):
        click.echo(line)
