"""What a client knows of the cluster: brokers, topics, who leads; and the way to each of them.

Holds the connections of one client, refreshes metadata when it is old or was proven wrong, and
retries what may succeed later, under one deadline. An answer about a partition with an older leader
epoch than known is ignored; a topic that was made again starts over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import trio

from hightide.net.background import open_background
from hightide.net.connection import Connection
from hightide.net.options import ClientOptions
from hightide.net.pool import ConnectionPool
from hightide.net.ports import system_random
from hightide.net.tcp import TcpNetwork
from hightide.protocol import messages as m
from hightide.protocol.errors import (
    SILENT,
    UNREACHABLE,
    ApiError,
    BrokerUnreachable,
    ClosedError,
    ErrorCode,
    HightideError,
    RemoteProtocolError,
    RequestTimedOut,
    UsageError,
    error_code,
)

T = TypeVar("T")

DEFAULT_PORT = 19092
RETRY_BACKOFF_S = 0.1
_ASK_ANOTHER = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""It is starting or stopping; or it is a controller, and a broker is wanted."""
RETRY_BACKOFF_MAX_S = 1.0
UNKNOWN_TOPIC_GRACE_S = 1.0
"""How long a topic may be unknown that somebody has just made: brokers hear of it one by one."""


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[tuple[str, int]]:
    """`host:port[,host:port…]` as pairs; raises `UsageError`. `[::1]:19092` is an IPv6 address."""
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    if not parts:
        raise UsageError("bootstrap names no broker, expected host:port")
    addresses = []
    for part in (part.strip() for part in parts):
        host, colon, port = part.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"bootstrap address {part!r}, expected host:port")
        addresses.append((host, int(port)))
    return addresses


class Cluster:
    """Made by `open_cluster`."""

    def __init__(self, options: ClientOptions, nursery: trio.Nursery) -> None:
        self.random = options.random or system_random()
        self.request_timeout_s = options.request_timeout_ms / 1000
        self.cluster_id = ""
        self.controller = -1
        self.brokers: dict[int, m.BrokerInfo] = {}
        self.topics: dict[str, m.TopicMetadata] = {}
        self.refreshed_at = float("-inf")
        self._bootstrap = parse_bootstrap(options.bootstrap_servers)
        self._max_age_s = options.metadata_max_age_ms / 1000
        network = options.network or TcpNetwork()
        self._pool = ConnectionPool(network, nursery, client_id=options.client_id)
        self._refreshing = trio.Lock()
        self._asking: tuple[str, int] | None = None
        """The broker that was asked last."""
        self._unhelpful: tuple[str, int] | None = None
        """The last one that could not do what it was asked for."""
        self._leaders: dict[tuple[str, int], m.PartitionMetadata] = {}
        self.on_lost_leader: Callable[[], None] = lambda: None
        """Called when one was lost: whoever sleeps because it was there looks for the next."""
        self._newest: dict[tuple[str, int], tuple[str, int]] = {}
        """The id of the topic, and the newest epoch of its leaders that anybody has told: a broker
        that is cut off tells of older ones, and takes itself for a leader (KIP-320)."""

    # -- what is known ---------------------------------------------------------------------------

    @property
    def last_asked(self) -> str:
        """The broker that was asked last, for messages; empty if none was."""
        return "{}:{}".format(*self._asking) if self._asking else ""

    def leader(self, topic: str, partition: int) -> m.PartitionMetadata | None:
        """Who leads a partition as far as is known; None if nobody or not known."""
        known = self._leaders.get((topic, partition))
        return known if known is not None and known.leader in self.brokers else None

    def why_leaderless(self, topic: str, partition: int) -> str:
        """Why nobody leads a partition, as far as a broker said."""
        known = self._leaders.get((topic, partition))
        return (known.message if known else "") or f"{topic}-{partition} has no leader"

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 if it is not known."""
        known = self.topics.get(topic)
        return len(known.partitions) if known else 0

    def available(self, topic: str) -> Sequence[int]:
        """Partitions that have a leader, or all if none has."""
        count = self.partition_count(topic)
        led = [number for number in range(count) if self.leader(topic, number) is not None]
        return led or range(count)

    @property
    def next_refresh_at(self) -> float:
        """When metadata gets too old, on trio's clock."""
        return self.refreshed_at + self._max_age_s

    @property
    def is_stale(self) -> bool:
        """Whether metadata is older than metadata_max_age_ms."""
        return trio.current_time() >= self.next_refresh_at

    def lost_leader(self, topic: str, partition: int, hint: m.LeaderHint | None = None) -> None:
        """A broker said that it does not lead: forget, or believe its hint (KIP-951)."""
        known = self._leaders.get((topic, partition))
        if known is None:
            return
        if hint is not None and hint.leader_epoch > known.leader_epoch:
            topic_id, _ = self._newest[(topic, partition)]
            self._newest[(topic, partition)] = (topic_id, hint.leader_epoch)
            self._leaders[(topic, partition)] = m.PartitionMetadata(
                partition=partition,
                leader=hint.leader,
                leader_epoch=hint.leader_epoch,
                replicas=known.replicas,
                isr=known.isr,
            )
        else:
            del self._leaders[(topic, partition)]
        self.on_lost_leader()

    async def refresh(
        self, topics: Iterable[str] | None = None, *, auto_create: bool = False
    ) -> m.MetadataResponse:
        """Ask any broker; once, no retry. `topics` None: all of them."""
        async with self._refreshing:
            names = None if topics is None else list(topics)
            request = m.MetadataRequest(topics=names, auto_create=auto_create)
            answer, _ = await self.call_any_once(request)
            assert isinstance(answer, m.MetadataResponse)
            self._learn(answer, complete=names is None)
            return answer

    def _learn(self, answer: m.MetadataResponse, *, complete: bool) -> None:
        self.cluster_id = answer.cluster_id
        self.controller = answer.controller
        self.brokers = {broker.id: broker for broker in answer.brokers}
        self.refreshed_at = trio.current_time()
        if complete:
            self.topics = {}
        for topic in answer.topics:
            if topic.error is not None:
                self._forget_topic(topic.topic)
                continue
            self.topics[topic.topic] = topic
            for partition in topic.partitions:
                key = (topic.topic, partition.partition)
                topic_id, epoch = self._newest.get(key, ("", -1))
                if topic_id != topic.topic_id or partition.leader_epoch >= epoch:
                    self._newest[key] = (topic.topic_id, partition.leader_epoch)
                    self._leaders[key] = partition

    def _forget_topic(self, name: str) -> None:
        """The topic is gone: one of the same name is another one, with epochs of its own."""
        self.topics.pop(name, None)
        for key in [key for key in self._leaders if key[0] == name]:
            del self._leaders[key]

    async def topic(
        self, name: str, *, timeout_s: float, auto_create: bool = False
    ) -> m.TopicMetadata:
        """A topic's metadata, waited for; raises `ApiError` if it does not exist."""
        known = self.topics.get(name)
        if known is not None:
            return known

        async def look() -> m.TopicMetadata:
            answer = await self.refresh([name], auto_create=auto_create)
            found = only(answer.topics)
            if found.error is not None:
                code = error_code(found.error)
                knob = ""
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    knob = "auto.create.topics.enable"
                raise ApiError(code, found.message, broker=self.last_asked, knob=knob)
            return found

        return await self.retrying(look, timeout_s=timeout_s, give_up_on_unknown_topic=True)

    # -- ways to brokers -------------------------------------------------------------------------

    async def connection_to(self, broker: int) -> Connection:
        """An open connection to a broker; raises `BrokerUnreachable`."""
        info = self.brokers.get(broker)
        if info is None:
            raise BrokerUnreachable(f"broker {broker} is not in the cluster's metadata")
        return await self._pool.connection(info.host, info.port)

    async def call_any_once(self, request: m.Message) -> tuple[Any, list[memoryview]]:
        """Try known brokers, then the bootstrap addresses, until one answers."""
        addresses = [(broker.host, broker.port) for broker in self.brokers.values()]
        addresses += [address for address in self._bootstrap if address not in addresses]
        # Open connections first: a dead broker costs a connect timeout. But one that answers and
        # cannot help, because it is cut off from the controller, comes last.
        addresses.sort(
            key=lambda address: (address == self._unhelpful, not self._pool.has_open(address))
        )
        failure: HightideError | None = None
        for host, port in addresses:
            self._asking = (host, port)
            try:
                connection = await self._pool.connection(host, port)
                return await connection.call(request, timeout_s=self.request_timeout_s)
            except UNREACHABLE as error:
                failure = error
            except ApiError as error:
                if error.code not in _ASK_ANOTHER:
                    if error.retriable:
                        self._unhelpful = (host, port)
                    raise
                failure = error
        assert failure is not None, "no address to try"
        raise failure

    async def call_any_broker_once(self, request: m.Message) -> tuple[Any, list[memoryview]]:
        """The same for what only brokers answer; the bootstrap address may be a controller's."""
        if not self.brokers:
            await self.refresh([])
        return await self.call_any_once(request)

    async def call_any(self, request: m.Message, *, timeout_s: float) -> Any:
        """A response from whichever broker answers, with retries."""

        async def attempt() -> Any:
            return (await self.call_any_once(request))[0]

        return await self.retrying(attempt, timeout_s=timeout_s)

    async def call_any_broker(self, request: m.Message, *, timeout_s: float) -> Any:
        """A response from whichever broker answers, and no controller, with retries."""

        async def attempt() -> Any:
            return (await self.call_any_broker_once(request))[0]

        return await self.retrying(attempt, timeout_s=timeout_s)

    async def call_broker(self, broker: int, request: m.Message, *, timeout_s: float) -> Any:
        """A response from one broker, with retries."""

        async def attempt() -> Any:
            if broker not in self.brokers:
                await self.refresh([])
            connection = await self.connection_to(broker)
            return (await connection.call(request, timeout_s=self.request_timeout_s))[0]

        return await self.retrying(attempt, timeout_s=timeout_s)

    async def call_leader(
        self,
        topic: str,
        partition: int,
        request: m.Message,
        *,
        timeout_s: float,
    ) -> Any:
        """What a partition's leader says of it; the request is about this partition alone."""

        async def attempt() -> Any:
            if self.leader(topic, partition) is None:
                self.topics.pop(topic, None)
                found = await self.topic(topic, timeout_s=self.request_timeout_s)
                if partition >= len(found.partitions):
                    raise ApiError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"topic {topic!r} has {len(found.partitions)} partitions, "
                        f"{partition} is none of them",
                    )
            state = self.leader(topic, partition)
            if state is None:
                raise ApiError(
                    ErrorCode.LEADER_NOT_AVAILABLE, self.why_leaderless(topic, partition)
                )
            try:
                connection = await self.connection_to(state.leader)
                response, _ = await connection.call(request, timeout_s=self.request_timeout_s)
            except (*UNREACHABLE, trio.Cancelled, BaseExceptionGroup):
                # Also when the time is up: whoever asks next must not wait for it again.
                self.lost_leader(topic, partition)
                raise
            result = only(response.partitions)
            if (refusal := first_refusal([result])) is not None:
                refusal.broker = connection.address
                if refusal.refresh:
                    self.lost_leader(topic, partition)
                raise refusal
            return result

        return await self.retrying(attempt, timeout_s=timeout_s)

    async def offset(
        self, topic: str, partition: int, timestamp: int, *, timeout_s: float
    ) -> m.ListOffsetsResult:
        """The offset at a timestamp in ms, or EARLIEST, LATEST or MAX_TIMESTAMP; -1 if none is."""
        part = m.ListOffsetsPartition(topic=topic, partition=partition, timestamp=timestamp)
        request = m.ListOffsetsRequest(partitions=[part])
        found: m.ListOffsetsResult = await self.call_leader(
            topic, partition, request, timeout_s=timeout_s
        )
        return found

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_s: float,
        give_up_on_unknown_topic: bool = False,
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or `timeout_s` is over.

        The error that ends it knows how often and how long it was tried.
        """
        started = trio.current_time()
        attempts = 0
        refusal: ApiError | None = None
        while True:
            attempts += 1
            try:
                with trio.move_on_after(max(timeout_s - (trio.current_time() - started), 0)):
                    return await attempt()
                self._unhelpful = self._asking
                raise RequestTimedOut(f"no answer within {timeout_s:g} s", broker=self.last_asked)
            except (ApiError, *SILENT) as error:
                elapsed = trio.current_time() - started
                delay = self.backoff_s(attempts)
                hopeless = isinstance(error, ApiError) and (
                    not error.retriable
                    or (
                        give_up_on_unknown_topic
                        and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        and elapsed + delay >= UNKNOWN_TOPIC_GRACE_S
                    )
                )
                if hopeless or elapsed + delay >= timeout_s:
                    # Silence at the end says less than what was refused before.
                    last = refusal if refusal and isinstance(error, RequestTimedOut) else error
                    last.attempts, last.elapsed_s = attempts, elapsed
                    if not hopeless and not last.knob:
                        last.knob = f"timeout {timeout_s:g} s"
                    raise last from None
                if isinstance(error, ApiError):
                    refusal = error
            await trio.sleep(delay)

    def backoff_s(self, attempts: int) -> float:
        """How long to wait before the next attempt: exponential with jitter."""
        delay: float = min(RETRY_BACKOFF_S * 2 ** min(attempts - 1, 10), RETRY_BACKOFF_MAX_S)
        return delay * (0.8 + 0.4 * self.random.random())

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


@asynccontextmanager
async def open_cluster(options: ClientOptions) -> AsyncIterator[Cluster]:
    """A cluster's connections for the block."""
    async with open_background() as nursery:
        cluster = Cluster(options, nursery)
        try:
            yield cluster
        finally:
            await cluster.aclose()


class _Result(Protocol):
    @property
    def error(self) -> str | None: ...

    @property
    def message(self) -> str: ...


def first_refusal(results: Iterable[_Result]) -> ApiError | None:
    """The first one among the parts of an answer."""
    for result in results:
        if result.error is not None:
            return ApiError(error_code(result.error), result.message)
    return None


def only(items: Sequence[T]) -> T:
    """The one item of an answer about one thing; raises `RemoteProtocolError` if it is not one."""
    if len(items) != 1:
        raise RemoteProtocolError(f"an answer about one thing has {len(items)} results")
    return items[0]


def closed(what: str) -> ClosedError:
    """The error of using a client outside its block."""
    return ClosedError(
        f"the {what} is closed, or not open yet: use it inside its `async with` block"
    )
