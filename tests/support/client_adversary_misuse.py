"""Rounds of the client adversary that misuse clients: callbacks that raise, arguments of any type.

Each kind is a function of a `Round`; see `client_adversary_blocking`.
"""

import contextlib

import numpy as np
import pytest
from client_adversary_blocking import LONG_MS, confirm, group_options
from client_adversary_tools import PARTITIONS, number_value

from hightide.blocking import Consumer, Producer
from hightide.consume.subscription import OffsetAndMetadata
from hightide.protocol.errors import ClosedError, HightideError, UsageError

# --- callbacks ----------------------------------------------------------------------------------


class Mine(BaseException):
    """An error that is no `Exception`."""


def callbacks(each):
    """What a callback raises its own caller gets, and no other client."""
    chance = each.chance
    error = chance.choice([KeyError("mine"), SystemExit(3), Mine("mine"), KeyboardInterrupt()])
    with Producer(**each.way) as other:
        kind = chance.choice([bad_retry, bad_partitioner, bad_listener, bad_outcome])
        kind(each, error)
        each.tally[kind.__name__] += 1
        confirm(other, each.sender("other"))


def raiser(error):
    """A callback that raises it."""

    def raise_it(*_):
        raise error

    return raise_it


def raises_itself(error):
    """The very error, not another one of its kind."""
    return pytest.raises(type(error), check=lambda found: found is error)


def bad_retry(each, error):
    options = {"on_retry": raiser(error), "request_timeout_ms": 200}
    with raises_itself(error), Producer("127.0.0.1:1", **options) as producer:
        producer.send("t", b"never").result()


def bad_partitioner(each, error):
    book = each.sender()
    with Producer(**each.way, partitioner=raiser(error)) as producer:
        bad = book.new(0)
        bad.state = "absent"
        delivery = producer.send("t", bad.value.encode())
        with raises_itself(error):
            delivery.result()
        confirm(producer, book)


def bad_listener(each, error):
    options = group_options(each.chance, f"c{each.seed}")
    name = each.chance.choice(["on_assigned", "on_revoked"])
    seen, found = [], None
    try:
        with Consumer(**each.way, **options, **{name: raiser(error)}) as consumer:
            while len(seen) < 20:
                try:
                    seen += consumer.poll(timeout_ms=1000)
                except BaseException as caught:
                    # What is no `Exception` is the thread's own; the consumer hears of it then.
                    if found is not None and not isinstance(caught, ClosedError):
                        raise AssertionError(f"told {caught!r} after {found!r}") from caught
                    found = found or caught
    except BaseException as caught:
        found = caught
    is_own = found is error or isinstance(found, ClosedError)
    assert is_own, f"{name}: {found!r} instead of {error!r}"
    for number in range(PARTITIONS):
        offsets = [record.offset for record in seen if record.partition == number]
        assert offsets == [*range(len(offsets))], f"{name}: {offsets}"


def bad_outcome(each, error):
    options = group_options(each.chance, f"c{each.seed}")
    with (
        contextlib.suppress(ClosedError),  # what is no `Exception` ends the consumer
        raises_itself(error),
        Consumer(**each.way, **options) as consumer,
    ):
        next(iter(consumer))
        consumer.commit_async(then=raiser(error))
        while True:
            consumer.poll(timeout_ms=1)


# --- wrong types --------------------------------------------------------------------------------

ODD = (
    1.5, "1", "x", b"1", None, True, -1, -5, 2**31, 2**63, 2**70, 10**400, float("nan"),
    float("inf"), np.float64(1.0), np.int64(1), np.int8(-1), np.bool_(True), object(), [], {}, (),
    set(), "\ud800", "", "a" * 300, b"\xff", bytearray(b"x"), memoryview(b"x"), ("t",), ("t", 0),
    [("t", 1.0)], [("t", 0, 0)], {("t", 0): 1.5}, {("t", 0): "1"}, {"t": 0}, {("t", 9): 1},
    {("numbers", 0): OffsetAndMetadata(1.5)}, {("numbers", 0): OffsetAndMetadata("1")},
    {("numbers", 0): OffsetAndMetadata(-7)}, {("numbers", 0): OffsetAndMetadata(1, 1.5, 5)},
    {("numbers", 0): None}, {("numbers", 1.0): 1}, lambda: 1, [("h", 1)], [(b"h", b"v")], [1],
    [("\ud800", b"")], [b"x", "y"], [b"x", None, 1.5], range(3),
)  # fmt: skip
CALLS = {
    "producer": {
        "send": {"topic": "t", "value": b"odd", "key": None, "partition": 0, "timestamp": None,
                 "headers": ()},
        "send_many": {"topic": "t", "values": [b"odd"], "keys": None, "partition": 0,
                      "timestamp": None},
        "send_arrow": {"table": None, "topic": "t", "partition": 0},
    },
    "consumer": {
        "poll": {"timeout_ms": 0, "max_records": None},
        "poll_arrow": {"timeout_ms": 0},
        "commit": {"offsets": None},
        "commit_async": {"offsets": None},
        "committed": {"partitions": None},
        "seek": {"topic": "numbers", "partition": 0, "offset": 0},
        "seek_to_time": {"timestamp": 0},
        "offsets": {"timestamp": 0},
        "position": {"topic": "numbers", "partition": 0},
        "lag": {"topic": "numbers", "partition": 0},
        "watermarks": {"topic": "numbers", "partition": 0},
        "assign": {"partitions": [("numbers", 0), ("numbers", 1)]},
    },
}  # fmt: skip


REFUSALS = (HightideError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
"""What who gave them is told; the tally says how often it was none of the house's errors."""


WRONG = (
    ("producer", "send", {"topic": "t", "value": "x"}),
    ("producer", "send", {"topic": "t", "value": b"odd", "key": 1}),
    ("producer", "send", {"topic": "t", "value": b"odd", "timestamp": 1.5}),
    ("producer", "send", {"topic": "t", "value": b"odd", "partition": 1.0}),
    ("producer", "send", {"topic": "t", "value": b"odd", "partition": PARTITIONS}),
    ("producer", "send", {"topic": "t", "value": b"odd", "headers": [("h", 1)]}),
    ("producer", "send_many", {"topic": "t", "values": ["x"]}),
    ("producer", "send_many", {"topic": "t", "values": [b"odd"], "timestamp": "1"}),
    ("consumer", "seek", {"topic": "numbers", "partition": 0, "offset": 3.0}),
    ("consumer", "seek", {"topic": "numbers", "partition": 9, "offset": 3}),
    ("consumer", "commit", {"offsets": {("numbers", 0): "1"}}),
    ("consumer", "assign", {"partitions": [("numbers", 0.0)]}),
    ("consumer", "assign", {"partitions": [("numbers", 9)]}),
    ("consumer", "seek_to_time", {"timestamp": 1.5}),
)
"""Each is refused with a `UsageError`."""


def draw_odd(chance, client):
    """A call with one argument that may be anything; None where it would wait for ever."""
    name = chance.choice([*CALLS[client]])
    arguments = dict(CALLS[client][name])
    odd = chance.choice([*arguments])
    arguments[odd] = chance.choice(ODD)
    if odd == "timeout_ms" and isinstance(arguments[odd], int | float):
        arguments[odd] = min(arguments[odd], 1.5)  # it may wait as long as it is told to
    return name, arguments


def refused(clients, which, name, arguments):
    """One of those that are certain."""
    try:
        outcome = getattr(clients[which], name)(**arguments)
        outcome.result()
    except UsageError:
        return
    raise AssertionError(f"{which}.{name}({arguments}) was not refused")


def wrong_types(each):
    """Arguments of any type are taken, or refused to who gave them; nothing else is hurt."""
    chance = each.chance
    book, group = each.sender(), f"w{each.seed}"
    places = [("numbers", number) for number in range(PARTITIONS)]
    options = {"group_id": group, "partitions": places, "enable_auto_commit": False}
    with (
        Producer(**each.way, max_block_ms=LONG_MS) as producer,
        Consumer(**each.way, auto_offset_reset="earliest", **options) as consumer,
    ):
        clients = {"producer": producer, "consumer": consumer}
        refused(clients, *chance.choice(WRONG))
        for _ in range(12):
            which = chance.choice([*clients])
            name, arguments = draw_odd(chance, which)
            try:
                outcome = getattr(clients[which], name)(**arguments)
                if which == "producer":
                    outcome.result()
            except REFUSALS as error:
                each.tally[f"refused with {type(error).__name__}"] += 1
            except Exception as error:
                raise AssertionError(f"{which}.{name}({arguments}): {error!r}") from error
            confirm(producer, book)
        consumer.assign(places)
        for place in places:
            consumer.seek(*place, 7)
        found = [record for _ in places for record in consumer.poll(timeout_ms=LONG_MS)]
        assert all(r.value == number_value(r.partition, r.offset) for r in found)
        consumer.commit(dict.fromkeys(places, 7))
    assert each.committed(group) == {0: 7, 1: 7}


KINDS = (callbacks, wrong_types)
