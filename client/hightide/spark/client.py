"""A blocking client on plain sockets, for Spark's driver and executor processes.

Spark forks its Python workers, so nothing here starts a thread or an event loop, and nothing is
opened at import. One request at a time on a connection; every wait is under a deadline; what may
succeed later is tried again until the deadline of the call.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hightide import group_messages as g
from hightide import messages as m
from hightide import wire
from hightide.apis import API_BY_REQUEST
from hightide.cluster import RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S, parse_bootstrap
from hightide.errors import (
    ApiError,
    BrokerUnreachable,
    ErrorCode,
    HightideError,
    RemoteProtocolError,
    RequestTimedOut,
    error_code,
)
from hightide.records import Buffer

T = TypeVar("T")
CLIENT_ID = "hightide-spark"
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
TOPIC_GONE_S = 5.0
"""How long a topic or partition that a broker does not know may still be on its way there."""


class BlockingConnection:
    """One socket; broken for good after any failure."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        except OSError as error:
            raise BrokerUnreachable(f"no connection: {error}", broker=self.address) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_id = 0

    def call(
        self,
        request: m.Message,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attachments: Sequence[Buffer] = (),
    ) -> tuple[Any, list[memoryview]]:
        """The response and its attachments; raises as the async connection does."""
        self._next_id += 1
        buffers = wire.encode_request(
            request, request_id=self._next_id, client=CLIENT_ID, attachments=attachments
        )
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(b"".join(buffers))
            length = wire.frame_length(self._receive(wire.LENGTH_BYTES))
            body = self._receive(length)
        except TimeoutError as error:
            raise RequestTimedOut(
                f"no answer within {timeout_s:g} s", broker=self.address, elapsed_s=timeout_s
            ) from error
        except OSError as error:
            raise BrokerUnreachable(f"connection broke: {error}", broker=self.address) from error
        frame = wire.split_frame(body, message_limit=wire.RESPONSE_MESSAGE_BYTES_MAX)
        envelope = wire.decode_response_envelope(frame)
        if envelope.error is not None:
            raise ApiError(
                error_code(envelope.error.code), envelope.error.message, broker=self.address
            )
        if envelope.id != self._next_id:
            raise RemoteProtocolError(f"answer {envelope.id} to request {self._next_id}")
        kind = API_BY_REQUEST[type(request)].response
        return wire.decode_body(envelope.body, kind), frame.attachments

    def _receive(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if got == 0:
                raise BrokerUnreachable("the broker closed the connection", broker=self.address)
            view = view[got:]
        return data

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class BlockingClient:
    """Metadata, offsets and fetches of a cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self.brokers: dict[int, m.BrokerInfo] = {}
        self.topics: dict[str, m.TopicMetadata] = {}

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def refresh(self, topics: Sequence[str] | None, *, timeout_s: float) -> None:
        """Look at the cluster again, tried again while no broker answers; None: at all topics.

        Raises `ApiError` if a topic does not exist, `BrokerUnreachable` or `RequestTimedOut`.
        """
        started = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            try:
                self._refresh_once(topics)
                return
            except (ApiError, BrokerUnreachable, RequestTimedOut) as error:
                error.attempts, error.elapsed_s = attempts, time.monotonic() - started
                delay = min(RETRY_BACKOFF_S * 2**attempts, RETRY_BACKOFF_MAX_S)
                starts = ErrorCode.BROKER_NOT_AVAILABLE  # or stops: it may be back soon
                final = isinstance(error, ApiError) and error.code is not starts
                if final or error.elapsed_s + delay > timeout_s:
                    raise
            time.sleep(delay)

    def _refresh_once(self, topics: Sequence[str] | None) -> None:
        addresses = [(b.host, b.port) for b in self.brokers.values()]
        addresses += [address for address in self._bootstrap if address not in addresses]
        failure: HightideError | None = None
        names = None if topics is None else list(topics)
        for host, port in addresses:
            try:
                answer, _ = self._call((host, port), m.MetadataRequest(topics=names))
            except (BrokerUnreachable, RequestTimedOut, RemoteProtocolError) as error:
                failure = error
                continue
            except ApiError as error:
                if error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                    raise
                failure = error
                continue
            self.brokers = {broker.id: broker for broker in answer.brokers}
            if names is None:
                self.topics = {}
            for topic in answer.topics:
                if topic.error is not None:
                    raise ApiError(error_code(topic.error), topic.message)
                self.topics[topic.topic] = topic
            return
        assert failure is not None, "no address to try"
        raise failure

    def _call(
        self,
        address: tuple[str, int],
        request: m.Message,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attachments: Sequence[Buffer] = (),
    ) -> tuple[Any, list[memoryview]]:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BlockingConnection(*address)
        whole = False
        try:
            result = connection.call(request, timeout_s=timeout_s, attachments=attachments)
            whole = True
            return result
        except ApiError:
            whole = True
            raise
        finally:
            # Also when the task was killed in the middle: half an answer may still be on its way.
            if not whole:
                connection.close()
                self._connections.pop(address, None)

    def leader(self, topic: str, partition: int) -> m.PartitionMetadata:
        """Who leads; raises `ApiError` while nobody does."""
        known = self.topics[topic].partitions
        if partition >= len(known):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} has {len(known)} partitions, {partition} is none of them",
            )
        if known[partition].leader not in self.brokers:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return known[partition]

    def call_leader(
        self,
        topic: str,
        partition: int,
        request: m.Message,
        *,
        timeout_s: float,
        attachments: Sequence[Buffer] = (),
    ) -> tuple[Any, list[memoryview]]:
        """A response from a partition's leader, tried again while that may help.

        The request is about this one partition; its refusal is raised as `ApiError`.
        """
        started = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            try:
                left = max(timeout_s - (time.monotonic() - started), 0.1)
                if topic not in self.topics:
                    self._refresh_once([topic])
                broker = self.brokers[self.leader(topic, partition).leader]
                response, received = self._call(
                    (broker.host, broker.port),
                    request,
                    timeout_s=min(left, REQUEST_TIMEOUT_S),
                    attachments=attachments,
                )
                result = response.partitions[0]
                if result.error is None:
                    return response, received
                raise ApiError(
                    error_code(result.error), result.message, broker=f"{broker.host}:{broker.port}"
                )
            except (ApiError, BrokerUnreachable, RequestTimedOut) as error:
                elapsed = time.monotonic() - started
                delay = min(RETRY_BACKOFF_S * 2**attempts, RETRY_BACKOFF_MAX_S)
                final = isinstance(error, ApiError) and _is_final(error, elapsed)
                if final or elapsed + delay > timeout_s:
                    error.attempts, error.elapsed_s = attempts, elapsed
                    raise
                self.topics.pop(topic, None)
            time.sleep(delay)

    def offset(
        self, topic: str, partition: int, timestamp: int, *, timeout_s: float
    ) -> m.ListOffsetsResult:
        """The offset at a timestamp in ms, or EARLIEST or LATEST, with its leader epoch."""
        part = m.ListOffsetsPartition(topic=topic, partition=partition, timestamp=timestamp)
        response, _ = self.call_leader(
            topic, partition, m.ListOffsetsRequest(partitions=[part]), timeout_s=timeout_s
        )
        result: m.ListOffsetsResult = response.partitions[0]
        return result

    def epoch_end(
        self, topic: str, partition: int, leader_epoch: int, *, timeout_s: float
    ) -> m.EpochResult:
        """Where a leader epoch ends."""
        part = m.EpochPartition(topic=topic, partition=partition, leader_epoch=leader_epoch)
        response, _ = self.call_leader(
            topic, partition, m.OffsetForLeaderEpochRequest(partitions=[part]), timeout_s=timeout_s
        )
        result: m.EpochResult = response.partitions[0]
        return result

    def commit_offsets(self, group: str, offsets: Sequence[g.CommitPartition]) -> None:
        """Commit for a group without members; once, no retry.

        Raises `ApiError` with the first refusal, `BrokerUnreachable` or `RequestTimedOut`.
        """
        request = g.OffsetCommitRequest(group=group, partitions=list(offsets))
        for result in self._ask_coordinator(group, request).partitions:
            _raise(result)

    def committed(self, group: str) -> list[g.FetchedOffset]:
        """What a group has committed; once, no retry; raises as `commit_offsets`."""
        answer = self._ask_coordinator(group, g.OffsetFetchRequest(group=group))
        _raise(answer)
        found: list[g.FetchedOffset] = answer.partitions
        return found

    def _ask_coordinator(self, group: str, request: m.Message) -> Any:
        found = self._any(g.FindCoordinatorRequest(group=group))
        _raise(found)
        return self._call((found.host, found.port), request)[0]

    def retrying(self, attempt: Callable[[], T], *, timeout_s: float) -> T:
        """What `attempt` returns, tried again while that may help."""
        started = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            try:
                return attempt()
            except (ApiError, BrokerUnreachable, RequestTimedOut) as error:
                error.attempts, error.elapsed_s = attempts, time.monotonic() - started
                delay = min(RETRY_BACKOFF_S * 2**attempts, RETRY_BACKOFF_MAX_S)
                final = isinstance(error, ApiError) and not error.retriable
                if final or error.elapsed_s + delay > timeout_s:
                    raise
            time.sleep(delay)

    def _any(self, request: m.Message) -> Any:
        """An answer of whichever broker gives one."""
        failure: HightideError | None = None
        for address in [(b.host, b.port) for b in self.brokers.values()] + self._bootstrap:
            try:
                return self._call(address, request)[0]
            except (BrokerUnreachable, RequestTimedOut, RemoteProtocolError) as error:
                failure = error
        assert failure is not None, "no address to try"
        raise failure

    def wait_for_more(self, ends: dict[tuple[str, int], int], wait_s: float) -> None:
        """Until some partition has records behind its end, or the time is over."""
        leaders: dict[int, list[m.FetchPartition]] = {}
        for (topic, partition), offset in ends.items():
            part = m.FetchPartition(
                topic=topic, partition=partition, fetch_offset=offset, max_bytes=1
            )
            leaders.setdefault(self.leader(topic, partition).leader, []).append(part)
        if not leaders:
            time.sleep(wait_s)  # a pattern that no topic matches yet
        for broker, parts in leaders.items():
            request = m.FetchRequest(
                max_wait_ms=int(wait_s * 1000 / len(leaders)), partitions=parts, max_bytes=1
            )
            info = self.brokers[broker]
            try:
                response, _ = self._call((info.host, info.port), request)
            except (ApiError, BrokerUnreachable, RequestTimedOut):
                return  # whoever waits looks again, and that is tried until it works
            if any(result.records >= 0 for result in response.partitions):
                return


def _raise(answer: Any) -> None:
    if answer.error is not None:
        raise ApiError(error_code(answer.error), answer.message)


def _is_final(error: ApiError, elapsed_s: float) -> bool:
    """Whether trying again is in vain: a topic that is gone stays gone after a little while."""
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return elapsed_s > TOPIC_GONE_S
    return not error.retriable or error.code is ErrorCode.INCONSISTENT_TOPIC_ID


_clients: dict[tuple[int, str], BlockingClient] = {}


def client_for(bootstrap: str) -> BlockingClient:
    """This process's client for a cluster; a forked child opens its own connections."""
    key = (os.getpid(), bootstrap)
    if key not in _clients:
        for (pid, _), other in _clients.items():
            if pid == os.getpid():
                other.close()
        _clients.clear()
        _clients[key] = BlockingClient(bootstrap)
    return _clients[key]
