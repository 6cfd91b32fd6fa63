"""What stands in the way of a consumer, until its caller was told. Pure."""

from __future__ import annotations

from collections.abc import Callable

from hightide.consume.subscription import Assignment, Subscription
from hightide.protocol.topic_partition import TopicPartition


class Troubles:
    """Each is of a partition, or of all of them. What came before one is handed out first."""

    def __init__(self, subscription: Subscription, wake: Callable[[], None]) -> None:
        """`wake` is called when one may be over."""
        self._subscription = subscription
        self._wake = wake
        self._kept: dict[TopicPartition | None, tuple[Exception, Assignment | None]] = {}
        self._was_told = False
        """Whether the caller was told of one last, and not handed anything."""

    def add(self, error: Exception, failing: Assignment | None = None) -> None:
        """One more; None: it is of all partitions."""
        self._kept[None if failing is None else failing.tp] = error, failing

    def tell(self) -> None:
        """Raise one, once. Not right after another one, while other partitions have records: who
        takes long between two polls would hear of nothing else."""
        if self._was_told and self._subscription.has_data:
            self._was_told = False
            return
        for tp, (error, failing) in [*self._kept.items()]:
            if failing is not None and self._subscription.find(failing.tp) is not failing:
                self.forgive(tp)  # not assigned any more
            elif failing is None or failing.paused or not failing.fetched:
                self.forgive(tp)
                self._was_told = True
                raise error
        self._was_told = False

    def forgive(self, tp: TopicPartition | None) -> None:
        """The caller was told, or went on elsewhere in the partition: it may be over."""
        _, failing = self._kept.pop(tp, (None, None))
        if failing is not None:
            failing.is_damaged = False
        self._wake()

    def forget(self) -> None:
        """The caller reads something else now."""
        for tp in [*self._kept]:
            self.forgive(tp)
