"""What is kept of a password checks it and is none; what cannot be kept changes nothing.

Method: the pure decisions on an image, which replays what they say.
"""

from collections import Counter

import pytest
from logins import wish

from hightide.protocol import login_messages as u
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster import users
from hightide_broker.core.cluster.image import ClusterImage


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
