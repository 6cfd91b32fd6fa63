"""What a node has is put aside from Python's collector: when it serves, and when much has come; and
what many connections took is given back when they have gone.

Method: a node that is none, time that a test moves, and a collector that is only counted, as this
process is more than a node. What is given back is seen at a process of its own.
"""

import os
import subprocess
import sys
from collections import Counter
from ctypes import CDLL
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hightide_cli import settling
from hightide_cli.settling import GONE, LOOK_S, MANY, settle


class Node:
    """With so many partitions and connections."""

    def __init__(self, partitions=0):
        self.serving = trio.Event()
        self.replicas = range(partitions)
        self.server = self
        self.open = self.most = 0

    def connections(self):
        return Counter(client=self.open)

    def most_since(self):
        most, self.most = max(self.most, self.open), self.open
        return most


@pytest.fixture
def done(monkeypatch):
    """What the collector was told."""
    calls = []
    told = SimpleNamespace(
        collect=lambda: calls.append("collect"),
        freeze=lambda: calls.append("freeze"),
        disable=lambda: calls.append("disable"),
        enable=lambda: calls.append("enable"),
    )
    monkeypatch.setattr(settling, "gc", told)
    monkeypatch.setattr(settling, "give_back", lambda: calls.append("give back"))
    return calls


PUT_ASIDE = ["collect", "freeze"]
"""What is no more in use is not put aside with the others."""


async def test_what_there_is_when_a_node_serves_is_put_aside_and_nothing_before(done, mock_clock):
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, node)
        await wait_all_tasks_blocked()
        assert done == ["disable"], "nothing is looked through that a node is about to have"
        node.serving.set()
        await wait_all_tasks_blocked()
        assert done == ["disable", *PUT_ASIDE, "enable"]
        nursery.cancel_scope.cancel()
    last = "a node that stops is not looked through"
    assert done == ["disable", *PUT_ASIDE, "enable", "disable"], last


async def test_what_a_node_has_that_takes_long_to_start_is_looked_through_now_and_then(
    done, mock_clock
):
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, node)
        for _ in range(3):
            await wait_all_tasks_blocked()
            mock_clock.jump(LOOK_S)
        await wait_all_tasks_blocked()
        assert done == ["disable", *3 * PUT_ASIDE]
        node.serving.set()
        await wait_all_tasks_blocked()
        assert done == ["disable", *4 * PUT_ASIDE, "enable"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ([5, MANY + 4], 1),
        ([5, MANY + 5], 2),
        ([5, MANY - 1, MANY + 5, MANY + 5, 2 * MANY + 5], 3),
        ([2 * MANY, MANY, 2 * MANY - 1], 1),
        ([2 * MANY, MANY, 2 * MANY], 2),
    ],
)
async def test_it_is_done_again_when_many_partitions_have_come(done, mock_clock, sizes, times):
    node = Node(sizes[0])
    node.serving.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, node)
        await wait_all_tasks_blocked()
        for size in sizes[1:]:
            node.replicas = range(size)
            mock_clock.jump(LOOK_S)
            await wait_all_tasks_blocked()
        assert done.count("freeze") == times
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("looks", "times"),
    [
        ([(GONE - 1, 0)], 0),
        ([(GONE, 0)], 1),
        ([(GONE, 0), (5, 0), (5, 5)], 1),
        ([(2 * GONE, GONE + 1), (GONE + 1, GONE)], 1),
        ([(2 * GONE, GONE), (GONE, 0)], 2),
        ([(2 * GONE, 2 * GONE)] * 3, 0),
        ([(GONE, GONE), (GONE, 1), (1, 1), (1, 0)], 1),
    ],
    ids=str,
)
async def test_what_many_connections_took_is_given_back_once(done, mock_clock, looks, times):
    """Each look: the most since the last one, and how many are open."""
    node = Node()
    node.serving.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, node)
        await wait_all_tasks_blocked()
        for node.most, node.open in looks:
            mock_clock.jump(LOOK_S)
            await wait_all_tasks_blocked()
        assert done.count("give back") == times
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("failure", [OSError("no dlopen"), ImportError("built without")])
def test_a_system_that_takes_nothing_back_is_no_failure(failure, monkeypatch):
    def library(_):
        raise failure

    monkeypatch.setattr("ctypes.CDLL", library)
    settling.give_back()


def test_a_name_that_was_asked_for_once_does_not_stay():
    """Wherever it lies, what lies around it stays as well."""
    name = b"derive_nothing".decode()  # another one each time, as C makes them
    before = sys.getrefcount(name)
    assert not hasattr(Node, name)
    assert sys.getrefcount(name) > before or sys.version_info >= (3, 13), "nothing keeps names"
    settling.give_back()
    assert sys.getrefcount(name) == before


@pytest.mark.skipif(not hasattr(CDLL(None), "malloc_trim"), reason="glibc's alone")
def test_what_was_freed_is_the_systems_again():
    told = """if True:
        from hightide_cli.settling import give_back
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4
        much = [bytes(1000) for _ in range(50_000)]
        last = bytes(1000)  # above them: what is below could not go otherwise
        before = resident()
        del much
        give_back()
        print(before - resident())
    """
    environment = {**os.environ, "PYTHONMALLOC": "malloc"}
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, env=environment)
    assert int(ran.stdout) > 40_000, ran.stderr
