"""Which brokers owe an answer, and have said nothing for so long that somebody should know. Pure.

A broker answers requests as it can, not in their order: one that waits long, for a follower that is
slow, is no sign of silence while others are answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hightide.net.warned import SILENT_S


@dataclass(slots=True)
class _Owing:
    """A broker that owes answers."""

    since: float
    """When it was last heard of or, if that is later, first asked."""
    count: int = 0
    is_told: bool = False


class Silence:
    """By address; `now` is monotonic, in seconds."""

    def __init__(self) -> None:
        self._owing: dict[str, _Owing] = {}

    def asked(self, address: str, now: float) -> None:
        """A broker owes one answer more."""
        owing = self._owing.setdefault(address, _Owing(now))
        if not owing.count:
            owing.since = now
        owing.count += 1

    def settled(self, address: str, now: float, *, heard: bool) -> None:
        """It owes one answer less: it has said something, or that was given up. Who said nothing to
        the last one, and was told of, is remembered until it does."""
        owing = self._owing[address]
        owing.count -= 1
        if heard:
            owing.since, owing.is_told = now, False
        if not owing.count and not owing.is_told:
            del self._owing[address]

    @property
    def due_at(self) -> float:
        """When somebody is to be told next, if nothing is heard until then."""
        return min((since + SILENT_S for _, since in self._untold()), default=float("inf"))

    def tell(self, now: float) -> list[str]:
        """Who is to be told of, each once until it is heard of again."""
        silent = [address for address, since in self._untold() if since + SILENT_S <= now]
        for address in silent:
            self._owing[address].is_told = True
        return silent

    def _untold(self) -> Iterator[tuple[str, float]]:
        for address, owing in self._owing.items():
            if owing.count and not owing.is_told:
                yield address, owing.since
