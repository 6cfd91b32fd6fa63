"""The source's options: Spark's Kafka names, checked when a query is loaded.

An unknown option is an error that names the nearest known one. Spark hands option names over in
lower case. Raises `UsageError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hightide.net.cluster import parse_bootstrap
from hightide.net.login import DIRECT, Way, way_of
from hightide.protocol.errors import UsageError, did_you_mean
from hightide.protocol.messages import EARLIEST, LATEST
from hightide.protocol.records import TIMESTAMP_MAX

if TYPE_CHECKING:
    from hightide.spark.schema import Named

_SECURITY = (
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password.location",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password.location",
)
"""No password: what is set is shown in Spark's pages."""
SECURITY_NAMES = (*_SECURITY, *(f"kafka.{name}" for name in _SECURITY))
SOURCE_NAMES = (
    "bootstrap.servers",
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includeLeaderEpoch",
    "pushDownFilters",
    "groupId",
    "kafka.group.id",
    "fetchTimeoutMs",
    "path",
    *SECURITY_NAMES,
)
SINK_NAMES = (
    "bootstrap.servers",
    "kafka.bootstrap.servers",
    *SECURITY_NAMES,
    "topic",
    "sinkId",
    "sortRows",
    "onLayoutChange",
    "deliveryTimeoutMs",
    "checkpointLocation",
    "path",
    "queryName",
)
LOOK_UP_TIMEOUT_S = 60.0
_UNITS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

Offsets = dict[str, dict[int, int]]
"""topic → partition → offset (-2 is earliest, -1 is latest) or time in ms."""


@dataclass(frozen=True, slots=True)
class ByTime:
    """The first record of a time (ms) or later."""

    at: int | Offsets
    """One time for all partitions, or one for each."""
    or_latest: bool = True
    """What to do where nothing is that late: go to the end, or fail."""


Where = int | Offsets | ByTime
"""EARLIEST, LATEST, offsets for every partition, or times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query asked for; picklable, because readers travel to executors."""

    bootstrap: str
    way: Way = DIRECT
    topics: tuple[str, ...]
    """By name; empty with a pattern."""
    pattern: str = ""
    """Of topic names, matched whole."""
    assigned: dict[str, tuple[int, ...]] | None = None
    """Only these partitions of the topics."""
    starting: Where = EARLIEST
    ending: Where = LATEST
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_leader_epoch: bool = False
    named: Named | None = None
    """The columns that the query named by `.schema(…)`."""
    push_down_filters: bool = False
    """Whether a batch query's WHERE decides what is fetched."""
    group: str = ""
    """Finished batches are committed to this group, for those who look at its lag."""
    fetch_timeout_s: float = 120.0
    """How long a range may take to be read."""

    @property
    def look_up_timeout_s(self) -> float:
        """How long metadata or an offset may take to be found."""
        return min(self.fetch_timeout_s, LOOK_UP_TIMEOUT_S)

    def reads(self, topic: str, partition: int) -> bool:
        """Whether a partition of the topics is wanted."""
        return self.assigned is None or partition in self.assigned.get(topic, ())


def read_options(options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Check and read options; `streaming` None: only what holds for both."""
    given = known_options(options, SOURCE_NAMES)
    bootstrap = bootstrap_of(given)
    topics, pattern, assigned = _subscription(given)
    if streaming:
        ends = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        for name in ends:
            if name.lower() in given:
                raise UsageError(f"option {name} is for batch queries, a stream has no end")
    starting = _where("starting", given, "latest" if streaming else "earliest", topics)
    ending = _where("ending", given, "latest", topics)
    if streaming is False:
        _check_batch(starting, ending)
    low = count_of("minOffsetsPerTrigger", given)
    high = count_of("maxOffsetsPerTrigger", given)
    if low is not None and high is not None and low > high:
        raise UsageError(f"minOffsetsPerTrigger is {low}, maxOffsetsPerTrigger only {high}")
    return SourceOptions(
        bootstrap=bootstrap,
        way=way_to(given),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=high,
        min_offsets_per_trigger=low,
        max_trigger_delay_s=_duration_s("maxTriggerDelay", given.get("maxtriggerdelay", "15m")),
        min_partitions=count_of("minPartitions", given),
        max_records_per_partition=count_of("maxRecordsPerPartition", given),
        fail_on_data_loss=flag_of("failOnDataLoss", given, "true"),
        include_headers=flag_of("includeHeaders", given, "false"),
        include_leader_epoch=flag_of("includeLeaderEpoch", given, "false"),
        push_down_filters=flag_of("pushDownFilters", given, "false"),
        group=given.get("groupid") or given.get("kafka.group.id") or "",
        fetch_timeout_s=(count_of("fetchTimeoutMs", given) or 120_000) / 1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where rows are to go."""

    bootstrap: str
    way: Way = DIRECT
    topic: str = ""
    """For all rows; empty: the column `topic` says it."""
    sink_id: str = ""
    """Instead of the query's id: for a query that writes to several sinks, or that is to go on
    under another checkpoint."""
    sort_rows: bool = False
    """Whether a task sorts its rows first, in memory."""
    may_duplicate: bool = False
    """What to do if rows of a batch are stored that are not among those of who writes it again:
    fail, or leave them there."""
    timeout_s: float = 120.0
    """How long a piece of a task may take to be stored."""


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check and read the options of a sink."""
    given = known_options(options, SINK_NAMES)
    return SinkOptions(
        bootstrap=bootstrap_of(given),
        way=way_to(given),
        topic=given.get("topic", ""),
        sink_id=given.get("sinkid", ""),
        sort_rows=flag_of("sortRows", given, "false"),
        may_duplicate=_on_layout_change(given),
        timeout_s=(count_of("deliveryTimeoutMs", given) or 120_000) / 1000,
    )


def _on_layout_change(given: Mapping[str, str]) -> bool:
    text = given.get("onlayoutchange", "fail").lower()
    if text not in ("fail", "duplicate"):
        raise UsageError(f"onLayoutChange is {text!r}, expected fail or duplicate")
    return text == "duplicate"


# -- what source and sink share --------------------------------------------------------------------


def known_options(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Options by their names in lower case; raises for one that nobody knows."""
    given = {str(name).lower(): value for name, value in dict(options).items()}
    known = {name.lower() for name in names}
    for name in given:
        if name not in known:
            hint = did_you_mean(name, names)
            raise UsageError(f"unknown option {name!r} of format 'hightide'{hint}")
    return given


def bootstrap_of(given: Mapping[str, str]) -> str:
    """host:port of brokers."""
    bootstrap = given.get("bootstrap.servers") or given.get("kafka.bootstrap.servers")
    if not bootstrap:
        raise UsageError("option bootstrap.servers is missing, expected host:port[,host:port…]")
    parse_bootstrap(bootstrap)
    return bootstrap


def way_to(given: Mapping[str, str]) -> Way:
    """How brokers are reached, and as whom; paths are of each machine that runs a part of the
    query."""
    return way_of(lambda name: given.get(name) or given.get(f"kafka.{name}") or "")


def count_of(name: str, given: Mapping[str, str]) -> int | None:
    """A whole number above 0; None if it is not there."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise UsageError(f"{name} is {text!r}, expected a whole number above 0")
    return int(text)


def flag_of(name: str, given: Mapping[str, str], default: str) -> bool:
    """true or false."""
    text = given.get(name.lower(), default)
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{name} is {text!r}, expected true or false")
    return text.lower() == "true"


# -- topics ----------------------------------------------------------------------------------------


def _subscription(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], str, dict[str, tuple[int, ...]] | None]:
    """Topics, pattern, partitions: one of the three ways to say it."""
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(ways) != 1:
        raise UsageError(
            f"options {', '.join(ways) or 'name no topic'}: give one of "
            "subscribe (topic[,topic…]), subscribePattern and assign"
        )
    text = given[ways[0].lower()]
    if ways[0] == "subscribePattern":
        if not text:
            raise UsageError("option subscribePattern is empty, expected a regular expression")
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"subscribePattern is {text!r}: {error}") from error
        return (), text, None
    if ways[0] == "assign":
        assigned = _assigned(text)
        return tuple(assigned), "", assigned
    topics = tuple(name.strip() for name in text.split(",") if name.strip())
    if not topics:
        raise UsageError("option subscribe is empty, expected topic[,topic…]")
    return topics, "", None


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    expected = f'assign is {text!r}, expected JSON like {{"topic":[0,1]}}'
    try:
        parsed = {
            str(topic): tuple(_whole(number) for number in numbers)
            for topic, numbers in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(expected) from error
    if not parsed or not all(numbers and min(numbers) >= 0 for numbers in parsed.values()):
        raise UsageError(expected)
    return parsed


# -- where to begin and end ------------------------------------------------------------------------


def _where(side: str, given: Mapping[str, str], default: str, topics: tuple[str, ...]) -> Where:
    """`startingTimestamp` wins over `startingOffsetsByTimestamp`, and that over `startingOffsets`;
    so for `ending`."""
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        name = "startingOffsetsByTimestampStrategy"
        raise UsageError(f"{name} is {strategy!r}, expected error or latest")
    or_latest = side == "ending" or strategy == "latest"
    if (text := given.get(f"{side}timestamp")) is not None:
        if not (text.isascii() and text.isdecimal() and int(text) <= TIMESTAMP_MAX):
            raise UsageError(f"{side}Timestamp is {text!r}, expected ms since 1970")
        return ByTime(int(text), or_latest)
    if (text := given.get(f"{side}offsetsbytimestamp")) is not None:
        times = _by_partition(f"{side}OffsetsByTimestamp", text, topics, least=0)
        return ByTime(times, or_latest)
    text = given.get(f"{side}offsets", default)
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    return _by_partition(f"{side}Offsets", text, topics, least=EARLIEST)


def _by_partition(name: str, text: str, topics: tuple[str, ...], *, least: int) -> Offsets:
    try:
        parsed = json.loads(text)
        offsets = {
            str(topic): {int(number): _whole(offset) for number, offset in partitions.items()}
            for topic, partitions in parsed.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        words = "earliest, latest or " if name.endswith("Offsets") else ""
        raise UsageError(
            f'{name} is {text!r}, expected {words}JSON like {{"topic":{{"0":23}}}}'
        ) from error
    if topics and set(offsets) != set(topics):
        raise UsageError(f"{name} names {sorted(offsets)}, the query reads {sorted(topics)}")
    for topic, partitions in offsets.items():
        for number, offset in partitions.items():
            if offset < least:
                raise UsageError(
                    f"{name} of {topic}-{number} is {offset}, expected {least} or more"
                )
    return offsets


def _check_batch(starting: Where, ending: Where) -> None:
    if starting == LATEST or _any(starting, LATEST):
        raise UsageError("startingOffsets of a batch query cannot be latest: nothing would be read")
    if ending == EARLIEST or _any(ending, EARLIEST):
        raise UsageError("endingOffsets cannot be earliest: nothing would be read")


def _any(offsets: Where, value: int) -> bool:
    if not isinstance(offsets, dict):
        return False
    return any(value in partitions.values() for partitions in offsets.values())


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _duration_s(name: str, text: str) -> float:
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise UsageError(f"{name} is {text!r}, expected a time like 30s, 15m or 1h")
    return int(found[1]) * _UNITS[found[2]]
