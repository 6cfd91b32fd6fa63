"""A blocking client on plain sockets, for Spark's driver and executor processes.

Spark forks its Python workers, so nothing here starts a thread or an event loop, and nothing is
opened at import. Every wait is under a deadline; what may succeed later is tried again until the
deadline of the call.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar

from hightide.net.any_broker import HESITATION_S, AnyBroker
from hightide.net.cluster import parse_bootstrap
from hightide.net.login import DIRECT, Way
from hightide.net.metadata import Metadata, no_such_partition
from hightide.net.ports import system_random
from hightide.net.retries import (
    GONE_TOPIC_GRACE_S,
    NEW_TOPIC_GRACE_S,
    IsFinal,
    Retries,
    is_final,
    or_unknown_topic,
)
from hightide.net.tls import ClientContext
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.errors import (
    SILENT,
    UNREACHABLE,
    ApiError,
    ErrorCode,
    HightideError,
    error_code,
)
from hightide.protocol.records import Buffer
from hightide.protocol.topic_partition import TopicPartition
from hightide.spark.connection import REQUEST_TIMEOUT_S, Answer, Asked, BlockingConnection

T = TypeVar("T")
TRIED_AGAIN = (ApiError, *SILENT)
"""What may go well later, except for some refusals."""
LEAST_S = 0.1
"""What a request is given when the time is nearly over."""


class BlockingClient:
    """Metadata, offsets and fetches of a cluster."""

    def __init__(self, bootstrap: str, way: Way = DIRECT) -> None:
        self._tls = None if way.tls is None else ClientContext(way.tls)
        self._login = way.login
        self._any_broker = AnyBroker(parse_bootstrap(bootstrap))
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self.metadata = Metadata()
        """What is known of brokers, topics and leaders."""
        self._random = system_random()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def refresh(
        self,
        topics: Sequence[str] | None,
        *,
        timeout_s: float,
        gone: frozenset[str] | None = None,
    ) -> frozenset[str]:
        """Look at the cluster again, tried again while no broker answers; None: at all topics.

        Raises `ApiError` if a topic does not exist, `BrokerUnreachable` or `RequestTimedOut`.
        Unless topics may be gone: `gone` are those that were last time. It returns which are now,
        and has asked for a while whether they are.
        """
        started = time.monotonic()

        def attempt(left_s: float) -> frozenset[str]:
            is_over = time.monotonic() - started > GONE_TOPIC_GRACE_S
            return self._refresh_once(topics, left_s, gone, is_over=is_over)

        ends = is_final if gone is not None else or_unknown_topic(NEW_TOPIC_GRACE_S)
        return self.retrying(attempt, timeout_s=timeout_s, is_final=ends)

    def _refresh_once(
        self,
        topics: Sequence[str] | None,
        timeout_s: float,
        gone: frozenset[str] | None = None,
        *,
        is_over: bool = False,
    ) -> frozenset[str]:
        """`gone` are topics that do not exist, as far as is known; with `is_over` all are of which
        that is said now. None: there are none."""
        names = None if topics is None else list(topics)
        answer = self._any(m.MetadataRequest(topics=names), timeout_s)
        if not self.metadata.learn(answer, is_complete=names is None, now=time.monotonic()):
            self._any_broker.was_unhelpful()
        missing = set()
        for topic in map(self._as_known, answer.topics):
            is_missing = topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_missing and gone is not None and (is_over or topic.topic in gone):
                missing.add(topic.topic)
            else:
                _raise(topic)
        return frozenset(missing)

    def _as_known(self, topic: m.TopicMetadata) -> m.TopicMetadata:
        """Of a topic that somebody who knows more calls gone, the same as he would say."""
        if topic.error is not None or topic.topic in self.metadata.topics:
            return topic
        return m.TopicMetadata(
            topic=topic.topic,
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            message=f"topic {topic.topic!r} does not exist: a broker that still has it is behind",
        )

    def _any(self, request: m.Message, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """An answer of whichever broker gives one, in `timeout_s` for all of them."""
        deadline = time.monotonic() + timeout_s
        brokers = self.metadata.brokers.values()
        failure: HightideError | None = None
        for address in self._any_broker.in_turn(brokers, self._connections.__contains__):
            try:
                left_s = max(deadline - time.monotonic(), LEAST_S)
                if self._any_broker.hesitates:
                    left_s = min(left_s, HESITATION_S)
                return self.call(address, request, timeout_s=left_s)[0]
            except UNREACHABLE as error:
                failure = self._any_broker.worse(failure, error)
            except ApiError as error:
                if not self._any_broker.leads_on(error):
                    raise
                failure = self._any_broker.worse(failure, error)
        assert failure is not None, "no address to try"
        raise failure

    def retrying(
        self,
        attempt: Callable[[float], T],
        *,
        timeout_s: float,
        is_final: IsFinal = is_final,
    ) -> T:
        """What `attempt` returns, given the seconds that are left; tried again while that may help.

        Raises `ApiError`, `BrokerUnreachable` or `RequestTimedOut`; see `Retries.pause_s`.
        """
        now = time.monotonic()
        tries = Retries(
            timeout_s=timeout_s,
            now=now,
            random=self._random,
            is_final=is_final,
            unknown_is_verdict=True,
        )
        while True:
            try:
                return attempt(max(tries.left_s(time.monotonic()), LEAST_S))
            except TRIED_AGAIN as error:
                pause_s = tries.pause_s(error, time.monotonic())
            time.sleep(pause_s)

    def call(
        self,
        address: tuple[str, int],
        request: m.Message,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attachments: Sequence[Buffer] = (),
    ) -> Answer:
        """One request to one broker, once; raises as `BlockingConnection.answer`."""
        asked = self.ask(address, request, timeout_s=timeout_s, attachments=attachments)
        return self.answer(asked, timeout_s=timeout_s)

    def ask(
        self,
        address: tuple[str, int],
        request: m.Message,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attachments: Sequence[Buffer] = (),
        is_kept: bool = False,
    ) -> Asked:
        """Send a request; its answer may be waited for later. `is_kept` as of
        `BlockingConnection.ask`."""
        connection = self._connections.get(address)
        if connection is None:
            context = None if self._tls is None else self._tls.current()
            connection = BlockingConnection(*address, context, self._login)
            self._connections[address] = connection
        with self._closed_on_failure(connection):
            return connection.ask(
                request, timeout_s=timeout_s, attachments=attachments, is_kept=is_kept
            )

    def answer(self, asked: Asked, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Answer:
        """Wait for the answer."""
        with self._closed_on_failure(asked.connection):
            return asked.connection.answer(asked, timeout_s=timeout_s)

    @contextmanager
    def _closed_on_failure(self, connection: BlockingConnection) -> Iterator[None]:
        """Also when the task is killed in the middle: half an answer may still be on its way."""
        whole = False
        try:
            yield
            whole = True
        except ApiError:
            whole = True
            raise
        finally:
            if not whole:
                connection.close()
                self._connections = {
                    tp: known for tp, known in self._connections.items() if known is not connection
                }

    def leader(self, topic: str, partition: int) -> m.PartitionMetadata:
        """Who leads; raises `ApiError` while nobody does."""
        known = self.metadata
        if partition >= (count := known.partition_count(topic)):
            raise no_such_partition(topic, count, partition)
        if (leader := known.leader(topic, partition)) is None:
            why = known.why_leaderless(topic, partition)
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, why)
        return leader

    def nearby(self, topic: str, partition: int) -> m.BrokerInfo | None:
        """The in-sync replica on this host; None if there is none, or if it is the leader."""
        place, brokers = self.leader(topic, partition), self.metadata.brokers
        if is_here(brokers[place.leader].host):
            return None
        replicas = [brokers[broker] for broker in place.isr if broker in brokers]
        return next((broker for broker in replicas if is_here(broker.host)), None)

    def call_leader(
        self,
        topic: str,
        partition: int,
        request: m.Message,
        *,
        timeout_s: float,
        attachments: Sequence[Buffer] = (),
    ) -> Answer:
        """A response from a partition's leader, tried again while that may help.

        The request is about this one partition, once or with many questions; the refusal of the
        first one is raised as `ApiError`.
        """

        def attempt(left_s: float) -> Answer:
            hint: m.LeaderHint | None = None
            try:
                broker = self.leader_of(topic, partition, timeout_s=left_s)
                response, received = self.call(
                    (broker.host, broker.port),
                    request,
                    timeout_s=left_s,
                    attachments=attachments,
                )
                result = response.partitions[0]
                if isinstance(result, m.ProduceResult | m.FetchResult):
                    hint = result.current_leader
                _raise(result, broker=f"{broker.host}:{broker.port}")
            except TRIED_AGAIN:
                self.metadata.lost_leader(topic, partition, hint)
                raise
            return response, received

        return self.retrying(attempt, timeout_s=timeout_s, is_final=or_gone_topic)

    def leader_of(self, topic: str, partition: int, *, timeout_s: float) -> m.BrokerInfo:
        """The broker that leads, looked up if that is not known yet; once, no retry."""
        if self.metadata.leader(topic, partition) is None:
            self._refresh_once([topic], timeout_s)
        return self.metadata.brokers[self.leader(topic, partition).leader]

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

    def offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        timeout_s: float,
        topic_ids: Mapping[str, str] | None = None,
    ) -> dict[TopicPartition, m.ListOffsetsResult]:
        """The same of many partitions, each with its timestamp; of the topics with these ids, if
        they are named, and not of others that had their names."""
        ids = topic_ids or {}
        parts = {
            tp: m.ListOffsetsPartition(
                topic=tp[0], partition=tp[1], timestamp=timestamp, topic_id=ids.get(tp[0], "")
            )
            for tp, timestamp in wanted.items()
        }
        return self.ask_leaders(m.ListOffsetsRequest, parts, timeout_s=timeout_s)

    def ask_leaders(
        self, kind: Any, parts: Mapping[TopicPartition, m.Message], *, timeout_s: float
    ) -> dict[TopicPartition, Any]:
        """What leaders say of partitions, by one request of a kind to each; what did not work that
        way is asked for one by one, as often as it takes."""
        found: dict[TopicPartition, Any] = {}
        for broker, tps in self._by_leader(parts):
            request = kind(partitions=[parts[tp] for tp in tps])
            with suppress(*TRIED_AGAIN):
                answer, _ = self.call((broker.host, broker.port), request, timeout_s=timeout_s)
                for result in answer.partitions:
                    if result.error is None:
                        found[TopicPartition(result.topic, result.partition)] = result
        for tp, part in parts.items():
            if tp not in found:
                request = kind(partitions=[part])
                answer, _ = self.call_leader(*tp, request, timeout_s=timeout_s)
                found[tp] = answer.partitions[0]
        return found

    def _by_leader(
        self, tps: Iterable[TopicPartition]
    ) -> list[tuple[m.BrokerInfo, list[TopicPartition]]]:
        """Brokers with the partitions they lead, as far as is known now."""
        found: dict[int, list[TopicPartition]] = {}
        for tp in tps:
            with suppress(ApiError):
                found.setdefault(self.leader(*tp).leader, []).append(tp)
        return [(self.metadata.brokers[leader], led) for leader, led in found.items()]

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
        if not self.metadata.brokers:  # the bootstrap address may be a controller's
            self._refresh_once([], REQUEST_TIMEOUT_S)
        found = self._any(g.FindCoordinatorRequest(group=group))
        _raise(found)
        return self.call((found.host, found.port), request)[0]

    def wait_for_more(self, ends: dict[TopicPartition, int], wait_s: float) -> None:
        """Until some partition has records behind its end, or the time is over."""
        leaders = self._by_leader(ends)
        if not leaders:
            time.sleep(wait_s)  # a pattern that no topic matches yet, or nobody leads
        for broker, tps in leaders:
            parts = [
                m.FetchPartition(topic=tp[0], partition=tp[1], fetch_offset=ends[tp], max_bytes=1)
                for tp in tps
            ]
            request = m.FetchRequest(
                max_wait_ms=int(wait_s * 1000 / len(leaders)),
                partitions=parts,
                max_bytes=1,
                reads_rows=True,
            )
            try:
                response, _ = self.call((broker.host, broker.port), request)
            except TRIED_AGAIN:
                return  # the caller looks again, and that is tried until it works
            if any(result.records >= 0 for result in response.partitions):
                return


def _raise(answer: Any, broker: str = "") -> None:
    if answer.error is not None:
        raise ApiError(error_code(answer.error), answer.message, broker=broker)


def or_gone_topic(error: ApiError, elapsed_s: float, next_s: float) -> bool:
    """Whether trying again is in vain: a topic that is gone, or was made again, stays so; a broker
    that is behind has a little while."""
    if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID):
        return elapsed_s >= GONE_TOPIC_GRACE_S
    return is_final(error, elapsed_s, next_s)


@lru_cache
def is_here(host: str) -> bool:
    """Whether an address is this machine's own: a socket can be bound to it."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


_clients: dict[tuple[int, str, Way], BlockingClient] = {}


def client_for(bootstrap: str, way: Way = DIRECT) -> BlockingClient:
    """This process's client for a cluster; a forked child opens its own connections."""
    key = (os.getpid(), bootstrap, way)
    if key not in _clients:
        for (pid, *_), other in _clients.items():
            if pid == os.getpid():
                other.close()
        _clients.clear()
        _clients[key] = BlockingClient(bootstrap, way)
    return _clients[key]
