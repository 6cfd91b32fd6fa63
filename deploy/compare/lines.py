"""The lines of the table: what is told of the figures of all rounds, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from compare.results import Results

NONE = TO = "\N{EN DASH}"
MODES = {
    "by default": ("replicated", "synced"),
    "nobody syncs": ("replicated", "replicated"),
    "synced first": ("synced", "synced"),
}
"""What Kafka does, and what hightide: as they come, and like with like."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure of both systems, or of one that has no counterpart."""

    label: str
    unit: str
    kafka: str = ""
    """The name of its figure; empty: Kafka has none."""
    hightide: str = ""
    more_is_better: bool = False

    def key(self, system: str) -> str:
        """The name of a system's figure."""
        return self.kafka if system == "kafka" else self.hightide


def _both(label: str, unit: str, key: str, *, more: bool = False) -> Line:
    return Line(label=label, unit=unit, kafka=key, hightide=key, more_is_better=more)


def _cores(label: str, key: str) -> list[Line]:
    """What a workload cost; the rate alone says little where all share the cores."""
    return [
        _both(f"{label}: brokers", "core-s", f"{key}.brokers_core_s"),
        _both(f"{label}: client", "core-s", f"{key}.client_core_s"),
    ]


def _acks() -> list[Line]:
    return [
        Line(
            label=f"{mode}: {share}",
            unit="ms",
            kafka=f"acks_{kafka}.{share}_ms",
            hightide=f"acks_{hightide}.{share}_ms",
        )
        for mode, (kafka, hightide) in MODES.items()
        for share in ("p50", "p99")
    ]


def _rates(label: str, unit: str, key: str, figure: str) -> list[Line]:
    def of(kind: str, default: str) -> str:
        return f"{key}.{figure}" if kind == default else f"{key}_{kind}.{figure}"

    return [
        Line(
            label=f"{label}: {mode}",
            unit=unit,
            kafka=of(kafka, "replicated"),
            hightide=of(hightide, "synced"),
            more_is_better=True,
        )
        for mode, (kafka, hightide) in MODES.items()
    ]


GROUPS: dict[str, list[Line]] = {
    "Writing": [
        *_rates("`send`, 100 B", "records/s", "send", "per_s"),
        *_cores("`send`, 100 B, by default", "send"),
        Line(
            label="`produce` without a callback, 100 B",
            unit="records/s",
            kafka="send_untold.per_s",
            more_is_better=True,
        ),
        Line(
            label="`send_many`, 100 B",
            unit="records/s",
            hightide="send_many.per_s",
            more_is_better=True,
        ),
        Line(label="`send_many`: brokers", unit="core-s", hightide="send_many.brokers_core_s"),
        Line(label="`send_many`: client", unit="core-s", hightide="send_many.client_core_s"),
        *_rates("`send`, 1 KiB", "MB/s", "send_large", "mb_per_s"),
        *_cores("`send`, 1 KiB, by default", "send_large"),
    ],
    "Reading": [
        _both("to objects, 100 B", "records/s", "consume.per_s", more=True),
        *_cores("to objects, 100 B", "consume"),
        Line(
            label="to objects, Kafka's consumer eager",
            unit="records/s",
            kafka="consume_eager.per_s",
            hightide="consume.per_s",
            more_is_better=True,
        ),
        Line(
            label="to Arrow, 100 B",
            unit="records/s",
            hightide="poll_arrow.per_s",
            more_is_better=True,
        ),
        Line(label="to Arrow: client", unit="core-s", hightide="poll_arrow.client_core_s"),
    ],
    "One record at a time": [
        *_acks(),
    ],
    "Spark, batch": [
        _both("`count()`", "rows/s", "spark.count_per_s", more=True),
        _both("to Parquet", "rows/s", "spark.parquet_per_s", more=True),
    ],
    "The cluster": [
        _both("leader killed: nothing is acknowledged", "s", "kill.gap_s"),
        _both("cold start, to a record acknowledged", "s", "start.cold_s"),
        _both("memory of a broker, idle", "MiB", "memory.idle_mib"),
        _both("memory of a broker, after the work", "MiB", "memory.busy_mib"),
    ],
}


def figures(results: Results, line: Line, system: str) -> list[float]:
    """What was measured, a figure a round; none where there is none."""
    key = line.key(system)
    found = [each.figures for each in results.rounds if each.system == system]
    return [each[key] for each in found if key in each]


def ratio(results: Results, line: Line) -> float | None:
    """hightide to Kafka, of the medians; None where one of them is missing, or is too short for
    the clock that it is read from."""
    kafka, hightide = (figures(results, line, system) for system in ("kafka", "hightide"))
    if not kafka or not hightide or not median(kafka) or not median(hightide):
        return None
    return median(hightide) / median(kafka)


def ratio_told(found: float | None) -> str:
    """As people read it."""
    return NONE if found is None else f"{found:.2f}"


def told(figure: float) -> str:
    """A figure as people read it: three places that count."""
    if figure >= 1000:
        rounded = float(f"{figure:.3g}")
        return f"{rounded:,.0f}"
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"


def summary(values: Sequence[float]) -> str:
    """The median, and from where to where."""
    if not values:
        return NONE
    if len(values) == 1:
        return told(values[0])
    return f"{told(median(values))} ({told(min(values))}{TO}{told(max(values))})"
