"""A new password as a cluster is told it: salted and hashed, so that nobody there ever sees it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import pbkdf2_hmac
from secrets import token_bytes

from hightide.protocol import login_messages as u
from hightide.protocol.errors import UsageError, whole

SALT_BYTES = 16


def salted(
    user: str,
    password: str,
    *,
    mechanisms: Sequence[str] = u.MECHANISMS,
    iterations: int = u.ITERATIONS_MIN,
) -> list[u.ScramUpsertion]:
    """For each mechanism; raises `UsageError` for what cannot be a name or a password."""
    name, text = prepared("user", user), prepared("password", password)
    return [
        _salted(name, text, mechanism, whole("iterations", iterations)) for mechanism in mechanisms
    ]


def _salted(user: str, password: str, mechanism: str, iterations: int) -> u.ScramUpsertion:
    kind = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salt = token_bytes(SALT_BYTES)
    try:
        hashed = pbkdf2_hmac(kind, password.encode(), salt, iterations)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"mechanism {mechanism!r}, {iterations} iterations: {error}") from error
    return u.ScramUpsertion(
        user=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=hashed
    )


def prepared(what: str, text: str) -> str:
    """As both ends of a login have it (RFC 4013)."""
    try:
        from scramp.utils import ScramException, saslprep
    except ImportError as error:
        raise UsageError("for users that log in: pip install 'hightide[secure]'") from error
    try:
        prepared = str(saslprep(text))
    except ScramException as error:
        raise UsageError(f"{what} cannot be: {error}") from error
    if not prepared:
        raise UsageError(f"{what} is empty")
    return prepared
