"""What a round of the client adversary is made of: who strikes, and who keeps book.

Strikes: `Interrupts` raises KeyboardInterrupt in the main thread, after a time or at a point of the
clients that was drawn; `Steps` cancels a scope at a step of trio's that was drawn. Both say whether
they hit, and where. Books: `Sent` is what a producer's caller knows of its records, `Reading` what
a consumer's caller may get next, and what may be committed. A book never guesses: an outcome that
nobody was told of is `maybe`.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import trio
from secure_run import direct, reaching

import hightide
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, ClosedError, ErrorCode
from hightide.spark.client import BlockingClient

HANGS_S = float(os.environ.get("HIGHTIDE_HANGS_S", "240"))
"""A round that is not over by then hangs, on any machine."""
PARTITIONS = 2
NUMBERS = 400
"""Records in each partition of the topic `numbers`; nobody writes there any more."""
HERE = os.path.dirname(os.path.abspath(__file__))
CLIENTS = os.path.dirname(os.path.abspath(hightide.__file__))
AIMED_AT = frozenset(f"{CLIENTS}/{name}.py" for name in ("portal", "blocking", "ready", "turns"))
"""Where a point may be drawn: what runs in a caller's thread."""
SOON = {"heartbeat_interval_ms": 50, "session_timeout_ms": 10_000}
"""Members hear of each other at once."""


# --- books --------------------------------------------------------------------------------------


@dataclass
class Row:
    """A record of a producer's. States: `absent` is not stored; `maybe` at most once; `accepted`
    the same, but there is a delivery; `stored` exactly once."""

    value: str
    partition: int
    state: str = "maybe"
    offset: int = -1
    delivery: Any = None

    def told(self, place):
        """It was acknowledged."""
        self.state, self.offset = "stored", place.offset
        assert place.partition == self.partition, f"{self.value} went to {place}"


@dataclass
class Sent:
    """The records of one sender, in order."""

    name: str
    rows: list[Row] = field(default_factory=list)

    def new(self, partition):
        """A record that is about to be sent."""
        row = Row(f"{self.name}/{len(self.rows)}", partition)
        self.rows.append(row)
        return row

    def of(self, state):
        """Those in a state."""
        return [row for row in self.rows if row.state == state]

    def flushed(self, rows):
        """Somebody was told, without an error, that these have their outcome."""
        for row in rows:
            if row.state == "accepted":
                row.state = "stored"


class Reading:
    """What a group reads of `numbers`, one consumer after the other."""

    def __init__(self, each, group, *, auto):
        self.group, self._each, self._auto = group, each, auto
        self.next = dict.fromkeys(range(PARTITIONS), 0)
        """The next record of each partition."""
        self.work = dict(self.next)
        """The same before what was handed out last."""
        self.may = {number: [0] for number in self.next}
        """What may be committed now, or a little later: nobody waits for the commit of a call that
        was interrupted. In the order of the commits."""
        self.generation = lambda: -1
        """Of the consumer that reads now."""
        self._last = -1
        self._joined = {}
        """In which generation it began to read a partition."""
        self._unknown = set()
        """Of what partitions nobody can say how far they were read: they were taken away when a
        call had been struck."""

    def begins(self, generation):
        """Another consumer reads on; it says in which generation it is."""
        self.generation, self._joined, self._last = generation, {}, -1

    def _generation(self):
        """The one it is in, or was in when it was closed."""
        with suppress(ClosedError):
            self._last = self.generation()
        return self._last

    def got(self, records):
        """A call handed these out; none is missing, none came twice."""
        self.work = dict(self.next)
        for record in records:
            number, offset = record.partition, record.offset
            if number not in self._joined:
                self._joined[number] = self._generation()
                is_unknown = number in self._unknown and offset > self.next[number]
                if offset != self.next[number] and (offset in self.may[number] or is_unknown):
                    self._each.tally["committed late"] += 1
                    self.work[number] = self.next[number] = offset
            if offset != self.next[number]:
                self._goes_back(number, offset)
            assert record.value == number_value(number, offset), f"{record} is another record"
            self.next[number] = offset + 1

    def _goes_back(self, number, offset):
        """After a rebalance a member goes on at what is committed. That happens if one before it
        was cancelled, and its goodbye took too long on a machine that is busy."""
        wanted, generation = self.next[number], self._generation()
        is_told = generation != self._joined[number] and offset in self.may[number]
        assert is_told, f"partition {number}: {offset} after {wanted}, generation {generation}"
        self._each.tally["read again after a rebalance"] += 1
        self.work[number], self._joined[number] = offset, generation

    def rows(self, rows):
        """The same for Arrow."""
        if rows is not None:
            found = rows.select(["partition", "offset", "value"]).to_pylist()
            self.got([hightide.Record(topic="numbers", timestamp=0, key=None, **r) for r in found])

    def asked(self):
        """A call was made: what was handed out before may be committed from now on."""
        if self._auto:
            self.maybe_committed()

    def maybe_committed(self):
        """Nobody knows whether a commit came to be."""
        for number, offset in self.next.items():
            self.may[number].append(offset)

    def committed(self):
        """A commit of everything that was handed out is done."""
        for number, offset in self.next.items():
            # After a rebalance it may be at what was committed before, and have read nothing.
            self.may[number] = [offset] if self._is_here(number) else [*self.may[number], offset]

    def _is_here(self, number):
        return self._joined.get(number, -1) == self._generation()

    def handed_over(self, position):
        """An interruption came when the call was over and its caller had nothing yet: what is lent
        is taken in that stretch, and `position` says how far. Never back, and never beyond what one
        call gives. How many records that were."""
        lost = 0
        for number, before in self.next.items():
            now = position(number)
            if now is None and self._generation() >= 0:
                self._unknown.add(number)
                self._each.tally["taken away after a strike"] += 1
            is_back = now is not None and now < before
            assert not (is_back and self._is_here(number)), f"{before} became {now}"
            if now is not None and now > before:
                self.work[number], self.next[number] = before, now
                lost += now - before
        return lost

    def closed(self, *, failed=False):
        """The consumer's block ended without being struck."""
        if self._auto and failed:
            self.may = {n: [self.work[n], offset] for n, offset in self.next.items()}
        elif self._auto:
            self.committed()

    def check_committed(self):
        """Only what may be committed is; the next consumer goes on there."""
        found = self._each.committed(self.group)
        for number, may in self.may.items():
            offset = found.get(number, 0)
            if number in self._unknown and offset > max(may):
                self.may[number] = may = [offset]
            assert offset in may, f"committed {offset} of {number}, expected {sorted({*may})}"
            self.next[number] = offset
            self.may[number] = may[may.index(offset) :]
        self._unknown.clear()
        self.work = dict(self.next)


def number_value(partition, offset):
    """What is stored there in `numbers`."""
    return b"%d/%d" % (partition, offset)


class Round:
    """One program: its chance, its books, what it has seen."""

    def __init__(self, seed, kind, address):
        self.seed, self.kind, self.address = seed, kind, address
        self.way = reaching(address)
        self.chance = random.Random(f"client-{seed}")
        self.tally = Counter()
        self.books = []
        self.steps = Steps(self.chance, self.tally)

    def sender(self, name="a"):
        """A new book of records."""
        self.books.append(Sent(f"{self.seed}-{self.kind.__name__}/{name}"))
        return self.books[-1]

    def let_go(self):
        """Nobody holds a client any more: a delivery knows its producer."""
        for row in (row for book in self.books for row in book.rows):
            row.delivery = None

    def ends(self):
        """Where the partitions of `t` end now, as a client on plain sockets is told."""
        with plain(self.address) as client:
            wanted = {("t", number): m.LATEST for number in range(PARTITIONS)}
            found = client.offsets(wanted, timeout_s=HANGS_S)
            return {number: result.offset for (_, number), result in found.items()}

    def committed(self, group):
        """What a group has committed of `numbers`, told to a client on plain sockets."""
        with plain(self.address) as client:

            def attempt(_):
                try:
                    return client.committed(group)
                except ApiError as error:
                    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                        return []
                    raise

            found = client.retrying(attempt, timeout_s=HANGS_S)
            return {each.partition: each.offset for each in found if each.topic == "numbers"}

    def until(self, condition, what):
        """Wait for what has to come."""
        deadline = time.monotonic() + HANGS_S / 2
        while not condition():
            assert time.monotonic() < deadline, f"in vain: {what}"
            time.sleep(0.002)


@contextmanager
def plain(address):
    """A client that shares nothing with those under test but the protocol."""
    client = BlockingClient(*direct(address))
    try:
        yield client
    finally:
        client.close()


# --- strikes ------------------------------------------------------------------------------------


class Struck:
    """What an interruption was: `is_waiting` if the call was under way in trio's thread; else it
    had not begun, or was over."""

    def __init__(self, error):
        theirs = []
        while isinstance(error, KeyboardInterrupt):  # the second one hides where the first was
            frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
            theirs = [code for code in frames if code.co_filename.startswith(CLIENTS)] + theirs
            error = error.__context__
        self.where = theirs[-1].co_qualname if theirs else ""
        self.is_waiting = any(code.co_qualname == "Opened.run" for code in theirs)
        self.is_in_listener = any(code.co_qualname == "_Job.run" for code in theirs)


AIMS = (("none", 0), ("none", 0), ("time", 1), ("time", 2), ("point", 1), ("point", 2))
"""How an interruption finds its place, and how many there are at the most."""


class Interrupts:
    """Raises KeyboardInterrupt in the main thread, in the middle of calls."""

    def __init__(self, each):
        self._chance, self._tally = each.chance, each.tally
        self._strikes = self._points = 0
        self._is_looking = False
        self.struck = None
        """What the last call met."""

    def over(self, work, *args, **options):
        """What a call returns; None if it was struck, which `struck` tells."""
        assert threading.current_thread() is threading.main_thread(), "signals come there"
        self.struck = None
        value = None
        try:
            value = self._under_fire(work, *args, **options)
        except (KeyboardInterrupt, RuntimeError, ClosedError) as error:
            self._strikes = 0
            # `threading` of Python raises RuntimeError if it is interrupted at a lock of its own;
            # a close that was interrupted may have to tell of records.
            found = error
            while found is not None and not isinstance(found, KeyboardInterrupt):
                found = found.__context__
            if found is None:
                raise
            self.struck = Struck(found)
            self._tally[f"interrupted {self.struck.where or 'outside'}"] += 1
        finally:
            self._strikes = 0
            sys.setprofile(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
        return value

    def _under_fire(self, work, *args, **options):
        chance = self._chance
        signal.signal(signal.SIGALRM, self._on_signal)
        delay, again = 10 ** chance.uniform(-5, -2), 10 ** chance.uniform(-4.5, -2.5)
        aim, self._strikes = chance.choice(AIMS)
        if aim == "time":
            signal.setitimer(signal.ITIMER_REAL, delay, again)
        elif aim != "none":
            self._points = 1 + int(40 * chance.random() ** 1.5)
            sys.setprofile(self._on_point)
        value = work(*args, **options)
        self._strikes = 0
        return value

    def _on_signal(self, number, frame):
        if not self._strikes or self._is_looking:
            return  # on a busy machine the next signal may come before this one was looked at
        self._is_looking = True
        try:
            is_spared = is_finalizer(frame)
        finally:
            self._is_looking = False
        if not is_spared:
            self._strikes -= 1
            raise KeyboardInterrupt

    def _on_point(self, frame, event, argument):
        # Where Python itself looks for signals: a call begins, or has come back from C. At other
        # places, as before a `with` is left, no signal is ever handled.
        is_point = event == "call" or (event == "c_return" and argument.__name__ != "__exit__")
        is_theirs = frame.f_code.co_filename in AIMED_AT
        if self._strikes and is_point and is_theirs and not is_finalizer(frame):
            self._points -= 1
            if self._points <= 0:
                self._strikes -= 1
                if self._strikes:  # Python drops this hook now: the second one comes by time
                    signal.setitimer(signal.ITIMER_REAL, 10 ** self._chance.uniform(-5, -3))
                raise KeyboardInterrupt


def is_finalizer(frame):
    """Whether a `__del__` runs: what is raised there nobody hears of. trio spares it, too."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Steps(trio.abc.Instrument):
    """Cancels a scope when trio has made so many steps, of whichever task."""

    def __init__(self, chance, tally):
        self._chance, self._tally = chance, tally
        self._scope, self._left = None, 0

    def before_task_step(self, task):
        """trio's hook."""
        if self._scope is not None:
            self._left -= 1
            if self._left < 0:
                scope, self._scope = self._scope, None
                scope.cancel()

    @contextmanager
    def aimed(self, what, *, always=False):
        """A scope that may be cancelled in the middle; its `cancelled_caught` tells."""
        with trio.CancelScope() as scope:
            if always or self._chance.random() < 0.7:
                # Half of them early: most calls are over after a step or two.
                far = self._chance.choice([3, 60])
                self._scope, self._left = scope, round(far * self._chance.random() ** 2)
            try:
                yield scope
            finally:
                self._scope = None
        if scope.cancelled_caught:
            self._tally[f"cancelled {what}"] += 1

    def rest(self):
        """Who was aimed at is not any more."""
        self._scope = None

    async def over(self, work, *args, **options):
        """Whether a call was not struck, and what it returned."""
        value = None
        with self.aimed(getattr(work, "__name__", "call")) as scope:
            value = await work(*args, **options)
        return not scope.cancelled_caught, value


@contextmanager
def watched(seconds=HANGS_S):
    """A block that takes too long ends the process, which says what each thread was at."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
