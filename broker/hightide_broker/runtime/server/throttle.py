"""Who is faster than a quota allows is told, and not read on until it was slow enough (KIP-219).

What was sent is taken, and what was asked for is answered: a quota slows down, it refuses nothing.
But of several fetches that waited for the same quota, those bring no records for which it has
nothing left (KIP-13): otherwise who has many connections would get as much by each.
A debt is its holder's, whichever connection it came by: who connects again, or ignores what it is
told, gains nothing. Replication is never slowed down.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from msgspec.structs import replace as exchanged

from hightide.protocol import messages as m
from hightide.protocol.quota_messages import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.quotas import Quota, quota_for
from hightide_broker.core.cluster.rates import Rates
from hightide_broker.runtime.base.call import Call, Reply

BYTES_BURST_S = 4.0
"""So far ahead of a quota of bytes somebody may be: less than 15 % over half a minute."""
FETCH_S = 1.0
"""A fetch brings what is allowed in so long."""
FETCH_WAIT_S_MAX = 20.0
"""The longest that a fetch waits: a member's heartbeats may come behind it."""


class Throttle:
    """How long a node makes those wait who send or read faster than their quota."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._rates = Rates(BYTES_BURST_S)

    @property
    def is_on(self) -> bool:
        """Whether anybody has a quota."""
        return bool(self._image().quotas)

    def due_s(self, call: Call[m.Message]) -> float:
        """How long the sender of this has to wait, for what was before; 0: it need not."""
        due_s = self._owed_s(call)
        return min(due_s, FETCH_WAIT_S_MAX) if quota_of(call) == CONSUMER_BYTE_RATE else due_s

    def brings_nothing(self, call: Call[m.Message]) -> bool:
        """Whether a fetch has come to nothing: its sender has had more than its quota, by others
        meanwhile, or so much that nobody is kept waiting for so long."""
        return isinstance(call.request, m.FetchRequest) and self._owed_s(call) > 0

    def _owed_s(self, call: Call[m.Message]) -> float:
        key, quota = quota_of(call), self._quota(call)
        if quota is None:
            return 0.0
        return self._rates.delay_s((key, quota.holder), quota.value, trio.current_time())

    def bytes_max(self, call: Call[m.Message]) -> int | None:
        """The most that a fetch may bring at once, a batch at least. None: what it asks for."""
        if quota_of(call) != CONSUMER_BYTE_RATE:
            return None
        quota = self._quota(call)
        return None if quota is None else int(quota.value * FETCH_S)

    def charge(self, call: Call[m.Message], size: int) -> None:
        """The sender of this has sent, or gets, so many bytes."""
        quota = self._quota(call) if size else None
        if quota is not None:
            key = quota_of(call), quota.holder
            self._rates.record(key, size, quota.value, trio.current_time())

    def is_limited(self, call: Call[m.Message]) -> bool:
        """Whether a quota is about this, so that it has to be charged."""
        return self._quota(call) is not None

    def _quota(self, call: Call[m.Message]) -> Quota | None:
        key = quota_of(call)
        if not key or call.peer.node >= 0:
            return None
        return quota_for(self._image().quotas, call.peer.user, call.client_id, key)


def quota_of(call: Call[m.Message]) -> str:
    """Which quota a request is about; empty: none."""
    request = call.request
    if isinstance(request, m.ProduceRequest):
        return PRODUCER_BYTE_RATE
    if isinstance(request, m.FetchRequest):
        by_node = request.replica_id >= 0 and call.peer.may_be_node
        return "" if by_node else CONSUMER_BYTE_RATE
    return ""


def without_records(reply: Reply) -> Reply:
    """A fetch's answer that brings nothing but how far there is something."""
    assert isinstance(reply.body, m.FetchResponse), "what a quota of bytes keeps back is a fetch"
    parts = [exchanged(part, records=-1) for part in reply.body.partitions]
    return Reply(exchanged(reply.body, partitions=parts))
