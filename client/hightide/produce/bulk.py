"""Many records at once: cut into batches by adding up lengths, with no Python per record where
there are no keys. Pure but for `Deliveries`, which waits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self, TypeVar

from hightide.produce.delivery import Delivery, wait_done
from hightide.protocol.batch_builder import RECORD_OVERHEAD, Batch
from hightide.protocol.errors import UsageError

T = TypeVar("T")
_BYTES = {bytes, type(None)}


Part = tuple[Batch, int, int]
"""Batch, index of the first record in it, how many."""


class RecordRange(NamedTuple):
    """Where neighbours were stored; with acks=0 the offset is -1: nobody told."""

    topic: str
    partition: int
    offset: int
    """Where the first of them is."""
    length: int


class Cutter:
    """Records of one partition in order, and how many of the next ones fit into so many bytes."""

    def __init__(self, sums: Any) -> None:
        """`sums`: what the records before each one take together, and all of them; a list or an
        array of integers, one more than there are records."""
        self._sums = sums
        self.position = 0

    @classmethod
    def of(cls, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> Self:
        """A cutter for records with these values and keys."""
        sizes = map(RECORD_OVERHEAD.__add__, _lengths(values))
        if keys is not None:
            sizes = map(int.__add__, sizes, _lengths(keys))
        return cls(list(accumulate(sizes, initial=0)))

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.position == len(self._sums) - 1

    @property
    def largest(self) -> int:
        """The size of the largest record."""
        if isinstance(self._sums, list):
            return max(map(int.__sub__, self._sums[1:], self._sums), default=0)
        return int((self._sums[1:] - self._sums[:-1]).max(initial=0))

    @property
    def next_size(self) -> int:
        """The size of the next record."""
        return int(self._sums[self.position + 1] - self._sums[self.position])

    def take(self, room: int) -> tuple[int, int, int]:
        """The next records that fit into `room`, at least one: from, to, bytes."""
        start, base = self.position, self._sums[self.position]
        end = max(bisect_right(self._sums, base + room) - 1, start + 1)
        self.position = end
        return start, end, int(self._sums[end] - base)


def _lengths(items: Sequence[bytes | None]) -> Iterator[int]:
    if None in items:
        return iter([0 if item is None else len(item) for item in items])
    return map(len, items)  # type: ignore[arg-type]


def listed(items: Iterable[T]) -> Sequence[T]:
    """The items, which may come from a generator."""
    return items if isinstance(items, list | tuple) else list(items)


def checked_items(name: str, items: Iterable[bytes | None]) -> Sequence[bytes | None]:
    """The items, which may come from a generator; raises `UsageError` unless each is bytes or
    None."""
    found = listed(items)
    if not {*map(type, found)} <= _BYTES:
        wrong = next(item for item in found if type(item) not in _BYTES)
        raise UsageError(f"{name} are bytes or None, not {wrong!r}")
    return found


def by_partition(places: Iterable[int | None]) -> dict[int | None, list[int]]:
    """Which records, by their indexes in order, go to each partition; None is any partition."""
    found: dict[int | None, list[int]] = {}
    for index, number in enumerate(places):
        found.setdefault(number, []).append(index)
    return found


class Placement:
    """Which of many records are buffered where, for those who ask for one of them."""

    def __init__(self) -> None:
        self._groups: list[tuple[Sequence[int], list[Part]]] = []

    def group(self, indexes: Sequence[int]) -> list[Part]:
        """For these records, in rising order: an empty list, which gets their parts in order."""
        parts: list[Part] = []
        self._groups.append((indexes, parts))
        return parts

    def parts(self) -> list[Part]:
        """The parts that all groups were given, one group after the other."""
        return [part for _, parts in self._groups for part in parts]

    def find(self, index: int) -> Delivery | None:
        """The delivery of a record, or None if it is not buffered."""
        for indexes, parts in self._groups:
            place = bisect_left(indexes, index)
            if place == len(indexes) or indexes[place] != index:
                continue
            for batch, first, count in parts:
                if place < count:
                    return Delivery(batch, first + place)
                place -= count
        return None


class Deliveries:
    """Many records on their way: await them for the `RecordRange`s in the order of sending, by
    partition if they had keys; or for the first error."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(count for _, _, count in self._parts)

    @property
    def is_done(self) -> bool:
        """Whether every outcome is known."""
        return all(batch.is_done for batch, _, _ in self._pieces())

    def __await__(self) -> Generator[Any, Any, list[RecordRange]]:
        return self._wait().__await__()

    async def _wait(self) -> list[RecordRange]:
        while True:
            pieces = list(self._pieces())
            waiting = next((batch for batch, _, _ in pieces if not batch.is_done), None)
            if waiting is None:
                break
            await wait_done(waiting)
        for batch, _, _ in reversed(pieces):
            if batch.error is not None and batch.seen is not None:
                batch.seen()
        for batch, _, _ in pieces:
            batch.raise_error()
        return [
            RecordRange(
                batch.topic,
                batch.partition,
                batch.base_offset + first if batch.base_offset >= 0 else -1,
                count,
            )
            for batch, first, count in pieces
        ]

    def _pieces(self) -> Iterator[Part]:
        """Where the records are now: batches that were too large have been split."""
        todo = list(reversed(self._parts))
        while todo:
            batch, first, count = todo.pop()
            if not batch.parts:
                yield batch, first, count
                continue
            one, other = batch.parts
            here = min(max(len(one) - first, 0), count)
            if count > here:
                todo.append((other, max(first - len(one), 0), count - here))
            if here:
                todo.append((one, first, here))
