"""Who is faster than a quota allows is told, and not read on until it was slow enough (KIP-219).

What was sent is taken, and what was asked for is answered: a quota slows down, it refuses nothing.
Who ignores what it is told gains nothing, for its connection is not read meanwhile. Replication is
never slowed down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import trio

from hightide.protocol import messages as m
from hightide.protocol.quota_messages import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.quotas import Entity, quota_for
from hightide_broker.core.cluster.rates import Rate
from hightide_broker.runtime.base.call import Call, Peer

MUTE_S_MAX = 30.0
"""The longest that one connection is not read: a group's member says something before."""
HOLDERS_MAX = 10_000
"""Whose rates are remembered: those who sent or read last."""


class Throttle:
    """A node's."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._rates: OrderedDict[tuple[str, Entity], Rate] = OrderedDict()

    def sent(self, call: Call[m.Message]) -> float:
        """For how many seconds who sent these records is to be slower; 0: it is slow enough."""
        if not isinstance(call.request, m.ProduceRequest):
            return 0.0
        size = sum(map(len, call.attachments))
        return self._delay_s(PRODUCER_BYTE_RATE, call.peer, call.client_id, size)

    def read(self, request: m.Message, peer: Peer, client_id: str, size: int) -> float:
        """The same for an answer of so many bytes."""
        if not isinstance(request, m.FetchRequest) or request.replica_id >= 0:
            return 0.0
        return self._delay_s(CONSUMER_BYTE_RATE, peer, client_id, size)

    def _delay_s(self, key: str, peer: Peer, client_id: str, size: int) -> float:
        quota = quota_for(self._image().quotas, peer.principal.partition(":")[2], client_id, key)
        if quota is None or peer.node >= 0:
            return 0.0
        now = trio.current_time()
        rate = self._rates.get((key, quota.holder))
        if rate is None:
            rate = self._rates[key, quota.holder] = Rate()
            if len(self._rates) > HOLDERS_MAX:
                self._rates.popitem(last=False)
        self._rates.move_to_end((key, quota.holder))
        rate.record(size, now)
        return min(rate.delay_s(quota.value, now), MUTE_S_MAX)
