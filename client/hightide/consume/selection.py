"""What a consumer subscribes to: topics by name, or all that a pattern matches. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hightide.protocol.errors import UsageError
from hightide.protocol.topic_partition import INTERNAL


class Selection(NamedTuple):
    """Topics by name, or a pattern for whole names."""

    names: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    def matching(self, topics: Iterable[str]) -> list[str]:
        """The topics among `topics` that are meant; or the names, whatever there is."""
        if self.pattern is None:
            return list(self.names)
        whole = self.pattern.fullmatch
        # As in Kafka by default, no pattern means internal topics.
        return sorted(t for t in topics if whole(t) and not t.startswith(INTERNAL))


def checked_topics(topics: Iterable[str] | str) -> tuple[str, ...]:
    """Names of topics, one or several; raises `UsageError` for what is none."""
    try:
        names = (topics,) if isinstance(topics, str) else tuple(topics)
    except TypeError as error:
        raise UsageError(f"topics are {topics!r}, expected their names") from error
    for name in names:
        if not isinstance(name, str) or not name:
            raise UsageError(f"topic is {name!r}, expected its name")
    return names


def selection(topics: Iterable[str] | str, pattern: str | re.Pattern[str] | None) -> Selection:
    """What a consumer subscribes to: topics, or a pattern of names. Raises `UsageError` for both,
    or none."""
    names = checked_topics(topics)
    if bool(names) == (pattern is not None):
        raise UsageError("give topics, or a pattern for their names")
    try:
        return Selection(names, None if pattern is None else re.compile(pattern))
    except (re.error, TypeError) as error:
        raise UsageError(f"pattern is {pattern!r}: {error}") from error
