"""Names that people give: of users, clients, and what rules are about. Pure."""

from __future__ import annotations

from hightide.protocol.errors import ErrorCode, Refused

NAME_CHARACTERS_MAX = 256


def check_name(what: str, name: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
    """Raise `Refused` for a name that is empty, too long, or cannot be shown; `what` it names is
    part of the sentence."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise Refused(
            code, f"{what} {name[:60]!r}, expected 1 to {NAME_CHARACTERS_MAX} characters that print"
        )
