"""Names that people give: of users, clients, addresses, and what rules are about. Pure."""

from __future__ import annotations

import re
from ipaddress import ip_address

from hightide.protocol.errors import ErrorCode, Refused

NAME_CHARACTERS_MAX = 256
USER = "User:"
"""What a principal begins with."""
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""What a topic may be called, but for `.` and `..`."""


def check_name(what: str, name: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
    """Raise `Refused` for a name that is empty, too long, or cannot be shown; `what` it names is
    part of the sentence."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise Refused(
            code, f"{what} {name[:60]!r}, expected 1 to {NAME_CHARACTERS_MAX} characters that print"
        )


def address(what: str, text: str, other: str) -> str:
    """An address as connections have it; raises `Refused`: anything else would never match. `other`
    is what else might have been written."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"{what} {text[:60]!r}, expected one address of IPv4 or IPv6, or {other}",
        ) from None
