"""A node that cannot go on says so before it ends.

Goal: whoever finds a node dead finds in its trace why, and no words that a bug might have put a
secret into; an end that somebody wanted is none. Method: a node in this process whose handler has a
bug; exceptions made by hand.
"""

from __future__ import annotations

import pytest
import trio
from brokers import broker, crashing_node, new_node
from tracekit import kept, of_kind

from hightide.protocol.errors import HightideError
from hightide_broker.ports import DiskError, NodeMustStop
from hightide_broker.runtime.server.admin_handlers import AdminHandlers
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace.events import NodeFailed, NodeStarted, NodeStopped
from hightide_broker.trace.failures import failure_of
from hightide_broker.trace.text import sentence

SECRET = "hunter2"


def boom(*_: object) -> None:
    raise AssertionError(SECRET)


async def meets_a_bug(disk: SimDisk) -> None:
    """A node that meets one when it is asked what it holds."""

    async def ask() -> None:
        async with broker(disk) as client:
            with pytest.raises(HightideError):
                await client.log_dirs()
            await trio.sleep_forever()

    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        await ask()


async def test_a_bug_is_told_by_its_kind_and_place_without_its_words(monkeypatch) -> None:
    monkeypatch.setattr(AdminHandlers, "describe_log_dirs", boom)
    disk = SimDisk()
    await meets_a_bug(disk)
    told = kept(disk)
    (failed,) = of_kind(told, NodeFailed)
    assert (failed, told[-1].what) == (told[-1].what, failed)
    assert (failed.error, failed.why) == ("AssertionError", "")
    assert failed.place.startswith("hightide_broker.runtime.server.")
    assert SECRET not in repr(told)
    assert of_kind(told, NodeStopped) == []
    text = sentence(1, failed)
    assert text.startswith("node 1 met a bug and ends: AssertionError at hightide_broker.")


async def test_a_disk_that_takes_nothing_changes_nothing(monkeypatch) -> None:
    monkeypatch.setattr(AdminHandlers, "describe_log_dirs", boom)
    disk = SimDisk()
    async with new_node(disk):
        pass
    disk.fail("write", "trace")
    await meets_a_bug(disk)
    assert of_kind(kept(disk), NodeFailed) == []


async def test_a_process_that_is_killed_or_stopped_has_not_failed() -> None:
    disk = SimDisk()
    async with crashing_node(disk):
        pass
    async with new_node(disk):
        pass
    assert len(of_kind(kept(disk), NodeStarted)) == 2
    assert of_kind(kept(disk), NodeFailed) == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), BaseExceptionGroup("both", [KeyboardInterrupt(), SystemExit()])]
)
def test_what_somebody_wanted_is_no_failure(error: BaseException) -> None:
    assert failure_of(error) is None


@pytest.mark.parametrize(
    "error", [NodeMustStop("it is not wanted"), DiskError("a.log", "sync", "no room", full=True)]
)
def test_what_the_world_did_is_told_in_its_words(error: Exception) -> None:
    group = BaseExceptionGroup("all", [KeyboardInterrupt(), ExceptionGroup("one", [error])])
    failed = failure_of(group)
    assert failed == NodeFailed(error=type(error).__name__, place="unknown", why=str(error))
    assert sentence(3, failed) == (
        f"node 3 cannot go on: {error} ({type(error).__name__} at unknown)"
    )
