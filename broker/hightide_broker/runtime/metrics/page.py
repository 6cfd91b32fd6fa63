"""A page of metrics as text: Prometheus's format 0.0.4, or OpenMetrics 1.0.0. Pure.

Sources: the exposition formats of Prometheus and OpenMetrics. A family is written whole before the
next one begins, a counter's samples end in `_total`, a page of OpenMetrics ends with `# EOF`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hightide_broker.runtime.base.measures import BOUNDS_S, Histogram

PREFIX = "hightide_"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Labels = tuple[str, ...]
Value = float | Histogram


class Family(NamedTuple):
    """What metrics of one name have in common."""

    name: str
    """Without the prefix, and without a counter's `_total`."""
    kind: str
    """gauge, counter or histogram."""
    help: str
    labels: Labels = ()
    prefix: str = PREFIX


class Measured(NamedTuple):
    """A family, and what it is now."""

    family: Family
    values: Iterable[tuple[Labels, Value]]
    """By the values of its labels."""


def gauge(name: str, help_: str, *labels: str) -> Family:
    """Something that rises and falls."""
    return Family(name, "gauge", help_, labels)


def counter(name: str, help_: str, *labels: str) -> Family:
    """Something that only rises, as long as the process lives."""
    return Family(name, "counter", help_, labels)


def histogram(name: str, help_: str, *labels: str) -> Family:
    """How often something took how long."""
    return Family(name, "histogram", help_, labels)


def one(family: Family, value: Value) -> Measured:
    """A family without labels."""
    return Measured(family, [((), value)])


def each(family: Family, values: Mapping[str, Value]) -> Measured:
    """A family with one label."""
    return Measured(family, [((name,), value) for name, value in values.items()])


def lines(found: Iterable[Measured | None], *, is_open: bool) -> Iterator[str]:
    """The page, line by line; `is_open`: as OpenMetrics. None is an empty line: what comes next
    takes a while to be worked out."""
    for measured in found:
        if measured is None:
            yield ""
            continue
        family, values = measured
        name = family.prefix + family.name
        told = name if is_open or family.kind != "counter" else f"{name}_total"
        yield f"# HELP {told} {family.help}\n"
        yield f"# TYPE {told} {family.kind}\n"
        for labels, value in values:
            named = zip(family.labels, labels, strict=True)
            shown = [f'{key}="{text.translate(_ESCAPED)}"' for key, text in named]
            if isinstance(value, Histogram):
                yield from _steps(name, shown, value)
            else:
                end = "_total" if family.kind == "counter" else ""
                yield f"{name}{end}{_braced(shown)} {_number(value)}\n"
    if is_open:
        yield "# EOF\n"


def _steps(name: str, labels: list[str], value: Histogram) -> Iterator[str]:
    total = 0
    for bound, count in zip((*BOUNDS_S, float("inf")), value.counts, strict=True):
        total += count
        step = f'le="{_number(bound)}"'
        yield f"{name}_bucket{_braced([*labels, step])} {total}\n"
    yield f"{name}_sum{_braced(labels)} {_number(value.total_s)}\n"
    yield f"{name}_count{_braced(labels)} {total}\n"


def _braced(labels: list[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(value) if isinstance(value, int) else repr(value)


def is_open_wanted(accept: str) -> bool:
    """Whether an Accept header asks for OpenMetrics at least as much as for text (RFC 9110)."""
    wanted = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (each.strip() for each in part.split(";"))
        if kind in wanted:
            wanted[kind] = max(wanted[kind], _weight(parameters))
    opened, plain = wanted.values()
    return 0 < opened >= plain


def _weight(parameters: Iterable[str]) -> float:
    said = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    try:
        return float(said)
    except ValueError:
        return 0.0
