"""What a service manager is told of a node: that it starts, serves, is alive, and stops.

systemd names a socket in the environment (sd_notify). That the node is alive is told by its event
loop: one that is stuck tells nothing, and is started again where the unit has a WatchdogSec.
Where nobody asked, nothing happens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from hightide_broker.node import Node

STARTING_S = 5.0
"""How often it is told that a start goes on, however long it takes."""
_MORE_TIME_S = 60


class Notifier:
    """The way to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.beat_s = int(watchdog_us) / 2e6 if watchdog_us.isdecimal() and is_ours else 0.0
        """How often it wants to hear that the node is alive; 0: never."""

    @property
    def is_asked(self) -> bool:
        """Whether anybody listens."""
        return bool(self._address)

    def tell(self, *facts: str) -> None:
        """Say something; a manager that does not listen any more is no reason to fail."""
        if not self.is_asked:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            try:
                way.sendto("\n".join(facts).encode(), self._address)
            except OSError:
                return

    async def follow(self, node: Node) -> None:
        """Tell of a node's start, and that it is alive, until cancelled."""
        if not self.is_asked:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            while not node.serving.is_set():
                more = f"EXTEND_TIMEOUT_USEC={_MORE_TIME_S * 1_000_000}"
                self.tell(f"STATUS={node.why_not()}", more)
                with trio.move_on_after(STARTING_S):
                    await node.serving.wait()
            self.tell("READY=1", f"STATUS=serves on {node.address}")
            await trio.sleep_forever()

    async def _beat(self) -> None:
        while self.beat_s:
            self.tell("WATCHDOG=1")
            await trio.sleep(self.beat_s)
        await trio.sleep_forever()

    def stopping(self) -> None:
        """An orderly stop begins."""
        self.tell("STOPPING=1", "STATUS=hands on what it leads, and closes its logs")
