"""Fetch sessions: partitions of which a follower waits for news, kept from one request to the next,
so that what is quiet costs neither side anything (KIP-227).

A follower that heard nothing new of a partition hands it to its session, and asks for it no more. A
request of a session waits; it is answered with what has news, and what was named leaves the
session, to be fetched by itself until it is quiet again. A request that comes while another waits
takes its place, and that one is answered with nothing. What must hold: a partition is held exactly
while its follower takes it for held, so a session whose requests or answers went missing is none.

To be held is no acknowledgement: that was the fetch by which the partition was handed over, and
nobody speaks for a follower that may have lost what it had. But each request says that the follower
is there (`Contact`). A partition that it is not in sync for is not held: it is to be fetched again
and again, as each fetch may be the one by which it joins the ISR.

Differs from Kafka: the follower chooses the number of its session, as it has one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.replication.leader import Contact
from hightide_broker.runtime.base.agenda import Act, Agenda
from hightide_broker.runtime.base.call import Asker, Reply
from hightide_broker.runtime.server.fetch_handler import (
    FETCH_WAIT_MS_MAX,
    FetchHandler,
    Look,
    Seen,
    check_named_once,
)

SESSIONS_MAX = 1000
"""Sessions kept; the one that was heard of least lately goes (Kafka's
max.incremental.fetch.session.cache.slots)."""
_Key = tuple[str, int]


class FetchSessions:
    """The sessions of all followers, one each."""

    def __init__(self, handler: FetchHandler, agenda: Agenda) -> None:
        self._handler = handler
        self._agenda = agenda
        self._sessions: dict[int, _Session] = {}

    def fetch(self, request: m.FetchRequest) -> Reply | ParkedNews:
        """Take partitions in, and answer with news, or wait for some. Raises `Refused`."""
        check_named_once(request)
        follower = request.replica_id
        if follower < 0:
            raise Refused(ErrorCode.INVALID_REQUEST, "only replicas have sessions, -1 is none")
        session = self._sessions.pop(follower, None)
        if session is None or not session.fits(request):
            refusal = _refusal(session, request)
            if session is not None:
                session.end()
            if request.session_epoch != 0:
                raise refusal
            session = _Session(self._handler, self._agenda, request.session_id)
        self._sessions[follower] = session  # as the one that was heard of last
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions))).end()
        return session.fetch(request)


def _refusal(session: _Session | None, request: m.FetchRequest) -> Refused:
    """Why a request is not the next one of a session."""
    who = f"session {request.session_id} of broker {request.replica_id}"
    if session is None or session.is_over or session.id != request.session_id:
        return Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"{who} is not known here")
    return Refused(
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        f"{who} is asked in epoch {request.session_epoch}, expected {session.next_epoch}",
    )


class _Held:
    """A partition that waits for news; a `Waker`."""

    __slots__ = ("_session", "is_set", "part")

    def __init__(self, session: _Session, part: m.FetchPartition) -> None:
        self._session = session
        self.part = part
        self.is_set = False
        """Whether it has news, or is not held any more."""

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            self._session.has_news(self)


class _Session:
    """What one process of a follower is to hear of."""

    def __init__(self, handler: FetchHandler, agenda: Agenda, number: int) -> None:
        self.id = number
        self.next_epoch = 0
        self.is_over = False
        self._handler = handler
        self._agenda = agenda
        self._contact = Contact(trio.current_time())
        self._held: dict[_Key, _Held] = {}
        self._news: dict[_Key, _Held] = {}
        """Those of the held ones to be looked at."""
        self._parked: ParkedNews | None = None
        self._is_due = False

    def fits(self, request: m.FetchRequest) -> bool:
        """Whether this is its next request."""
        asked = request.session_id, request.session_epoch
        return asked == (self.id, self.next_epoch) and not self.is_over

    def fetch(self, request: m.FetchRequest) -> Reply | ParkedNews:
        """One request: what it names is held from here on."""
        self.release()
        self.next_epoch += 1
        self._contact.at = trio.current_time()
        look = Look(is_new=True, contact=self._contact)
        self._look_at(request, request.partitions, look)
        self._look_for_news(request, look)
        if look.results or request.max_wait_ms <= 0:
            return self._reply(look)
        self._parked = ParkedNews(self, request, self._agenda)
        return self._parked

    def has_news(self, held: _Held) -> None:
        """A partition is to be looked at, once the stretch has ended."""
        self._news[_key(held.part)] = held
        self._look_soon()

    def end(self) -> None:
        """Hold nothing any more, and let go of who waits."""
        self.is_over = True
        for held in list(self._held.values()):
            self._let_go(held.part)
        self.release()

    def release(self) -> None:
        """Answer the request that waits, if one does, with nothing: another one takes its place."""
        if self._parked is not None:
            parked, self._parked = self._parked, None
            parked.answer(self._reply(Look(is_new=False)))

    def _look_soon(self) -> None:
        if self._parked is not None and not self._is_due:
            self._is_due = True
            self._agenda.soon(self._look_now)

    def _look_now(self) -> None:
        self._is_due = False
        if self._parked is not None:
            self._parked.work(self._answer_with_news)

    def _answer_with_news(self) -> None:
        parked = self._parked
        assert parked is not None, "somebody waits, or nothing is looked at"
        look = Look(is_new=False, contact=self._contact)
        self._look_for_news(parked.request, look)
        if look.results:
            self._parked = None
            parked.answer(self._reply(look))

    def _look_for_news(self, request: m.FetchRequest, look: Look) -> None:
        look.is_new = False
        self._look_at(request, [held.part for held in self._news.values()], look)

    def _look_at(
        self, request: m.FetchRequest, parts: Sequence[m.FetchPartition], look: Look
    ) -> None:
        """Look at some partitions: what is named in the answer is not held any more."""
        self._handler.look_at(request, parts, look)
        named = {(result.topic, result.partition) for result in look.results}
        seen: dict[_Key, list[Seen]] = {}
        for each in look.seen:
            seen.setdefault(_key(each.part), []).append(each)
        for part in parts:
            key = _key(part)
            if key in named:
                self._let_go(part)
            else:
                held = self._hold(part, seen[key])
                if look.slices and seen[key][0].value > part.fetch_offset:
                    held.set()  # the answer was full

    def _hold(self, part: m.FetchPartition, seen: list[Seen]) -> _Held:
        self._stop_waiting(_key(part))
        self._held[_key(part)] = held = _Held(self, part)
        for each in seen:
            each.offset.wake_at(each.value + 1, held)
        return held

    def _let_go(self, part: m.FetchPartition) -> None:
        self._stop_waiting(_key(part))
        self._handler.forget_contact(part, self._contact)

    def _stop_waiting(self, key: _Key) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            held.is_set = True
            self._news.pop(key, None)

    def _reply(self, look: Look) -> Reply:
        return Reply(m.FetchResponse(partitions=look.results, session_id=self.id), look.slices)

    def lost(self, parked: ParkedNews) -> None:
        """Nobody waits for an answer any more: its connection is gone, and the session with it."""
        if parked is self._parked:
            self._parked = None
            self.end()


class ParkedNews:
    """A session's request that waits; a `Parked`."""

    def __init__(self, session: _Session, request: m.FetchRequest, agenda: Agenda) -> None:
        self.request = request
        self._session = session
        self._agenda = agenda

    def begin(self, asker: Asker) -> None:
        wait_s = min(self.request.max_wait_ms, FETCH_WAIT_MS_MAX) / 1000
        self._asker = asker
        over_at = trio.current_time() + wait_s
        # Nothing came; the follower is there, and asks again.
        self._alarm = self._agenda.at(over_at, partial(asker.work, self._session.release))

    def work(self, act: Act) -> None:
        """Do something for the request: what fails in it ends who asked, and nobody else."""
        self._asker.work(act)

    def answer(self, reply: Reply) -> None:
        """Send the answer; called once for each request."""
        self._alarm.take_back()
        self._asker.answer(reply)

    def drop(self) -> None:
        self._alarm.take_back()
        self._session.lost(self)


def _key(part: m.FetchPartition) -> _Key:
    return part.topic, part.partition
