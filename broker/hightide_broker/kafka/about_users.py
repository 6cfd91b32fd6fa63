"""Users with passwords: described, and given another one (KIP-554)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide.protocol import login_messages as u
from hightide_broker.kafka.asked import Asked, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_NUMBERS = {name: number for number, name in MECHANISMS.items()}


def describe_users(asked: Asked, _facts: Facts) -> Heard:
    """Who has a password, and how often it is hashed. None named are all, as none in particular."""
    users = asked.fields["users"]
    names = [user["name"] for user in users] if users else None

    def answer(body: u.DescribeUserScramCredentialsResponse, _parts: Sequence[Attached]) -> Fields:
        return {"error_code": 0, "results": [*map(_described, body.users)]}

    def refuse(number: int, message: str) -> Fields:
        return {"error_code": number, "error_message": message, "results": []}

    return question(asked, u.DescribeUserScramCredentialsRequest(users=names), answer, refuse)


def _described(user: u.DescribedUser) -> Fields:
    infos = [
        {"mechanism": _NUMBERS[each.mechanism], "iterations": each.iterations}
        for each in user.credentials
    ]
    return {**_result(user.user, number_of(user.error), user.message), "credential_infos": infos}


def alter_users(asked: Asked, _facts: Facts) -> Heard:
    """Passwords that are set, salted and hashed by who asks, and that are taken away."""
    deletions = [
        u.ScramDeletion(user=each["name"], mechanism=_mechanism(each))
        for each in asked.fields["deletions"]
    ]
    upsertions = [
        u.ScramUpsertion(
            user=each["name"],
            mechanism=_mechanism(each),
            iterations=each["iterations"],
            salt=each["salt"],
            salted_password=each["salted_password"],
        )
        for each in asked.fields["upsertions"]
    ]

    def answer(body: u.AlterUserScramCredentialsResponse, _parts: Sequence[Attached]) -> Fields:
        results = [_result(each.user, number_of(each.error), each.message) for each in body.users]
        return {"results": results}

    def refuse(number: int, message: str) -> Fields:
        users = dict.fromkeys([each.user for each in deletions] + [e.user for e in upsertions])
        return {"results": [_result(user, number, message) for user in users]}

    request = u.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    return question(asked, request, answer, refuse)


def _mechanism(fields: Fields) -> str:
    """By its name; one that there is not by its number, which is refused by that."""
    number = fields["mechanism"]
    return MECHANISMS.get(number, str(number))


def _result(user: str, number: int, message: str) -> Fields:
    return {"user": user, "error_code": number, "error_message": told(message) or None}


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {50: describe_users, 51: alter_users}
