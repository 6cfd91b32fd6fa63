"""Whether the demo's pipeline wrote what the source file says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hightide.protocol.words import counted
from hightide_cli.demo.flights import FIELDS, HOUR_MS, Delays, Hour, hourly_delays

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Outcome:
    """What the demo measured and compared."""

    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)


def check(
    table: pa.Table, output: Path, results: Sequence[bytes], watermark_h: int, outcome: Outcome
) -> None:
    """Compare what the pipeline wrote with the source file."""
    stored = read(output / "flights")
    outcome.counts["flights in Parquet"] = stored.num_rows
    outcome.mismatches += _of_rows(table, stored.sort_by("offset"))
    expected = _finished(table, watermark_h)
    outcome.counts["hours x airports that are over"] = len(expected)
    windows = read(output / "hourly").to_pylist()
    topic = [msgspec.json.decode(value) for value in results]
    outcome.mismatches += _of_windows("in Parquet", [window(row) for row in windows], expected)
    outcome.mismatches += _of_windows("in the topic", [window(row) for row in topic], expected)


def read(output: Path) -> pa.Table:
    """What a query wrote to Parquet."""
    import pyarrow.parquet as pq

    from hightide.spark.pipeline_status import parquet_files

    return pq.read_table(parquet_files(output), partitioning=None)


def _of_rows(table: pa.Table, stored: pa.Table) -> list[str]:
    """The one partition holds the flights in the order in which they were replayed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = []
    if stored.num_rows != table.num_rows:
        found.append(f"{stored.num_rows} flights stored, {table.num_rows} in the source file")
    offsets = stored["offset"].to_pylist()
    if len(set(offsets)) != len(offsets):
        found.append("an offset was stored twice")
    if offsets and set(offsets) != set(range(max(offsets) + 1)):
        found.append("the offsets have gaps")
    if found:
        return found
    times = pc.cast(pc.cast(stored["timestamp"], pa.timestamp("ms", "UTC")), pa.int64())
    columns = {"event_ms": times} | {name: stored[name] for name in FIELDS}
    for name, column in columns.items():
        if not pc.cast(column, table[name].type).equals(table[name]):
            found.append(f"the stored {name} is not that of the source file")
    return found


def _finished(table: pa.Table, watermark_h: int) -> dict[Hour, Delays]:
    """The hours that are over: the watermark, so far behind the newest event, has passed them."""
    import pyarrow.compute as pc

    watermark_ms = pc.max(table["event_ms"]).as_py() - watermark_h * HOUR_MS
    direct = hourly_delays(table)
    return {at: found for at, found in direct.items() if (at.hour + 1) * HOUR_MS <= watermark_ms}


def window(row: dict[str, Any]) -> tuple[Hour, Delays]:
    """A row of Parquet or of the results topic: which hour it is, and what left in it."""
    start = row["window_start"]
    if isinstance(start, str):
        start = datetime.fromisoformat(start)
    start = start.astimezone(UTC)
    hour = int(start.timestamp() * 1000) // HOUR_MS
    return Hour(hour, row["origin"]), Delays(row["flights"], row["cancelled"], row["delay"])


def _of_windows(
    where: str, windows: list[tuple[Hour, Delays]], expected: dict[Hour, Delays]
) -> list[str]:
    found = []
    if twice := [at for at, times in Counter(at for at, _ in windows).items() if times > 1]:
        found.append(
            f"{counted(len(twice), 'hour is', 'hours are')} twice {where}, the first {min(twice)}"
        )
    computed = dict(windows)
    wrong = [at for at in expected.keys() | computed.keys() if expected.get(at) != computed.get(at)]
    if wrong:
        at = min(wrong)
        found.append(
            f"{counted(len(wrong), 'hour differs', 'hours differ')} {where}, the first {at}: "
            f"Spark {computed.get(at)}, directly {expected.get(at)}"
        )
    return found
