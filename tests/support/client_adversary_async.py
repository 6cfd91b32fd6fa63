"""Rounds of the client adversary for async clients: cancelled at a step of trio's, interrupted,
raised at.

Each kind is a function of a `Round`, which runs trio with its instrument; see
`client_adversary_blocking`.
"""

import contextlib
import signal
from functools import partial

import trio
from client_adversary_blocking import group_options, producer_options
from client_adversary_misuse import CALLS, LONG_MS, REFUSALS, WRONG, draw_odd
from client_adversary_tools import NUMBERS, PARTITIONS, Reading

from hightide import Consumer, Producer
from hightide.protocol.errors import ApiError, ClosedError, ErrorCode, UsageError


def run(each, program):
    """The program under trio, with the instrument that counts steps."""
    return trio.run(program, each, instruments=[each.steps])


async def confirm(producer, book):
    """Whatever happened, this producer still works."""
    row = book.new(0)
    row.told(await (await producer.send("t", row.value.encode(), partition=0)))


# --- cancelled ----------------------------------------------------------------------------------


async def _cancelled_sends(each):
    chance = each.chance
    for name in "ab"[: chance.randint(1, 2)]:
        book = each.sender(name)
        is_struck_whole = chance.random() < 0.3
        aim = each.steps.aimed("producer", always=True) if is_struck_whole else trio.CancelScope()
        with aim as scope:
            async with Producer(**each.way, **producer_options(chance)) as producer:
                for _ in range(chance.randint(3, 15)):
                    await producer_call(each, producer, book, is_struck_whole)
                if chance.random() < 0.3:
                    await confirm(producer, book)
            book.flushed(book.of("accepted"))
        assert not scope.cancelled_caught or is_struck_whole
        for row in book.of("accepted"):
            assert row.delivery is None or row.delivery.is_done, f"nobody ends {row.value}"


def cancelled_sends(each):
    """What a producer whose calls are cancelled was told is so; a cancelled send sent nothing."""
    run(each, _cancelled_sends)


async def producer_call(each, producer, book, is_struck_whole):
    """A call that may be struck, and what is known afterwards."""
    chance, partition = each.chance, each.chance.randrange(PARTITIONS)
    over = plainly if is_struck_whole else each.steps.over
    call = chance.choice(["send", "send", "send", "many", "flush", "result"])
    accepted = book.of("accepted")
    if call == "send":
        row = book.new(partition)
        row.state = "absent"  # a send that was cancelled has sent nothing
        is_over, row.delivery = await over(
            producer.send, "t", row.value.encode(), partition=partition
        )
        row.state = "accepted" if is_over else "absent"
    elif call == "many":
        rows = [book.new(partition) for _ in range(chance.randint(1, 50))]
        values = [row.value.encode() for row in rows]
        is_over, sent = await over(producer.send_many, "t", values, partition=partition)
        if is_over:
            for row in rows:
                row.state = "accepted"
            is_over, _ = await over(awaited, sent)
            if is_over:
                book.flushed(rows)
    elif call == "flush":
        is_over, _ = await over(producer.flush)
        if is_over:
            book.flushed(accepted)
            for row in accepted:  # each has its outcome by now
                if row.delivery:
                    row.told(row.delivery.result())
    elif any(row.delivery for row in accepted):
        row = chance.choice([row for row in accepted if row.delivery])
        is_over, place = await over(awaited, row.delivery)
        if is_over:
            row.told(place)


async def plainly(work, *args, **options):
    """A call that nobody aims at."""
    return True, await work(*args, **options)


async def awaited(delivery):
    """What becomes of it."""
    return await delivery


async def _cancelled_loops(each):
    chance = each.chance
    auto = chance.random() < 0.7
    reading = Reading(each, f"a{each.seed}", auto=auto)
    for _ in range(chance.randint(2, 4)):
        options = group_options(chance, reading.group)
        aimed = chance.choice(["calls", "calls", "whole", "enter"])
        ended = False
        with each.steps.aimed("consumer", always=aimed != "calls") as scope:
            async with Consumer(**each.way, enable_auto_commit=auto, **options) as consumer:
                if aimed == "enter":
                    each.steps.rest()
                reading.begins(lambda known=consumer: known.generation)
                over = plainly if aimed == "whole" else each.steps.over
                for _ in range(chance.randint(0, 20)):
                    await consumer_call(each, over, consumer, reading)
                reading.asked()
            ended = True
        assert ended or scope.cancelled_caught
        if ended:
            reading.closed()
        await trio.to_thread.run_sync(reading.check_committed)


def cancelled_loops(each):
    """A group whose consumers are cancelled anywhere reads without a gap, and nothing twice."""
    run(each, _cancelled_loops)


async def consumer_call(each, over, consumer, reading):
    """A call that may be struck, and what is known afterwards: cancelled, it took nothing."""
    chance = each.chance
    call = chance.choice(["loop", "loop", "poll", "poll", "arrow", "commit", "seek", "ask"])
    reading.asked()
    if call == "loop":
        for _ in range(chance.randint(1, 20)):
            if sum(reading.next.values()) < PARTITIONS * NUMBERS:
                is_over, record = await over(consumer.__anext__)
                if not is_over:
                    return
                reading.got([record])
                reading.asked()
    elif call == "poll":
        count = chance.choice([None, 1, 20])
        is_over, records = await over(
            consumer.poll, timeout_ms=chance.choice([0, 20, 1000]), max_records=count
        )
        if is_over:
            reading.got(records)
    elif call == "arrow":
        is_over, rows = await over(consumer.poll_arrow, timeout_ms=chance.choice([0, 20]))
        if is_over:
            reading.rows(rows)
    elif call == "commit" and consumer.generation >= 0:
        reading.maybe_committed()
        try:
            is_over, _ = await over(consumer.commit)
        except ApiError as error:
            # The machine was so slow that the group gave this member up; it will join again.
            if error.code not in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
                raise
            return
        if is_over:
            reading.committed()
    elif call == "seek" and len(consumer.assignment()) == PARTITIONS:
        is_over, _ = await over(consumer.seek_to_time, 0)
        if is_over:
            reading.next = dict.fromkeys(reading.next, 0)
    elif call == "ask":
        await over(consumer.committed)


# --- tasks --------------------------------------------------------------------------------------


async def _tasks(each):
    chance, books = each.chance, [each.sender(name) for name in "abc"]

    async def send(producer, book, count, every, limit):
        with contextlib.suppress(ClosedError):
            for number in range(count):
                row = book.new(number % PARTITIONS)
                row.state = "absent"
                with trio.move_on_after(limit):
                    value = row.value.encode()
                    row.delivery = await producer.send("t", value, partition=row.partition)
                    row.state = "accepted"
                    if number % every == every - 1:
                        row.told(await row.delivery)

    async with trio.open_nursery() as nursery:
        try:
            async with Producer(**each.way, **producer_options(chance)) as producer:
                for book in books:
                    limit = chance.choice([0, 0.001, 0.01, 1000])
                    every = chance.choice([2, 7, 1_000])
                    nursery.start_soon(send, producer, book, chance.choice([9, 400]), every, limit)
                with each.steps.aimed("sleep"):
                    await trio.sleep(chance.choice([0, 0.001, 0.002, 0.02, 0.1]))
        except ClosedError:
            each.tally["records of others refused by close"] += 1
    for book in books:
        for row in book.of("accepted"):
            with contextlib.suppress(ClosedError):
                row.told(row.delivery.result())


def tasks(each):
    """Tasks share a producer, are cancelled, and lose it in the middle: each is told."""
    run(each, _tasks)


async def _second_tasks(each):
    wanted, places = [0] * PARTITIONS, [("numbers", number) for number in range(PARTITIONS)]

    async def read(consumer):
        while sum(wanted) < PARTITIONS * NUMBERS:
            try:
                is_over, records = await each.steps.over(consumer.poll, timeout_ms=10)
            except UsageError:
                each.tally["second readers refused"] += 1
                await trio.lowlevel.checkpoint()
                continue
            for record in records if is_over else ():
                assert record.offset == wanted[record.partition], f"{record}, wanted {wanted}"
                wanted[record.partition] += 1

    options = {"auto_offset_reset": "earliest", "max_poll_records": 9}
    async with (
        Consumer(**each.way, partitions=places, **options) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, consumer)
        nursery.start_soon(read, consumer)


def second_tasks(each):
    """Tasks that poll one consumer, and are cancelled, share its records, each once."""
    run(each, _second_tasks)


# --- interrupted --------------------------------------------------------------------------------


async def _interrupted(each, sent, seen):
    async with (
        Producer(**each.way, **producer_options(each.chance)) as producer,
        Consumer(**each.way, **group_options(each.chance, f"k{each.seed}")) as consumer,
    ):
        for number in range(10_000):
            row = sent.new(number % PARTITIONS)
            value = row.value.encode()
            row.delivery = await producer.send("t", value, partition=row.partition)
            row.state = "accepted"
            if number % 7 == 3:
                row.told(await row.delivery)
            for record in await consumer.poll():
                seen[record.partition] = record.offset + 1


def interrupted(each):
    """Ctrl-C at any moment ends trio, not what was acknowledged; nothing unread is committed."""
    sent, seen = each.sender(), dict.fromkeys(range(PARTITIONS), 0)
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    ki = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(each, partial(_caught, sent=sent, seen=seen))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGINT, ki)
    for number, offset in each.committed(f"k{each.seed}").items():
        assert offset <= seen[number] + 500, f"committed {offset} of {number}, read {seen[number]}"


async def _caught(each, sent, seen):
    try:
        signal.setitimer(signal.ITIMER_REAL, 10 ** each.chance.uniform(-3.5, -0.5))
        await _interrupted(each, sent, seen)
    except* KeyboardInterrupt:
        each.tally["interrupted trio"] += 1
    for row in sent.of("accepted"):
        assert row.delivery.is_done, f"nobody ends {row.value}"


# --- callbacks, wrong types ---------------------------------------------------------------------


async def _raising(each):
    error, raised = KeyError("mine"), None

    def raise_it(*_):
        raise error

    async with Producer(**each.way) as other:
        kind = each.chance.choice(["retry", "partitioner", "assigned", "revoked"])
        try:
            if kind == "retry":
                async with Producer(
                    "127.0.0.1:1", on_retry=raise_it, request_timeout_ms=200
                ) as producer:
                    await producer.send("t", b"never")
            elif kind == "partitioner":
                async with Producer(**each.way, partitioner=raise_it) as producer:
                    await producer.send("t", b"never")
            else:
                options = group_options(each.chance, f"l{each.seed}")
                options[f"on_{kind}"] = raise_it
                async with Consumer(**each.way, **options) as consumer:
                    await consumer.__anext__()
        except* KeyError as group:
            raised = group
        while isinstance(raised, BaseExceptionGroup) and len(raised.exceptions) == 1:
            raised = raised.exceptions[0]
        assert raised is error, f"{kind}: {raised!r}"
        each.tally[f"raised by {kind}"] += 1
        await confirm(other, each.sender())


def raising(each):
    """What a callback raises leaves the block of its own client."""
    run(each, _raising)


async def _odd_arguments(each):
    chance, book = each.chance, each.sender()
    places = [("numbers", number) for number in range(PARTITIONS)]
    options = {"group_id": f"o{each.seed}", "partitions": places, "enable_auto_commit": False}
    async with (
        Producer(**each.way, max_block_ms=LONG_MS) as producer,
        Consumer(**each.way, auto_offset_reset="earliest", **options) as consumer,
    ):
        clients = {"producer": producer, "consumer": consumer}
        await refused(clients, *chance.choice(WRONG))
        for _ in range(12):
            which = chance.choice([*CALLS])
            name, arguments = draw_odd(chance, which)
            try:
                outcome = getattr(clients[which], name)(**arguments)
                if hasattr(outcome, "__await__"):
                    outcome = await outcome
                if which == "producer":
                    await outcome
            except REFUSALS as error:
                each.tally[f"refused with {type(error).__name__}"] += 1
            except Exception as error:
                raise AssertionError(f"{which}.{name}({arguments}): {error!r}") from error
            await confirm(producer, book)
        await consumer.assign(places)
        for place in places:
            consumer.seek(*place, 7)
        await consumer.commit()
        assert await consumer.poll(timeout_ms=LONG_MS)
    found = await trio.to_thread.run_sync(each.committed, f"o{each.seed}")
    assert found == {0: 7, 1: 7}


async def refused(clients, which, name, arguments):
    """One of those that are certain."""
    try:
        outcome = getattr(clients[which], name)(**arguments)
        await outcome
    except UsageError:
        return
    raise AssertionError(f"{which}.{name}({arguments}) was not refused")


def odd_arguments(each):
    """Arguments of any type are taken, or refused to who gave them; nothing else is hurt."""
    run(each, _odd_arguments)


KINDS = (
    cancelled_sends,
    cancelled_sends,
    cancelled_loops,
    cancelled_loops,
    tasks,
    second_tasks,
    interrupted,
    raising,
    odd_arguments,
)
