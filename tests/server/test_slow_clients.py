"""Who asks and does not listen, and whose request meets a bug, is alone with it.

Goal: promise 7 of the design where requests wait and answers do not leave: a client that takes no
answers is not asked on, whatever its requests are; and what fails in a request that was parked ends
its own connection, though it fails in somebody else's stretch.
"""

from contextlib import AsyncExitStack

import pytest
import trio
from brokers import batch, client_of, hard_of_hearing, new_node, quiet
from brokers import settings as config_of
from patience import PATIENCE_S
from tries import some

from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.errors import ApiError, ErrorCode
from hightide_broker.runtime.server.connection import ServedConnection
from hightide_broker.runtime.server.fetch_handler import FetchHandler
from hightide_broker.simulation.disk import SimDisk

IN_FLIGHT_MAX = 3
QUESTIONS_MAX = 2_000_000
PARKED = m.FetchRequest(
    max_wait_ms=60_000, partitions=[m.FetchPartition(topic="t", partition=0, fetch_offset=0)]
)


def question(api):
    (metadata,) = (b"".join(wire.encode_request(m.MetadataRequest(), request_id=1, client="c")),)
    return metadata.replace(b"metadata", api) * 1_000


@pytest.mark.parametrize("api", some([b"metadata", b"no_such_"], 0), ids=bytes.decode)
async def test_a_client_that_does_not_listen_is_not_asked_on(api):
    asked = 0

    async def ask(stream):
        nonlocal asked
        while asked < QUESTIONS_MAX:
            await stream.send_all(question(api))
            asked += 1_000

    config = config_of({"max.in.flight.requests.per.connection": str(IN_FLIGHT_MAX)})
    async with new_node(SimDisk(), config) as node, client_of(node) as calm:
        await calm.create()
        async with await hard_of_hearing(node) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(ask, stream)
            before = -1
            while asked > before:
                before = asked
                await quiet()
            assert asked < QUESTIONS_MAX
            (deaf,) = (each for each in node.server._inside if not each._answers._outbox.is_empty)
            assert len(deaf._answers._outbox._messages) <= IN_FLIGHT_MAX
            assert (await calm.produce(b"x")).error is None
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fails", ["at its news", "at its time"])
async def test_a_bug_in_a_request_that_was_parked_ends_its_connection_alone(
    fails, mock_clock, monkeypatch, caplog
):
    async with (
        new_node(SimDisk(), config_of()) as node,
        client_of(node) as calm,
        client_of(node) as waits,
    ):
        await calm.create()
        parked = await waits.connection.begin(PARKED)
        await quiet()

        def look_again(*_):
            raise RuntimeError("a bug")

        monkeypatch.setattr(FetchHandler, "look_again", look_again)
        if fails == "at its news":
            assert (await calm.produce(b"x")).error is None
        else:
            mock_clock.jump(61)
        await quiet()
        with pytest.raises(Exception, match="the broker closed the connection"):
            await parked.wait(PATIENCE_S)
        assert "met a bug; its connection was closed" in caplog.text
        monkeypatch.undo()
        assert (await calm.produce(b"y")).error is None
        caplog.clear()


async def test_a_bug_in_what_nobody_asked_for_ends_the_node(monkeypatch):
    """It is not the fault of the connection in whose stretch it struck; a node that went on would
    lack what was to be done."""

    async def live():
        async with new_node(SimDisk(), config_of()) as node, client_of(node) as calm:
            await calm.create()
            monkeypatch.setattr(node.replicas.get("t", 0), "begin_sync", lambda: 1 / 0)
            with trio.move_on_after(PATIENCE_S):
                await calm.begin(batch(b"x"))
                await trio.sleep_forever()
            raise AssertionError("it went on")

    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        await live()


async def test_a_small_request_has_no_boundless_answer():
    """A partition that is named a thousand times would be read as often."""
    async with new_node(SimDisk(), config_of()) as node, client_of(node) as client:
        await client.create()
        await client.produce(b"x" * 30_000)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0)
        with pytest.raises(ApiError, match="2 partitions, 1 of them different") as refused:
            await client.connection.call(m.FetchRequest(max_wait_ms=0, partitions=[part, part]))
        assert refused.value.code == ErrorCode.INVALID_REQUEST


async def test_who_does_not_take_a_large_answer_is_not_read_for_again():
    """Each answer may hold megabytes, or descriptors: one waits, however many were asked for."""
    size = 300_000
    config = config_of({"max.in.flight.requests.per.connection": "100"})
    async with new_node(SimDisk(), config) as node, client_of(node) as client:
        await client.create()
        for _ in range(30):
            await client.produce(b"x" * size)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=50 << 20)
        request = m.FetchRequest(max_wait_ms=0, partitions=[part])
        asked = b"".join(wire.encode_request(request, request_id=1, client="c"))
        async with await hard_of_hearing(node) as stream:
            await stream.send_all(asked * 20)
            await quiet()
            (deaf,) = (each for each in node.server._inside if not each._answers._outbox.is_empty)
            assert len(deaf._answers._outbox._messages) == 1
            assert (await client.produce(b"x")).error is None


async def test_a_connection_is_one_task_until_it_is_hard_of_hearing():
    def tasks():
        return trio.lowlevel.current_statistics().tasks_living

    many = question(b"metadata")

    async def ask_for_ever(stream):
        while True:
            await stream.send_all(many)

    async with new_node(SimDisk(), config_of()) as node, AsyncExitStack() as stack:
        await quiet()
        before = tasks()
        streams = [await stack.enter_async_context(await hard_of_hearing(node)) for _ in range(10)]
        for stream in streams:
            await stream.send_all(many[: len(many) // 1_000])
            assert await stream.receive_some(65_536)
        assert tasks() == before + 10
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_for_ever, streams[0])
            await quiet()
            assert tasks() == before + 10 + 2
            nursery.cancel_scope.cancel()


async def test_an_answer_that_comes_when_its_connection_has_ended_begins_no_task():
    connection = ServedConnection.__new__(ServedConnection)
    async with trio.open_nursery() as connection._nursery:
        connection._nursery.cancel_scope.cancel()
    connection._send_later(trio.sleep_forever)
    assert not connection._nursery.child_tasks
