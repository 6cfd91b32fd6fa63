"""`hightide server start` runs one broker in the foreground; `hightide storage` prepares its
directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hightide_cli.log_format import set_up_logging
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show_one

if TYPE_CHECKING:
    from hightide.protocol.login_messages import ScramUpsertion
    from hightide_broker.config import BrokerConfig

config_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the broker's keys.",
)
set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key over file and environment; may be repeated.",
)


def load_config(config_file: Path | None, assignments: tuple[str, ...]) -> BrokerConfig:
    """File, then environment, then --set; raises `ConfigError`."""
    from hightide_broker.config import (
        make_config,
        read_assignments,
        read_environment,
        read_toml,
    )

    file = read_toml(config_file.read_text()) if config_file else {}
    return make_config(file, read_environment(os.environ), read_assignments(assignments))


@click.group()
def server() -> None:
    """Run one broker in the foreground."""


@server.command(epilog="Example: hightide server start -c broker.toml --set listen.port=19093")
@config_option
@set_option
@click.option("--ready-file", type=click.Path(path_type=Path), help="Written once it serves.")
@click.option("--check-config", is_flag=True, help="Only check the configuration.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def start(
    config_file: Path | None,
    assignments: tuple[str, ...],
    ready_file: Path | None,
    check_config: bool,
    verbose: bool,
) -> None:
    """Serve until SIGTERM or Ctrl-C; a second signal stops at once, without a clean shutdown."""
    if not __debug__:
        raise click.UsageError("hightide does not run under python -O: its asserts are its guards")
    from hightide_broker.config import check_open
    from hightide_broker.config_keys import LOG_FORMAT, NODE_ID

    config = load_config(config_file, assignments)
    check_open(config)
    if check_config:
        from hightide_broker.runtime.server.door import doors_of

        doors_of(config)
        say("the configuration is fine")
        return
    from hightide_cli.serving import serve

    set_up_logging(verbose=verbose, form=config[LOG_FORMAT], node=config[NODE_ID])
    run(serve, config, ready_file)


@click.group()
def storage() -> None:
    """Format and describe data directories."""


@storage.command(name="id", epilog="Example: hightide storage id")
def new_id() -> None:
    """Print a fresh cluster id."""
    from hightide.net.ports import system_random
    from hightide_broker.runtime.cluster.controller import random_id

    click.echo(random_id(system_random()))


@storage.command(
    name="format", epilog="Example: hightide storage format --cluster-id $(hightide storage id)"
)
@config_option
@set_option
@click.option("--cluster-id", required=True, help="As printed by `hightide storage id`.")
@click.option(
    "--join", is_flag=True, help="For a cluster that exists: the node votes once it is admitted."
)
@click.option(
    "--user",
    metavar="NAME=FILE",
    help="The first user, and a file with its password: for controllers of a new cluster.",
)
def format_(
    config_file: Path | None,
    assignments: tuple[str, ...],
    cluster_id: str,
    join: bool,
    user: str | None,
) -> None:
    """Make a data directory this node's; fine if it is already, refused if it is another's.

    A node that comes to a cluster that exists, or whose directory was lost, needs --join: it knows
    nothing of what was decided, and must not vote before `hightide quorum add` or `replace`.
    """
    from hightide.net.ports import system_random
    from hightide_broker.config_keys import CLUSTER_ID, LOG_DIRS
    from hightide_broker.formatting import format_node
    from hightide_broker.runtime.base.disk import RealDisk

    if not cluster_id:  # each node would make one of its own
        raise click.UsageError(
            "--cluster-id is empty: `hightide storage id` makes one, the same for all nodes"
        )
    named = load_config(config_file, assignments)[CLUSTER_ID]
    if named not in ("", cluster_id):
        raise click.UsageError(f"--cluster-id {cluster_id}, and the configuration says {named}")
    config = load_config(config_file, (*assignments, f"cluster.id={cluster_id}"))
    users = first_user(user) if user else []
    if users and join:
        raise click.UsageError("--user and --join: a cluster that exists has its users")
    meta = format_node(config, RealDisk(), system_random(), joining=join, users=users)
    say(f"{config[LOG_DIRS]} belongs to node {meta.node_id} of cluster {meta.cluster_id}")


def first_user(said: str) -> list[ScramUpsertion]:
    """The user of `NAME=FILE`, as it is kept."""
    from hightide.admin.passwords import salted

    name, _, path = said.partition("=")
    if not (name and path):
        raise click.UsageError(f"--user {said!r}, expected NAME=FILE")
    try:
        password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--user {said!r}: {error}") from error
    return salted(name, password)


@storage.command(epilog="Example: hightide storage info -c broker.toml")
@config_option
@set_option
@output_option
def info(config_file: Path | None, assignments: tuple[str, ...], output: str) -> None:
    """Whose a data directory is."""
    from hightide_broker.config_keys import LOG_DIRS
    from hightide_broker.runtime.base.disk import RealDisk
    from hightide_broker.storage.directory import CLEAN_SHUTDOWN, read_meta

    config = load_config(config_file, assignments)
    directory, disk = config[LOG_DIRS], RealDisk()
    meta = read_meta(disk, directory)
    if meta is None:
        say(f"{directory} is not formatted")
        raise click.exceptions.Exit(4)
    show_one(
        {
            "directory": directory,
            "cluster_id": meta.cluster_id,
            "node_id": meta.node_id,
            "directory_id": meta.directory_id,
            "joining": meta.joining,
            "clean_shutdown": disk.exists(f"{directory}/{CLEAN_SHUTDOWN}"),
        },
        output,
    )
