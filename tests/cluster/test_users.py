"""What is kept of a password checks it and is none; what cannot be kept changes nothing.

Method: the pure decisions on an image, which replays what they say.
"""

import base64
import hashlib
import hmac
from collections import Counter

import pytest
from logins import wish

from hightide.protocol import login_messages as u
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster import users
from hightide_broker.core.cluster.changes import SetUsersSecret
from hightide_broker.core.cluster.image import ClusterImage

BAD = ErrorCode.UNACCEPTABLE_CREDENTIAL


def altered(image, **asked):
    request = u.AlterUserScramCredentialsRequest(**asked)
    lacking = None if image.users_secret else lambda: b"s" * users.SECRET_BYTES
    changes, answer = users.alter(image.users, request, lacking)
    for change in changes:
        image.replay(change, image.offset)
    return changes, {each.user: each.error for each in answer.users}


def gone(user, mechanism="SCRAM-SHA-256"):
    return u.ScramDeletion(user=user, mechanism=mechanism)


def test_what_is_kept_checks_a_password_and_is_none():
    image = ClusterImage()
    changes, told = altered(image, upsertions=[wish(), wish(mechanism="SCRAM-SHA-512")])
    assert told == {"user": None}
    assert len(changes) == 3, "the secret that answers about nobody rest on, once"
    assert changes[0] == SetUsersSecret(secret=b"s" * users.SECRET_BYTES), "before any user"
    assert repr(changes[0]) == "SetUsersSecret(…)"
    assert image == ClusterImage.of_snapshot(image.changes(), image.offset)
    assert image.copy() == image
    shown = repr((changes, image))
    for each in (wish(), wish(mechanism="SCRAM-SHA-512")):
        kept = image.users["user", each.mechanism]
        assert each.salted_password not in kept
        for secret in (each.salted_password, kept.stored_key, kept.server_key, image.users_secret):
            assert repr(secret)[2:-1] not in shown
    assert altered(image, deletions=[gone("user")])[1] == {"user": None}
    assert list(image.users) == [("user", "SCRAM-SHA-512")]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"upsertions": [wish(), wish()]}, ErrorCode.DUPLICATE_RESOURCE),
        ({"upsertions": [wish()], "deletions": [gone("user")]}, ErrorCode.DUPLICATE_RESOURCE),
        ({"upsertions": [wish(iterations=4095)]}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"upsertions": [wish(iterations=16_385)]}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"upsertions": [wish(user="ANONYMOUS")]}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"upsertions": [wish(user="")]}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"upsertions": [wish(user="a\nb")]}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"upsertions": [wish(salt=b"short")]}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"deletions": [gone("user")]}, ErrorCode.RESOURCE_NOT_FOUND),
        ({"deletions": [gone("user", "PLAIN")]}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_a_change_that_cannot_be_changes_nothing_of_that_user(asked, code):
    image = ClusterImage()
    others = {kind: [*each] for kind, each in asked.items()}
    others.setdefault("upsertions", []).append(wish(user="other"))
    _, told = altered(image, **others)
    assert told == {asked[next(iter(asked))][0].user: code, "other": None}
    assert list(image.users) == [("other", "SCRAM-SHA-256")]


def test_an_unknown_user_has_as_many_iterations_as_some_user_has():
    kept = {
        (f"u{number}", "SCRAM-SHA-256"): users.credential_of(wish(iterations=iterations))
        for number, iterations in enumerate((4096, 8192, 8192, 8192))
    }
    by_256, by_512 = (users.iterations_of(kept, f"SCRAM-SHA-{bits}") for bits in (256, 512))
    told = [users.of_nobody(by_256, b"secret", f"x{n}", "SCRAM-SHA-256") for n in range(400)]
    again = [users.of_nobody(by_256, b"secret", f"x{n}", "SCRAM-SHA-256") for n in range(400)]
    assert told == again
    counts = Counter(each.iterations for each in told)
    assert set(counts) == {4096, 8192}
    assert 200 < counts[8192] < 400, "three of four have them"
    assert users.of_nobody(by_512, b"secret", "x", "SCRAM-SHA-512").iterations == 4096


@pytest.mark.parametrize("user", ["User:eve", "e;User:admin"])
def test_no_user_is_called_what_rules_and_super_users_would_take_for_another(user):
    with pytest.raises(Refused, match="would mean another one"):
        users.check_user(user, "SCRAM-SHA-256")


def test_what_is_kept_takes_part_in_the_exchange_that_rfc_7677_gives():
    """Its example in section 3: the client's proof is of this password, the signature of the
    broker's key. Kafka's clients compute the same."""
    kept = users.credential_of(wish(user="user", password="pencil"))
    salt, nonce = base64.b64encode(kept.salt).decode(), "rOprNGfwEbeRWgbNEkqO"
    both = f"{nonce}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    said = f"n=user,r={nonce},r={both},s={salt},i={kept.iterations},c=biws,r={both}".encode()
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signed = hmac.digest(kept.stored_key, said, "sha256")
    client_key = bytes(one ^ other for one, other in zip(proof, signed, strict=True))
    assert hashlib.sha256(client_key).digest() == kept.stored_key
    signature = hmac.digest(kept.server_key, said, "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("iterations", [4096, 16_384])
@pytest.mark.parametrize("salt_bytes", [12, 256])
def test_the_least_and_the_most_that_is_taken_is_taken(iterations, salt_bytes):
    asked = wish(iterations=iterations, salt=b"s" * salt_bytes)
    kept = users.credential_of(asked)
    assert (kept.salt, kept.iterations) == (asked.salt, iterations)


@pytest.mark.parametrize(
    ("asked", "code", "sentence"),
    [
        (wish(iterations=4095), BAD, "4095 iterations, expected 4096 to 16384"),
        (
            wish(salt=b"s"),
            BAD,
            "a salt of 1 byte and a salted password of 32, expected 12 to 256 and 32",
        ),
        (
            wish(salt=b"s" * 257, mechanism="SCRAM-SHA-512"),
            BAD,
            "a salt of 257 bytes and a salted password of 64, expected 12 to 256 and 64",
        ),
        (wish(user="*"), BAD, "* is what those are called who have no name"),
        (wish(user=""), BAD, "user '', expected 1 to 256 characters that print"),
        (
            wish(user="User:eve"),
            BAD,
            "user 'User:eve', expected a name without 'User:' before it, and without ';': rules "
            "and super.users would mean another one",
        ),
        (gone("user"), ErrorCode.RESOURCE_NOT_FOUND, "user 'user' has no SCRAM-SHA-256 password"),
        (
            gone("user", 61 * "x"),
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism '{60 * 'x'}', expected one of SCRAM-SHA-256, SCRAM-SHA-512",
        ),
    ],
)
def test_a_refusal_says_what_came_and_what_was_expected(asked, code, sentence):
    kind = "upsertions" if isinstance(asked, u.ScramUpsertion) else "deletions"
    assert refusals(ClusterImage(), **{kind: [asked]}) == [(asked.user, code, sentence)]


def refusals(image, **asked):
    """Of a request all of which is refused."""
    request = u.AlterUserScramCredentialsRequest(**asked)
    changes, answer = users.alter(image.users, request, lambda: b"s" * users.SECRET_BYTES)
    assert changes == []
    return [(each.user, each.error, each.message) for each in answer.users]


def test_a_user_that_is_changed_twice_is_told_so():
    twice = "SCRAM-SHA-256 of user 'user' is changed twice in the request"
    told = refusals(ClusterImage(), upsertions=[wish()], deletions=[gone("user")])
    assert told == [("user", ErrorCode.DUPLICATE_RESOURCE, twice)]


def test_each_user_of_a_request_has_its_password_after_it():
    image = ClusterImage()
    _, told = altered(image, upsertions=[wish("a"), wish("b"), wish("c")])
    assert told == {"a": None, "b": None, "c": None}
    assert [user for user, _ in image.users] == ["a", "b", "c"]


def test_a_request_changes_so_many_passwords_and_no_more():
    most = [gone(f"u{number}") for number in range(users.CHANGES_MAX)]
    assert len(refusals(ClusterImage(), deletions=most)) == users.CHANGES_MAX
    with pytest.raises(Refused, match="1001 passwords in one request, expected 1000 or less"):
        refusals(ClusterImage(), deletions=[*most, gone("one-more")])


def test_a_cluster_keeps_so_many_passwords_and_no_more(monkeypatch):
    """Those that are there can be changed at any number of them."""
    monkeypatch.setattr(users, "USERS_MAX", 2)
    image = ClusterImage()
    altered(image, upsertions=[wish("a")])
    assert altered(image, upsertions=[wish("b")])[1] == {"b": None}
    full = "there are 2 passwords, and may be no more"
    assert refusals(image, upsertions=[wish("c")]) == [("c", BAD, full)]
    assert altered(image, upsertions=[wish("a", iterations=8192)])[1] == {"a": None}
    assert image.users["a", "SCRAM-SHA-256"].iterations == 8192


def test_nodes_of_all_versions_answer_the_same_about_nobody():
    """Whoever asks two of them, one of an older version, would learn from a difference that there
    is no such user."""
    counts = list(range(4096, 16_384))
    told = users.of_nobody(counts, b"secret", "eve", "SCRAM-SHA-256")
    assert told.salt.hex() == "d037d788b251e891ea3c25d35561a5dd"
    assert told.stored_key.hex() == (
        "e0734153d5107346ef903084cba9dd640781dba1a4093326fe2e62fc3d5d71ff"
    )
    assert told.server_key.hex() == (
        "d79f5c7bc3e28664d6a3ce1ca3820f28cc59f19684e2db48baef6f6616453fac"
    )
    assert told.iterations == 5947


def test_users_are_described_without_what_is_of_use_to_who_steals_it():
    image = ClusterImage()
    altered(image, upsertions=[wish("b", iterations=8192), wish("a")])
    altered(image, upsertions=[wish("b", mechanism="SCRAM-SHA-512")])
    a, b = (
        u.DescribedUser(
            user=user,
            credentials=[u.ScramCredentialInfo(mechanism=m, iterations=i) for m, i in credentials],
        )
        for user, credentials in (
            ("a", [("SCRAM-SHA-256", 4096)]),
            ("b", [("SCRAM-SHA-256", 8192), ("SCRAM-SHA-512", 4096)]),
        )
    )
    why = "there is no user 'eve' with a password"
    nobody = u.DescribedUser(user="eve", error=ErrorCode.RESOURCE_NOT_FOUND, message=why)
    assert users.described(image.users, None).users == [a, b], "all, by name"
    assert users.described(image.users, ["eve", "b", "eve"]).users == [nobody, b]
    assert users.described(image.users, []).users == []
