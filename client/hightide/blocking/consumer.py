"""The blocking consumer: what it lends the caller's thread counts as handed out once that takes
it."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import hightide.admin.admin
import hightide.consume.consumer
import hightide.produce.producer
from hightide.blocking.base import Blocking
from hightide.consume.health import Health
from hightide.consume.options import ConsumerOptions
from hightide.consume.rebalance import Offsets
from hightide.consume.subscription import Listener, OffsetAndMetadata, OffsetAndTimestamp
from hightide.net.options import arguments, from_config, taking
from hightide.protocol.columns import Record
from hightide.protocol.errors import HightideError
from hightide.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer(Blocking):
    """`hightide.Consumer` without an event loop; the arguments are those of `ConsumerOptions`.

    `on_assigned`, `on_revoked` and `on_lost` are called in a thread that waits for this consumer,
    and may call it.
    """

    _name = "consumer"

    @taking(ConsumerOptions)
    def __init__(self, options: ConsumerOptions) -> None:
        given = {**arguments(options), **{n: self._told(getattr(options, n)) for n in LISTENERS}}
        self._async = hightide.consume.consumer.Consumer(**given)
        super().__init__(self._async)

    def _told(self, listener: Listener | None) -> Listener | None:
        """One that is called in a thread of its caller's."""
        return None if listener is None else partial(_tell, weakref.ref(self), listener)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """As `hightide.Consumer.from_config`."""
        return cls(**from_config(ConsumerOptions, config, more))

    def poll(self, *, timeout_ms: float = 0, max_records: int | None = None) -> list[Record]:
        """Up to `max_poll_records` records of one partition; empty if none came in time."""
        lend = partial(self._async.lend, timeout_ms=timeout_ms, max_records=max_records)
        return self._run(lend).take_all()

    def poll_arrow(self, *, timeout_ms: float = 0) -> pa.RecordBatch | None:
        """Fetched records of one partition as a `pyarrow.RecordBatch`; None if none came."""
        lent = self._run(partial(self._async.lend_arrow, timeout_ms=timeout_ms))
        return None if lent is None else lent.take_all()

    def __iter__(self) -> Iterator[Record]:
        """Each record counts as handed out when the loop gets it, and not before: a loop may end in
        the middle, and commit where it is."""
        while True:
            yield from self._run(partial(self._async.lend, timeout_ms=1000))

    def subscribe(
        self,
        topics: Iterable[str] | str = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics, in place of those before: or, with `pattern`, whichever it matches
        whole, also those that come later. As `hightide.Consumer.subscribe`."""
        subscribe = partial(
            self._async.subscribe,
            topics if isinstance(topics, str) else list(topics),
            pattern=pattern,
            on_assigned=self._told(on_assigned),
            on_revoked=self._told(on_revoked),
            on_lost=self._told(on_lost),
        )
        self._run(subscribe)

    def unsubscribe(self) -> None:
        """Read nothing: what was handed out is committed as it would be at the end of the block,
        and the group is left."""
        self._run(self._async.unsubscribe)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions from here on."""
        self._run(self._async.assign, list(partitions))

    def commit(self, offsets: Offsets | None = None) -> None:
        """Keep for the group where it goes on; None: behind everything that was handed out."""
        self._run(self._async.commit, offsets)

    def commit_async(
        self,
        offsets: Offsets | None = None,
        then: Callable[[HightideError | None], None] | None = None,
    ) -> None:
        """As `commit`, in the background; `then` is told of the outcome, in trio's thread."""
        self._run_sync(self._async.commit_async, offsets, then)

    def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of these partitions, or of those that are read."""
        return self._run(self._async.committed, partitions)

    def health(self) -> Health:
        """What this consumer waits for, and since when."""
        return self._run_sync(self._async.health)

    def metrics(self) -> dict[str, float]:
        """Numbers about this consumer, by Kafka's names."""
        return self._run_sync(self._async.metrics)

    @property
    def generation(self) -> int:
        """The generation of the group that this consumer is a member of; -1 while it is none."""
        self._opened().check()
        return self._async.generation

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        self._opened().check()
        return self._async.assignment()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on reading a partition at `offset`."""
        self._run_sync(self._async.seek, topic, partition, offset)

    def seek_to_time(self, timestamp: int) -> None:
        """Go on at the first record of each partition with a timestamp ≥ `timestamp` (ms)."""
        self._run(self._async.seek_to_time, timestamp)

    def offsets(self, timestamp: int) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first offset at a time in ms or later, or at `EARLIEST`, `LATEST`
        or `MAX_TIMESTAMP`; offset -1: there is none."""
        return self._run(self._async.offsets, timestamp)

    def position(self, topic: str, partition: int) -> int | None:
        """The offset of the next record of a partition."""
        return self._run_sync(self._async.position, topic, partition)

    def lag(self, topic: str, partition: int) -> int | None:
        """How many committed records lie before this consumer."""
        return self._run_sync(self._async.lag, topic, partition)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """The log start and the high watermark of a partition as the last fetch told them."""
        self._opened().check()
        return self._async.watermarks(topic, partition)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these partitions until `resume`."""
        self._run_sync(self._async.pause, *partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Take back a `pause`."""
        self._run_sync(self._async.resume, *partitions)


LISTENERS = ("on_assigned", "on_revoked", "on_lost")


async def _tell(
    consumer: weakref.ref[Consumer], listener: Listener, partitions: list[TopicPartition]
) -> None:
    """Call a listener in a thread of its caller's."""
    blocking = consumer()
    opened = None if blocking is None else blocking._open
    del blocking
    if opened is not None:
        outcome = await opened.in_callers_thread(listener, partitions)
        if inspect.isawaitable(outcome):
            await outcome
