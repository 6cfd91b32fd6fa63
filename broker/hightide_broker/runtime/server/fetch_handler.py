"""The fetch of followers and consumers: one request, one look at each partition, Kafka's order of
checks.

A follower's fetch is also its acknowledgement, and counts once, when it arrives and has been found
to agree with this log; looking again after a wait changes nothing. A fetch waits where there is
nothing to say, and is woken by exactly what it waits for: a consumer by the high watermark, a
follower by the log end. A watermark that a follower does not know yet waits a moment for records to
go with (`WATERMARK_WAIT_S`), unless consumers may read there: an answer of its own for each commit,
and the fetch after it, would be half of what a leader does for a record, just when the next one
comes (Kafka's KAFKA-9731). A follower's answer names only partitions that have news; a consumer's
names all. What a follower keeps in a session is in `fetch_sessions.py`, and is looked at here all
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import trio

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.replication.fetches import (
    check_follower,
    check_reader,
    completes,
    diverging,
    enough,
    is_named,
    nearer,
)
from hightide_broker.core.replication.leader import Contact
from hightide_broker.runtime.base.agenda import Agenda, Entry
from hightide_broker.runtime.base.call import Asker, Reply
from hightide_broker.runtime.base.watermark import Callback, Watermark
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.file_slice import FileSlice
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import READ_BATCHES_MAX

FETCH_WAIT_MS_MAX = 60_000
"""The longest a fetch is parked, whatever it asks for."""

BATCHES_MAX = 10_000
"""About so many batches one fetch brings, however small they are: each takes a few µs, and all of
them are looked at in one stretch."""

WATERMARK_WAIT_S = 0.01
"""So long, and at most twice as long, news of a watermark waits for records to go with. All that
fall due in such a while are told together."""


class Source(Protocol):
    """The replicas of a broker, as far as a fetch needs them."""

    def get(self, topic: str, partition: int, *, topic_id: str = "") -> Replica:
        """A replica; raises `Refused`."""
        ...

    def mark_proposal(self, replica: Replica) -> None:
        """Have a leader's proposal sent to the controller, if there is one."""
        ...


class Registrations(Protocol):
    """What is known of those who fetch; see `KnownBrokers`."""

    def epoch_of(self, broker: int) -> int:
        """The epoch of a broker's registration, -1 if it has none."""
        ...

    def rack_of(self, broker: int) -> str:
        """Where a broker stands, empty if it does not say."""
        ...


Hint = Callable[[str, int, ErrorCode], m.LeaderHint | None]
"""Who leads a partition, for somebody who was refused with this code."""


def no_hint(_topic: str, _partition: int, _refused: ErrorCode) -> None:
    """Who leads instead is not known here."""


class Seen(NamedTuple):
    """What a partition's offset was when it was looked at; it has news once that rises or ends."""

    part: m.FetchPartition
    offset: Watermark
    value: int
    can_wait: bool = False
    """Whether its news waits a moment for others to go with."""

    @property
    def has_news(self) -> bool:
        return self.offset.closed is not None or self.offset.value > self.value


@dataclass(slots=True)
class Look:
    """One look at all partitions of a fetch."""

    is_new: bool
    """Whether the request has just come, and acknowledges."""
    complete: bool = False
    """Whether it may be sent now."""
    size: int = 0
    """Bytes of records found."""
    batch_count: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of records found by partition, by the identity of its part of the request."""
    contact: Contact | None = None
    """The session that it is a part of."""
    results: list[m.FetchResult] = field(default_factory=list)
    slices: list[FileSlice] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def reply(self) -> Reply:
        return Reply(m.FetchResponse(partitions=self.results), self.slices)


class FetchHandler:
    """Answers fetches of records."""

    def __init__(
        self,
        replicas: Source,
        brokers: Registrations,
        config: BrokerConfig,
        agenda: Agenda,
        hint: Hint = no_hint,
    ) -> None:
        self._replicas = replicas
        self._brokers = brokers
        self._hint = hint
        self._agenda = agenda
        self._bytes_max = config[keys.FETCH_MAX_BYTES]

    def fetch(self, request: m.FetchRequest) -> Reply | ParkedFetch:
        """Answer at once with enough bytes, an error or no time to wait; else park. Raises
        `Refused`."""
        check_named_once(request)
        look = Look(is_new=True, complete=not request.partitions)
        self.look_at(request, request.partitions, look)
        if look.complete or request.max_wait_ms <= 0:
            return look.reply()
        return ParkedFetch(self, request, look, self._agenda)

    def forget_contact(self, part: m.FetchPartition, contact: Contact) -> None:
        """A session does not hold a partition any more."""
        with suppress(Refused):
            if leader := self._replicas.get(part.topic, part.partition).leader:
                leader.forget_contact(contact)

    def look_again(self, request: m.FetchRequest, before: Look | None) -> Look:
        """Look at what has changed since; at everything, if there is nothing to compare with, or
        a consumer is to be answered, whose answer names all."""
        look = Look(is_new=False)
        if before is None:
            self.look_at(request, request.partitions, look)
            return look
        moved = {id(seen.part): seen.part for seen in before.seen if seen.has_news}
        self.look_at(request, [*moved.values()], look)
        if request.replica_id < 0:
            look.sizes = before.sizes | look.sizes
            if look.complete or sum(look.sizes.values()) >= enough(request):
                look = self.look_again(request, None)
                look.complete = True
                return look
        look.seen += [seen for seen in before.seen if id(seen.part) not in moved]
        return look

    def look_at(
        self, request: m.FetchRequest, parts: Sequence[m.FetchPartition], look: Look
    ) -> None:
        """Look at some partitions of a request; refuses nothing but single ones."""
        limit = min(max(request.max_bytes, 0), self._bytes_max)
        can_wait = self._can_wait(request)
        for part in parts:
            left = limit - look.size if look.batch_count < BATCHES_MAX else 0
            try:
                result, found = self._look_at(request, part, left, look, can_wait=can_wait)
            except Refused as refusal:
                look.results.append(self._refusal(part, refusal))
                look.complete = True
                continue
            if found is not None:
                look.slices.append(found)
                look.size += found.size
                look.batch_count += found.batch_count
                look.sizes[id(part)] = found.size
            if found is not None or self._is_named(request, part, result, look):
                look.results.append(result)
            if completes(request, part, result, can_wait=look.is_new and can_wait):
                look.complete = True
        look.complete = look.complete or look.size >= enough(request)

    def _is_named(
        self, request: m.FetchRequest, part: m.FetchPartition, result: m.FetchResult, look: Look
    ) -> bool:
        in_session = look.contact is not None
        leader = self._replicas.get(part.topic, part.partition).leader if in_session else None
        return is_named(request, part, result, leader, in_session=in_session)

    def _look_at(
        self,
        request: m.FetchRequest,
        part: m.FetchPartition,
        left: int,
        look: Look,
        *,
        can_wait: bool,
    ) -> tuple[m.FetchResult, FileSlice | None]:
        replica = self._replicas.get(part.topic, part.partition, topic_id=part.topic_id)
        is_follower = request.replica_id >= 0
        if is_follower:
            self._check_follower(request, part, replica)
        else:
            self._check_consumer(request, part, replica)
        log = replica.log
        parting = _parting(part, log, replica.name)
        if parting is None and (broker := self._nearer(request, part, replica)) >= 0:
            return _elsewhere(part, replica, broker), None
        limit = log.log_end if is_follower else replica.committed.value
        found: FileSlice | None = None
        if parting is None:
            found = replica.read(
                part.fetch_offset,
                limit=limit,
                max_bytes=min(max(left, 0), max(part.max_bytes, 0)),
                # However large: nobody would ever get past a batch above all limits (KIP-74).
                at_least_one=not look.slices,
            )
            if found is not None:
                has_rows = found.has_rows
                check_reader(request, part.fetch_offset, replica.name, has_rows=has_rows)
            end = part.fetch_offset if found is None else found.next_offset
            if end < limit and _is_cut(part, found, left):
                look.complete = True  # there is more than fits: nothing is to be waited for
            if is_follower and look.is_new:
                # Only now: a fetch that is refused acknowledges nothing.
                replica.fetched_by(request, part, look.contact)
                self._replicas.mark_proposal(replica)
        if is_follower:
            assert replica.leadership is not None, "checked above"
            look.seen.append(Seen(part, replica.leadership.appended, limit))
            look.seen.append(_seen_by_follower(part, replica.committed, can_wait=can_wait))
        else:
            look.seen.append(Seen(part, replica.committed, replica.committed.value))
        result = m.FetchResult(
            topic=part.topic,
            partition=part.partition,
            high_watermark=replica.committed.value,
            log_start_offset=log.log_start,
            diverging_epoch=parting,
            records=-1 if found is None else len(look.slices),
        )
        return result, found

    def _check_consumer(
        self, request: m.FetchRequest, part: m.FetchPartition, replica: Replica
    ) -> None:
        """Consumers that say where they stand may read from followers (KIP-392)."""
        if request.rack and replica.follower is not None:
            replica.check_epoch(part.current_leader_epoch)
        else:
            replica.require_leader(part.current_leader_epoch)

    def _nearer(self, request: m.FetchRequest, part: m.FetchPartition, replica: Replica) -> int:
        leader, rack_of = replica.leader, self._brokers.rack_of
        if leader is None:
            return -1
        return nearer(request, part, leader, replica.log.log_start, rack_of)

    def _can_wait(self, request: m.FetchRequest) -> bool:
        """Whether nobody waits for a follower to hear of commits: consumers read from those that
        say where they stand, and from no others."""
        return not self._brokers.rack_of(request.replica_id)

    def _check_follower(
        self, request: m.FetchRequest, part: m.FetchPartition, replica: Replica
    ) -> None:
        """Only a replica of this partition, and only its newest process."""
        leader = replica.require_leader(part.current_leader_epoch)
        registered = self._brokers.epoch_of(request.replica_id)
        check_follower(request, part, leader, registered=registered, name=replica.name)

    def _refusal(self, part: m.FetchPartition, refusal: Refused) -> m.FetchResult:
        log_start = -1
        if refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            log_start = self._replicas.get(part.topic, part.partition).log.log_start
        return m.FetchResult(
            topic=part.topic,
            partition=part.partition,
            error=refusal.code,
            message=refusal.message,
            log_start_offset=log_start,
            current_leader=self._hint(part.topic, part.partition, refusal.code),
        )


def _parting(part: m.FetchPartition, log: Log, name: str) -> m.EpochEnd | None:
    """Where the log of who asks parts from this one, if it does before the fetch offset. Raises
    `Refused`."""
    found, end = log.epochs.end_offset_for(part.last_fetched_epoch, log.log_end)
    return diverging(part, found, end, log_start=log.log_start, log_end=log.log_end, name=name)


def _is_cut(part: m.FetchPartition, found: FileSlice | None, left: int) -> bool:
    """Whether the rest of a partition was left out for the sake of the whole answer."""
    return left <= part.max_bytes or (found is not None and found.batch_count == READ_BATCHES_MAX)


def _seen_by_follower(part: m.FetchPartition, committed: Watermark, *, can_wait: bool) -> Seen:
    """The watermark that a follower is told of once it is above the one it knows, if it says."""
    known = part.high_watermark if part.high_watermark >= 0 else committed.value
    return Seen(part, committed, known, can_wait)


def check_named_once(request: m.FetchRequest) -> None:
    """Raise `Refused` unless each partition is asked for once, or a small request has a boundless
    answer."""
    if len(request.partitions) < 2:
        return
    named = {(part.topic, part.partition) for part in request.partitions}
    if len(named) < len(request.partitions):
        twice = f"{counted(len(request.partitions), 'partition')}, {len(named)} of them different"
        raise Refused(ErrorCode.INVALID_REQUEST, f"a fetch of {twice}: name each once")


def _elsewhere(part: m.FetchPartition, replica: Replica, broker: int) -> m.FetchResult:
    """No records: a replica in the consumer's rack has them."""
    return m.FetchResult(
        topic=part.topic,
        partition=part.partition,
        high_watermark=replica.committed.value,
        log_start_offset=replica.log.log_start,
        preferred_read_replica=broker,
    )


class ParkedFetch:
    """A fetch that waits for news of any of its partitions; a `Parked`."""

    def __init__(
        self, handler: FetchHandler, request: m.FetchRequest, look: Look, agenda: Agenda
    ) -> None:
        self._handler = handler
        self._request = request
        self._look = look
        self._agenda = agenda
        self._is_over = False
        self._moment: Entry | None = None
        """The end of the while for which news of watermarks waits."""

    def begin(self, asker: Asker) -> None:
        wait_s = min(self._request.max_wait_ms, FETCH_WAIT_MS_MAX) / 1000
        self._asker = asker
        at_the_end = partial(asker.work, self._time_is_up)
        self._alarm = self._agenda.at(trio.current_time() + wait_s, at_the_end)
        self._wait_for_news()

    def drop(self) -> None:
        self._is_over = True
        self._alarm.take_back()
        self._stop_waiting()

    def _wait_for_news(self) -> None:
        self._news = Callback(self._agenda, partial(self._asker.work, self._has_news))
        self._late_news = Callback(self._agenda, self._wait_a_moment)
        for seen in self._look.seen:
            wake = self._late_news if seen.can_wait else self._news
            seen.offset.wake_at(seen.value + 1, wake)

    def _wait_a_moment(self) -> None:
        """A watermark has risen; all of one while are told at the same time."""
        if self._is_over or self._moment is not None:
            return
        due = (trio.current_time() // WATERMARK_WAIT_S + 2) * WATERMARK_WAIT_S
        self._moment = self._agenda.at(due, partial(self._asker.work, self._has_news))

    def _stop_waiting(self) -> None:
        self._news.drop()
        self._late_news.drop()
        if self._moment is not None:
            self._moment.take_back()
            self._moment = None

    def _has_news(self) -> None:
        if self._is_over:
            return
        self._stop_waiting()
        self._look = self._handler.look_again(self._request, self._look)
        if self._look.complete:
            self._end(self._look)
        else:
            self._wait_for_news()

    def _time_is_up(self) -> None:
        if not self._is_over:
            # What was found may be gone by now: deleted, or rewritten.
            self._end(self._handler.look_again(self._request, None))

    def _end(self, look: Look) -> None:
        self.drop()
        self._asker.answer(look.reply())
