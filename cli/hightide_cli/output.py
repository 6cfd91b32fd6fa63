"""How commands print what they found, and what they have to say besides."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from hightide_cli.failures import explain

_WIDE = 100_000
"""Columns of what is no terminal."""
_GAP = 2
"""Between the columns of a table."""


def say(message: str) -> None:
    """Tell the user something that is not the result. That nobody is left to hear it stops
    nothing."""
    with suppress(BrokenPipeError):
        click.echo(message, err=True)


def show(
    rows: Sequence[Mapping[str, Any]], output: str, *, columns: Sequence[str], key: str
) -> None:
    """Print rows: as a table of `columns`, as JSON with every field, or only each row's `key`."""
    if output == "json":
        click.echo(json.dumps(list(rows), indent=2))
    elif output == "ndjson":
        for row in rows:
            click.echo(json.dumps(row))
    elif output == "quiet":
        for row in rows:
            click.echo(row[key])
    else:
        print_table([[_cell(row.get(name)) for name in columns] for row in rows], columns)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)


def harmless(text: str) -> str:
    """What others call themselves, as a terminal may have it: one line that commands nothing."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def print_table(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    """An aligned table without lines. A value is never cut: where the terminal is too narrow, the
    columns without a value are left out, or else each row becomes a block, a line for each
    column."""
    rows = [[harmless(cell) for cell in row] for row in rows]
    titles = [name.upper().replace("_", " ") for name in columns]
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    used = [place for place in range(len(titles)) if any(row[place] for row in rows)]
    for places in (range(len(titles)), used):
        shown = [[row[place] for place in places] for row in (titles, *rows)]
        if (wide := _width(shown)) - _GAP <= terminal:
            _print_aligned(shown[0], shown[1:], wide)
            return
    click.echo("\n\n".join(_block(titles, row) for row in rows))


def _width(lines: Sequence[Sequence[str]]) -> int:
    from rich.cells import cell_len

    return sum(max(map(cell_len, column)) + _GAP for column in zip(*lines, strict=True))


def _print_aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], wide: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # With both sizes given, rich believes them on a dumb terminal, too. What it wrote is printed by
    # us: of a reader that is gone it makes an exit of its own.
    page = io.StringIO()
    console = Console(
        file=page,
        width=wide,
        height=len(rows) + 1,
        force_terminal=sys.stdout.isatty(),
        highlight=False,
        markup=False,
    )
    console.print(table, crop=False)
    click.echo(page.getvalue(), nl=False)


def _block(titles: Sequence[str], row: Sequence[str]) -> str:
    wide = max(map(len, titles))
    return "\n".join(f"{title:{wide}}  {cell}" for title, cell in zip(titles, row, strict=True))


def show_one(fields: Mapping[str, Any], output: str) -> None:
    """Print one object: a line for each field, or JSON."""
    if output == "json":
        click.echo(json.dumps(fields, indent=2))
    elif output == "ndjson":
        click.echo(json.dumps(fields))
    else:
        for name, value in fields.items():
            click.echo(f"{name}: {harmless(_cell(value))}")


class TellOnce:
    """Says why something is being tried again, once for each reason; what is over sooner than
    `after_s` is not worth a word."""

    def __init__(self, *, after_s: float = 0.0) -> None:
        self._told: set[str] = set()
        self._from = time.monotonic() + after_s

    def __call__(self, error: Exception) -> None:
        reason = str(getattr(error, "message", error))
        if reason not in self._told and time.monotonic() >= self._from:
            self._told.add(reason)
            say(f"retrying: {explain(error)[0] or error}")

    def silent(self, broker: str, patience_s: float) -> None:
        """As `ClientOptions.on_retry` may have it."""
        from hightide.net.warned import told_of_silence

        say(told_of_silence(broker, patience_s))
