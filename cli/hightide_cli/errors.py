"""`hightide errors`: what a code means for somebody who meets it."""

from __future__ import annotations

from typing import Any

import click

from hightide_cli.failures import NOT_FOUND, exit_code
from hightide_cli.options import output_option
from hightide_cli.output import say, show, show_one


@click.command(epilog="Examples: hightide errors NOT_ENOUGH_REPLICAS · hightide errors 19")
@click.argument("code", required=False)
@output_option
def errors(code: str | None, output: str) -> None:
    """All error codes, or one by its name or its number in Kafka."""
    from hightide.protocol.errors import ERRORS, did_you_mean

    if code is None:
        rows = [described(each) for each in ERRORS]
        show(rows, output, columns=["code", "number", "retriable", "meaning"], key="code")
        return
    wanted = code.strip().upper().replace("-", "_")
    for each, info in ERRORS.items():
        if wanted in (each, str(info.number)):
            show_one(described(each), output)
            return
    say(f"no error {code}{did_you_mean(code, ERRORS)}")
    raise click.exceptions.Exit(NOT_FOUND)


def described(code: str) -> dict[str, Any]:
    """A code's name, number and meaning, and what clients do about it."""
    from hightide.protocol.errors import ERRORS, ErrorCode

    info = ERRORS[ErrorCode(code)]
    again = "clients try again until their time is up" if info.retriable else "final"
    if info.retriable and info.refresh:
        again = "clients look for the leader again, and try until their time is up"
    return {
        "code": str(code),
        "number": info.number,
        "meaning": info.meaning,
        "retriable": info.retriable,
        "then": again,
        "exit_code": exit_code(code),
    }
