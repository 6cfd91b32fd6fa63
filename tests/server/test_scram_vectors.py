"""Both sides of SCRAM say, byte for byte, what the RFCs have them say, for each hash.

Method: an exchange with the nonces of RFC 7677, worked out beside the library that the two sides
use; for SHA-256 it must be the one that the RFC prints, or the formulas here are wrong.
"""

import pytest
import scramp
from logins import PASSWORD
from scram_vectors import (
    CLIENT_NONCE,
    EXCHANGES,
    ITERATIONS,
    SALT,
    SERVER_NONCE,
    USER,
    hashed_often,
)

from hightide.admin.passwords import salted
from hightide.net.login import Login, Words
from hightide.protocol import login_messages as u
from hightide.protocol.errors import AuthenticationFailed, Refused
from hightide_broker.core.cluster import users
from hightide_broker.runtime.server.login import _Scram

each = pytest.mark.parametrize("told", EXCHANGES.values(), ids=EXCHANGES)


def test_what_is_worked_out_here_is_what_the_rfc_prints():
    """RFC 7677, section 3."""
    told = EXCHANGES["SCRAM-SHA-256"]
    assert told.first == "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert told.answer == f"{nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert told.final == f"c=biws,{nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert told.end == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_there_is_an_exchange_for_each_mechanism():
    assert [*EXCHANGES] == [*u.MECHANISMS]


@each
def test_a_broker_keeps_and_says_what_it_has_to(told):
    wish = u.ScramUpsertion(
        user=USER,
        mechanism=told.mechanism,
        iterations=ITERATIONS,
        salt=SALT,
        salted_password=told.salted_password,
    )
    kept = users.credential_of(wish)
    assert kept == (SALT, told.stored_key, told.server_key, ITERATIONS)
    server = _Scram(told.mechanism, lambda *_: tuple(kept), SERVER_NONCE)
    assert server.first(told.first.encode()) == told.answer
    assert server.final(told.final.encode()) == told.end
    assert server.user == USER


@each
def test_a_client_says_what_it_has_to_and_knows_whom_it_talks_to(told):
    def exchange():
        words = Words(Login(told.mechanism, USER, PASSWORD))
        words._client = scramp.ScramClient([told.mechanism], USER, PASSWORD, c_nonce=CLIENT_NONCE)
        assert words.first() == told.first.encode()
        assert words.final(told.answer.encode()) == told.final.encode()
        return words

    exchange().check(told.end.encode())
    (other,) = (one for one in EXCHANGES.values() if one is not told)
    with pytest.raises(AuthenticationFailed):
        exchange().check(other.end.encode())


@each
def test_a_proof_by_the_other_hash_proves_nothing(told):
    (other,) = (one for one in EXCHANGES.values() if one is not told)
    kept = (SALT, told.stored_key, told.server_key, ITERATIONS)
    server = _Scram(told.mechanism, lambda *_: kept, SERVER_NONCE)
    server.first(told.first.encode())
    with pytest.raises(Refused):
        server.final(other.final.encode())


@each
def test_a_new_password_is_salted_as_the_rfc_has_it(told):
    (wish,) = salted(USER, PASSWORD, mechanisms=[told.mechanism], iterations=ITERATIONS)
    kind = told.mechanism.removeprefix("SCRAM-").replace("-", "")
    assert wish.salted_password == hashed_often(kind, PASSWORD.encode(), wish.salt, ITERATIONS)
    assert wish.salt != SALT
