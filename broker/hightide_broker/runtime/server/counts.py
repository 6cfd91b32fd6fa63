"""What a node's server was asked, how that went, and what it sent; `runtime/metrics` reads it.

No name of a client is in it, and no topic that there is not: who comes can make no end of those.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import trio

from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.errors import ErrorCode
from hightide_broker.runtime.base.call import Call
from hightide_broker.runtime.base.measures import Histogram
from hightide_broker.runtime.replication.traffic import TrafficByTopic

NO_ERROR = "NONE"


class Counts:
    """Of one node, since its process began."""

    def __init__(self, traffic: TrafficByTopic) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By API, and error of the whole answer."""
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        """By API: from when a request was there until its answer was."""
        self.turned_away: Counter[str] = Counter()
        """Connections that were not let in, by listener."""
        self.logins: Counter[tuple[str, bool]] = Counter()
        """Users by their way (SCRAM, or TLS: a certificate), and whether they came in."""
        self.throttled_s: defaultdict[str, float] = defaultdict(float)
        """How long clients were told to wait, by quota."""
        self.rejected: Counter[str] = Counter()
        """Batches of producers that were refused, by error."""
        self._traffic = traffic

    def answered(self, call: Call[Any], error: ErrorCode | None = None) -> None:
        """A request has its answer, or needs none."""
        api = API_BY_REQUEST[type(call.request)].name
        self.requests[api, error or NO_ERROR] += 1
        self.seconds[api].observe(trio.current_time() - call.at)

    def sent(self, call: Call[Any], body: m.Message, sizes: Sequence[int]) -> None:
        """An answer was given, with attachments of these sizes."""
        self.answered(call)
        if not isinstance(body, m.ProduceResponse | m.FetchResponse):
            return
        api, by_node = API_BY_REQUEST[type(call.request)].name, _is_replication(call.request)
        for part in body.partitions:
            topic = self._traffic.get(part.topic)
            if topic is None:
                continue
            if part.error is not None:
                topic.failures[api] += 1
                if isinstance(part, m.ProduceResult):
                    self.rejected[part.error] += 1
            elif isinstance(part, m.FetchResult) and part.records >= 0:
                if by_node:
                    topic.replicated_out += sizes[part.records]
                else:
                    topic.out_bytes += sizes[part.records]


def _is_replication(request: m.Message) -> bool:
    return isinstance(request, m.FetchRequest) and request.replica_id >= 0
