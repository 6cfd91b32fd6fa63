"""Requests that name much: asked in portions, each in its turn with the rest of the event loop, and
answered as one; or refused, for each of what they name.

What may be asked in portions are questions, and changes of which each is made or refused by itself.
The rest must be begun in one stretch, and may be about so much as one has time for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from hightide.protocol.errors import Refused
from hightide_broker.core.cluster.limits import check_count
from hightide_broker.kafka.asked import Asked, KafkaTicket, errand
from hightide_broker.kafka.reading import ELEMENTS_MAX, Fields
from hightide_broker.runtime.server.tongue import Ask, Heard, Question

Translate = Callable[[Asked], Heard]
REFUSED_AT_ONCE = 500
"""So many are refused without a pause."""
PARTITIONS_MAX = 10_000
"""What one broker leads may all be written to, read and committed by one client at once."""
WHOLE = ELEMENTS_MAX
"""A portion that everything is in."""


class Plan(NamedTuple):
    """What requests of one API name, and how much of it at a time."""

    listed: str
    """The list in the request."""
    told: str
    """The one in the answer, with an element for each of those."""
    inner: str = ""
    """The list in each element, whose elements count; empty: the elements themselves do."""
    inner_told: str = ""
    """The same in the answer."""
    at_once: int = WHOLE
    """So many are asked without a pause."""
    most: int = ELEMENTS_MAX
    """So many may be named at all."""
    before: str = ""
    """What the list was called in earlier versions; empty: the same."""


PLANS: dict[int, Plan] = {
    0: Plan(
        "topic_data",
        "responses",
        "partition_data",
        "partition_responses",
        most=PARTITIONS_MAX,
    ),
    1: Plan("topics", "responses", "partitions", "partitions", most=PARTITIONS_MAX),
    2: Plan("topics", "topics", "partitions", "partitions", at_once=1000),
    3: Plan("topics", "topics", at_once=500),
    8: Plan("topics", "topics", "partitions", "partitions", most=PARTITIONS_MAX),
    15: Plan("groups", "groups", at_once=500),
    19: Plan("topics", "topics", most=1000),
    20: Plan("topics", "responses", most=1000, before="topic_names"),
    21: Plan("topics", "topics", "partitions", "partitions", most=4000),
    23: Plan("topics", "topics", "partitions", "partitions", at_once=1000),
    30: Plan("creations", "results", at_once=1000, most=10_000),
    31: Plan("filters", "filter_results", most=100),
    32: Plan("resources", "results", at_once=100),
    33: Plan("resources", "responses", most=1000),
    37: Plan("topics", "results", most=1000),
    42: Plan("groups_names", "results", at_once=500),
    43: Plan(
        "topic_partitions",
        "replica_election_results",
        "partitions",
        "partition_result",
        most=4000,
    ),
    44: Plan("resources", "responses", most=1000),
    47: Plan("topics", "topics", "partitions", "partitions", most=4000),
    49: Plan("entries", "entries", at_once=1000, most=10_000),
    50: Plan("users", "results", at_once=1000),
    55: Plan("topics", "topics", "partitions", "partitions", most=1000),
    61: Plan("topics", "topics", "partition_indexes", "partitions", at_once=250),
}
"""By the number of the API; in those that are left out, what a message may name costs little."""


def in_portions(asked: Asked, translate: Translate) -> Heard:
    """The request, as far as it names no more than it may; refused if it does."""
    plan = PLANS.get(asked.api.key)
    if plan is None:
        return translate(asked)
    listed = plan.listed if plan.listed in asked.fields else plan.before
    named: Sequence[Fields] = asked.fields.get(listed) or ()
    count = sum(max(1, len(each[plan.inner])) for each in named) if plan.inner else len(named)
    if count <= min(plan.at_once, plan.most):
        return translate(asked)
    at_once = min(plan.at_once, plan.most if count <= plan.most else REFUSED_AT_ONCE)
    portions = [
        asked._replace(fields={**asked.fields, listed: each})
        for each in _cut(named, plan.inner, at_once)
    ]
    try:
        check_count(count, plan.most, plan.inner or listed)
    except Refused as why:
        return _each_refused(asked, portions, plan, translate, why)
    return _each_asked(asked, portions, plan, translate)


def _each_asked(asked: Asked, portions: Sequence[Asked], plan: Plan, translate: Translate) -> Heard:
    async def run(ask: Ask) -> Fields:
        answers = []
        for portion in portions:
            heard = translate(portion)
            assert isinstance(heard, Question), "what is asked in portions is one request each"
            answers.append(await _answered(heard, ask))
        return await _joined(answers, plan)

    return errand(asked, run)


async def _answered(heard: Question, ask: Ask) -> Fields:
    """What a portion comes to. Raises `Refused` where there are no words for that."""
    assert isinstance(heard.ticket, KafkaTicket), "it was translated here"
    try:
        return heard.ticket.answer((await ask(heard.request)).body, ())
    except Refused as refusal:
        if (said := heard.ticket.refusal(refusal)) is None:
            raise
        return said


def _each_refused(
    asked: Asked, portions: Sequence[Asked], plan: Plan, translate: Translate, why: Refused
) -> Heard:
    async def run(_ask: Ask) -> Fields:
        answers = []
        for portion in portions:
            await trio.lowlevel.checkpoint()
            ticket = translate(portion).ticket
            assert isinstance(ticket, KafkaTicket), "it was translated here"
            if (said := ticket.refusal(why)) is None:
                raise why
            answers.append(said)
        return await _joined(answers, plan)

    return errand(asked, run)


def _cut(named: Sequence[Fields], inner: str, size: int) -> Iterator[list[Fields]]:
    """Portions of a list, none of more than so many; an element with many is in several."""
    if not inner:
        for start in range(0, len(named), size):
            yield [*named[start : start + size]]
        return
    portion: list[Fields] = []
    room = size
    for each in named:
        parts = each[inner]
        for start in [*range(0, len(parts), size)] or [0]:
            piece = parts[start : start + size]
            if (count := max(1, len(piece))) > room:
                yield portion
                portion, room = [], size
            portion.append({**each, inner: piece})
            room -= count
    yield portion


async def _joined(answers: Sequence[Fields], plan: Plan) -> Fields:
    """One answer, of those to all portions; a topic that was in several is told once."""
    found: dict[object, Fields] = {}
    for answer in answers:
        await trio.lowlevel.checkpoint()
        for place, each in enumerate(answer[plan.told], len(found)):
            inner = plan.inner_told
            key = tuple(value for name, value in each.items() if name != inner) if inner else place
            known = found.setdefault(key, each)
            if known is not each:
                known[inner] += each[inner]
    return {**answers[0], plan.told: [*found.values()]}
