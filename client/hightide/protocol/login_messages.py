"""Requests by which a user proves who it is, and those that say who may. Pure.

The rules of `messages.py` hold here too. SASL with SCRAM (RFC 5802, RFC 7677); credentials are kept
as KIP-554 has it: the client salts a password, and nobody else ever sees it.
"""

from __future__ import annotations

from hightide.protocol.messages import Message

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384
"""How often a password is hashed; more would let a hostile broker keep a client busy."""


class SaslHandshakeRequest(Message, frozen=True, kw_only=True):
    """The first word on a connection whose users log in: by which mechanism."""

    mechanism: str


class SaslHandshakeResponse(Message, frozen=True, kw_only=True):
    mechanisms: list[str]
    """Those that there are."""


class SaslAuthenticateRequest(Message, frozen=True, kw_only=True):
    """The mechanism's own words."""

    data: bytes

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(…)"


class SaslAuthenticateResponse(Message, frozen=True, kw_only=True):
    data: bytes
    session_lifetime_ms: int = 0
    """From its last word on, how long the login is good for: it is made again before, on the same
    connection (KIP-368). 0: as long as the connection."""

    def __repr__(self) -> str:
        return "SaslAuthenticateResponse(…)"


class ScramDeletion(Message, frozen=True, kw_only=True):
    user: str
    mechanism: str


class ScramUpsertion(Message, frozen=True, kw_only=True):
    """A new password: salted and hashed so often."""

    user: str
    mechanism: str
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"ScramUpsertion({self.user!r}, {self.mechanism}, …)"


class AlterUserScramCredentialsRequest(Message, frozen=True, kw_only=True):
    deletions: list[ScramDeletion] = []
    upsertions: list[ScramUpsertion] = []


class AlteredUser(Message, frozen=True, kw_only=True):
    user: str
    error: str | None = None
    message: str = ""


class AlterUserScramCredentialsResponse(Message, frozen=True, kw_only=True):
    users: list[AlteredUser]


class DescribeUserScramCredentialsRequest(Message, frozen=True, kw_only=True):
    users: list[str] | None = None
    """None: all."""


class ScramCredentialInfo(Message, frozen=True, kw_only=True):
    mechanism: str
    iterations: int


class DescribedUser(Message, frozen=True, kw_only=True):
    user: str
    error: str | None = None
    message: str = ""
    credentials: list[ScramCredentialInfo] = []


class DescribeUserScramCredentialsResponse(Message, frozen=True, kw_only=True):
    users: list[DescribedUser]
