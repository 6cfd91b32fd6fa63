"""What a pipeline reads, makes and writes: the settings, their meaning, and their checks. Pure.

A TOML file has the names below; `[aggregate]` and `[spark]` are tables:

    bootstrap = "127.0.0.1:19092"
    topics = ["flights"]
    format = "json"
    schema = "carrier string, dep_delay int"
    filter = "dep_delay IS NOT NULL"
    checkpoint = "out/checkpoint"
    parquet = "out/flights"

    [aggregate]
    window = "1 hour"
    watermark = "1 day"
    by = ["carrier"]
    compute = ["count(*) AS flights", "sum(dep_delay) AS delay"]
    parquet = "out/hourly"
    topic = "flights-hourly"
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from hightide.protocol.errors import UsageError, did_you_mean

_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `\$\.(\w+)`)?$")
"""How msgspec says it, who knows nothing of flags."""
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Aggregate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row for each window and group, written once: when the watermark has passed its end."""

    window: Text
    """How long a window is, as Spark says it: `1 hour`."""
    compute: list[str]
    """SQL aggregates with names: `count(*) AS flights`."""
    slide: str = ""
    """How far apart windows begin; empty: one begins where the last one ends."""
    watermark: Text = "10 minutes"
    """How late a row may be, by event time, and still count."""
    by: list[str] = []
    """SQL expressions: one row for each of their values."""
    parquet: str = ""
    """A directory for the rows."""
    topic: str = ""
    """A topic for them: JSON, keyed by the values of `by`."""


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole pipeline."""

    checkpoint: str
    """A directory that says how far the pipeline is; of this pipeline alone."""
    bootstrap: str = "127.0.0.1:19092"
    client: dict[str, str] = {}
    """How brokers are reached, by the names of a client.toml: `"security.protocol" = "SSL"`, …"""
    name: str = "pipeline"
    """Its queries are the groups `NAME-rows`, `NAME-windows` and `NAME-results`."""
    topics: list[str] = []
    pattern: str = ""
    """Every topic whose name matches, in place of `topics`."""
    format: Literal["json", "raw"] = "raw"
    """What values are; `raw`: the columns of the source as they are."""
    schema: str = ""
    """The fields of JSON values, as Spark's DDL."""
    malformed: Literal["keep", "fail"] = "keep"
    """A value that is not such JSON: kept as text in `_corrupt_record`, past the filter and out of
    the aggregate, or the end of the query."""
    filter: str = ""
    """A SQL condition on the fields; other rows are left out."""
    event_time: str = "timestamp"
    """A SQL expression; the record's timestamp unless said otherwise."""
    starting: Literal["earliest", "latest"] = "earliest"
    """Where a new pipeline begins; one that ran before goes on where it was."""
    max_offsets_per_trigger: Annotated[int, msgspec.Meta(ge=1)] | None = None
    fail_on_data_loss: bool = True
    trigger: Text = "1 second"
    """How often a batch begins at the most."""
    parquet: str = ""
    """A directory for the rows themselves."""
    aggregate: Aggregate | None = None
    spark: dict[str, str] = {}
    """Settings of the session."""

    def query_name(self, query: str) -> str:
        """What one of its queries is called, and the query's group."""
        return f"{self.name}-{query}"


ROWS, WINDOWS, RESULTS = QUERIES = "rows", "windows", "results"
"""One for each output; the names of their checkpoints, too."""
EXCLUSIVE = ("topic", "partition", "offset", "timestamp")
"""Columns that rows have beside their own fields."""
CORRUPT = "_corrupt_record"
STATEFUL = ("window", "slide", "watermark", "by", "compute")
"""What an aggregate's state in the checkpoint depends on."""


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file; raises `UsageError`."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def read_config(given: Mapping[str, Any]) -> PipelineConfig:
    """Check settings and put them together; raises `UsageError`."""
    _check_names(given, PipelineConfig, "")
    if isinstance(given.get("aggregate"), Mapping):
        _check_names(given["aggregate"], Aggregate, "aggregate.")
    given = {**given, "spark": dict(_dotted(given.get("spark", {})))}
    try:
        config = msgspec.convert(given, PipelineConfig)
    except msgspec.ValidationError as error:
        if missing := _MISSING.match(str(error)):
            table = f" in [{missing[2]}]" if missing[2] else ""
            raise UsageError(
                f"pipeline: {missing[1]} is missing: --{missing[1]}, or in a file{table}"
            ) from error
        raise UsageError(f"pipeline: {error}") from error
    for problem in _problems(config):
        raise UsageError(f"pipeline: {problem}")
    return config


def _dotted(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of Spark by their whole names: TOML makes tables of names with dots."""
    if not isinstance(settings, Mapping):
        raise UsageError(f"pipeline: spark is {settings!r}, expected a table of settings")
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_names(given: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    names = kind.__struct_fields__
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names, where) or f": {', '.join(names)}"
            raise UsageError(f"pipeline: no setting {where}{name}{hint}")


def _problems(config: PipelineConfig) -> list[str]:
    """What is wrong with it."""
    aggregate = config.aggregate
    checks = [
        (bool(config.topics) != bool(config.pattern), "expected topics or pattern, one of them"),
        (bool(config.checkpoint), "checkpoint is empty, expected a directory"),
        (
            (config.format == "json") == bool(config.schema),
            "format json needs a schema, and raw has none: set both or neither",
        ),
        (
            bool(config.parquet) or aggregate is not None,
            "nothing is written: expected parquet, or aggregate with parquet or topic",
        ),
    ]
    if aggregate is not None:
        checks += [
            (bool(aggregate.compute), "aggregate.compute is empty, expected count(*) AS rows"),
            (
                bool(aggregate.parquet or aggregate.topic),
                "the aggregate goes nowhere: expected aggregate.parquet or aggregate.topic",
            ),
            (
                not aggregate.topic or not _reads(config, aggregate.topic),
                f"results go to {aggregate.topic!r}, which is read: expected another topic",
            ),
        ]
    return [problem for is_fine, problem in checks if not is_fine]


def _reads(config: PipelineConfig, topic: str) -> bool:
    try:
        return topic in config.topics or re.fullmatch(config.pattern, topic) is not None
    except re.error as error:
        raise UsageError(f"pipeline: pattern {config.pattern!r}: {error}") from error


def local_path(place: str) -> Path | None:
    """A directory as a path of this machine; None for one elsewhere, as `hdfs://…`."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        return None
    return Path(parts.path if parts.scheme else place)


def check_places(config: PipelineConfig) -> None:
    """Raise `UsageError` unless this machine can keep what the pipeline writes: Spark would say it
    on a page of Java."""
    places = {"checkpoint": config.checkpoint, "parquet": config.parquet}
    if config.aggregate is not None:
        places["aggregate.parquet"] = config.aggregate.parquet
    for name, place in places.items():
        if not place or (path := local_path(place)) is None:
            continue
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not there.is_dir():
            raise UsageError(f"pipeline: {name} {place!r}: {there} is a file, expected a directory")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"pipeline: {name} {place!r}: {there} cannot be written to")


def check_same(config: PipelineConfig) -> None:
    """Raise `UsageError` if a checkpoint is another pipeline's, or if its state does not suit the
    aggregate any more."""
    place = local_path(config.checkpoint)
    if place is not None and (place / "pipeline.json").exists():
        _check_same(recall(place), config, place / "pipeline.json")


def remember(config: PipelineConfig) -> None:
    """Keep the settings that Spark accepted in the checkpoint, for `status` and `check_same`."""
    place = local_path(config.checkpoint)
    if place is None:
        return
    file = place / "pipeline.json"
    if config.aggregate is None and file.exists():
        # The windows' state stays, for those who want them again.
        config = msgspec.structs.replace(config, aggregate=recall(place).aggregate)
    place.mkdir(parents=True, exist_ok=True)
    fresh = place / "pipeline.json.new"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    fresh.replace(file)


def recall(checkpoint: Path) -> PipelineConfig:
    """The settings that a checkpoint was made with; raises `UsageError`."""
    file = checkpoint / "pipeline.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=PipelineConfig)
    except FileNotFoundError as error:
        raise UsageError(
            f"{checkpoint} is no pipeline's checkpoint: it has no {file.name}"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{checkpoint} is no pipeline's checkpoint: {error}") from error


def _check_same(before: PipelineConfig, now: PipelineConfig, file: Path) -> None:
    if before.name != now.name:
        raise UsageError(f"{file} is of pipeline {before.name!r}, not {now.name!r}")
    left = [topic for topic in before.topics if not _reads(now, topic)]
    if left and now.fail_on_data_loss:
        raise UsageError(
            f"{file} reads {', '.join(before.topics)}: give another checkpoint, or, to go on "
            f"without {', '.join(left)}, fail_on_data_loss = false (--config)"
        )
    if before.aggregate is None or now.aggregate is None:
        return
    for name in STATEFUL:
        was, wanted = getattr(before.aggregate, name), getattr(now.aggregate, name)
        if was != wanted:
            raise UsageError(
                f"aggregate.{name} was {was!r} and is now {wanted!r}: the windows in {file.parent} "
                "are of the old kind; use another checkpoint"
            )
