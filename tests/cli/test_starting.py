"""What `up` and `down` do with nodes that are somebody else's, or that do not end.

Goal: a directory is nobody's but the one `up` that starts what is in it, and nothing is left of one
that was refused; an `up` that fails stops what it started and no more; whom a command waits for is
said. Method: directories that this process holds locked in the place of nodes; processes that are
fakes, and signals that only release those locks. No node is started.
"""

# ruff: noqa: F811 - fixtures are imported by name

import fcntl
import json
import math
import os
import signal

import click
import pytest
from test_cli import command, spoken  # noqa: F401

from hightide_cli import processes
from hightide_cli.failures import CONFLICT, USAGE
from hightide_cli.processes import (
    NodeProcess,
    make_plan,
    stop_nodes,
    stop_started,
    wait_for_all,
)

MINE, OTHER = 99_999_998, 99_999_999
"""No process has these ids."""
REFUSED = [
    ["--port", "70000"],
    ["--topic", "t:1:3"],
    ["--replace", "1"],
    ["-n", "3", "--port", "65535"],
]
"""Words for `up` that are found wrong once the directory is its own."""


class Place:
    """The directory of a node, which a process may hold, and say that it serves."""

    def __init__(self, data, number):
        self.node = NodeProcess(data, number)
        for path in (self.node.directory / ".lock", self.node.log_file, self.node.ready_file):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.node.log_file.write_text("its last words\n")
        self._lock = None

    def hold(self, pid):
        self._lock = (self.node.directory / ".lock").open("w")
        self._lock.write(f"{pid}\n")
        self._lock.flush()
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def let_go(self):
        if self._lock:
            self._lock.close()

    def serve(self, pid):
        facts = {"node": self.node.node, "host": "127.0.0.1", "port": 9000, "pid": pid}
        self.node.ready_file.write_text(json.dumps(facts))
        return self


class FakeProcess:
    """What `up` started: it runs, or has ended with a code; at its third look something happens."""

    def __init__(self, pid, code=None, *, third=lambda: None):
        self.pid = pid
        self._code, self._looks, self._third = code, 0, third

    def poll(self):
        self._looks += 1
        if self._looks == 3:
            self._third()
        return self._code

    def terminate(self):
        if self._code is None:
            self._code = -signal.SIGTERM


@pytest.fixture
def places(tmp_path):
    made = [Place(tmp_path / "data", number) for number in (1, 2)]
    yield made
    for place in made:
        place.let_go()


@pytest.fixture
def sent(monkeypatch, places):
    """The signals that were sent; who gets one lets go of its directory."""
    signals = []

    def send(pid, number):
        signals.append((pid, number))
        for place in places:
            if place.node.pid() == pid:
                place.let_go()

    monkeypatch.setattr(os, "kill", send)
    return signals


# --- what another process holds -------------------------------------------------------------------


def test_an_up_that_fails_stops_what_it_started_and_nobody_else_s_node(places, sent):
    mine, others = places[0].hold(MINE), places[1].hold(OTHER)
    own, late = FakeProcess(MINE), FakeProcess(MINE - 1, CONFLICT)
    assert stop_started({mine.node: own, others.node: late}) == []
    assert sent == [(MINE, signal.SIGTERM)]
    assert own.poll() is not None
    assert others.node.pid() == OTHER


def test_what_does_not_hold_its_directory_yet_is_stopped_too(places, sent):
    process = FakeProcess(MINE)
    assert stop_started({places[0].node: process}) == []
    assert (sent, process.poll()) == ([], -signal.SIGTERM)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_node_that_was_there_first_serves_as_well_as_one_s_own(places, is_late):
    """As what an `up` that was killed had started: the own one ends, as the directory is taken."""
    first, own = places[0].hold(OTHER), places[1].hold(MINE).serve(MINE)
    if not is_late:
        first.serve(OTHER)
    ended = FakeProcess(MINE - 1, CONFLICT, third=lambda: first.serve(OTHER))
    facts = wait_for_all({first.node: ended, own.node: FakeProcess(MINE)})
    assert [facts[place.node]["pid"] for place in places] == [OTHER, MINE]


@pytest.mark.parametrize("has_served", [False, True])
def test_a_node_that_ended_and_that_nobody_holds_did_not_start(places, capsys, has_served):
    if has_served:
        places[0].serve(MINE)
    with pytest.raises(click.exceptions.Exit) as end:
        wait_for_all({places[0].node: FakeProcess(MINE, CONFLICT)})
    assert end.value.exit_code == CONFLICT
    assert capsys.readouterr().err.splitlines() == [
        f"broker-1 did not start (exit code {CONFLICT}); its log ends with:",
        "its last words",
    ]


def test_who_was_there_first_and_ends_before_it_serves_did_not_start(places, capsys):
    first = places[0].hold(OTHER)
    with pytest.raises(click.exceptions.Exit) as end:
        wait_for_all({first.node: FakeProcess(MINE, CONFLICT, third=first.let_go)})
    assert end.value.exit_code == CONFLICT
    assert "broker-1 did not start" in capsys.readouterr().err


# --- who does not end -----------------------------------------------------------------------------


class Slow:
    """A node that a process holds for so many looks."""

    name, roles = "broker-1", ("broker", "controller")

    def __init__(self, looks):
        self._looks = looks

    def pid(self):
        self._looks -= 1
        return OTHER if self._looks >= 0 else None


def test_after_a_while_it_is_said_once_who_is_waited_for_and_what_does_not_wait(
    monkeypatch, capsys, sent
):
    monkeypatch.setattr(processes, "STOP_TOLD_S", -1.0)
    assert stop_nodes([Slow(looks=6)]) == []
    assert sent == [(OTHER, signal.SIGTERM)]
    said = f"waiting for broker-1 (process {OTHER}) to stop; `hightide down --kill` does not wait\n"
    assert capsys.readouterr().err == said


def test_of_one_that_stops_soon_nothing_is_said(monkeypatch, capsys, sent):
    monkeypatch.setattr(processes, "STOP_TOLD_S", math.inf)
    assert stop_nodes([Slow(looks=6)]) == []
    assert (len(sent), capsys.readouterr().err) == (1, "")


# --- the right to start what is in a directory ----------------------------------------------------


@pytest.mark.parametrize("words", REFUSED, ids=spoken)
def test_an_up_that_is_refused_leaves_no_directory_that_was_not_there(command, tmp_path, words):
    assert command("up", "--data", "new", *words).code == USAGE
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", REFUSED, ids=spoken)
def test_it_leaves_a_directory_that_was_there_as_it_was(command, tmp_path, words):
    (tmp_path / "old").mkdir()
    assert command("up", "--data", "old", *words).code == USAGE
    assert [*(tmp_path / "old").iterdir()] == []


def test_a_topic_that_a_cluster_has_too_few_brokers_for_is_refused_before_it_starts(
    command, tmp_path
):
    make_plan(tmp_path / "old", brokers=2, split=False, port=9000, formats=True)
    ended = command("up", "--detach", "--data", "old", "--topic", "t:1:3")
    assert (ended.code, "here it is 2" in ended.err) == (USAGE, True)
    assert not (tmp_path / "old" / "run").exists()


def test_the_lock_of_an_up_that_was_killed_holds_up_nobody(command, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "up.lock").touch()
    ended = command("up", "--data", "old", *REFUSED[0])
    assert (ended.code, "waiting" in ended.err) == (USAGE, False)
    assert [*(tmp_path / "old").iterdir()] == []
