"""`--config client.toml`: how brokers are reached, and who asks them, for every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

CONFIG = "hightide.client_config"
"""Under this name a command's context knows what the file says."""
_SAID = f"{CONFIG}.said"
"""And under this one, that the command line names it."""


def _read(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    said = ctx.get_parameter_source("client_config") is ParameterSource.COMMANDLINE
    if path is not None and (said or CONFIG not in ctx.meta):
        from hightide.net.config_file import read_client_config

        ctx.meta[CONFIG] = read_client_config(path)
        ctx.meta[_SAID] = said


client_config_option = click.option(
    "--config",
    "client_config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="HIGHTIDE_CONFIG",
    is_eager=True,
    expose_value=False,
    callback=_read,
    help="A client.toml: bootstrap.servers, security.protocol, ssl.ca.location, …",
)


def use_client_file(path: Path | None, *, over_environment: bool = False) -> None:
    """From here on this command is told by a file, or by none, unless it was by another one;
    `over_environment`: unless its command line names one."""
    from hightide.net.config_file import read_client_config

    ctx = click.get_current_context()
    if CONFIG not in ctx.meta or (over_environment and not ctx.meta.get(_SAID)):
        ctx.meta[CONFIG] = {} if path is None else read_client_config(path)


def configured() -> dict[str, Any]:
    """The arguments of clients that the file names."""
    ctx = click.get_current_context(silent=True)
    found: dict[str, Any] = {} if ctx is None else ctx.meta.get(CONFIG, {})
    return found


def is_told_by_a_file() -> bool:
    """Whether the command line or the environment names one."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and _SAID in ctx.meta


def configured_bootstrap() -> str:
    """The brokers that the file names; empty if it names none."""
    return str(configured().get("bootstrap_servers", ""))


def client_settings() -> dict[str, Any]:
    """How brokers are reached, whichever they are."""
    return {name: value for name, value in configured().items() if name != "bootstrap_servers"}
