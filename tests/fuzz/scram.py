"""Target: the words of a login, at either end.

Held: a broker lets somebody in who proved the password, and answers everything else with one and
the same refusal; a client whose broker says anything else than SCRAM has words of its own for it.
No test lives here.
"""

import re
from functools import cache

from logins import PASSWORD, wish

from hightide.net.login import Login, Words
from hightide.protocol.errors import AuthenticationFailed, ErrorCode, Refused
from hightide_broker.core.cluster import users
from hightide_broker.runtime.server.login import FAILED, _Scram

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
WRONG_USER, SHA_512, BY_A_CLIENT = 0x01, 0x02, 0x04
"""Of the first byte: the user is none; the other mechanism; a client hears the words."""
ITERATIONS_TRIED_MAX = 64
"""A client hashes as often as it is told, up to a limit that would take a fuzzer's time."""
_ITERATIONS = re.compile(rb"(?:^|,)i=([0-9]{1,9})(?:,|$)")


@cache
def _kept(mechanism, is_known):
    if is_known:
        return tuple(users.credential_of(wish(mechanism=mechanism)))
    return tuple(users.of_nobody([], b"secret", "user", mechanism))


def login(data):
    """A byte, the first words, a line's end, and the last."""
    flags = data[0] if data else 0
    first, _, last = data[1:].partition(b"\n")
    mechanism = MECHANISMS[bool(flags & SHA_512)]
    if flags & BY_A_CLIENT:
        _heard_by_a_client(first, last, mechanism)
    else:
        _heard_by_a_broker(first, last, mechanism, is_known=not flags & WRONG_USER)


def _heard_by_a_broker(first, last, mechanism, *, is_known):
    server = _Scram(mechanism, lambda *_: _kept(mechanism, is_known), NONCE)
    refusal = None
    try:
        server.first(first)
        server.final(last)
    except Refused as refused:
        refusal = refused
    if refusal is None:
        assert is_known, "somebody was let in as a user that there is not"
        assert NONCE.encode() in last, "words of another exchange were taken"
    else:
        told = (refusal.code, refusal.message)
        assert told == (ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED)


def _heard_by_a_client(first, last, mechanism):
    counts = [int(found) for found in _ITERATIONS.findall(first)]
    if any(ITERATIONS_TRIED_MAX < count <= 1 << 20 for count in counts):
        return
    words = Words(Login(mechanism, "user", PASSWORD))
    words.first()
    try:
        words.final(first)
        words.check(last)
    except AuthenticationFailed:
        return
    raise AssertionError("a client believes a broker that cannot know its password")
