"""One key of a configuration, of a node or of a topic: what its text may be, and means. Pure.

Values are kept as text, as people wrote them; who needs one asks by its key, and gets it in the
key's type: `config[keys.NUM_PARTITIONS]` is a number.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
I64_MAX = (1 << 63) - 1
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SIZES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZES_OF_TEN = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_TIMES = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS = {"bytes": {"": 1} | _SIZES | _SIZES_OF_TEN, "ms": {"": 1} | _TIMES}


class Unfit(ValueError):
    """A text that is none of a key's values; `expected` says what is."""

    def __init__(self, name: str, text: str, expected: str) -> None:
        super().__init__(f"{name} is {text!r}, expected {expected}")
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """A key whose values are of type T. Made by the functions below."""

    name: str
    default: str
    doc: str
    read: Callable[[Key[T], str], T]
    """What a text means; raises `Unfit` for one that means nothing."""
    low: int = 0
    high: int = I64_MAX
    """The limits of numbers."""
    unit: str = ""
    """bytes or ms, where a text may have a unit; else empty."""
    choices: tuple[str, ...] = ()
    topic_key: Key[Any] | None = None
    """The topic's key that this one, a node's, is the default of."""

    def value(self, text: str) -> T:
        """The value of a text that was accepted when it was set, whatever would be accepted now;
        the default where it means nothing any more."""
        try:
            return self.read(self, text)
        except Unfit:
            return self.read(self, self.default)

    def parse(self, text: str) -> T:
        """The value that a text stands for, within the limits; raises `Unfit`."""
        value = self.read(self, text)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not value >= self.low:  # nor is what is no number
                raise Unfit(self.name, text, f"{self.low} or more")
            if value > self.high:
                raise Unfit(self.name, text, f"{self.high} or less")
        return value


def text(name: str, default: str, doc: str) -> Key[str]:
    """A key whose values are any text."""
    return Key(name, default, doc, lambda _, text: text)


def count(
    name: str,
    default: str,
    doc: str,
    *,
    low: int = 0,
    high: int = I64_MAX,
    unit: str = "",
    topic_key: Key[Any] | None = None,
) -> Key[int]:
    """A key whose values are whole numbers; with a unit, bytes (512, 64KiB, 64MB) or ms (250, 30s,
    7d)."""
    return Key(name, default, doc, _whole, low=low, high=high, unit=unit, topic_key=topic_key)


def ratio(name: str, default: str, doc: str, *, topic_key: Key[Any] | None = None) -> Key[float]:
    """A key whose values are numbers from 0 to 1."""
    return Key(name, default, doc, _number, high=1, topic_key=topic_key)


def switch(name: str, default: str, doc: str, *, topic_key: Key[Any] | None = None) -> Key[bool]:
    """A key that is true or false."""
    return Key(name, default, doc, _switch, choices=("true", "false"), topic_key=topic_key)


def word(
    name: str,
    default: str,
    doc: str,
    *,
    choices: tuple[str, ...],
    topic_key: Key[Any] | None = None,
) -> Key[str]:
    """A key whose values are one of a few words."""
    return Key(name, default, doc, _word, choices=choices, topic_key=topic_key)


def words(
    name: str,
    default: str,
    doc: str,
    *,
    choices: tuple[str, ...],
    topic_key: Key[Any] | None = None,
) -> Key[frozenset[str]]:
    """A key whose values are some of a few words, with commas."""
    return Key(name, default, doc, _words, choices=choices, topic_key=topic_key)


# -- reading ---------------------------------------------------------------------------------------


def counted(name: str, text: str, unit: str) -> int:
    """How many bytes or ms, or for another unit of what there is no other, a text says; raises
    `Unfit`."""
    stripped = text.strip().lower()
    digits = stripped.rstrip(_LETTERS)
    suffix, units = stripped[len(digits) :], _UNITS.get(unit, {"": 1})
    number: int | None = None
    with suppress(ValueError):
        number = int(digits)
    if number is None or suffix not in units:
        kinds = ", ".join(each for each in units if each)
        raise Unfit(name, text, "a whole number" + (f", units {kinds}" if kinds else ""))
    return number * units[suffix] if number >= 0 else number


def as_sent(name: str, text: str) -> str:
    """What is set for a topic's key, whose name tells its unit, as people wrote it: as a topic
    keeps it, which is a number of bytes or ms. Raises `Unfit`."""
    unit = name.rpartition(".")[2]
    return str(counted(name, text, unit)) if unit in _UNITS else text


def _whole(key: Key[int], text: str) -> int:
    return counted(key.name, text, key.unit)


def _number(key: Key[float], text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise Unfit(key.name, text, "a number") from error


def _switch(key: Key[bool], text: str) -> bool:
    return _one_of(key, text, text) == "true"


def _word(key: Key[str], text: str) -> str:
    return _one_of(key, text, text)


def _words(key: Key[frozenset[str]], text: str) -> frozenset[str]:
    return frozenset(_one_of(key, text, each) for each in text.split(","))


def _one_of(key: Key[Any], text: str, each: str) -> str:
    found = each.strip()
    if found not in key.choices:
        raise Unfit(key.name, text, f"one of {', '.join(key.choices)}")
    return found
