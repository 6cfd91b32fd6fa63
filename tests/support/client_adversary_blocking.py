"""Rounds of the client adversary for clients without an event loop.

Each kind is a function of a `Round`: a small program in the main thread of a process, which is
interrupted, forked, dropped or raised at while it works. It keeps its books and says by them what
has to be; who reads back what was stored is `client_adversary`.
"""

import contextlib
import gc
import threading

from client_adversary_tools import (
    HANGS_S,
    NUMBERS,
    PARTITIONS,
    SOON,
    Interrupts,
    Reading,
    number_value,
)

from hightide.blocking import Consumer, Producer
from hightide.protocol.errors import ClosedError

LONG_MS = 1000 * HANGS_S


def producer_options(chance):
    """Any producer that does not give up records while the round lasts."""
    return {
        "linger_ms": chance.choice([0, 1, 5, 30]),
        "batch_size": chance.choice([100, 1_000, 16_384]),
        "buffer_memory": chance.choice([3_000, 32 << 20]),
        "compression_type": chance.choice(["none", "none", "zstd", "lz4"]),
        "max_in_flight_requests_per_connection": chance.choice([1, 5]),
        "max_block_ms": LONG_MS,
        "delivery_timeout_ms": LONG_MS,
    }


def group_options(chance, group):
    """Any member of a group that reads `numbers` from the start."""
    return {
        **SOON,
        "group_id": group,
        "topics": ["numbers"],
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": chance.choice([1, 20, 5_000]),
        "max_poll_records": chance.choice([1, 7, 500]),
    }


# --- interrupted --------------------------------------------------------------------------------


def sends(each):
    """A producer whose calls are interrupted keeps what was acknowledged, and goes on."""
    chance, strike = each.chance, Interrupts(each)
    for name in "ab"[: chance.randint(1, 2)]:
        book = each.sender(name)
        producer = Producer(**each.way, **producer_options(chance))
        strike.over(producer.open)
        if strike.struck:
            producer = Producer(**each.way, **producer_options(chance)).open()
        for _ in range(chance.randint(3, 15)):
            producer_call(each, strike, producer, book)
        if chance.random() < 0.3:
            confirm(producer, book)
        accepted = book.of("accepted")
        strike.over(producer.close)
        if not strike.struck:
            book.flushed(accepted)
        else:
            with contextlib.suppress(ClosedError):  # of records that were not stored
                producer.close()


def producer_call(each, strike, producer, book):
    """A call that may be struck, and what is known afterwards."""
    chance, partition = each.chance, each.chance.randrange(PARTITIONS)
    call = chance.choice(["send", "send", "send", "many", "flush", "result"])
    accepted = book.of("accepted")
    if call == "send":
        row = book.new(partition)
        row.delivery = strike.over(producer.send, "t", row.value.encode(), partition=partition)
        row.state = "accepted" if row.delivery else "maybe"
    elif call == "many":
        rows = [book.new(partition) for _ in range(chance.randint(1, 50))]
        values = [row.value.encode() for row in rows]
        sent = strike.over(producer.send_many, "t", values, partition=partition)
        if sent is not None:
            for row in rows:
                row.state = "accepted"
            strike.over(sent.result)
            if not strike.struck:
                book.flushed(rows)
    elif call == "flush":
        strike.over(producer.flush)
        if not strike.struck:
            book.flushed(accepted)
            for row in accepted:  # each has its outcome by now
                if row.delivery:
                    row.told(row.delivery.result(timeout_s=0))
    elif any(row.delivery for row in accepted):
        row = chance.choice([row for row in accepted if row.delivery])
        place = strike.over(row.delivery.result)
        if place is not None:
            row.told(place)


def confirm(producer, book):
    """Whatever happened, this producer still works."""
    row = book.new(0)
    row.told(producer.send("t", row.value.encode(), partition=0).result(HANGS_S / 2))
    producer.flush()
    book.flushed(book.of("accepted"))


def loops(each):
    """A group whose consumers are interrupted, fail and end anywhere reads without a gap."""
    chance = each.chance
    auto = chance.random() < 0.7
    reading = Reading(each, f"g{each.seed}", auto=auto)
    for _ in range(chance.randint(2, 4)):
        options = group_options(chance, reading.group)
        consumer = Consumer(**each.way, enable_auto_commit=auto, **options)
        strike = Interrupts(each)
        strike.over(consumer.open)
        if strike.struck:
            consumer.close()
            continue
        reading.begins(lambda known=consumer._async: known.generation)
        for _ in range(chance.randint(0, 12)):
            consumer_call(each, strike, consumer, reading)
        opened = consumer._opened()
        if chance.random() < 0.2:
            reading.asked()
            reading.closed(failed=True)
            del consumer
            gc.collect()
            each.tally["dropped consumers"] += 1
        else:
            end_consumer(each, strike, consumer, reading)
        each.until(lambda opened=opened: not opened.is_at_work, "the end of a consumer")
        reading.check_committed()


def consumer_call(each, strike, consumer, reading):
    """A call that may be struck, and what is known afterwards."""
    chance = each.chance
    call = chance.choice(["loop", "loop", "poll", "poll", "arrow", "commit", "seek", "ask"])
    if call == "loop":
        take_some(each, strike, consumer, reading)
    elif call == "poll":
        reading.asked()
        count = chance.choice([None, 1, 20])
        records = strike.over(consumer.poll, timeout_ms=chance.choice([0, 20]), max_records=count)
        if not strike.struck:
            reading.got(records)
    elif call == "arrow":
        reading.asked()
        rows = strike.over(consumer.poll_arrow, timeout_ms=chance.choice([0, 20]))
        if not strike.struck:
            reading.rows(rows)
    elif call == "commit" and consumer._async.generation >= 0:
        strike.over(consumer.commit)
        if strike.struck:
            reading.maybe_committed()
        else:
            reading.committed()
    elif call == "seek":
        seek_back(each, strike, consumer, reading)
    elif call == "ask":
        strike.over(chance.choice([consumer.committed, consumer.health, consumer.assignment]))
    settle_touch(each, strike, consumer, reading)


def take_some(each, strike, consumer, reading):
    """A `for` loop that ends in the middle, or is interrupted."""
    loop, wanted = iter(consumer), each.chance.randint(1, 20)
    while wanted and sum(reading.next.values()) < PARTITIONS * NUMBERS:
        reading.asked()
        record = strike.over(next, loop)
        if strike.struck:
            return
        reading.got([record])
        wanted -= 1


def seek_back(each, strike, consumer, reading):
    """To the end, where a poll waits for what never comes; and back to anywhere."""
    places = consumer.assignment()
    if len(places) < PARTITIONS:
        return
    for place in places:
        consumer.seek(*place, NUMBERS)
        reading.next[place.partition] = NUMBERS
    reading.asked()
    assert not strike.over(consumer.poll, timeout_ms=each.chance.choice([1, 10, 50]))
    for place in places:
        target = each.chance.randrange(NUMBERS)
        consumer.seek(*place, target)
        reading.next[place.partition] = target
    if not strike.struck:
        reading.work = dict(reading.next)
    strike.struck = None


def settle_touch(each, strike, consumer, reading):
    """A call that was interrupted under way took nothing; of one that was over, or had not begun,
    the consumer knows how far it is."""
    if strike.struck and not strike.struck.is_waiting:
        assigned = {place.partition: place for place in consumer.assignment()}

        def position(number):
            return consumer.position(*assigned[number]) if number in assigned else None

        each.tally["lost on the way"] += reading.handed_over(position)
        reading.asked()


def end_consumer(each, strike, consumer, reading):
    """Its block ends well, fails, or is interrupted at its end."""
    end = each.chance.choice(["well", "well", "fails", "struck"])
    if end == "well":
        consumer.close()
        reading.closed()
    elif end == "fails":
        consumer.__exit__(KeyError, KeyError("mine"), None)
        reading.closed(failed=True)
    else:
        reading.asked()
        strike.over(consumer.close)
        if not strike.struck:
            reading.closed()
        consumer.close()


def tails(each):
    """A reader that waits for records being written, and is interrupted, gets each once."""
    chance, strike = each.chance, Interrupts(each)
    ends, book, options = each.ends(), each.sender(), producer_options(chance)

    def write():
        with Producer(**each.way, **options) as producer:
            for number in range(40):
                row = book.new(number % PARTITIONS)
                sent = producer.send("t", row.value.encode(), partition=row.partition)
                row.told(sent.result())

    places, seen = [("t", number) for number in range(PARTITIONS)], {}
    with Consumer(**each.way, partitions=places, fetch_max_wait_ms=20) as consumer:
        for place in places:
            consumer.seek(*place, ends[place[1]])
        writer = threading.Thread(target=write)
        writer.start()
        while writer.is_alive() or any(ends[row.partition] <= row.offset for row in book.rows):
            records = strike.over(consumer.poll, timeout_ms=chance.choice([0, 5, 100]))
            for record in records or []:
                assert record.offset == ends[record.partition], f"{record} after {ends}"
                ends[record.partition] += 1
                seen[record.partition, record.offset] = record.value.decode()
            if strike.struck and not strike.struck.is_waiting:
                now = {number: consumer.position(topic, number) for topic, number in places}
                each.tally["lost on the way"] += sum(now.values()) - sum(ends.values())
                ends = now
        writer.join()
    for row in book.rows:
        assert row.state == "stored", f"{row.value} was never told of"
        assert seen.get((row.partition, row.offset), row.value) == row.value


class Member:
    """One of a group: what it was handed out, and how far it is in each assignment."""

    def __init__(self, each, seen, assignor, strike=None):
        self._each, self._seen, self._strike = each, seen, strike
        self._next, self._is_shaken = {}, False
        self.refusals = []
        options = {
            "group_id": f"r{each.seed}",
            "topics": ["numbers"],
            "auto_offset_reset": "earliest",
        }
        self._consumer = Consumer(
            **each.way,
            **SOON | options,
            max_poll_records=each.chance.choice([5, 20]),
            partition_assignment_strategy=assignor,
            on_assigned=self._assigned,
            on_retry=self.refusals.append,
        )

    def _assigned(self, places):
        for place in places:
            self._next[place.partition] = self._consumer.position(*place) or 0

    def read(self, count):
        """So many records, or as many as there are; then it leaves in order."""
        with self._consumer:
            while count > 0 and len(self._seen) < PARTITIONS * NUMBERS:
                records = self._poll()
                count -= len(records)
                for record in records:
                    self._note(record.partition, record.offset)
                    assert record.value == number_value(record.partition, record.offset)

    def _poll(self):
        if self._strike is None:
            return self._consumer.poll(timeout_ms=20)
        try:
            records = self._strike.over(self._consumer.poll, timeout_ms=20)
        except ClosedError as error:
            if "interrupted by" not in str(error):  # only a listener was
                raise
            self._is_shaken = True
            return []
        struck = self._strike.struck
        if struck and struck.is_in_listener:
            self._is_shaken = True
        if struck and not struck.is_waiting:
            for place in self._consumer.assignment():
                position = self._consumer.position(*place) or 0
                for offset in range(self._next.get(place.partition, position), position):
                    self._note(place.partition, offset)
        return records or []

    def _note(self, partition, offset):
        if self._is_shaken:  # nobody said where the assignment began
            self._next[partition] = offset
        assert offset == self._next[partition], f"{offset} after {self._next[partition]}"
        self._next[partition] = offset + 1
        self._seen[partition, offset] = self._seen.get((partition, offset), 0) + 1


def rebalances(each):
    """Members that come, go and are interrupted share out everything; nobody's is another's."""
    seen = {}
    assignor = each.chance.choice(["range", "cooperative-sticky"])
    members = [Member(each, seen, assignor) for _ in range(3)]
    mine = Member(each, seen, assignor, Interrupts(each))
    counts = [each.chance.randint(1, 150) for _ in members]
    failures = []

    def read(member, count):
        try:
            member.read(count)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=read, args=each) for each in zip(members, counts, strict=True)
    ]
    for thread in threads:
        thread.start()
    mine.read(PARTITIONS * NUMBERS)
    for thread in threads:
        thread.join()
    assert not failures, f"a member failed: {failures!r}"
    assert len(seen) == PARTITIONS * NUMBERS, f"{PARTITIONS * NUMBERS - len(seen)} are lost"
    twice = [place for place, count in seen.items() if count > 1]
    refused = [error for member in (*members, mine) for error in member.refusals]
    assert not twice or refused, f"handed out twice, and nobody was refused: {twice[:5]}"
    each.tally["rebalances"] += 1


KINDS = (sends, sends, loops, loops, tails, rebalances)
