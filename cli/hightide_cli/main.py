"""The door of the command line: which command lives where. Nothing heavy is imported before it is
used.

`hightide --help` answers without importing trio, rich or the library; each command's module is
imported when it is called.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module

import click

from hightide_cli.client_config import client_config_option

COMMANDS = {
    "up": ("cluster", "up", "start a cluster on this machine"),
    "ps": ("cluster", "ps", "list the nodes of a data directory"),
    "logs": ("cluster", "logs", "print a node's log"),
    "down": ("cluster", "down", "stop a cluster"),
    "server": ("server", "server", "run one broker in the foreground"),
    "storage": ("server", "storage", "format and describe data directories"),
    "topics": ("topics", "topics", "create, list, describe, alter and delete topics"),
    "partitions": ("partitions", "partitions", "elect leaders, compare replicas"),
    "brokers": ("brokers", "brokers", "list and describe brokers"),
    "quotas": ("quotas", "quotas", "show and change how much users and clients may send"),
    "users": ("users", "users", "show and change who may log in"),
    "acls": ("acls", "acls", "show and change who may do what"),
    "quorum": ("quorum", "quorum", "show and change the quorum of controllers"),
    "configs": ("topics", "configs", "describe and alter configurations"),
    "produce": ("produce", "produce", "write lines or JSON to a topic"),
    "consume": ("consume", "consume", "read records from topics"),
    "groups": ("groups", "groups", "consumer groups: who reads what, how far; move, delete"),
    "log": ("log", "log", "look into segment files: dump, verify"),
    "pipeline": ("pipeline", "pipeline", "topics through Spark to Parquet and a results topic"),
    "bench": (
        "bench.bench",
        "bench",
        "measure this machine: produce, consume, e2e, client, groups, …",
    ),
    "sim": ("sim", "sim", "run simulated clusters by seed, replay one"),
    "lab": ("lab", "lab", "lessons: how records survive, step by step"),
    "trace": ("trace", "trace", "what happened: leaders, in-sync replicas, cuts, votes"),
    "console": ("console", "console", "a cluster to look at, in a browser"),
    "metrics": ("metrics", "metrics", "the numbers of a node, as Prometheus reads them"),
    "doctor": ("doctor", "doctor", "check whether this machine can run hightide well"),
    "demo": ("demo.demo", "demo", "real flights through three brokers into Spark, checked"),
    "certs": ("certs", "certs", "certificates for nodes and clients: create, renew, show"),
    "errors": ("errors", "errors", "what an error code means, and what to do"),
    "completion": ("completion", "completion", "the script that completes commands in a shell"),
}


WELL_KNOWN = ("HIGHTIDE_BOOTSTRAP", "HIGHTIDE_CONFIG", "HIGHTIDE_DATA")
"""Environment variables that are not worth a look at all the others."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"hightide_cli.{module}"), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of our output is gone, as with `| head`: nothing is wrong. What is still
            # buffered goes nowhere, so that the interpreter does not complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None
        except Exception as error:
            _note_what_was_meant(ctx, error)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in COMMANDS])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "HIGHTIDE"},
    epilog="Examples: hightide up --detach --topic orders:3 · "
    "echo hello | hightide produce orders · "
    "hightide consume orders --from start -e · hightide demo",
)
@client_config_option
@click.version_option(package_name="hightide", prog_name="hightide")
def cli() -> None:
    """A small, real, replicated log: brokers, topics, records, and Spark reading them.

    Exit codes: 0 ok, 1 refused by the cluster, 2 usage, 3 unreachable or timed out, 4 not found,
    5 conflict, 6 unhealthy, 7 corruption found, 8 denied.
    """
    if any(name.startswith("HIGHTIDE_") and name not in WELL_KNOWN for name in os.environ):
        from hightide_cli.environment import strangers

        for sentence in strangers(cli, os.environ):
            click.echo(f"hightide: {sentence}", err=True)


def _have_streams() -> None:
    """What a shell closed (`>&-`) is nothing to read, and nowhere to write to: not the next file
    that is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def main() -> None:
    """The entry point: run a command, turn what went wrong into a message and an exit code."""
    _have_streams()
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            sys.exit(130)
        _fail(group)
    except Exception as error:
        _fail(error)


def _note_what_was_meant(ctx: click.Context, error: Exception) -> None:
    """Where a topic or group is not there, add the one with nearly that name."""
    from hightide_cli.options import BOOTSTRAP
    from hightide_cli.suggestions import meant

    bootstrap = ctx.meta.get(BOOTSTRAP)
    if bootstrap is not None and (hint := meant(error, bootstrap)):
        error.add_note(hint)


def _fail(error: BaseException) -> None:
    """Exit with what an error means for the user; a bug of ours keeps its traceback."""
    from hightide_cli.failures import explain

    message, code = explain(error)
    if message is None:
        raise error
    notes = "".join(getattr(error, "__notes__", ()))
    click.echo(f"hightide: {message}{notes}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
