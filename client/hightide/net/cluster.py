"""The way to each broker of a cluster, and to those who lead.

Holds the connections of one client, refreshes its metadata when that is old or was proven wrong,
and retries what may succeed later, under one deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import trio

from hightide.net.any_broker import HESITATION_S, Address, AnyBroker
from hightide.net.background import open_background
from hightide.net.connection import Connection
from hightide.net.metadata import Metadata, no_such_partition
from hightide.net.options import ClientOptions, network_for
from hightide.net.pool import ConnectionPool
from hightide.net.ports import system_random
from hightide.net.retries import (
    BACKOFF_S,
    NEW_TOPIC_GRACE_S,
    IsFinal,
    Retries,
    backoff_s,
    is_final,
    or_unknown_topic,
)
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
TRIES = 3
"""So often may be asked, within the time that there is, what only reads, if nobody answers."""


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[tuple[str, int]]:
    """`host:port[,host:port…]` as pairs; raises `UsageError`. `[::1]:19092` is an IPv6 address."""
    if isinstance(bootstrap, Mapping):
        raise UsageError("bootstrap is a dict: options by Kafka's names go to `from_config`")
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    if not parts:
        raise UsageError("bootstrap names no broker, expected host:port")
    addresses = []
    for part in (part.strip() for part in parts):
        host, colon, port = part.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(
                f"bootstrap address {part!r}, expected host:port, a port from 1 to 65535"
            )
        addresses.append((host, int(port)))
    return addresses


class Cluster:
    """Made by `open_cluster`."""

    def __init__(
        self,
        options: ClientOptions,
        nursery: trio.Nursery,
        on_lost_leader: Callable[[], None],
        on_retry: Callable[[HightideError], None] | None = None,
    ) -> None:
        self.random = options.random or system_random()
        self.request_timeout_s = options.request_timeout_ms / 1000
        self.metadata = Metadata(max_age_s=options.metadata_max_age_ms / 1000)
        """What is known of brokers, topics and leaders."""
        self.on_learned: Callable[[], None] = _nothing
        """Called when an answer has told of them, whoever asked."""
        self._any_broker = AnyBroker(parse_bootstrap(options.bootstrap_servers))
        network = network_for(options)
        self._pool = ConnectionPool(network, nursery, client_id=options.client_id)
        self._refreshing = trio.Lock()
        self._on_lost_leader = on_lost_leader
        self._on_retry = on_retry

    # -- what is known ---------------------------------------------------------------------------

    @property
    def last_asked(self) -> str:
        """The broker that was asked last, for messages; empty if none was."""
        return "{}:{}".format(*self._any_broker.asking) if self._any_broker.asking else ""

    @property
    def is_stale(self) -> bool:
        """Whether metadata is older than metadata_max_age_ms."""
        return trio.current_time() >= self.metadata.stale_at

    def lost_leader(self, topic: str, partition: int, hint: m.LeaderHint | None = None) -> None:
        """A broker said that it does not lead; see `Metadata`."""
        if self.metadata.lost_leader(topic, partition, hint):
            self._on_lost_leader()

    async def refresh(
        self, topics: Iterable[str] | None = None, *, auto_create: bool = False
    ) -> m.MetadataResponse:
        """Ask any broker; once, no retry. `topics` None: all of them."""
        async with self._refreshing:
            names = None if topics is None else list(topics)
            request = m.MetadataRequest(topics=names, auto_create=auto_create)
            answer, _ = await self.call_any_once(request)
            assert isinstance(answer, m.MetadataResponse)
            now = trio.current_time()
            if not self.metadata.learn(answer, is_complete=names is None, now=now):
                self._any_broker.was_unhelpful()
            self.on_learned()
            return answer

    async def topic(
        self, name: str, *, timeout_s: float, auto_create: bool = False
    ) -> m.TopicMetadata:
        """A topic's metadata, waited for; raises `ApiError` if it does not exist."""
        known = self.metadata.topics.get(name)
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

        new = or_unknown_topic(NEW_TOPIC_GRACE_S)
        return await self.retrying(look, timeout_s=timeout_s, is_final=new)

    # -- ways to brokers -------------------------------------------------------------------------

    def connection_now(self, broker: int) -> Connection | None:
        """The open connection to a broker, if there is one."""
        info = self.metadata.brokers.get(broker)
        return None if info is None else self._pool.open_now((info.host, info.port))

    async def connection_to(self, broker: int) -> Connection:
        """An open connection to a broker; raises `BrokerUnreachable`."""
        info = self.metadata.brokers.get(broker)
        if info is None:
            raise BrokerUnreachable(f"broker {broker} is not in the cluster's metadata")
        return await self._pool.connection(info.host, info.port)

    async def call_any_once(self, request: m.Message) -> tuple[Any, list[memoryview]]:
        """Try known brokers, then the bootstrap addresses, until one answers."""
        brokers = self.metadata.brokers.values()
        failure: HightideError | None = None
        for address in self._any_broker.in_turn(brokers, self._pool.has_open):
            try:
                if self._any_broker.hesitates:
                    await self._greet(address)
                connection = await self._pool.connection(*address)
                return await connection.call(request, timeout_s=self.request_timeout_s)
            except UNREACHABLE as error:
                self._any_broker.was_unhelpful(address)  # one that hangs costs a timeout each time
                failure = self._any_broker.worse(failure, error)
            except ApiError as error:
                if not self._any_broker.leads_on(error):
                    raise
                failure = self._any_broker.worse(failure, error)
        assert failure is not None, "no address to try"
        raise failure

    async def _greet(self, address: Address) -> None:
        """Have whoever is there say anything, before it is asked what others can answer too; raises
        as `Connection.call`."""
        with trio.move_on_after(HESITATION_S):
            connection = await self._pool.connection(*address)
            await connection.call(m.ApiVersionsRequest())
            return
        host, port = address
        raise RequestTimedOut(f"no word within {HESITATION_S:g} s", broker=f"{host}:{port}")

    async def call_any_broker_once(self, request: m.Message) -> tuple[Any, list[memoryview]]:
        """The same for what only brokers answer; the bootstrap address may be a controller's."""
        if not self.metadata.brokers:
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

    async def call_broker(
        self, broker: int, request: m.Message, *, timeout_s: float, may_go: bool = False
    ) -> Any:
        """A response from one broker, with retries. `may_go`: None, once the others do not count it
        any more."""
        patience_s = self._reading_s(timeout_s) if may_go else self.request_timeout_s
        is_again = False

        async def attempt() -> Any:
            nonlocal is_again
            if is_again or broker not in self.metadata.brokers:
                await self.refresh([])
            is_again = True
            if may_go and broker not in self.metadata.brokers:
                return None
            connection = await self.connection_to(broker)
            return (await connection.call(request, timeout_s=patience_s))[0]

        asked = partial(self._named, broker)
        return await self.retrying(attempt, timeout_s=timeout_s, asked=asked)

    def _reading_s(self, timeout_s: float) -> float:
        """How long who is only asked may be silent, so that another one may be asked in time."""
        return min(self.request_timeout_s, timeout_s / TRIES)

    def _named(self, broker: int) -> str:
        """host:port, as far as it is known."""
        info = self.metadata.brokers.get(broker)
        return f"{info.host}:{info.port}" if info else str(broker)

    async def call_at(self, address: Address, request: m.Message, *, timeout_s: float) -> Any:
        """A response from the node at an address, with retries."""

        async def attempt() -> Any:
            connection = await self._pool.connection(*address)
            return (await connection.call(request, timeout_s=self.request_timeout_s))[0]

        return await self.retrying(attempt, timeout_s=timeout_s)

    async def call_leader(
        self,
        topic: str,
        partition: int,
        request: m.Message,
        *,
        timeout_s: float,
        only_reads: bool = False,
    ) -> Any:
        """What a partition's leader says of it; the request is about this partition alone, and may
        be given up while it is answered if it `only_reads`."""
        patience_s = self._reading_s(timeout_s) if only_reads else self.request_timeout_s
        none: ApiError | None = None
        leader = ""

        def is_final_or_none(error: ApiError, elapsed_s: float, next_s: float) -> bool:
            # Brokers hear one by one of partitions that were added.
            return is_final(error, elapsed_s, next_s) or (
                error is none and next_s >= NEW_TOPIC_GRACE_S
            )

        async def attempt() -> Any:
            nonlocal none, leader
            if self.metadata.leader(topic, partition) is None:
                self.metadata.topics.pop(topic, None)
                found = await self.topic(topic, timeout_s=self.request_timeout_s)
                if partition >= len(found.partitions):
                    none = no_such_partition(topic, len(found.partitions), partition)
                    raise none
            state = self.metadata.leader(topic, partition)
            if state is None:
                why = self.metadata.why_leaderless(topic, partition)
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, why)
            leader = self._named(state.leader)
            try:
                connection = await self.connection_to(state.leader)
                response, _ = await connection.call(request, timeout_s=patience_s)
            except (*UNREACHABLE, trio.Cancelled, BaseExceptionGroup):
                # Also when the time is up: the next caller must not wait for it again.
                self.lost_leader(topic, partition)
                raise
            result = only(response.partitions)
            if (refusal := first_refusal([result])) is not None:
                refusal.broker = connection.address
                if refusal.refresh:
                    self.lost_leader(topic, partition)
                raise refusal
            return result

        return await self.retrying(
            attempt,
            timeout_s=timeout_s,
            is_final=is_final_or_none,
            asked=lambda: leader or self.last_asked,
        )

    async def offset(
        self, topic: str, partition: int, timestamp: int, *, timeout_s: float
    ) -> m.ListOffsetsResult:
        """The offset at a timestamp in ms, or EARLIEST, LATEST or MAX_TIMESTAMP; -1 if none is."""
        part = m.ListOffsetsPartition(topic=topic, partition=partition, timestamp=timestamp)
        request = m.ListOffsetsRequest(partitions=[part])
        found: m.ListOffsetsResult = await self.call_leader(
            topic, partition, request, timeout_s=timeout_s, only_reads=True
        )
        return found

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_s: float,
        is_final: IsFinal = is_final,
        asked: Callable[[], str] | None = None,
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or `timeout_s` is over; raises as
        `Retries.pause_s`. `asked` tells who an attempt waited for, if not for any broker."""
        now = trio.current_time()
        tries = Retries(timeout_s=timeout_s, now=now, random=self.random, is_final=is_final)
        while True:
            try:
                with trio.move_on_after(tries.left_s(trio.current_time())):
                    return await attempt()
                broker = self.last_asked if asked is None else asked()
                self._any_broker.was_unhelpful()
                raise RequestTimedOut(f"no answer within {timeout_s:g} s", broker=broker)
            except (ApiError, *SILENT) as error:
                pause_s = tries.pause_s(error, trio.current_time())
                if self._on_retry is not None:
                    self._on_retry(error)
            await trio.sleep(pause_s)

    def backoff_s(self, attempts: int, first_s: float = BACKOFF_S) -> float:
        """How long to wait after so many attempts."""
        return backoff_s(attempts, self.random, first_s)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


def _nothing() -> None:
    """Who has no task that sleeps."""


@asynccontextmanager
async def open_cluster(
    options: ClientOptions,
    *,
    on_lost_leader: Callable[[], None] = _nothing,
    on_retry: Callable[[HightideError], None] | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster's connections for the block. `on_lost_leader` is called when one was: a task that
    sleeps because it was there looks for the next; `on_retry` with why a call is tried again, where
    nobody tells of that in the background."""
    async with open_background() as nursery:
        cluster = Cluster(options, nursery, on_lost_leader, on_retry)
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
