"""Lists of partitions, which Kafka groups by their topics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from hightide_broker.kafka.reading import Fields


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


P = TypeVar("P", bound=_OfTopic)


def by_topic(
    parts: Iterable[P],
    one: Callable[[P], Fields],
    *,
    name: str = "name",
    parts_name: str = "partitions",
) -> list[Fields]:
    """One entry a topic, in the order in which topics come first."""
    topics: dict[str, list[Fields]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(one(part))
    return [{name: topic, parts_name: found} for topic, found in topics.items()]
