"""Who may log in: what is kept of a password, and what becomes of changes to it. Pure.

Of a password only two keys are kept, from which nobody learns it: one that checks who has it, one
that proves that the broker knew it (RFC 5802, section 3). Source: KIP-554, ScramControlManager.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256, sha512
from typing import NamedTuple

from hightide.protocol import login_messages as u
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker.core.cluster.changes import (
    AnyChange,
    RemoveScramCredential,
    SetScramCredential,
    SetUsersSecret,
)
from hightide_broker.core.cluster.limits import check_count
from hightide_broker.core.cluster.names import USER, check_name

SALT_BYTES = range(12, 257)
UNKNOWN_SALT_BYTES = 16
"""As long as the salts that clients of ours make."""
SECRET_BYTES = 32
USERS_MAX = 10_000
CHANGES_MAX = 1000
"""Passwords that one request may set or take away."""
RESERVED = ("ANONYMOUS", "<default>", "*")
_HASHES = {"SCRAM-SHA-256": sha256, "SCRAM-SHA-512": sha512}
UserKey = tuple[str, str]
"""Whose, and for which mechanism."""
_Wish = u.ScramDeletion | u.ScramUpsertion


class Credential(NamedTuple):
    """What is kept of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"<Credential of {self.iterations} iterations>"


def credential_of(wish: u.ScramUpsertion) -> Credential:
    """What is to be kept of a new password; raises `Refused`."""
    check_user(wish.user, wish.mechanism)
    if not u.ITERATIONS_MIN <= wish.iterations <= u.ITERATIONS_MAX:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{wish.iterations} iterations, expected {u.ITERATIONS_MIN} to {u.ITERATIONS_MAX}",
        )
    kind = _HASHES[wish.mechanism]
    if len(wish.salt) not in SALT_BYTES or len(wish.salted_password) != kind().digest_size:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a salt of {counted(len(wish.salt), 'byte')} and a salted password of "
            f"{len(wish.salted_password)}, expected {SALT_BYTES[0]} to {SALT_BYTES[-1]} and "
            f"{kind().digest_size}",
        )
    client_key = hmac.digest(wish.salted_password, b"Client Key", kind)
    server_key = hmac.digest(wish.salted_password, b"Server Key", kind)
    return Credential(wish.salt, kind(client_key).digest(), server_key, wish.iterations)


def check_user(user: str, mechanism: str) -> None:
    """Raise `Refused` for what can be no user's name, or no mechanism."""
    if mechanism not in _HASHES:
        raise Refused(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {mechanism[:60]!r}, expected one of {', '.join(_HASHES)}",
        )
    if user in RESERVED:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{user} is what those are called who have no name"
        )
    check_name("user", user, ErrorCode.UNACCEPTABLE_CREDENTIAL)
    if user.startswith(USER) or ";" in user:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"user {user!r}, expected a name without 'User:' before it, and without ';': rules and "
            f"super.users would mean another one",
        )


def iterations_of(known: Mapping[UserKey, Credential], mechanism: str) -> list[int]:
    """How often the passwords of all users are hashed, in order."""
    return sorted(each.iterations for (_, of), each in known.items() if of == mechanism)


def of_nobody(counts: Sequence[int], secret: bytes, user: str, mechanism: str) -> Credential:
    """For a user that there is not: the same on every node, as long as the users are the same that
    there are, so that nobody learns who there is; and nobody has the password. `counts` are the
    iterations of those that there are, by `iterations_of`."""
    kind = _HASHES[mechanism]
    named = f"{mechanism}:{user}".encode()
    salt, stored, server, chance = (
        hmac.digest(secret, word + named, kind) for word in (b"a", b"b", b"c", b"d")
    )
    place = int.from_bytes(chance[:8]) * len(counts) >> 64
    iterations = counts[place] if counts else u.ITERATIONS_MIN
    return Credential(salt[:UNKNOWN_SALT_BYTES], stored, server, iterations)


def alter(
    known: Mapping[UserKey, Credential],
    request: u.AlterUserScramCredentialsRequest,
    new_secret: Callable[[], bytes] | None,
) -> tuple[list[AnyChange], u.AlterUserScramCredentialsResponse]:
    """Each user's changes are made whole or not at all; `new_secret` makes what answers about
    unknown users rest on, if there is none yet. Raises `Refused` for too many, and none is made."""
    asked: list[_Wish] = [*request.deletions, *request.upsertions]
    check_count(len(asked), CHANGES_MAX, "passwords")
    times = Counter((each.user, each.mechanism) for each in asked)
    by_user: dict[str, list[_Wish]] = {}
    for each in asked:
        by_user.setdefault(each.user, []).append(each)
    changes: list[AnyChange] = []
    results = []
    for user, wishes in by_user.items():
        try:
            made = [_change(known, each, times) for each in wishes]
        except Refused as refusal:
            results.append(u.AlteredUser(user=user, error=refusal.code, message=refusal.message))
        else:
            changes += made
            results.append(u.AlteredUser(user=user))
    if changes and new_secret is not None:
        changes.insert(0, SetUsersSecret(secret=new_secret()))
    return changes, u.AlterUserScramCredentialsResponse(users=results)


def _change(
    known: Mapping[UserKey, Credential],
    wish: _Wish,
    times: Mapping[UserKey, int],
) -> AnyChange:
    key = (wish.user, wish.mechanism)
    if times[key] > 1:
        raise Refused(
            ErrorCode.DUPLICATE_RESOURCE,
            f"{wish.mechanism} of user {wish.user!r} is changed twice in the request",
        )
    if isinstance(wish, u.ScramUpsertion):
        credential = credential_of(wish)
        if key not in known and len(known) >= USERS_MAX:
            raise Refused(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"there are {USERS_MAX} passwords, and may be no more",
            )
        return SetScramCredential(user=wish.user, mechanism=wish.mechanism, **credential._asdict())
    check_user(*key)
    if key not in known:
        raise Refused(
            ErrorCode.RESOURCE_NOT_FOUND, f"user {wish.user!r} has no {wish.mechanism} password"
        )
    return RemoveScramCredential(user=wish.user, mechanism=wish.mechanism)


def described(
    known: Mapping[UserKey, Credential], wanted: list[str] | None
) -> u.DescribeUserScramCredentialsResponse:
    """Who there is, and nothing that is of use to who steals it."""
    by_user: dict[str, list[u.ScramCredentialInfo]] = {}
    for (user, mechanism), credential in known.items():
        info = u.ScramCredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        by_user.setdefault(user, []).append(info)
    found = []
    for user in sorted(by_user) if wanted is None else dict.fromkeys(wanted):
        if user in by_user:
            found.append(u.DescribedUser(user=user, credentials=by_user[user]))
        else:
            why = f"there is no user {user!r} with a password"
            found.append(
                u.DescribedUser(user=user, error=ErrorCode.RESOURCE_NOT_FOUND, message=why)
            )
    return u.DescribeUserScramCredentialsResponse(users=found)
