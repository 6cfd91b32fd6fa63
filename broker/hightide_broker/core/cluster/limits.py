"""How much one request may ask for. Pure."""

from __future__ import annotations

from hightide.protocol.errors import ErrorCode, Refused


def check_count(count: int, most: int, what: str) -> None:
    """Raise `Refused` for more than one request may ask for; `what` those are, as several are
    called."""
    if count > most:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{count} {what} in one request, expected {most} or less"
        )
