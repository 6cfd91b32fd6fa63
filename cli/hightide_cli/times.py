"""Times as people write them: ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime

import click


def parse_time(text: str) -> int:
    """Milliseconds since 1970; a time without a zone is UTC."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"time {text!r}, expected ISO 8601 or ms since 1970") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
