"""Toward one broker: when it gets its next request, and until when the task that sends sleeps.

A broker that owes a few answers gets another request when one of them comes, and what is ready by
then goes with it: batches grow with the load by themselves, as under Kafka's limit of requests in
flight for a connection. Without that, a loop over many partitions sends each record by itself, and
each costs what a batch costs. It is not a hard limit, as a partition that is slow to be replicated
would hold up the others: where no answer comes, a request goes after a pause all the same. Batches
to which nothing can be added wait for nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

from hightide.net.background import Nudge
from hightide.net.connection import Answer
from hightide.protocol.batch_builder import Batch

BUSY_REQUESTS = 5
"""With so many unanswered ones a broker is busy."""
BUSY_PAUSE_S = 0.02
"""So far apart are requests to a broker that is, while no answer comes."""


class Line:
    """What one broker was sent lately. Times are trio's, in seconds."""

    def __init__(self) -> None:
        self._unanswered = 0
        """How many requests have no answer yet."""
        self._sent_at = float("-inf")
        self._nudge = Nudge()
        self._sleeps_until = float("-inf")
        """When the task that sends looks again by itself; before everything while it is awake."""

    @property
    def is_busy(self) -> bool:
        """Whether the broker owes so many answers that batches wait for one."""
        return self._unanswered >= BUSY_REQUESTS

    def goes_at(self, ready_at: float, *, can_grow: bool) -> float:
        """When a batch that is ready at some time is to be sent; what is ready by then goes with
        it."""
        if not can_grow or not self.is_busy:
            return ready_at
        return max(ready_at, self._sent_at + BUSY_PAUSE_S)

    def sent(self, now: float) -> None:
        """A request went; its answer is owed."""
        self._sent_at = now
        self._unanswered += 1

    def answered(self) -> None:
        """The outcome of a request is known, whatever it is."""
        if self._unanswered == BUSY_REQUESTS:
            self._nudge.set()
        self._unanswered -= 1

    def wake(self) -> None:
        """There is news: look again."""
        self._nudge.set()

    def look_at(self, time: float) -> None:
        """Something may be sent at that time: it is not to be slept through."""
        if time < self._sleeps_until:
            self._nudge.set()

    async def sleep_until(self, deadline: float) -> None:
        """Until news or `deadline`; for the one task that sends."""
        self._sleeps_until = deadline
        try:
            await self._nudge.sleep_until(deadline)
        finally:
            self._sleeps_until = float("-inf")


@dataclass(slots=True, eq=False)
class Sent:
    """A request on its way."""

    batches: list[Batch]
    answer: Answer
    line: Line
    began: float
