"""The source's options: Spark's Kafka names, checked when a query is loaded.

An unknown option is an error that names the nearest known one. Spark hands option names over in
lower case. Raises `UsageError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from hightide.cluster import parse_bootstrap
from hightide.errors import UsageError
from hightide.messages import EARLIEST, LATEST

_KNOWN = {
    name.lower(): name
    for name in (
        "bootstrap.servers",
        "kafka.bootstrap.servers",
        "subscribe",
        "startingOffsets",
        "endingOffsets",
        "maxOffsetsPerTrigger",
        "failOnDataLoss",
        "includeHeaders",
        "fetchTimeoutMs",
        "path",
    )
}

LOOK_UP_TIMEOUT_S = 60.0

Offsets = dict[str, dict[int, int]]
"""topic → partition → offset; -2 is earliest, -1 is latest."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asked for; picklable, because readers travel to executors."""

    bootstrap: str
    topics: tuple[str, ...]
    starting: int | Offsets
    """EARLIEST, LATEST, or offsets for every partition."""
    ending: int | Offsets
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    include_headers: bool
    fetch_timeout_s: float
    """How long a range may take to be read."""

    @property
    def look_up_timeout_s(self) -> float:
        """How long metadata or an offset may take to be found."""
        return min(self.fetch_timeout_s, LOOK_UP_TIMEOUT_S)


def read_options(options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Check and read options; `streaming` None: only what holds for both."""
    given = {str(name).lower(): value for name, value in dict(options).items()}
    for name in given:
        if name not in _KNOWN:
            close = get_close_matches(name, _KNOWN, n=1)
            hint = f", did you mean {_KNOWN[close[0]]}?" if close else ""
            raise UsageError(f"unknown option {name!r} of format 'hightide'{hint}")
    bootstrap = given.get("bootstrap.servers") or given.get("kafka.bootstrap.servers")
    if not bootstrap:
        raise UsageError("option bootstrap.servers is missing, expected host:port[,host:port…]")
    parse_bootstrap(bootstrap)
    topics = tuple(t.strip() for t in given.get("subscribe", "").split(",") if t.strip())
    if not topics:
        raise UsageError("option subscribe is missing, expected topic[,topic…]")
    default = "latest" if streaming else "earliest"
    starting = _offsets("startingOffsets", given.get("startingoffsets", default), topics)
    ending = _offsets("endingOffsets", given.get("endingoffsets", "latest"), topics)
    if streaming and "endingoffsets" in given:
        raise UsageError("option endingOffsets is for batch queries, a stream has no end")
    if streaming is False:
        _check_batch(starting, ending)
    return SourceOptions(
        bootstrap,
        topics,
        starting,
        ending,
        _count("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger")),
        _flag("failOnDataLoss", given.get("failondataloss", "true")),
        _flag("includeHeaders", given.get("includeheaders", "false")),
        (_count("fetchTimeoutMs", given.get("fetchtimeoutms")) or 120_000) / 1000,
    )


def _check_batch(starting: int | Offsets, ending: int | Offsets) -> None:
    if starting == LATEST or _any(starting, LATEST):
        raise UsageError("startingOffsets of a batch query cannot be latest: nothing would be read")
    if ending == EARLIEST or _any(ending, EARLIEST):
        raise UsageError("endingOffsets cannot be earliest: nothing would be read")


def _any(offsets: int | Offsets, value: int) -> bool:
    if isinstance(offsets, int):
        return False
    return any(value in partitions.values() for partitions in offsets.values())


def _offsets(name: str, text: str, topics: tuple[str, ...]) -> int | Offsets:
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    try:
        parsed = json.loads(text)
        offsets = {
            str(topic): {int(n): _whole(offset) for n, offset in partitions.items()}
            for topic, partitions in parsed.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(
            f'{name} is {text!r}, expected earliest, latest or JSON like {{"topic":{{"0":23}}}}'
        ) from error
    if set(offsets) != set(topics):
        raise UsageError(f"{name} names {sorted(offsets)}, subscribe names {sorted(topics)}")
    for topic, partitions in offsets.items():
        for number, offset in partitions.items():
            if offset < EARLIEST:
                raise UsageError(f"{name} of {topic}-{number} is {offset}, expected -2 or more")
    return offsets


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise UsageError(f"{name} is {text!r}, expected a whole number above 0")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{name} is {text!r}, expected true or false")
    return text.lower() == "true"
