"""What a node's server was asked, how that went, and what it sent; `runtime/metrics` reads it.

No name of a client is in it, and no topic that there is not: who comes can make no end of those.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.errors import ErrorCode, RemoteProtocolError
from hightide_broker.runtime.base.call import Call, CloseConnection
from hightide_broker.runtime.base.measures import Course, Histogram
from hightide_broker.runtime.replication.traffic import TrafficByTopic

NO_ERROR = "NONE"
QUEUE, THROTTLE, LOCAL, REMOTE, SEND, LEFT = range(6)
"""Phases of a request: it has come and waits for its turn · for a quota · is looked at and carried
out here · waits for others, or for news · its answer is on its way · is gone. Kafka's
RequestQueueTime, ThrottleTime, LocalTime, RemoteTime and ResponseSendTime."""
PHASES = ("queue", "throttle", "local", "remote", "send")


class Kind(NamedTuple):
    """Of requests, as far as their phases are told apart."""

    api: str
    sender: str
    """A fetch of a follower's waits for other things than a consumer's."""


PRODUCE = Kind("produce", "producer")
FETCH, REPLICATION = Kind("fetch", "consumer"), Kind("fetch", "follower")
OTHER = Kind("other", "any")
KINDS = (PRODUCE, FETCH, REPLICATION, OTHER)

REASONS = {
    "left": "its other end closed it, or was lost",
    "idle": "nothing was said for too long",
    "slow": "a request did not come, or an answer was not taken, in time",
    "invalid": "what was said is no request",
    "refused": "a no that could not be told in an answer",
    "quota": "a quota had it wait, and there was no room for what it had sent",
    "login": "its login came to its end, or was not made again",
    "turned_away": "it did not prove who it is",
    "full": "there were as many as there may be",
    "early": "its address comes too often",
    "stopping": "the node stops",
    "bug": "a bug of the node's",
}
"""Why connections end."""


class Counts:
    """Of one node, since its process began."""

    def __init__(self, traffic: TrafficByTopic) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By API, and error of the whole answer."""
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        """By API: from when a request was there until its answer was."""
        self.phases = {kind: [Histogram() for _ in PHASES] for kind in KINDS}
        """By kind: how long requests were in each phase, if they came to it."""
        self.closed: Counter[tuple[str, str]] = Counter()
        """Connections that ended or were not let in, by listener and why, of `REASONS`."""
        self.logins: Counter[tuple[str, str, bool]] = Counter()
        """Users by listener and their way (SCRAM, or TLS: a certificate), and whether they came
        in."""
        self.throttled_s: defaultdict[str, float] = defaultdict(float)
        """How long clients were told to wait, by quota."""
        self._traffic = traffic

    def course_of(self, request: m.Message, read_at: float) -> Course:
        """How a request that was there at `read_at` passes through its phases."""
        return Course(self.phases[_kind_of(request)], read_at)

    def throttled(self, call: Call[Any], waits: Sequence[tuple[float, float]]) -> None:
        """A request that is to be begun waited for a quota meanwhile: `waits`, from when until
        when. One that was over before it had come was not its own."""
        if call.course is not None:
            call.course.leave_out(THROTTLE, waits)

    def enters(self, call: Call[Any], phase: int, now: float) -> None:
        """A request comes to a phase."""
        if call.course is not None:
            call.course.enter(phase, now)

    def answered(self, call: Call[Any], now: float, error: ErrorCode | None = None) -> None:
        """A request has its answer, or needs none."""
        api = API_BY_REQUEST[type(call.request)].name
        self.requests[api, error or NO_ERROR] += 1
        self.seconds[api].observe(now - call.at)
        if call.course is not None:
            call.course.enter(SEND, now)

    def sent(self, call: Call[Any], now: float, body: m.Message, sizes: Sequence[int]) -> None:
        """An answer was given, with attachments of these sizes."""
        self.answered(call, now)
        if not isinstance(body, m.ProduceResponse | m.FetchResponse):
            return
        api, by_node = API_BY_REQUEST[type(call.request)].name, _is_replication(call.request)
        for part in body.partitions:
            topic = self._traffic.get(part.topic)
            if topic is None:
                continue
            if part.error is not None:
                topic.failures[api] += 1
            elif isinstance(part, m.FetchResult) and part.records >= 0:
                if by_node:
                    topic.replicated_out += sizes[part.records]
                else:
                    topic.out_bytes += sizes[part.records]


def reason_of(error: BaseException) -> str:
    """Why a connection ends that met this."""
    if isinstance(error, CloseConnection):
        return error.reason
    return "invalid" if isinstance(error, RemoteProtocolError) else "login"


def _kind_of(request: m.Message) -> Kind:
    if isinstance(request, m.ProduceRequest):
        return PRODUCE
    if isinstance(request, m.FetchRequest):
        return FETCH if request.replica_id < 0 else REPLICATION
    return OTHER


def _is_replication(request: m.Message) -> bool:
    return isinstance(request, m.FetchRequest) and request.replica_id >= 0
