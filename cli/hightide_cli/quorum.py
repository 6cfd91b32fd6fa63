"""`hightide quorum`: who votes about the metadata, and changing that while it runs (KIP-853)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hightide_cli.failures import UNHEALTHY
from hightide_cli.leaderless import NO_LEADER, REMEDY, known_quorum, leaderless
from hightide_cli.options import ask, client_options
from hightide_cli.output import print_table, say, show_one
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from hightide import Admin

AGAIN_S = 0.2
"""How soon a change is asked for again that has to wait for another one, or for a node."""


@click.group()
def quorum() -> None:
    """Show and change the quorum of controllers."""


@quorum.command(epilog="Example: hightide quorum status -o json")
@watchable
@client_options
def status(bootstrap: str, output: str, timeout_s: float) -> None:
    """Who leads the metadata quorum, and how far every voter and observer has followed; exit 6 if
    nobody leads, or a voter is not heard of."""
    found = ask(bootstrap, timeout_s, known_quorum)
    fields = {
        "cluster_id": found.cluster_id,
        "leader": found.leader,
        "epoch": found.epoch,
        "high_watermark": found.high_watermark,
        "voters": [_replica(each) for each in found.voters],
        "observers": [_replica(each) for each in found.observers],
    }
    if output == "quiet":
        click.echo(found.leader)
    elif output != "table":
        show_one(fields, output)
    else:
        show_one({name: fields[name] for name in list(fields)[:4]}, output)
        kinds = [("voter", each) for each in found.voters]
        kinds += [("observer", each) for each in found.observers]
        columns = ["id", "kind", "log_end_offset", "lag", "last_fetch_ms_ago"]
        rows = [
            [str(r.id), kind, str(r.log_end_offset), str(r.lag), str(r.last_fetch_ms_ago)]
            for kind, r in kinds
        ]
        print_table(rows, columns)
    if found.leader == NO_LEADER:
        say(f"{leaderless('the node that was asked')}; {REMEDY}")
        raise click.exceptions.Exit(UNHEALTHY)
    if silent := found.silent:
        say(f"voters {silent} were not heard of for seconds, or never in epoch {found.epoch}")
        raise click.exceptions.Exit(UNHEALTHY)


def _replica(replica: Any) -> dict[str, Any]:
    return {
        "id": replica.id,
        "directory": replica.directory,
        "log_end_offset": replica.log_end_offset,
        "lag": replica.lag,
        "last_fetch_ms_ago": replica.last_fetch_ms_ago,
        "last_caught_up_ms_ago": replica.last_caught_up_ms_ago,
    }


async def _describe_quorum(admin: Admin) -> Any:
    return await admin.describe_quorum()


@quorum.command(epilog="Example: hightide quorum add 4@10.0.0.4:19092")
@click.argument("node", metavar="ID@HOST:PORT")
@client_options
def add(node: str, bootstrap: str, output: str, timeout_s: float) -> None:
    """Let a controller vote that observes and has caught up.

    Its directory is made by `hightide storage format --join`; it names the other controllers and
    itself in controller.quorum.voters. HOST:PORT is where nodes reach it: where they have ports of
    their own, as on a secure cluster, that of internal.listen.port (`hightide ps` shows it). The
    active controller tries it first.
    """
    number, address = _parse(node)
    if address is None:
        raise click.UsageError(f"{node!r}, expected ID@HOST:PORT: where the other nodes reach it")
    directory = _add(bootstrap, timeout_s, number, address)
    say(f"node {number} with directory {directory} votes")


@quorum.command(epilog="Example: hightide quorum remove 4")
@click.argument("node", type=int, metavar="ID")
@client_options
def remove(node: int, bootstrap: str, output: str, timeout_s: float) -> None:
    """Let a controller vote no more.

    A majority of the others must be there. Of two that are left both are needed: one that fails
    then stops the cluster, and if its disk is gone, for good.
    """
    directory = ask(bootstrap, timeout_s, lambda admin: admin.remove_voter(node))
    say(f"node {node} with directory {directory} does not vote any more")


@quorum.command(epilog="Example: hightide quorum replace 2")
@click.argument("node", metavar="ID[@HOST:PORT]")
@client_options
def replace(node: str, bootstrap: str, output: str, timeout_s: float) -> None:
    """Let a controller whose disk was lost vote with its new one: remove, then add."""
    number, address = _parse(node)
    replace_voter(bootstrap, timeout_s, number, address)


def replace_voter(
    bootstrap: str, timeout_s: float, node: int, address: tuple[str, int] | None
) -> None:
    """Have a node vote with the directory that it observes with now."""
    voting = _until_observed(bootstrap, timeout_s, node)
    address = address or _address_of(voting, node)
    if node in voting:
        directory = ask(bootstrap, timeout_s, lambda admin: admin.remove_voter(node))
        say(f"node {node} with directory {directory} does not vote any more")
    directory = _add(bootstrap, timeout_s, node, address)
    say(f"node {node} with directory {directory} votes")


def _address_of(voting: dict[int, Any], node: int) -> tuple[str, int]:
    """Where a voter listens for nodes; raises `UsageError` if that has to be said."""
    if node not in voting:
        raise click.UsageError(f"node {node} is no voter: say where it listens, {node}@HOST:PORT")
    if not voting[node].host:
        raise click.UsageError(
            f"where node {node} listens for nodes is told to those alone who may ALTER the "
            f"cluster: say it, {node}@HOST:PORT"
        )
    return voting[node].host, voting[node].port


def _until_observed(bootstrap: str, timeout_s: float, node: int) -> dict[int, Any]:
    """The voters by id, once a node observes that is to vote with another directory."""
    until = time.monotonic() + timeout_s
    told = False
    while True:
        found = ask(bootstrap, timeout_s, _describe_quorum)
        if any(each.id == node for each in found.observers):
            return {each.id: each for each in found.voters}
        if not told:
            say(f"waiting until another directory of node {node} observes the metadata")
            told = True
        if time.monotonic() >= until:
            if any(each.id == node for each in found.voters):
                raise click.ClickException(
                    f"node {node} votes, and no other directory of it observes the metadata: there "
                    f"is nothing to replace, unless its disk was lost; then start it with one made "
                    f"by `hightide storage format --join` (or `hightide up --replace {node}`)"
                )
            raise click.ClickException(
                f"node {node} does not observe the metadata: start it with a directory made by "
                f"`hightide storage format --join` (or `hightide up --replace {node}`)"
            )
        time.sleep(AGAIN_S)


def _add(bootstrap: str, timeout_s: float, node: int, address: tuple[str, int]) -> Any:
    """Add a voter, as soon as it has caught up."""
    from hightide.protocol.errors import ApiError, ErrorCode

    until, is_again = time.monotonic() + timeout_s, False
    while True:
        try:
            return ask(bootstrap, timeout_s, lambda admin: admin.add_voter(node, *address))
        except ApiError as error:
            if is_again and error.code is ErrorCode.DUPLICATE_VOTER:
                # What was asked for before, and nobody heard the answer to.
                for voter in ask(bootstrap, timeout_s, _describe_quorum).voters:
                    if voter.id == node and (voter.host or address[0], voter.port) == address:
                        return voter.directory
            if error.code is not ErrorCode.REQUEST_TIMED_OUT or time.monotonic() >= until:
                raise
        is_again = True
        time.sleep(AGAIN_S)


def _parse(text: str) -> tuple[int, tuple[str, int] | None]:
    number, at, address = text.partition("@")
    host, _, port = address.rpartition(":")
    if not number.isdecimal() or (at and not (host and port.isdecimal())):
        raise click.UsageError(f"{text!r}, expected ID or ID@HOST:PORT")
    return int(number), (host, int(port)) if at else None
