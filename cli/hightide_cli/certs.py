"""`hightide certs`: an authority and certificates for a small cluster."""

from __future__ import annotations

from pathlib import Path

import click

from hightide.protocol.words import counted
from hightide_broker.secure_local import LOOPBACK
from hightide_cli.failures import CONFLICT, NOT_FOUND, UNHEALTHY
from hightide_cli.options import output_option
from hightide_cli.output import say, show

SOON_DAYS = 30
"""From here on `show` warns."""
EXAMPLES = (
    "Examples: hightide certs create certs --node 1=db1.example.org --node 2=db2.example.org "
    "--client alice · hightide certs renew certs · hightide certs show certs"
)
directory_argument = click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
days_option = click.option(
    "--days",
    type=click.IntRange(1, 36500),
    default=365,
    show_default=True,
    help="How long certificates are good for.",
)


@click.group(epilog=EXAMPLES)
def certs() -> None:
    """Make, renew and show certificates. What you have from another authority works as well."""


@certs.command(epilog=EXAMPLES)
@directory_argument
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="ID[=HOST,…]",
    help="A node, and where it is reached; repeatable.  [default hosts: 127.0.0.1,localhost]",
)
@click.option("--client", "clients", multiple=True, metavar="NAME", help="A client; repeatable.")
@days_option
def create(directory: Path, nodes: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make certificates in DIRECTORY; an authority too, if there is none.

    ca-key.pem makes certificates that every node believes: keep it away from the nodes."""
    from hightide_broker.certificates import check_wish, create_authority, open_authority

    asked = [*map(_node, nodes), *((_client(name), ()) for name in clients)]
    wanted = dict(asked)
    if len(wanted) < len(asked):
        raise click.UsageError("--node or --client names somebody twice: one certificate each")
    if there := [name for name in wanted if (directory / f"{name}.pem").exists()]:
        say(f"{directory} has {', '.join(there)} already: hightide certs renew {directory}")
        raise click.exceptions.Exit(CONFLICT)
    for name, hosts in wanted.items():
        check_wish(name, hosts)
    is_new = not (directory / "ca.pem").exists()
    authority = create_authority(directory) if is_new else open_authority(directory)
    if is_new:
        click.echo(directory / "ca.pem")
    for name, hosts in wanted.items():
        click.echo(authority.issue(name, hosts, days=days))


def _node(text: str) -> tuple[str, tuple[str, ...]]:
    number, _, hosts = text.partition("=")
    if not (number.isascii() and number.isdecimal()) or number != str(int(number)):
        raise click.UsageError(f"--node {text!r}, expected ID or ID=HOST,…")
    named = tuple(filter(None, (host.strip() for host in hosts.split(","))))
    return f"node-{number}", named or LOOPBACK


def _client(name: str) -> str:
    if name.startswith("node-"):
        raise click.UsageError(f"--client {name!r}: names that begin with node- are of nodes")
    return name


@certs.command(epilog=EXAMPLES)
@directory_argument
@days_option
def renew(directory: Path, days: int) -> None:
    """Make every certificate in DIRECTORY again that its authority made; keys stay as they are.

    Nodes take new files by themselves within half a minute, or at once on SIGHUP."""
    from hightide_broker.certificates import open_authority

    renewed = open_authority(directory).renew(days=days)
    for path in renewed:
        click.echo(path)
    if not renewed:
        say(f"there are no certificates in {directory}")
        raise click.exceptions.Exit(NOT_FOUND)


@certs.command("show", epilog=EXAMPLES)
@click.argument("place", type=click.Path(exists=True, path_type=Path))
@output_option
def show_(place: Path, output: str) -> None:
    """Who the certificates of a file or a directory are of, and until when; exits 6 if one has
    expired."""
    from hightide_broker.certificates import show_certificates

    found = show_certificates(place)
    rows = [
        {
            "file": each.file,
            "name": each.name,
            "hosts": list(each.hosts),
            "issuer": each.issuer,
            "not_after": each.not_after.isoformat(timespec="seconds"),
            "days_left": each.days_left,
        }
        for each in found
    ]
    if not rows:
        say(f"there are no certificates in {place}")
        raise click.exceptions.Exit(NOT_FOUND)
    columns = ["file", "name", "hosts", "not_after", "days_left"]
    show(rows, output, columns=columns, key="file")
    for each in found:
        if each.days_left < SOON_DAYS:
            left = f"in {counted(each.days_left, 'day')}" if each.days_left >= 0 else "already"
            say(f"{each.file} expires {left}: hightide certs renew {Path(each.file).parent}")
    if any(each.days_left < 0 for each in found):
        raise click.exceptions.Exit(UNHEALTHY)
