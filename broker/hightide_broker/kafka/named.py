"""Topics that are asked for by their names or ids (KIP-516): each is answered as it was asked for.

Of who may not know a topic its id is answered as one that no topic has, in the same place: neither
the name is told, nor that there is one. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from hightide.protocol.errors import ErrorCode
from hightide_broker.kafka.reading import Fields


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...

    @property
    def error(self) -> str | None: ...


R = TypeVar("R", bound=_OfTopic)


def as_asked(
    wanted: Iterable[Fields],
    name_of: Mapping[str, str],
    results: Iterable[R],
    one: Callable[[R], Fields],
    unknown: Callable[[str], Fields],
) -> list[Fields]:
    """The answers about topics that are `wanted`, in that order and once each: what is found of
    them, by their names; `name_of` has the names of ids, `unknown` answers about an id."""
    found = {result.topic: result for result in results}
    told: dict[tuple[str | None, str], Fields] = {}
    for topic in wanted:
        name, topic_id = topic["name"], topic.get("topic_id", "")
        result = found.get(name_of.get(topic_id, "") if name is None else name)
        if name is None and (result is None or _is_as_unknown(result)):
            told[None, topic_id] = unknown(topic_id)
        elif name is None and result is not None:
            told[None, topic_id] = {**one(result), "topic_id": topic_id}
        elif result is not None:
            told[name, ""] = one(result)
    return [*told.values()]


def _is_as_unknown(result: _OfTopic) -> bool:
    """Whether nothing is told of a topic by its id: its asker may not know it, or another one has
    its name by now."""
    return result.error in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID)
