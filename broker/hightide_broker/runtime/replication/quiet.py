"""The follower's end of a fetch session: the partitions of which one leader is to tell what is new
(KIP-227; the leader's end is `server/fetch_sessions.py`).

One request of the session always waits at the leader while anything is held; more of them leave
only to hand partitions over. What an answer names is held no more. A session in which anything went
wrong is given up as a whole: the next one begins with nothing, and its partitions are fetched by
themselves first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hightide.protocol import messages as m
from hightide_broker.runtime.replication.replica import Replica

Asked = tuple[Replica, m.FetchPartition]
"""A replica, and what its leader was asked."""


class Quiet:
    """One session with one leader."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.epoch = 0
        """The number that the next request of the session has."""
        self.joining: dict[Replica, None] = {}
        """Ready to be handed over."""
        self.waiting = 0
        """Requests that were not answered yet."""
        self._held: dict[tuple[str, int], Asked] = {}

    @property
    def has_to_ask(self) -> bool:
        """Whether the leader has nothing that it could answer with news."""
        return bool(self._held) and not self.waiting

    @property
    def is_due(self) -> bool:
        """Whether a request is to leave."""
        return bool(self.joining) or self.has_to_ask

    def ask(self, handed_over: Sequence[Asked]) -> list[Asked]:
        """A request leaves. What is held no more: partitions of topics that were made again."""
        self.epoch += 1
        self.waiting += 1
        gone = []
        for replica, part in handed_over:
            if replica.tp in self._held:
                gone.append(self._held[replica.tp])
            self._held[replica.tp] = (replica, part)
        return gone

    def named(self, results: Sequence[m.FetchResult]) -> Iterator[tuple[Asked, m.FetchResult]]:
        """What an answer says of what is held: each is held until the next one is asked for."""
        for result in results:
            key = (result.topic, result.partition)
            if key in self._held:
                yield self._held[key], result
                self._held.pop(key, None)

    def end(self) -> tuple[Quiet, list[Asked]]:
        """The session after this one, and what this one held."""
        following = Quiet(self.id + 1)
        following.joining = self.joining
        return following, list(self._held.values())
