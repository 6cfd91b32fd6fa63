"""Who is at work in the directory of a partition, off the loop: one at a time, and nobody any more
when the directory goes to somebody else.

Worker threads open files by their names; what has another content under the same name must not
come beneath them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from hightide.protocol.topic_partition import TopicPartition


class AtWork:
    """The partitions of one data directory."""

    def __init__(self) -> None:
        self._ended: dict[TopicPartition, trio.Event] = {}
        self._unwanted: set[TopicPartition] = set()

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._ended

    @contextmanager
    def on(self, key: TopicPartition) -> Iterator[None]:
        """Somebody is at work for the block."""
        assert key not in self._ended, f"two at work on {key}"
        ended = self._ended[key] = trio.Event()
        try:
            yield
        finally:
            del self._ended[key]
            self._unwanted.discard(key)
            ended.set()

    def is_wanted(self, key: TopicPartition) -> bool:
        """Whether the work is to go on; for any thread."""
        return key not in self._unwanted

    async def end(self, *keys: TopicPartition) -> None:
        """Nobody is at work in any of these when this returns; who is, is told."""
        while busy := [key for key in keys if key in self._ended]:
            self._unwanted.update(busy)
            await self._ended[busy[0]].wait()
