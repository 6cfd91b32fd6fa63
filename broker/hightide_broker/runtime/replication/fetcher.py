"""Fetches from leaders: one connection for each leader broker, all its partitions together.

A partition is in at most one request at a time, but a leader may have several to answer: a request
that waits for news of some partitions does not hold up another one whose records have just been
synced. The one that was served last is asked for last, so no partition starves. What came back with
nothing is quiet: it is handed to the leader, all of it in one session, and asked for again only
when the leader has named it (`quiet.py`).

With `flush=synced` the next fetch is the acknowledgement: it waits until what came is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import trio

from hightide.net.connection import Answer, Connection
from hightide.net.pool import ConnectionPool
from hightide.net.ports import Network
from hightide.protocol import messages as m
from hightide.protocol.errors import (
    BrokerUnreachable,
    HightideError,
    RemoteProtocolError,
    RequestTimedOut,
)
from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.senders import may_answer
from hightide_broker.core.replication.follower import AskOffsets, next_fetch
from hightide_broker.runtime.base.agenda import Agenda, Entry
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.replication.following import Following, owes_sync, own_log, records_of
from hightide_broker.runtime.replication.known_brokers import KnownBrokers
from hightide_broker.runtime.replication.quiet import Asked, Quiet
from hightide_broker.runtime.replication.replica import Replica

log = logging.getLogger("hightide.fetcher")

PARTITIONS_MAX = 1000
"""Partitions in one request."""
IN_FLIGHT_MAX = 64
"""Requests to one leader at a time."""
GATHER_S = 0.002
"""How long partitions that came back with nothing wait for others to go out with."""


class Fetchers:
    """All that this broker follows; usable once `run` has begun."""

    def __init__(
        self,
        network: Network,
        brokers: KnownBrokers,
        following: Following,
        syncer: Syncer,
        agenda: Agenda,
        *,
        broker: int,
        config: BrokerConfig,
    ) -> None:
        self.broker = broker
        self.broker_epoch = -1
        """The registration of this process, which need not be the newest one of its id."""
        self.wait_s = config.seconds(keys.REPLICA_FETCH_WAIT_MAX_MS)
        self.patience_s = config.seconds(keys.REPLICA_SOCKET_TIMEOUT_MS)
        self.partition_bytes = config[keys.REPLICA_FETCH_MAX_BYTES]
        self.response_bytes = config[keys.REPLICA_FETCH_RESPONSE_MAX_BYTES]
        self.syncer = syncer
        self.agenda = agenda
        self.following = following
        """Who carries out what an answer means."""
        self._network = network
        self._brokers = brokers
        self._nursery: trio.Nursery | None = None
        self._leaders: dict[int, LeaderFetcher] = {}
        self._ended = trio.Event()

    async def run(self, broker_epoch: int) -> None:
        """Fetch until cancelled, or told to stop, as the process that was registered as
        `broker_epoch`."""
        self.broker_epoch = broker_epoch
        try:
            async with trio.open_nursery() as nursery:
                pool = ConnectionPool(self._network, nursery, client_id=f"follower-{self.broker}")
                self._pool = pool
                self._nursery = nursery
                for fetcher in self._leaders.values():
                    nursery.start_soon(fetcher.run)
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await pool.aclose()
                    self._nursery = None  # nothing is started in it any more
        finally:
            self._nursery = None
            self._ended.set()

    async def stop(self) -> None:
        """Fetch no more; when this returns, nothing is appended any more."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            await self._ended.wait()

    def follow(self, replica: Replica) -> None:
        """A replica follows another leader, or the same in another epoch."""
        if replica.follower is None:
            return
        leader = replica.follower.leader
        fetcher = self._leaders.get(leader)
        if fetcher is None:
            fetcher = self._leaders[leader] = LeaderFetcher(self, leader)
            if self._nursery is not None:
                self._nursery.start_soon(fetcher.run)
        fetcher.follow(replica)

    @property
    def is_running(self) -> bool:
        """Whether anything may still be asked for, and appended."""
        return self._nursery is not None

    def start(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Start a task, unless all is over."""
        if self._nursery is not None:
            self._nursery.start_soon(work, *args)

    def connection_now(self, leader: int) -> Connection | None:
        """The open connection to a leader, if there is one."""
        state = self._brokers.get(leader)
        known = state and self._pool.open_now(state.node_address)
        return known if known and may_answer(known.common_name, leader) else None

    async def connect(self, leader: int) -> Connection:
        """A connection to a leader; raises `BrokerUnreachable`."""
        state = self._brokers.get(leader)
        if state is None:
            raise BrokerUnreachable(f"broker {leader} is not registered")
        with trio.move_on_after(self.patience_s):
            connection = await self._pool.connection(*state.node_address)
            if may_answer(connection.common_name, leader):
                return connection
            why = f"{connection.common_name} answers there, expected broker {leader}"
            raise BrokerUnreachable(why, broker=connection.address)
        where = "{}:{}".format(*state.node_address)
        raise BrokerUnreachable(f"no connection within {self.patience_s:g} s", broker=where)


@dataclass(slots=True, eq=False)
class _Request:
    """One that was sent; its answer is taken in where it arrives."""

    asked: list[Asked]
    connection: Connection
    timeout_s: float
    quiet: Quiet | None
    """The session that it is a part of."""
    answer: Answer = field(init=False)
    alarm: Entry = field(init=False)


class LeaderFetcher:
    """The partitions that one other broker leads. A replica is in one of these places: at work in a
    request or in the session, ready for the next, ready for the session, waiting for a sync or a
    pause; or not followed here any more.

    Everything happens in stretches, at the end of which what is ready is asked for; the task only
    connects.
    """

    def __init__(self, fetchers: Fetchers, leader: int) -> None:
        self._fetchers = fetchers
        self._leader = leader
        self._at_work: dict[Replica, m.FetchPartition] = {}
        self._ready: dict[Replica, None] = {}
        self._quiet = Quiet(0)
        self._waiting: dict[Replica, None] = {}
        self._leader_keeps_sessions = True
        """As far as is known; a node of an older version does not."""
        self._requests = 0
        self._is_due = False
        self._alarm: Entry | None = None
        """What looks again when the next pause of a waiting replica ends."""
        self._connection_wanted = trio.Event()

    def __repr__(self) -> str:
        return (
            f"<LeaderFetcher of {self._leader}: {len(self._ready)} ready, "
            f"{len(self._at_work)} at work, {len(self._waiting)} waiting>"
        )

    def follow(self, replica: Replica) -> None:
        """Fetch a replica from here on, as its `follower` says."""
        if replica not in self._at_work:
            self._place(replica)
            self.set()

    def _place(self, replica: Replica) -> None:
        """Decide what a replica that is not at work waits for, if it is followed here at all."""
        self._waiting.pop(replica, None)
        self._ready.pop(replica, None)
        self._quiet.joining.pop(replica, None)
        follower = replica.follower
        if follower is None or follower.leader != self._leader or replica.offline:
            return
        if follower.stopped:
            return
        if owes_sync(replica) or not follower.may_fetch(trio.current_time()):
            self._waiting[replica] = None
        else:
            self._ready[replica] = None

    # -- a `Waker` -------------------------------------------------------------------------------

    is_set = False

    def set(self) -> None:
        """Something may be ready: ask for it at the end of the stretch."""
        if not self._is_due:
            self._is_due = True
            self._fetchers.agenda.soon(self._ask)

    # -- asking ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect when that is wanted, until cancelled."""
        self.set()
        while True:
            await self._connection_wanted.wait()
            self._connection_wanted = trio.Event()
            try:
                await self._fetchers.connect(self._leader)
                self._leader_keeps_sessions = True
            except HightideError as error:
                self._failed(self._end_session(), error)
                while asked := self._take(self._ready) + self._take(self._quiet.joining):
                    self._failed(asked, error)
            self.set()

    def _ask(self) -> None:
        """Ask for what is ready, if there is a connection."""
        self._is_due = False
        if not self._fetchers.is_running:
            return
        self._look_at_waiting()
        while self._ready and self._requests < IN_FLIGHT_MAX:
            connection = self._fetchers.connection_now(self._leader)
            if connection is None:
                self._connection_wanted.set()
                return
            if asked := self._take(self._ready):
                self._send(asked, connection)
        if self._quiet.is_due:
            self._listen()

    def _listen(self) -> None:
        """Have the leader tell what is new in the session; hand over what has joined it."""
        connection = self._fetchers.connection_now(self._leader)
        if connection is None:
            self._connection_wanted.set()
        while connection is not None and connection.is_open and self._quiet.is_due:
            joined = self._take(self._quiet.joining)
            if joined or self._quiet.has_to_ask:
                self._send(joined, connection, self._quiet)

    def _look_at_waiting(self) -> None:
        """Place those whose wait is over; look again when the next pause ends."""
        until = float("inf")
        for replica in list(self._waiting):
            self._place(replica)
            if replica in self._waiting and replica.follower is not None:
                if owes_sync(replica):
                    replica.synced_wake = self
                else:
                    until = min(until, replica.follower.paused_until)
        if self._alarm is not None:
            self._alarm.take_back()
            self._alarm = None
        if until < float("inf"):
            self._alarm = self._fetchers.agenda.at(until, self.set)

    def _take(self, place: dict[Replica, None]) -> list[Asked]:
        """The partitions of the next request, or of the next one of the session."""
        asked: list[Asked] = []
        for replica in list(islice(place, PARTITIONS_MAX)):
            self._place(replica)  # since it came there it may have led, and may owe a sync
            follower = replica.follower
            if follower is None or replica not in self._ready:
                self.set()
                continue
            del self._ready[replica]
            part = next_fetch(
                replica.topic,
                replica.topic_id,
                replica.partition,
                follower,
                own_log(replica),
                high_watermark=replica.high_watermark,
                max_bytes=self._fetchers.partition_bytes,
            )
            asked.append((replica, part))
            self._at_work[replica] = part
        return asked

    def _send(self, asked: list[Asked], connection: Connection, quiet: Quiet | None = None) -> None:
        fetchers, wait_s = self._fetchers, self._wait_s()
        question = m.FetchRequest(
            replica_id=fetchers.broker,
            replica_epoch=fetchers.broker_epoch,
            max_wait_ms=int(wait_s * 1000),
            max_bytes=fetchers.response_bytes,
            partitions=[part for _, part in asked],
            session_id=-1 if quiet is None else quiet.id,
            session_epoch=0 if quiet is None else quiet.epoch,
        )
        if quiet is not None:
            for replica, _ in quiet.ask(asked):
                self._done(replica)
        request = _Request(asked, connection, wait_s + fetchers.patience_s, quiet)
        finish = partial(fetchers.agenda.now, partial(self._finish, request))
        try:
            request.answer = connection.begin_now(
                question, timeout_s=fetchers.patience_s, arrived=finish
            )
        except HightideError as error:
            self._failed(asked if quiet is None else self._end_session(), error)
            self.set()
            return
        over_at = trio.current_time() + request.timeout_s
        request.alarm = fetchers.agenda.at(over_at, request.answer.give_up)
        self._requests += quiet is None

    def _wait_s(self) -> float:
        """How long the leader may wait: all requests that find nothing come back together."""
        whole = self._fetchers.wait_s
        left = whole - trio.current_time() % whole
        return left if left > whole / 2 else left + whole

    # -- answers ---------------------------------------------------------------------------------

    def _finish(self, request: _Request) -> None:
        """An answer has arrived, or will not come."""
        request.alarm.take_back()
        if request.quiet is not None:
            self._heard(request, request.quiet)
            return
        try:
            response, attachments = request.answer.take(request.timeout_s)
            if not response.partitions and self._requests > 1:
                gathered = trio.current_time() + GATHER_S
                self._fetchers.agenda.at(gathered, partial(self._nothing_came, request))
                return
            self._take_in(request, response, attachments)
        except HightideError as error:
            self._broke(request.asked, request.connection, error)
        self._requests -= 1
        self.set()

    def _nothing_came(self, request: _Request) -> None:
        for replica, part in request.asked:
            if self._at_work.get(replica) is part:
                self._fell_quiet(replica)
        self._requests -= 1
        self.set()

    def _heard(self, request: _Request, quiet: Quiet) -> None:
        """The session was answered, with news or with nothing, or will not be."""
        quiet.waiting -= 1
        self.set()
        if quiet is not self._quiet:
            return  # it is over
        try:
            response, attachments = request.answer.take(request.timeout_s)
            for (replica, part), result in quiet.named(response.partitions):
                self._serve(replica, part, result, attachments, request.connection)
            if response.session_id != quiet.id:
                self._leader_keeps_sessions = False
                for replica, _ in self._end_session():
                    self._done(replica)
        except HightideError as error:
            self._broke(self._end_session(), request.connection, error)

    def _end_session(self) -> list[Asked]:
        """Begin another one; what this one held."""
        self._quiet, held = self._quiet.end()
        return held

    def _broke(self, asked: list[Asked], connection: Connection, error: HightideError) -> None:
        """No answer, or none that can be read on."""
        self._failed(asked, error)
        if isinstance(error, RequestTimedOut | RemoteProtocolError):
            self._fetchers.start(connection.aclose)

    def _failed(self, asked: list[Asked], error: HightideError) -> None:
        """What is still asked is asked again after a pause."""
        many = counted(len(asked), "partition")
        log.info("fetching %s from broker %d: %s", many, self._leader, error)
        now = trio.current_time()
        for replica, part in asked:
            if self._at_work.get(replica) is not part:
                continue  # it had its answer, and may be at work in another request by now
            follower = replica.follower
            if follower is not None and follower.epoch == part.current_leader_epoch:
                follower.back_off(str(error), now)
            self._done(replica)

    def _done(self, replica: Replica) -> None:
        self._at_work.pop(replica, None)
        self._place(replica)

    def _fell_quiet(self, replica: Replica) -> None:
        """There is nothing new: the leader is to say when there is, if it keeps sessions."""
        self._done(replica)
        if replica in self._ready and self._leader_keeps_sessions:
            del self._ready[replica]
            self._quiet.joining[replica] = None

    def _take_in(
        self, request: _Request, response: m.FetchResponse, attachments: Sequence[memoryview]
    ) -> None:
        """Carry out an answer; partitions without news come first, then those that were served."""
        results = {(result.topic, result.partition): result for result in response.partitions}
        served: list[Asked] = []
        for replica, part in request.asked:
            if self._at_work.get(replica) is not part:
                continue
            if (part.topic, part.partition) in results:
                served.append((replica, part))
            else:
                self._fell_quiet(replica)
        for replica, part in served:
            result = results[(part.topic, part.partition)]
            self._serve(replica, part, result, attachments, request.connection)

    def _serve(
        self,
        replica: Replica,
        part: m.FetchPartition,
        result: m.FetchResult,
        attachments: Sequence[memoryview],
        connection: Connection,
    ) -> None:
        """Carry out what was said of one partition."""
        data = records_of(result, attachments)
        now = trio.current_time()
        step = self._fetchers.following.take(replica, part, result, data, now)
        if isinstance(step, AskOffsets):
            self._fetchers.start(self._reset, replica, part, connection)
        else:
            self._served(replica)

    def _served(self, replica: Replica) -> None:
        if replica.needs_sync:
            self._fetchers.syncer.mark(replica)
        self._done(replica)

    async def _reset(
        self, replica: Replica, part: m.FetchPartition, connection: Connection
    ) -> None:
        """The leader does not have what comes next: ask where its log begins and ends."""
        bounds = [
            m.ListOffsetsPartition(
                topic=part.topic,
                partition=part.partition,
                timestamp=timestamp,
                current_leader_epoch=part.current_leader_epoch,
            )
            for timestamp in (m.EARLIEST, m.LATEST)
        ]
        request = m.ListOffsetsRequest(partitions=bounds, replica_id=self._fetchers.broker)
        try:
            answer, _ = await connection.call(request, timeout_s=self._fetchers.patience_s)
            self._begin_again(replica, part, answer)
        except HightideError as error:
            self._broke([(replica, part)], connection, error)
        self.set()

    def _begin_again(
        self, replica: Replica, part: m.FetchPartition, answer: m.ListOffsetsResponse
    ) -> None:
        """Go on where the leader's log begins or ends; raises `RemoteProtocolError`."""
        follower, now = replica.follower, trio.current_time()
        if follower is not None and not replica.offline:
            if len(answer.partitions) != 2:
                raise RemoteProtocolError(f"{len(answer.partitions)} answers about 2 offsets")
            start, end = answer.partitions
            if start.error or end.error:
                why = f"{start.error or end.error}: {start.message or end.message}"
                follower.back_off(why, now)
            else:
                step = follower.out_of_range(part, start.offset, end.offset, own_log(replica), now)
                self._fetchers.following.carry_out(replica, step, b"", now)
        self._served(replica)
