"""How long the tests wait for what must come: for ever, as long as anything moves.

No test lives here. A slow machine is only slow, so nothing that must come has a deadline of its
own. `PATIENCE_S` bounds a hang: so long nothing has moved, and then it is said what was waited for.
Where more can be seen of the way than its end, `progress` tells it, and the time starts again.
"""

import time

import trio

PATIENCE_S = 900.0
PATIENCE_MS = round(PATIENCE_S * 1000)
POLL_S = 0.02
PROGRESS_S = 1.0
"""So often it is asked whether anything moves, which may cost more than the look itself: Spark
writes pages of it."""
PAUSE = 2
"""Between two looks so many times as long as a look takes: one that starts a command, or asks a
browser, would keep a core busy with asking."""


class Patience:
    """Ends when nothing has moved for `PATIENCE_S`."""

    def __init__(self, what, progress=lambda: None):
        self._what = what
        self._progress = progress
        self._last = progress()
        self._since = self._asked = time.monotonic()

    def check(self):
        """Fails with what is waited for, if its time is over."""
        if time.monotonic() - self._asked < PROGRESS_S:
            return
        if (now := self._progress()) != self._last:
            self._last, self._since = now, time.monotonic()
        self._asked = time.monotonic()
        waited_s = self._asked - self._since
        assert waited_s < PATIENCE_S, f"nothing moved for {PATIENCE_S:g} s: {self._what}"


def wait_until(true, what, *, progress=lambda: None, every_s=POLL_S):
    """Wait for something that is true; what it was, when it is."""
    patience = Patience(what, progress)
    while True:
        began = time.monotonic()
        if found := true():
            return found
        patience.check()
        time.sleep(max(every_s, PAUSE * (time.monotonic() - began)))


async def wait_until_true(true, what, *, progress=lambda: None, every_s=POLL_S):
    """The same in trio, on real time."""
    patience = Patience(what, progress)
    while not (found := true()):
        patience.check()
        await trio.sleep(every_s)
    return found


def size_of(path):
    """How much was written to a file: a log that grows is progress."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
