"""`hightide metrics`: the numbers of a node of this machine's cluster, as Prometheus would read
them."""

from __future__ import annotations

import http.client
from contextlib import closing
from pathlib import Path

import click

from hightide_cli.cluster import data_option
from hightide_cli.failures import NOT_FOUND, UNREACHABLE
from hightide_cli.output import say
from hightide_cli.processes import nodes_of

TIMEOUT_S = 30.0


@click.command(epilog="Example: hightide metrics --node 2 --detail | grep high_watermark")
@data_option
@click.option("--node", type=int, default=1, show_default=True, help="Which node.")
@click.option("--detail", is_flag=True, help="The offsets of each partition, too.")
def metrics(data: Path, node: int, detail: bool) -> None:
    """Print the metrics of a node of a data directory.

    What they mean, and what to set to have Prometheus read them: deploy/METRICS.md.
    """
    found = [each for each in nodes_of(data) if each.node == node]
    address = str(found[0].facts().get("metrics") or "") if found else ""
    if not address:
        why = "is asked nowhere (metrics.listen)" if found else "is not of this cluster"
        say(f"node {node} of {data} {why}")
        raise click.exceptions.Exit(NOT_FOUND)
    try:
        page = page_at(address, "/metrics/detail" if detail else "/metrics")
    except (OSError, http.client.HTTPException) as error:
        say(f"node {node} does not answer at {address}: {error}")
        raise click.exceptions.Exit(UNREACHABLE) from error
    click.echo(page.decode(), nl=False)


def page_at(address: str, path: str) -> bytes:
    """What a node answers at HOST:PORT; raises `OSError` or `http.client.HTTPException`."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()
