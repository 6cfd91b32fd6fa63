"""What strangers may hold of a node has a measure: connections, files, memory, lines of its log.

Method: the server on streams in memory, with doors that the test opens; a node on real sockets
where bytes are what matters.
"""

import gc
import logging
import struct
import tracemalloc

import pytest
import trio
from brokers import client_of, new_node, quiet, settings
from streams import memory_streams, send_all

from hightide.net.connection import ADMITTED_BYTES_MAX, READ_BYTES_MAX, FrameReader
from hightide.net.tcp import TcpNetwork, listen
from hightide.protocol.errors import RemoteProtocolError
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.base.sparing import LINES_MAX, WINDOW_S, SparingLog, SparingLogs
from hightide_broker.runtime.replication.traffic import TrafficByTopic
from hightide_broker.runtime.server.arrivals import Arrivals
from hightide_broker.runtime.server.counts import Counts
from hightide_broker.runtime.server.door import Door
from hightide_broker.runtime.server.guesses import Guesses
from hightide_broker.runtime.server.listener import Server
from hightide_broker.runtime.server.room import Room, room_for
from hightide_broker.runtime.server.terms import Terms
from hightide_broker.simulation.disk import SimDisk


async def at_once(stream):
    return stream, Peer()


async def never(_stream):
    await trio.sleep_forever()


def server_with(*, per_address=99, **over):
    room = Room(**{"clients": 2, "nodes": 2, "at_the_door": 2, "files": 0} | over)
    terms = Terms(
        None, settings(), Agenda(), None, Counts(TrafficByTopic()), None, files_max=room.files
    )
    arrivals = Arrivals(ClusterImage, kept_max=1, per_address=per_address)
    return Server(terms, room, arrivals, None, Guesses(0.1))


class Visit:
    """A connection to a server, served in a task."""

    def __init__(self):
        self.here, self.there = memory_streams()
        self.is_over = False

    async def run(self, server, door):
        await server.serve_stream(self.here, door)
        self.is_over = True


async def come(server, door, nursery):
    """A connection, as far as it gets for now."""
    visit = Visit()
    nursery.start_soon(visit.run, server, door)
    await quiet()
    return visit


async def test_clients_do_not_take_the_room_of_nodes():
    clients, nodes = Door("", 0, at_once), Door("", 0, at_once, of_nodes=True)
    server = server_with()
    async with trio.open_nursery() as nursery:
        inside = [await come(server, clients, nursery) for _ in range(2)]
        assert (await come(server, clients, nursery)).is_over
        inside += [await come(server, nodes, nursery) for _ in range(2)]
        assert (await come(server, nodes, nursery)).is_over
        assert not any(visit.is_over for visit in inside)
        await inside[0].there.aclose()
        await quiet()
        assert not (await come(server, clients, nursery)).is_over
        nursery.cancel_scope.cancel()


async def test_who_says_nothing_at_the_door_makes_room_for_who_comes_there():
    clients, nodes = Door("", 0, never), Door("", 0, never, of_nodes=True)
    server = server_with()
    async with trio.open_nursery() as nursery:
        node = await come(server, nodes, nursery)
        waiting = [await come(server, clients, nursery) for _ in range(5)]
        assert [visit.is_over for visit in waiting].count(False) == 2
        assert not waiting[-1].is_over
        assert not node.is_over, "a door of its own"
        nursery.cancel_scope.cancel()


async def test_who_has_spoken_stays_where_somebody_is_silent():
    listener = await listen("127.0.0.1", 0)
    ends = [await TcpNetwork().connect("127.0.0.1", listener.port) for _ in range(3)]
    speaking, silent, _ = streams = [await listener.accept() for _ in ends]
    ends[0].send_now([b"x"])
    await speaking.receive_into(memoryview(bytearray(1)))
    door, server, over = Door("", 0, never), server_with(), []

    async def serve(stream):
        await server.serve_stream(stream, door)
        over.append(stream)

    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(serve, stream)
            await quiet()
        assert over == [silent]
        nursery.cancel_scope.cancel()
    for each in (*ends, *streams):
        await each.aclose()
    await listener.aclose()


@pytest.mark.parametrize("open_files", [24, 100, 150, 512, 2048, 1 << 20])
def test_all_shares_together_leave_descriptors_over(open_files):
    room = room_for(connections_max=10_000, open_files=open_files)
    assert sum(room) + room.at_the_door < open_files, "two doors"
    assert min(room.clients, room.nodes, room.at_the_door) >= 1


def test_plenty_of_descriptors_leave_what_was_configured():
    room = room_for(connections_max=10_000, open_files=16_000)
    assert (room.clients, room.at_the_door) == (10_000, 256)


async def test_what_finds_no_descriptor_is_read(tmp_path):
    """The answer is the same; a file is opened for it only where there is room."""
    async with new_node(SimDisk(), settings()) as node, client_of(node) as client:
        await client.create()
        await client.produce(b"x" * 100_000)
        opened = []
        terms = node.server._terms
        for left in (1, 0):
            terms.files_left = left
            opened.append((await client.fetch(0)).values)
            assert terms.files_left == left
        assert opened == [[b"x" * 100_000]] * 2


class Dribble:
    """A stream that gives a byte at a time, of so many."""

    def __init__(self, size):
        self.left = size

    async def receive_into(self, view, wanted=1):
        await trio.lowlevel.checkpoint()
        count = min(self.left, 1 << 12, len(view))
        self.left -= count
        return count


async def test_there_is_room_for_about_what_came_and_not_for_what_was_announced():
    size, came, asked = 8 << 20, 300_000, []

    async def admit(count):
        asked.append(count)

    with pytest.raises(RemoteProtocolError, match="ended"):
        await FrameReader(Dribble(came)).read_body(size, admit)
    assert sum(asked) <= 2 * came
    asked.clear()
    assert len(await FrameReader(Dribble(size)).read_body(size, admit)) == size
    assert (sum(asked), max(asked), asked[0]) == (size, ADMITTED_BYTES_MAX, READ_BYTES_MAX)


async def test_what_came_of_a_request_is_dropped_when_its_connection_ends():
    """Not when the collector comes: an error that a nursery raised keeps itself alive."""
    size, count = 2 << 20, 8
    async with new_node(SimDisk(), settings()) as node:
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(count):
                stream = await TcpNetwork().connect("127.0.0.1", node.port)
                await send_all(stream, struct.pack(">I", size + 1), bytes(size))
                await stream.aclose()
                await quiet()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert node.server.connections().total() == 0
        assert after - before < count * size // 2


async def test_a_log_that_strangers_write_to_has_a_measure(caplog, autojump_clock):
    caplog.set_level(logging.INFO)
    log = SparingLog(logging.getLogger("test"))
    for number in range(LINES_MAX + 5):
        log.write(logging.INFO, "line %d", number)
    assert len(caplog.messages) == LINES_MAX
    await trio.sleep(WINDOW_S)
    log.write(logging.INFO, "later")
    assert caplog.messages[LINES_MAX:] == ["5 lines like the last ones were left out", "later"]


async def test_a_line_is_of_the_place_that_tells_it_and_not_of_the_measure(caplog):
    """Events of a log that is JSON are told apart by that."""
    caplog.set_level(logging.INFO)
    log = SparingLog(logging.getLogger("test"))
    logs = SparingLogs(logging.getLogger("test"), strangers_max=1)

    def somebody_is_refused():
        log.write(logging.INFO, "one")
        log.write_at(trio.current_time(), logging.INFO, "two")
        logs.write("mallory", logging.INFO, "three")

    somebody_is_refused()
    assert {each.funcName for each in caplog.records} == {"somebody_is_refused"}
    assert [each.module for each in caplog.records] == ["test_limits"] * 3
