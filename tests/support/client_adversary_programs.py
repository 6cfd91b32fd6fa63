"""Rounds of the client adversary that are whole programs: threads, forks, drops, exits.

Each kind is a function of a `Round`; see `client_adversary_blocking`.
"""

import contextlib
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest
from client_adversary_blocking import LONG_MS, confirm, group_options, producer_options
from client_adversary_tools import (
    HANGS_S,
    HERE,
    NUMBERS,
    PARTITIONS,
    Interrupts,
    watched,
)

from hightide.blocking import Consumer, Producer
from hightide.protocol.errors import ClosedError, HightideError, UsageError

# --- threads ------------------------------------------------------------------------------------


def threads(each):
    """Threads share a producer that one of them closes: each is told what became of its records."""
    chance, strike = each.chance, Interrupts(each)
    producer = Producer(**each.way, **producer_options(chance)).open()
    books = [each.sender(name) for name in "abc"]
    counts = [chance.randint(1, 60) for _ in books]

    def work(book, count):
        with contextlib.suppress(ClosedError):
            for number in range(count):
                row = book.new(number % PARTITIONS)
                value = row.value.encode()
                row.delivery = producer.send("t", value, partition=row.partition)
                row.state = "accepted"
                if number % 7 == 3:
                    row.told(row.delivery.result())

    workers = [threading.Thread(target=work, args=each) for each in zip(books, counts, strict=True)]
    for worker in workers:
        worker.start()
    mine = each.sender("main")
    for _ in range(chance.randint(0, 10)):
        row = mine.new(0)
        row.delivery = strike.over(producer.send, "t", row.value.encode(), partition=0)
        row.state = "accepted" if row.delivery else "maybe"
    if chance.random() < 0.5:
        for worker in workers:
            worker.join()
    closers = [threading.Thread(target=close, args=(each, producer))]
    closers[0].start()
    strike.over(close, each, producer)
    for thread in (*closers, *workers):
        thread.join()
    for book in (*books, mine):
        tell_after_close(book)


def close(each, client):
    """Close it; anybody else who sends may be told that his records are not stored."""
    try:
        client.close()
    except ClosedError:
        each.tally["records of others refused by close"] += 1


def tell_after_close(book):
    """Who asks after the end is told, at once."""
    for row in book.of("accepted"):
        if row.delivery is not None:
            with contextlib.suppress(ClosedError):
                row.told(row.delivery.result())


def readers(each):
    """Threads that poll one consumer share its records; who comes second is refused."""
    chance, seen, failures = each.chance, [], []
    places = [("numbers", number) for number in range(PARTITIONS)]
    options = {"partitions": places, "auto_offset_reset": "earliest", "max_poll_records": 9}

    def read():
        mine = dict.fromkeys(range(PARTITIONS), -1)
        try:
            while len(seen) < PARTITIONS * NUMBERS:
                try:
                    records = consumer.poll(timeout_ms=10)
                except UsageError:
                    each.tally["second readers refused"] += 1
                    continue
                for record in records:
                    assert mine[record.partition] < record.offset, "out of order"
                    mine[record.partition] = record.offset
                    seen.append((record.partition, record.offset))
        except ClosedError:
            pass
        except BaseException as error:
            failures.append(error)

    is_cut = chance.random() < 0.5
    with Consumer(**each.way, **options) as consumer:
        pool = [threading.Thread(target=read) for _ in range(2)]
        for thread in pool:
            thread.start()
        if is_cut:
            wanted = chance.randrange(PARTITIONS * NUMBERS)
            each.until(lambda: len(seen) >= wanted or failures, "records")
        else:
            for thread in pool:
                thread.join()
    for thread in pool:
        thread.join()
    assert not failures, f"a reader failed: {failures!r}"
    assert len(seen) == len(set(seen)), "some came twice"
    assert is_cut or len(seen) == PARTITIONS * NUMBERS, "some never came"


def ends_polls(each):
    """Closing a client ends what its other threads wait for, also if the close is struck."""
    chance, strike, ended = each.chance, Interrupts(each), []
    where = {"partitions": [("numbers", 0)], "auto_offset_reset": "latest"}
    consumer = Consumer(**each.way, **where).open()

    def wait():
        try:
            ended.append(consumer.poll(timeout_ms=LONG_MS))
        except HightideError as error:
            ended.append(error)

    waiters = [threading.Thread(target=wait) for _ in range(chance.randint(1, 2))]
    for waiter in waiters:
        waiter.start()
    if chance.random() < 0.7:
        each.until(lambda: consumer._opened()._calls, "a call")
    strike.over(consumer.close)
    consumer.close()
    for waiter in waiters:
        waiter.join()
    assert all(isinstance(outcome, ClosedError | UsageError) for outcome in ended), ended


# --- forks, drops, exits ------------------------------------------------------------------------


class ChildIsDone(SystemExit):
    """Leaves a forked child by the end of its interpreter."""


def forks(each):
    """A child opens its own clients and is refused its parent's, who goes on."""
    chance, book, theirs = each.chance, each.sender(), each.sender("child")
    with (
        Producer(**each.way, **producer_options(chance)) as producer,
        Consumer(**each.way, **group_options(chance, f"f{each.seed}")) as consumer,
    ):
        confirm(producer, book)
        stop = threading.Event()
        sender = threading.Thread(target=send_until, args=(stop, producer, each.sender("busy")))
        sender.start()
        got = len(consumer.poll(timeout_ms=chance.choice([0, 1000])))
        row = theirs.new(1)
        child = fork()
        if child == 0:
            in_child(each, producer, consumer, row)
        with watched():
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, f"the child ended with {status}"
        row.state = "stored"
        confirm(producer, book)
        stop.set()
        sender.join()
        got += len(consumer.poll(timeout_ms=LONG_MS if got < 2 * NUMBERS else 0))
    assert sum(each.committed(f"f{each.seed}").values()) == got
    each.tally["forks"] += 1


def fork():
    """Without the watch, whose lock no thread of the child's would ever give back."""
    faulthandler.cancel_dump_traceback_later()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def send_until(stop, producer, book):
    """A thread that sends all the time."""
    while not stop.is_set():
        confirm(producer, book)


def in_child(each, producer, consumer, row):
    """What a forked child may do, and may not; 7 is its exit code if all of it was right."""
    code = 1
    with watched():
        try:
            calls = [lambda: producer.send("t", b"never"), producer.flush, consumer.poll]
            calls += [consumer.commit, lambda: next(iter(consumer)), consumer.health]
            each.chance.shuffle(calls)
            for call in calls[:3]:
                with pytest.raises(ClosedError, match="and this is its child"):
                    call()
            if each.chance.random() < 0.5:
                producer.close()
                consumer.close()
            with Producer(**each.way) as own:
                row.told(own.send("t", row.value.encode(), partition=1).result())
            code = 7
        except BaseException as error:
            sys.stderr.write(f"in the child of {each.seed}: {error!r}\n")
        finally:
            if code != 7 or each.chance.random() < 0.5:
                os._exit(code)
    raise ChildIsDone(7)


def drops(each):
    """A client that everybody forgot, in the middle of whatever, is closed, and harms nobody."""
    chance, book = each.chance, each.sender()
    with Producer(**each.way) as other:
        for _ in range(chance.randint(1, 4)):
            client = Producer(**each.way, **producer_options(chance)).open()
            opened = client._opened()
            for _ in range(chance.randint(0, 30)):
                row = book.new(0)
                client.send("t", row.value.encode(), partition=0)
            if chance.random() < 0.5:
                client.itself = client  # only the collector of garbage finds it
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                del client
                gc.collect(chance.choice([0, 1, 2]))
                gc.collect()
                # A process that moves its records on may still hold it.
                each.until(lambda opened=opened: is_collected(opened), "its end")
            assert any("never closed" in str(warning.message) for warning in told)
            each.tally["dropped producers"] += 1
        confirm(other, each.sender("other"))


def is_collected(opened):
    """Whether a client is at its end, now that garbage was looked for again."""
    gc.collect()
    return not opened.is_at_work


EXITS = {
    "end": ("", 0),
    "exit": ("sys.exit(3)", 3),
    "raise": ("raise KeyError('mine')", 1),
    "leave": ("os._exit(5)", 5),
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    "atexit": ("atexit.register(producer.close)", 0),
    "polling": ("threading.Thread(target=consumer.poll, kwargs=FOREVER, daemon=True).start()", 0),
    "sending": ("threading.Thread(target=send_on, daemon=True).start()", 0),
}
PROGRAM = """
import atexit, json, os, signal, sys, threading
from hightide.blocking import Consumer, Producer

way, group, name, end, is_kept = sys.argv[1:]
way = json.loads(way)
signal.signal(signal.SIGINT, signal.default_int_handler)  # who started this may ignore it
FOREVER = {"timeout_ms": 600_000}
producer = Producer(**way, linger_ms=0).open()
consumer = Consumer(
    **way, group_id=group, topics=["numbers"], auto_offset_reset="earliest"
).open()


def send_on():
    while True:
        producer.send("t", None)


for number in range(5):
    producer.send("t", f"{name}/{number}".encode(), partition=0).result()
    os.write(1, b"stored\\n")
os.write(1, b"got %d\\n" % len(consumer.poll(timeout_ms=10_000)))
consumer.poll()
if is_kept == "cycle":
    producer.itself = producer
    consumer.itself = consumer
exec(end)
"""


def exits(each):
    """An interpreter that ends with open clients ends, with its own exit code."""
    chance, book = each.chance, each.sender()
    how, (line, code) = chance.choice([*EXITS.items()])
    row_values = [book.new(0) for _ in range(5)]
    arguments = [
        json.dumps(each.way),
        f"x{each.seed}",
        book.name,
        line,
        chance.choice(["", "cycle"]),
    ]
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments],
        capture_output=True,
        timeout=HANGS_S / 2,
        cwd=HERE,
    )
    said = found.stderr.decode(errors="replace")
    assert found.returncode == code, f"{how}: exit code {found.returncode}: {said}"
    assert "Fatal Python error" not in said, f"{how}: {said}"
    told = found.stdout.decode().split("\n")
    for row in row_values[: told.count("stored")]:
        row.state = "stored"
    assert any(line.startswith("got ") for line in told), f"{how}: {told}"
    committed = sum(each.committed(f"x{each.seed}").values())
    assert committed in (0, *(int(line[4:]) for line in told if line.startswith("got "))), how
    each.tally[f"exit {how}"] += 1


KINDS = (threads, readers, ends_polls, forks, drops, exits)
