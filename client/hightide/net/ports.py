"""What the client needs of the world, as Protocols: a network, a wall clock, randomness.

Monotonic time is trio's own clock, which tests replace. `tcp.py` and `SystemClock`/`SystemRandom`
are the real ones; a simulation brings its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Protocol

from hightide.protocol.records import Buffer


class Stream(Protocol):
    """A two-way byte stream; the peer's failure is `OSError` or `trio.BrokenResourceError`."""

    async def receive_into(self, view: memoryview, wanted: int = 1) -> int:
        """Fill a part of `view`; how many bytes came, 0 at the end of the stream. With `wanted`,
        which may be more than `view` holds, nobody need be woken for less; less may come."""
        ...

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Send of the buffers, one after the other, what is taken at once; how many bytes were."""
        ...

    def send_file_now(self, fd: int, position: int, size: int) -> int:
        """The same for bytes of an open file, without bringing them into the process."""
        ...

    async def wait_writable(self) -> None:
        """Until more may be taken."""
        ...

    @property
    def can_send_file(self) -> bool:
        """Whether `send_file_now` works on this stream (not under TLS, not in a simulation)."""
        ...

    @property
    def peer(self) -> str:
        """The other end, for messages."""
        ...

    @property
    def common_name(self) -> str:
        """Whom the other end has proven to be, by a certificate; empty: it showed none."""
        ...

    async def aclose(self) -> None:
        """Close at once; never raises."""
        ...


class Network(Protocol):
    """Where streams come from."""

    async def connect(self, host: str, port: int) -> Stream:
        """Open a stream; raises `OSError`, `ConnectionRefusedError` if nobody listens there, or
        `AuthenticationFailed` where one end turns the other away."""
        ...


class WallClock(Protocol):
    """The time of day."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...


class Random(Protocol):
    """Randomness that a simulation can seed."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def system_random() -> Random:
    """Randomness from the operating system."""
    return random.SystemRandom()
