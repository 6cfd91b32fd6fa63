"""Small files of the real disk that several threads replace at once.

Goal: every `replace` of a path succeeds, no matter who else replaces it at that moment; the file is
always one of the contents that were given, whole; nothing is left beside it; and one that began
after all others were done is the one that stays. Method: threads that meet at a certain call of the
system, and threads that are let loose.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
import trio
from patience import PATIENCE_S

from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.disk import RealDisk

WRITERS = 8
ROUNDS = 6
MEET_S = 0.2
"""How long a thread waits for the others, where they cannot come."""
CALLS = ["open", "write", "fsync", "replace"]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "offset-checkpoint")


def content(number):
    """Each one is of its own length, and longer than what one call of the system may write."""
    return bytes([97 + number]) * (5000 + 1000 * (number % WRITERS))


def in_threads(*calls):
    """Run all at once; raises what any of them raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result(timeout=PATIENCE_S)


def meet_at(monkeypatch, name, count):
    """Threads stop at their first call of the system of this name until so many are there."""
    original, meeting, been = getattr(os, name), threading.Barrier(count), threading.local()
    me = threading.get_ident()

    def call(*args, **kwargs):
        if not getattr(been, "here", False) and threading.get_ident() != me:
            been.here = True
            with suppress(threading.BrokenBarrierError):  # they come one after the other
                meeting.wait(MEET_S)
        return original(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("call", CALLS)
def test_who_replaces_a_file_at_the_same_moment_succeeds(path, monkeypatch, call):
    disk = RealDisk()
    meet_at(monkeypatch, call, WRITERS)
    in_threads(*(partial(disk.replace, path, content(n)) for n in range(WRITERS)))
    assert disk.read_file(path) in [content(n) for n in range(WRITERS)]
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_the_file_is_whole_at_any_moment_and_the_last_one_stays(path):
    disk, done = RealDisk(), threading.Event()
    disk.replace(path, content(0))
    wholes = {content(n) for n in range(WRITERS)}

    def write(number):
        for _ in range(ROUNDS):
            disk.replace(path, content(number))

    def look():
        while not done.is_set():
            assert disk.read_file(path) in wholes

    with ThreadPoolExecutor(1) as looking:
        seen = looking.submit(look)
        try:
            in_threads(*(partial(write, n) for n in range(WRITERS)))
        finally:
            done.set()
        seen.result()
    disk.replace(path, b"last")
    assert disk.read_file(path) == b"last"
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


async def test_the_loop_may_replace_what_a_worker_thread_replaces(path, monkeypatch):
    """The thread has written its bytes, and is about to give them their name."""
    disk, written, go_on = RealDisk(), threading.Event(), threading.Event()
    fsync, loop = os.fsync, threading.get_ident()

    def hold(descriptor):
        fsync(descriptor)
        if threading.get_ident() != loop and not written.is_set():
            written.set()
            go_on.wait(MEET_S)

    monkeypatch.setattr(os, "fsync", hold)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.in_thread, partial(disk.replace, path, b"of the thread"))
        await trio.to_thread.run_sync(written.wait)
        disk.replace(path, b"of the loop")
        go_on.set()
    assert disk.read_file(path) in (b"of the thread", b"of the loop")
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_a_replace_that_fails_leaves_the_file_and_nothing_beside_it(path, monkeypatch):
    disk = RealDisk()
    disk.replace(path, b"before")

    def fail(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DiskError, match="Input/output error"):
            disk.replace(path, b"after")
    assert disk.read_file(path) == b"before"
    disk.replace(path, b"again")
    assert (disk.read_file(path), os.listdir(os.path.dirname(path))) == (
        b"again",
        [os.path.basename(path)],
    )
