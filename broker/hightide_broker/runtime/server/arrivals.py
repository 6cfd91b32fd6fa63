"""How often addresses may come: who comes more often than its quota allows is kept waiting for a
while, and turned away (KIP-612).

Turned away at once it would be back at once. What it made in vain is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from hightide.protocol.quota_messages import CONNECTION_CREATION_RATE
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.quotas import quota_of_address
from hightide_broker.core.cluster.rates import Rates

KEPT_S_MAX = 1.0
"""The longest that somebody is kept waiting to be turned away."""


class Arrivals:
    """At a node's door for clients."""

    def __init__(
        self, image: Callable[[], ClusterImage], *, kept_max: int, per_address: int
    ) -> None:
        """`kept_max`: how many may be kept waiting at a time; more than these are not.
        `per_address`: how many may be in from one address."""
        self._image = image
        self._per_address = per_address
        self._inside: Counter[str] = Counter()
        self._rates = Rates()
        self._kept_left = kept_max

    def delay_s(self, host: str) -> float:
        """How long a connection from there comes too early; 0: it does not, and is counted."""
        quota = quota_of_address(self._image().quotas, host, CONNECTION_CREATION_RATE)
        if quota is None:
            return 0.0
        now = trio.current_time()
        delay_s = self._rates.delay_s(quota.holder, quota.value, now)
        if not delay_s:
            self._rates.record(quota.holder, 1, quota.value, now)
        return delay_s

    def has_room(self, host: str) -> bool:
        """Whether one more may come in from there."""
        return self._inside[host] < self._per_address

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """One from there is in, as long as the block lasts."""
        self._inside[host] += 1
        try:
            yield
        finally:
            self._inside[host] -= 1
            if not self._inside[host]:
                del self._inside[host]

    async def keep_waiting(self, delay_s: float) -> None:
        """As long as a connection came too early, at most."""
        if not self._kept_left:
            return
        self._kept_left -= 1
        try:
            await trio.sleep(min(delay_s, KEPT_S_MAX))
        finally:
            self._kept_left += 1
