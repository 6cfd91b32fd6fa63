"""What wrong passwords may cost: who tries one after the other is slowed down, and what is worked
out for strangers is worked out one at a time.

A login takes a millisecond of the event loop, most of it for keys that TLS agrees about. Of a
hundred that come at once a turn of the loop would work on all, and everybody who is in would wait
for that. In a worker thread much of it would hold Python's lock. So each turn has one piece of it,
and what else there is goes between.
"""

from __future__ import annotations

import trio

from hightide_broker.core.cluster.rates import Rates

FAILURES_A_SECOND = 20
"""That one address may have."""
AHEAD_S = 5.0
"""So far ahead of that it may be: a hundred that are wrong at once wait for nobody."""
WAITS_S_MAX = 1.0
"""The longest that anybody waits at the door because of others who came from its address."""
HEARS_S_MAX = 5.0
"""The longest that who failed waits to hear so; the clock of the handshake runs on."""


class Turnstile:
    """Lets one through in a turn of the event loop, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def turn(self) -> None:
        """Wait for one's turn: what is done next, without waiting again, is all that strangers have
        of this turn of the loop."""
        # Who waits for the lock runs in the turn after the one in which it was let go.
        async with self._lock:
            pass


class Guesses:
    """How often who comes from an address fails to prove who it is.

    Kafka delays each answer by the same time (KIP-306): who has many connections guesses as often
    as it likes. Here who fails too often hears so later, and who comes from there waits a little. A
    user is not slowed down because somebody guesses its password from elsewhere.
    """

    def __init__(self, failed_s: float) -> None:
        """`failed_s`: how long who fails waits at least to hear so."""
        self._failed_s = failed_s
        self._rates = Rates(AHEAD_S)

    def waits_s(self, host: str) -> float:
        """How long the next one from there waits before anything is worked out for it."""
        return min(self._due_s(host), WAITS_S_MAX)

    def hears_s(self, host: str) -> float:
        """How long one from there that failed waits to hear so."""
        return max(self._failed_s, min(self._due_s(host), HEARS_S_MAX))

    def failed(self, host: str) -> None:
        """One from there has failed."""
        # A debt of more than anybody waits at most would only outlive the guessing.
        if self._due_s(host) < HEARS_S_MAX:
            self._rates.record(host, 1, FAILURES_A_SECOND, trio.current_time())

    def _due_s(self, host: str) -> float:
        return self._rates.delay_s(host, FAILURES_A_SECOND, trio.current_time())
