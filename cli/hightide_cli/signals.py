"""What tells a command to stop, noticed where the command looks, not where it strikes."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hightide_cli.failures import SIGNALLED


class Told:
    """Whether a signal came. No lock is taken: a signal may strike while this is looked at."""

    def __init__(self) -> None:
        self._told = False
        self._bell, self._ringer = socket.socketpair()
        self._ringer.setblocking(False)

    def is_set(self) -> bool:
        """Whether it came."""
        return self._told

    def wait(self, seconds: float) -> bool:
        """Whether it came within so many seconds."""
        if not self._told:
            select.select([self._bell], [], [], seconds)
        return self._told

    def set(self, *_: object) -> None:
        """Note that the signal came; this is its handler."""
        if not self._told:
            self._told = True
            self._ringer.send(b"\0")

    def close(self) -> None:
        self._bell.close()
        self._ringer.close()


@contextmanager
def told_to_stop(*kinds: signal.Signals) -> Iterator[Told]:
    """Set by any of these signals, which end nothing by themselves in this block."""
    told = Told()
    before = {kind: signal.signal(kind, told.set) for kind in kinds}
    try:
        yield told
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        told.close()


@contextmanager
def ended_by(*kinds: signal.Signals) -> Iterator[None]:
    """These signals end the block where it is, so that what it holds is given back; at its end, if
    they struck where an exception goes unheard, as in a finaliser, or found another handler."""
    bell, ringer = socket.socketpair()
    bell.setblocking(False)
    ringer.setblocking(False)
    others = signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
    before = {kind: signal.signal(kind, _leave) for kind in kinds}
    try:
        yield
        if came := _came(bell).intersection(kinds):
            _leave(min(came), None)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        signal.set_wakeup_fd(others)
        bell.close()
        ringer.close()


def _leave(number: int, _: object) -> None:
    raise SystemExit(SIGNALLED + number)


def _came(bell: socket.socket) -> set[int]:
    """The signals since the bell was hung up."""
    try:
        return set(bell.recv(1024))
    except BlockingIOError:
        return set()
