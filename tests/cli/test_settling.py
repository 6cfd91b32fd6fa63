"""What a node has is put aside from Python's collector: when it serves, and when much has come.

Method: a node that is none, time that a test moves, and a collector that is only counted, as this
process is more than a node.
"""

from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hightide_cli import settling
from hightide_cli.settling import LOOK_S, MANY, settle


@pytest.fixture
def done(monkeypatch):
    """What the collector was told."""
    calls = []
    told = SimpleNamespace(
        collect=lambda: calls.append("collect"), freeze=lambda: calls.append("freeze")
    )
    monkeypatch.setattr(settling, "gc", told)
    return calls


async def test_what_there_is_when_a_node_serves_is_put_aside_and_nothing_before(done, mock_clock):
    node = SimpleNamespace(serving=trio.Event(), replicas=[])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle, node)
        await wait_all_tasks_blocked()
        assert done == []
        node.serving.set()
        await wait_all_tasks_blocked()
        assert done == ["collect", "freeze"], "what is no more in use is not put aside with it"
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
    node = SimpleNamespace(serving=trio.Event(), replicas=range(sizes[0]))
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
