"""Environment variables: which ones mean something, and a word about those that do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import click

from hightide.protocol.errors import did_you_mean
from hightide_broker.config import ENVIRONMENT_PREFIX, environment_name
from hightide_broker.config_keys import KEYS

OTHERS = ("HIGHTIDE_BOOTSTRAP", "HIGHTIDE_CONFIG", "HIGHTIDE_DATA", "HIGHTIDE_VENV")
"""Of several commands, and of the scripts in `deploy`."""


def strangers(group: click.Group, variables: Iterable[str]) -> Iterator[str]:
    """A sentence for each variable that begins like ours and that nobody reads."""
    known = [*OTHERS, *map(environment_name, KEYS)]
    asked = [name for name in sorted(variables) if name.startswith(ENVIRONMENT_PREFIX)]
    if all(name in known for name in asked):
        return
    known += _of_options(group, ENVIRONMENT_PREFIX.rstrip("_"), click.Context(group))
    for name in asked:
        if name not in known:
            yield f"{name} is set, and nothing reads it{did_you_mean(name, known)}"


def _of_options(command: click.Command, prefix: str, context: click.Context) -> Iterator[str]:
    """The variables that click reads for options of a command and of those below it."""
    for option in command.params:
        yield f"{prefix}_{(option.name or '').upper()}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = None
            with suppress(ModuleNotFoundError):  # a command that does not work on such a system
                below = command.get_command(context, name)
            if below is not None:
                yield from _of_options(below, f"{prefix}_{name.upper().replace('-', '_')}", context)
