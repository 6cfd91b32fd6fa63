"""Goal: however many `hightide up` are begun on one directory at once, one starts its nodes, and
the others find them there; none ends what another has started.

Method: commands as processes of their own. This process holds the directory first, as an `up` does
that has only just begun, until each of them says that it waits; which of them is next is theirs.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
from contextlib import suppress

import pytest
from commands import COMMAND, PATIENCE_S, environment, hightide
from patience import size_of, wait_until
from secure_run import WORDS
from tries import few

from hightide_cli.processes import said_by_holder

pytestmark = [pytest.mark.live, pytest.mark.slow]

WAITS = "starts what is in {data}: waiting for it"


class Up:
    """`hightide up`, whose streams are files."""

    def __init__(self, data, at, *words):
        self.data = data
        self._out, self._err = at.with_suffix(".out"), at.with_suffix(".err")
        command = [*COMMAND, "up", "--data", str(data), *WORDS, "--port", "0", *words]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment())

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def progress(self):
        """What moves while it does: what it says, and what its nodes say."""
        logs = (self.data / "logs").glob("*.log")
        return [size_of(path) for path in (self._out, self._err, *sorted(logs))]

    def says(self, words, times=1):
        """Wait until it does, or has ended."""

        def is_over():
            return self.err.count(words) >= times or self.process.poll() is not None

        wait_until(is_over, f"that `up` says {words!r}", progress=self.progress)
        return self.err.count(words) == times

    def ended(self):
        return wait_until(
            lambda: self.process.poll() is not None, "the end of `up`", progress=self.progress
        )

    def waits(self, times=1):
        return self.says(WAITS.format(data=self.data), times)


@pytest.fixture
def up(tmp_path):
    """Begin an `up` on one directory, in the background; nothing of it is left running."""
    data, begun = tmp_path / "data", []

    def begin(*words):
        begun.append(Up(data, tmp_path / f"up-{len(begun)}", *words))
        return begun[-1]

    yield begin
    for each in begun:
        each.process.kill()
        each.process.wait(PATIENCE_S)
    for lock in data.glob("*/.lock"):
        with suppress(ProcessLookupError):
            if pid := int((said_by_holder(lock) or "0").strip() or 0):
                os.kill(pid, signal.SIGKILL)


def held(data):
    """The right to start what is in a directory, taken."""
    data.mkdir(exist_ok=True)
    lock = (data / "up.lock").open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def nodes(data):
    return json.loads(hightide("ps", "--data", data, "-o", "json").out)


def found(up):
    """The processes that it found there."""
    return re.findall(r"already running: process (\d+) serves", up.err)


@pytest.mark.parametrize(("count", "is_killed"), few([(3, False), (1, False), (1, True)], 2))
def test_two_at_once_make_one_cluster_and_the_second_finds_what_the_first_started(
    up, tmp_path, count, is_killed
):
    """Who holds the directory before takes its file along at its end, unless it is killed."""
    data = tmp_path / "data"
    with held(data):
        both = [up("--detach", "-n", str(count)) for _ in range(2)]
        assert [each.waits() for each in both] == [True, True]
        if not is_killed:
            (data / "up.lock").unlink()
    assert [each.ended() and each.process.returncode for each in both] == [0, 0], both[1].err
    first, second = sorted(both, key=lambda each: len(found(each)))
    rows = nodes(data)
    assert [row["alive"] for row in rows] == [True] * count
    assert ("is up; stop it with" in first.err, found(first)) == (True, [])
    assert ("is up;" in second.err, found(second)) == (False, [str(row["pid"]) for row in rows])
    assert first.out == second.out == ",".join(f"{r['host']}:{r['port']}" for r in rows) + "\n"
    assert (data / "cluster.json").exists()
    assert not (data / "up.lock").exists()
    assert "stopped again" not in first.err + second.err


def test_who_waited_for_one_that_took_its_file_along_waits_for_the_next(up, tmp_path):
    data = tmp_path / "data"
    with held(data):
        waiting = up("--detach")
        assert waiting.waits()
        (data / "up.lock").unlink()
        following = held(data)
    with following:
        assert waiting.waits(times=2)
        assert not (data / "cluster.json").exists()
    assert waiting.ended()
    assert waiting.process.returncode == 0


def test_one_in_the_foreground_lets_others_once_it_serves(up, tmp_path):
    shown = up()
    assert shown.says("Ctrl-C stops it"), shown.err
    assert not (tmp_path / "data" / "up.lock").exists()
    other = up("--detach")
    assert not other.waits(), "it has ended instead"
    assert (other.process.returncode, other.out) == (0, shown.out)
    assert found(other) == [str(row["pid"]) for row in nodes(tmp_path / "data")]
    shown.process.send_signal(signal.SIGINT)
    assert shown.ended()
    assert shown.process.returncode == 0
    assert [row["alive"] for row in nodes(tmp_path / "data")] == [False]
