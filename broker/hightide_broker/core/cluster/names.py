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


def check_topic_form(name: str) -> None:
    """Raise `Refused` INVALID_TOPIC for what no topic can be called."""
    if not TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise Refused(
            ErrorCode.INVALID_TOPIC,
            f"topic name {name[:260]!r}: 1 to 249 of a-z A-Z 0-9 . _ - and neither '.' nor '..'",
        )


def no_topic(name: str) -> Refused:
    """Why there is no topic of this name: who asks again may find one later, or, if none can be
    called that, never will (as Kafka's Metadata and DescribeConfigs tell the two apart)."""
    try:
        check_topic_form(name)
    except Refused as never:
        return never
    return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")


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
