"""`hightide completion`: what makes a shell complete commands, options and their choices."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

NAME = "hightide"


@click.command(
    epilog='Examples: eval "$(hightide completion bash)" · '
    "hightide completion fish > ~/.config/fish/completions/hightide.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for SHELL; load it where your shell begins."""
    from hightide_cli.main import cli

    found = get_completion_class(shell)
    assert found is not None, "click knows the three"
    click.echo(found(cli, {}, NAME, f"_{NAME.upper()}_COMPLETE").source())
