"""Goal: `hightide trace -b` asks no more than it must where nobody leads the quorum.

Method: a source on a fake administrator, which counts what it is asked. A broker takes seconds to
say that nobody leads, and `--follow` looks twice a second. Of files those are read that are a
trace, or have nothing in them yet, however they end.
"""

from types import SimpleNamespace

import click
import pytest
import trio
from tracekit import STOPPED
from trio.testing import MockClock

from hightide import RequestTimedOut, TracePlace
from hightide_broker.trace.lines import line_of
from hightide_cli.trace_sources import ANSWER_S, SILENT_S, Files, FromCluster, traces_at

BROKERS, VOTERS = (1, 2), (1, 101, 102)


class FakeAdmin:
    """Two brokers, and controllers of which the first is one of them."""

    def __init__(self):
        self.controller = 101
        self.is_told = True
        self.hanging = set()
        self.asked = []
        self.waited_s = []

    async def describe_cluster(self):
        await trio.lowlevel.checkpoint()
        brokers = [SimpleNamespace(id=number, fenced=False) for number in BROKERS]
        return SimpleNamespace(brokers=brokers, controller=self.controller)

    async def describe_quorum(self, *, even_without_leader=False):
        await trio.lowlevel.checkpoint()
        self.asked.append(even_without_leader)
        if not self.is_told:
            raise RequestTimedOut("no controller was active")
        voters = [SimpleNamespace(id=number) for number in VOTERS]
        return SimpleNamespace(voters=voters, observers=[])

    async def read_trace(self, node, kind, place):
        await trio.lowlevel.checkpoint()
        self.asked.append((node, kind))
        if node in self.hanging:
            began = trio.current_time()
            try:
                await trio.sleep(1000)
            finally:
                self.waited_s.append(trio.current_time() - began)
        return b"", TracePlace()


@pytest.fixture
def admin():
    return FakeAdmin()


@pytest.fixture
def read(admin):
    """Look once more; whom it read."""

    def ask(work, *args):
        return trio.run(work, admin, *args, clock=MockClock(autojump_threshold=0))

    source = FromCluster(ask)

    def look():
        before = len(admin.asked)
        source.read(positions=False)
        return [each[0] for each in admin.asked[before:] if isinstance(each, tuple)]

    return look


def quorums(admin):
    return [each for each in admin.asked if isinstance(each, bool)]


def test_where_nobody_leads_who_votes_is_asked_once(admin, read):
    admin.controller = -1
    assert [read() for _ in range(5)] == [[*BROKERS, 101, 102]] * 5
    assert quorums(admin) == [True]


def test_where_somebody_leads_new_controllers_are_found(admin, read):
    assert [read() for _ in range(3)] == [[*BROKERS, 101, 102]] * 3
    assert len(quorums(admin)) == 3


def test_of_a_quorum_that_nobody_tells_the_brokers_are_read(admin, read, capsys):
    admin.controller, admin.is_told = -1, False
    assert [read() for _ in range(3)] == [[*BROKERS]] * 3
    assert len(quorums(admin)) == 1
    assert capsys.readouterr().err.count("controllers that are no brokers") == 1


def test_who_voted_is_read_while_nobody_says_so_any_more(admin, read):
    read()
    admin.is_told = False
    assert read() == [*BROKERS, 101, 102]


def test_a_node_that_does_not_answer_holds_up_the_others_once(admin, read, capsys):
    admin.hanging.add(2)
    assert [read() for _ in range(3)] == [[*BROKERS, 101, 102]] * 3
    assert admin.waited_s == pytest.approx([ANSWER_S, SILENT_S, SILENT_S])
    assert capsys.readouterr().err.count("without what broker 2 told") == 1
    admin.hanging.clear()
    read()
    admin.hanging.add(2)
    read()
    assert admin.waited_s[-1] == pytest.approx(ANSWER_S), "it had answered meanwhile"


LINES = b"".join(line_of(5, 1, number, STOPPED) for number in range(3))


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (LINES, 3),
        (LINES[:-9], 2),
        (LINES + b'{"ms":5,"node', 3),
        (b"\0\xff\n" + LINES, 3),
    ],
    ids=["of a node that has just begun", "whole", "torn", "torn later", "damaged at its start"],
)
def test_of_a_file_that_is_a_trace_what_can_be_read_is(tmp_path, data, count):
    file = tmp_path / "events-1.jsonl"
    file.write_bytes(data)
    for path in (file, tmp_path):
        found = Files([traces_at(path)]).read(positions=False)
        assert [told.number for told in found] == [*range(count)]


@pytest.mark.parametrize("data", [b"# hightide\n", b"{}\n[1]\n", b"\n", bytes(100), b"\xff" * 100])
def test_a_file_of_anything_else_is_no_trace(tmp_path, data):
    (tmp_path / "notes").write_bytes(data)
    with pytest.raises(click.UsageError, match="notes: no trace is in it"):
        traces_at(tmp_path / "notes")
