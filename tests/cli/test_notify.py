"""What systemd is told: ready once the node serves, alive as long as its event loop turns.

Method: a real socket as systemd's, a node that is none, and time that a test moves.
"""

import os
import socket
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hightide_cli.notify import Notifier

BEAT_US = "20000000"


@pytest.fixture
def heard(tmp_path):
    """(environment, what was told since the last look)"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        path = str(tmp_path / "notify")
        listening.bind(path)
        listening.setblocking(False)

        def told():
            found = []
            while True:
                try:
                    found.extend(listening.recv(1 << 16).decode().split("\n"))
                except BlockingIOError:
                    return found

        yield {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": BEAT_US}, told


def starting_node():
    return SimpleNamespace(
        serving=trio.Event(), address="127.0.0.1:1", why_not=lambda: "node 1 is starting"
    )


async def test_a_node_is_ready_once_it_serves_and_not_before(heard, mock_clock):
    environment, told = heard
    node = starting_node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Notifier(environment).follow, node)
        await wait_all_tasks_blocked()
        said = told()
        assert "READY=1" not in said
        assert "STATUS=node 1 is starting" in said
        assert any(each.startswith("EXTEND_TIMEOUT_USEC=") for each in said)
        node.serving.set()
        await wait_all_tasks_blocked()
        assert told() == ["READY=1", "STATUS=serves on 127.0.0.1:1"]
        nursery.cancel_scope.cancel()


async def test_a_node_is_alive_as_often_as_is_asked(heard, mock_clock):
    environment, told = heard
    async with trio.open_nursery() as nursery:
        node = starting_node()
        node.serving.set()
        nursery.start_soon(Notifier(environment).follow, node)
        await wait_all_tasks_blocked()
        assert told().count("WATCHDOG=1") == 1
        for _ in range(3):
            mock_clock.jump(9.9)
            await wait_all_tasks_blocked()
            assert told() == []
            mock_clock.jump(0.2)
            await wait_all_tasks_blocked()
            assert told() == ["WATCHDOG=1"]
        nursery.cancel_scope.cancel()


async def test_nobody_is_told_where_nobody_asks():
    notifier = Notifier({})
    assert not notifier.is_asked
    await notifier.follow(starting_node())


def test_a_manager_that_is_gone_ends_nothing(tmp_path):
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")


def test_the_watchdog_of_another_process_is_not_ours(heard):
    environment, _ = heard
    assert Notifier({**environment, "WATCHDOG_PID": str(os.getpid() + 1)}).beat_s == 0
    assert Notifier({**environment, "WATCHDOG_PID": str(os.getpid())}).beat_s == 10.0


def test_a_name_without_a_file_is_one_too():
    name = f"@hightide-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name[1:]}")
        Notifier({"NOTIFY_SOCKET": name}).stopping()
        assert listening.recv(100).startswith(b"STOPPING=1")
