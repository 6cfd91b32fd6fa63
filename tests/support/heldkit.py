"""A real disk whose worker threads stop at a door before they replace a file.

No test lives here. What a thread is about to write was decided before it came to the door; the test
does on the loop whatever may happen meanwhile, and opens. `written` is every state that a file has
had, in order: what a crash at any moment may leave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import trio

from hightide_broker.runtime.base.disk import RealDisk

PATIENCE_S = 0.2
"""How long a thread stays at a door if the loop itself waits for it."""


class Door:
    """Where the first worker thread stops that replaces a file of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._reached = threading.Event()
        self._open = threading.Event()

    def stop(self) -> None:
        """A worker thread is here."""
        if not self._reached.is_set():
            self._reached.set()
            self._open.wait(PATIENCE_S)

    async def reached(self) -> None:
        """Until a thread is at the door, or `give_up` says that none will come."""
        await trio.to_thread.run_sync(self._reached.wait)

    def give_up(self) -> None:
        self._reached.set()

    def open(self) -> None:
        self._open.set()


class HeldDisk(RealDisk):
    """Made on the loop, whose own calls pass every door."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, bytes]] = []
        self._loop = threading.get_ident()
        self._doors: list[Door] = []

    def door(self, name: str) -> Door:
        made = Door(name)
        self._doors.append(made)
        return made

    def replace(self, path: str, data: bytes, *, unless: Callable[[], bool] | None = None) -> None:
        if threading.get_ident() != self._loop:
            for door in self._doors:
                if path.endswith(f"/{door.name}"):
                    door.stop()
        is_old = False

        def asked() -> bool:
            nonlocal is_old
            is_old = unless is not None and unless()
            return is_old

        super().replace(path, data, unless=asked)
        if not is_old:
            self.written.append((path, data))
