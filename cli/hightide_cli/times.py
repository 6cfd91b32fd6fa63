"""Times as people write them: ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str, expected: str = "ISO 8601 or ms since 1970") -> int:
    """Milliseconds since 1970; a time without a zone is UTC."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"time {text!r}, expected {expected}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise click.UsageError(f"time {text!r} is before 1970")
    return milliseconds
