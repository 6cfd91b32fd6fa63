"""How users prove who they are: SASL with SCRAM, by the same login as hightide's users (KIP-43,
KIP-152, KIP-368).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide.protocol import login_messages as u
from hightide_broker.kafka.asked import Asked, question
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard


def sasl_handshake(asked: Asked, _facts: Facts) -> Heard:
    """By which mechanism."""

    def answer(body: u.SaslHandshakeResponse, _parts: Sequence[Attached]) -> Fields:
        return {"error_code": 0, "mechanisms": body.mechanisms}

    def refuse(number: int, _message: str) -> Fields:
        return {"error_code": number, "mechanisms": [*u.MECHANISMS]}

    request = u.SaslHandshakeRequest(mechanism=asked.fields["mechanism"])
    return question(asked, request, answer, refuse)


def sasl_authenticate(asked: Asked, _facts: Facts) -> Heard:
    """The mechanism's own words."""

    def answer(body: u.SaslAuthenticateResponse, _parts: Sequence[Attached]) -> Fields:
        return {
            "error_code": 0,
            "error_message": None,
            "auth_bytes": body.data,
            "session_lifetime_ms": body.session_lifetime_ms,
        }

    def refuse(number: int, message: str) -> Fields:
        return {"error_code": number, "error_message": message, "auth_bytes": b""}

    request = u.SaslAuthenticateRequest(data=asked.fields["auth_bytes"])
    return question(asked, request, answer, refuse)


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    17: sasl_handshake,
    36: sasl_authenticate,
}
