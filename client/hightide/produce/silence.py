"""Which brokers owe an answer, and have said nothing for so long that somebody should know. Pure.

A broker answers requests as it can, not in their order: one that waits long, for a follower that is
slow, is no sign of silence while others are answered.
"""

from __future__ import annotations

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

    def heard(self, address: str, now: float) -> None:
        """It has said something."""
        owing = self._owing[address]
        owing.since, owing.is_told = now, False

    def settled(self, address: str) -> None:
        """It owes one answer less, whether that came or was given up. Who said nothing to the last
        of them, and was told of, is remembered until it does."""
        owing = self._owing[address]
        owing.count -= 1
        if not owing.count and not owing.is_told:
            del self._owing[address]

    @property
    def due_at(self) -> float:
        """When somebody is to be told next, if nothing is heard until then."""
        waiting = (each for each in self._owing.values() if each.count and not each.is_told)
        return min((each.since + SILENT_S for each in waiting), default=float("inf"))

    def tell(self, now: float) -> list[str]:
        """Who is to be told of, each once until it is heard of again."""
        silent = [
            address
            for address, each in self._owing.items()
            if each.count and not each.is_told and each.since + SILENT_S <= now
        ]
        for address in silent:
            self._owing[address].is_told = True
        return silent
