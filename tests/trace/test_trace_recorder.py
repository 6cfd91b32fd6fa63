"""What a node tells, on its way to the files: in bundles, numbered, and counted where it is lost.

Goal: telling never waits and never fails; whatever is missing is counted; many positions do not
push out what is rare. Method: a recorder with shelves that can refuse; the trace of a node on the
simulated disk, on virtual time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from brokers import DATA
from tracekit import STOPPED, kept, of_kind

from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.trace import WRITE_S, TraceOnDisk, open_trace
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace.events import (
    Event,
    EventsLost,
    NodeStopped,
    Offsets,
    WatermarksMoved,
)
from hightide_broker.trace.lines import Told, read_lines
from hightide_broker.trace.recorder import WAITING_MAX, Recorder
from hightide_broker.trace.ring import POSITIONS, Place

MOVED = WatermarksMoved(replicas=(Offsets("t", 0, 1, 0, 4, 5, 5),))


class Shelf:
    """Takes lines, unless it has no room."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.bundles: list[list[bytes]] = []

    def put(self, lines: Sequence[bytes]) -> int:
        fits = list(lines[: self.room])
        self.room -= len(fits)
        self.bundles += [fits] if fits else []
        return len(lines) - len(fits)

    @property
    def told(self) -> list[Told]:
        return [told for bundle in self.bundles for told in read_lines(bundle)]


class Desk:
    """A recorder with two shelves, and how often it asked to be called."""

    def __init__(self, first: int = 0) -> None:
        self.events, self.positions = Shelf(), Shelf()
        self.asked = 0
        self.recorder = Recorder(
            3, self.events, self.positions, now_ms=lambda: 77, first=first, soon=self._soon
        )

    def _soon(self) -> None:
        self.asked += 1

    def tell(self, *events: Event) -> None:
        for each in events:
            self.recorder.tell(each)

    @property
    def counts(self) -> list[int]:
        return [lost.count for lost in of_kind(self.events.told, EventsLost)]


def test_what_is_told_waits_for_one_write_and_is_numbered() -> None:
    desk = Desk(first=40)
    desk.tell(STOPPED, STOPPED, MOVED)
    assert (desk.events.bundles, desk.asked) == ([], 1)
    desk.recorder.write()
    desk.tell(STOPPED)
    desk.recorder.write()
    desk.recorder.write()
    assert [len(bundle) for bundle in desk.events.bundles] == [2, 1]
    assert desk.asked == 2
    told = sorted([*desk.events.told, *desk.positions.told], key=lambda each: each.number)
    assert [each.number for each in told] == [40, 41, 42, 43]
    assert {(each.ms, each.node) for each in told} == {(77, 3)}


def test_positions_have_a_shelf_of_their_own() -> None:
    desk = Desk()
    desk.tell(STOPPED, *[MOVED] * 9)
    desk.recorder.write()
    assert [each.what for each in desk.events.told] == [STOPPED]
    assert [each.what for each in desk.positions.told] == [MOVED] * 9


def test_what_finds_no_place_to_wait_in_is_counted() -> None:
    desk = Desk()
    desk.tell(*[STOPPED] * (WAITING_MAX + 5))
    desk.recorder.write()
    assert len(desk.events.told) == WAITING_MAX + 1
    assert (desk.events.told[-1].what, desk.counts) == (EventsLost(count=5), [5])
    desk.tell(STOPPED)
    desk.recorder.write()
    assert desk.events.told[-1].what == STOPPED


def test_what_could_not_be_written_is_counted_however_often_it_was_tried() -> None:
    """What was to tell of the lost ones may be lost itself."""
    desk = Desk()
    desk.events.room = 0
    for count in (5, 3, 2):
        desk.tell(*[STOPPED] * count)
        desk.recorder.write()
    desk.recorder.write()
    desk.events.room = 1
    desk.tell(STOPPED, STOPPED)
    desk.recorder.write()
    desk.events.room = 9
    desk.tell(STOPPED)
    desk.recorder.write()
    assert [each.what for each in desk.events.told] == [STOPPED, STOPPED, EventsLost(count=11)]


def test_positions_that_could_not_be_written_are_counted_with_the_events() -> None:
    desk = Desk()
    desk.positions.room = 0
    for _ in range(2):
        desk.tell(MOVED, MOVED)
        desk.recorder.write()
    desk.recorder.write()
    assert desk.counts == [2, 2]


# --- on a disk ------------------------------------------------------------------------------------


def trace_on(disk: SimDisk, agenda: Agenda, *, max_bytes: int = 1 << 20) -> TraceOnDisk:
    trace = open_trace(
        disk, DATA, agenda, node=3, max_bytes=max_bytes, now_ms=lambda: int(trio.current_time())
    )
    assert isinstance(trace, TraceOnDisk)
    return trace


async def test_what_is_told_is_written_half_a_second_later(nursery, autojump_clock) -> None:
    disk, agenda = SimDisk(), Agenda()
    nursery.start_soon(agenda.run)
    trace = trace_on(disk, agenda)
    trace.tell(STOPPED)
    await trio.sleep(WRITE_S * 0.9)
    assert kept(disk) == []
    await trio.sleep(WRITE_S * 0.2)
    assert of_kind(kept(disk), NodeStopped) == [STOPPED]


async def test_who_asks_gets_what_was_told_just_now() -> None:
    trace = trace_on(SimDisk(), Agenda())
    trace.tell(STOPPED)
    data, place = await trace.piece("events", Place())
    assert [each.what for each in read_lines(data.splitlines())] == [STOPPED]
    assert await trace.piece("events", place) == (b"", place)


async def test_the_next_process_goes_on_with_its_numbers_in_another_file() -> None:
    disk = SimDisk()
    for count in (2, 1, 3):
        trace = trace_on(disk, Agenda())
        for _ in range(count):
            trace.tell(STOPPED)
        trace.close()
    assert [each.number for each in kept(disk)] == [0, 1, 2, 3, 4, 5]
    assert len(disk.list(f"{DATA}/trace")) == 3


async def test_many_positions_push_out_no_event() -> None:
    disk = SimDisk()
    trace = trace_on(disk, Agenda(), max_bytes=20_000)
    trace.tell(STOPPED)
    for _ in range(50):
        for _ in range(50):
            trace.tell(MOVED)
        trace.close()
    assert of_kind(kept(disk), NodeStopped) == [STOPPED]
    assert len(kept(disk, POSITIONS)) < 2500, "of those the oldest went"
    assert sum(map(len, disk.files(f"{DATA}/trace", "").values())) <= 11_000, "half is theirs"


async def test_a_disk_without_room_costs_events_and_they_are_counted(
    nursery, autojump_clock
) -> None:
    disk, agenda = SimDisk(), Agenda()
    nursery.start_soon(agenda.run)
    trace = trace_on(disk, agenda)
    trace.tell(STOPPED)
    await trio.sleep(1)
    disk.capacity = disk.used_bytes()
    for _ in range(4):
        trace.tell(STOPPED)
        await trio.sleep(1)
    disk.capacity = 1 << 30
    trace.tell(STOPPED)
    await trio.sleep(1)
    assert [each.what for each in kept(disk)] == [STOPPED, STOPPED, EventsLost(count=4)]


def test_no_bytes_are_no_trace_and_no_directory() -> None:
    disk = SimDisk()
    trace = open_trace(disk, DATA, Agenda(), node=3, max_bytes=0, now_ms=lambda: 0)
    trace.tell(STOPPED)
    trace.close()
    assert not trace.wants_positions
    assert not disk.exists(DATA)


@pytest.mark.parametrize("operation", ["mkdir", "read"])
def test_a_trace_that_cannot_be_begun_is_none(operation, caplog) -> None:
    disk = SimDisk()
    if operation == "read":
        trace_on(disk, Agenda()).close()
        disk.replace(f"{DATA}/trace/events-{1:020d}.jsonl", b"x\n")
    disk.fail(operation, "trace")
    trace = open_trace(disk, DATA, Agenda(), node=3, max_bytes=1 << 20, now_ms=lambda: 0)
    trace.tell(STOPPED)
    trace.close()
    assert not trace.wants_positions
    assert "no trace is kept" in caplog.text


async def test_a_piece_that_cannot_be_read_is_told() -> None:
    disk = SimDisk()
    trace = trace_on(disk, Agenda())
    trace.tell(STOPPED)
    disk.fail("read", "trace")
    with pytest.raises(DiskError, match="Input/output error"):
        await trace.piece("events", Place())
