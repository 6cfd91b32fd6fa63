"""A request of Kafka's protocol, and two ways to answer it: as one request of ours, or several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from hightide.net.outbox import FilePart
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.codecs import Steps
from hightide.protocol.errors import Refused
from hightide.protocol.messages import Message
from hightide.protocol.records import Buffer
from hightide_broker.kafka.codec import writing_answer
from hightide_broker.kafka.fields import KafkaApi
from hightide_broker.kafka.numbers import CLOSING, number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.base.call import Later, Reply
from hightide_broker.runtime.base.slices import in_slices
from hightide_broker.runtime.server.tongue import Ask, Errand, Parts, Question

Answer = Callable[[Any, Sequence[Attached]], Fields]
"""Kafka's answer, of ours and of what is attached to it."""
Refuse = Callable[[int, str], Fields | None]
"""Kafka's answer if all of it was refused, by number and sentence; None: it has no words for it."""
Rest = Callable[[Reply], Later | None]
"""As `Ticket.rest`."""
MESSAGE_CHARACTERS_MAX = 1000
"""Of a sentence to a client."""


class Asked(NamedTuple):
    """A request, and who it is answered to."""

    api: KafkaApi
    version: int
    correlation_id: int
    client_id: str
    fields: Fields


def wordless(_number: int, _message: str) -> None:
    """Where an answer has no place for an error of the whole: the connection is closed."""


def _nothing_left(_reply: Reply) -> None:
    """Most answers are ready as they are."""


class KafkaTicket:
    """Implements `tongue.Ticket`."""

    __slots__ = ("_asked", "_refuse", "answer", "rest")

    def __init__(
        self, asked: Asked, answer: Answer, refuse: Refuse, rest: Rest = _nothing_left
    ) -> None:
        self._asked = asked
        self.answer = answer
        self._refuse = refuse
        self.rest = rest

    def framing(self, body: Message, parts: Sequence[Buffer | FilePart]) -> Steps[Parts]:
        attached = [Attached(part, len(part)) for part in parts]
        return _framing(self._asked, self.answer(body, attached))

    def refusing(self, refusal: Refused) -> Steps[Parts] | None:
        said = self.refusal(refusal)
        return None if said is None else _framing(self._asked, said)

    def refusal(self, refusal: Refused) -> Fields | None:
        """Kafka's answer if all of it was refused; None: it has no words for that."""
        if refusal.code in CLOSING:
            return None
        return self._refuse(number_of(refusal.code), told(refusal.message))


def _framing(asked: Asked, answer: Fields) -> Steps[Parts]:
    """The frame of an answer."""
    api, version, correlation_id, _, _ = asked
    parts = yield from writing_answer(api, version, correlation_id, answer)
    return parts  # type: ignore[return-value]


def told(message: str) -> str:
    """A sentence, if it is not too long."""
    return message[:MESSAGE_CHARACTERS_MAX]


def question(
    asked: Asked,
    request: Message,
    answer: Answer,
    refuse: Refuse = wordless,
    *,
    attachments: Sequence[memoryview] = (),
    rest: Rest = _nothing_left,
    looks: bool = False,
) -> Question:
    """What is one request of ours."""
    ticket = KafkaTicket(asked, answer, refuse, rest)
    api = API_BY_REQUEST[type(request)]
    return Question(ticket, api, request, attachments, asked.client_id, looks)


def errand(
    asked: Asked, run: Callable[[Ask], Awaitable[Fields]], refuse: Refuse = wordless
) -> Errand:
    """What takes several requests of ours, or none."""

    async def parts(ask: Ask) -> Parts:
        return await in_slices(_framing(asked, await run(ask)))

    def never(_body: Message, _parts: Sequence[Attached]) -> Fields:
        raise AssertionError("an errand gives its answer itself")

    return Errand(KafkaTicket(asked, never, refuse), parts, asked.client_id)


def at_once(asked: Asked, answer: Fields) -> Errand:
    """What needs nothing of ours."""

    async def run(_ask: Ask) -> Fields:
        return answer

    return errand(asked, run)


async def asked_each(
    ask: Ask,
    requests: Sequence[Message],
    refused: Callable[[int, int, str], Fields],
    answer: Callable[[int, Any], Fields],
) -> list[Fields]:
    """The answer to each of several requests, given its place; refusals are `refused` with number
    and sentence."""
    found = []
    for place, request in enumerate(requests):
        try:
            found.append(answer(place, (await ask(request)).body))
        except Refused as refusal:
            if refusal.code in CLOSING:
                raise
            found.append(refused(place, number_of(refusal.code), told(refusal.message)))
    return found
