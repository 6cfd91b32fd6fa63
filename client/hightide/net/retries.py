"""When a call is tried again, and what ends it. Pure; times are monotonic, in seconds."""

from __future__ import annotations

from collections.abc import Callable

from hightide.net.ports import Random
from hightide.protocol.errors import (
    ApiError,
    AuthenticationFailed,
    BrokerUnreachable,
    ErrorCode,
    HightideError,
    NobodyListens,
    RequestTimedOut,
)

BACKOFF_S = 0.1
BACKOFF_MAX_S = 1.0
AWAY_MAX_S = 0.25
"""Where nobody listens, trying again burdens nobody, and a broker that starts is found soon."""
NEW_TOPIC_GRACE_S = 1.0
"""How long a topic may be unknown that somebody has just made: brokers hear of it one by one."""
GONE_TOPIC_GRACE_S = 5.0
"""How long one that was there may be unknown before it counts as deleted: a wrong verdict would be
told as a loss of data."""

IsFinal = Callable[[ApiError, float, float], bool]
"""Whether a refusal is the last, so many seconds after the first attempt began; the other number is
when the next attempt would begin."""


def backoff_s(
    attempts: int, random: Random, first_s: float = BACKOFF_S, longest_s: float = BACKOFF_MAX_S
) -> float:
    """How long to wait after so many attempts: `first_s`, doubled with each up to `longest_s`, with
    jitter."""
    delay: float = min(first_s * 2 ** min(attempts - 1, 10), max(longest_s, first_s))
    return delay * (0.8 + 0.4 * random.random())


def is_final(error: ApiError, _elapsed_s: float, _next_s: float) -> bool:
    """Whatever the protocol does not call retriable."""
    return not error.retriable


def or_unknown_topic(grace_s: float) -> IsFinal:
    """The same, and an unknown topic, if the next attempt would begin after the grace."""

    def is_final_or_unknown(error: ApiError, elapsed_s: float, next_s: float) -> bool:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return next_s >= grace_s
        return is_final(error, elapsed_s, next_s)

    return is_final_or_unknown


class Retries:
    """The attempts of one call that may take `timeout_s`; it begins at `now`.

    `unknown_is_verdict`: the caller takes an unknown topic for a deleted one. So what was said once
    is not told in the place of later silence.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        now: float,
        random: Random,
        is_final: IsFinal = is_final,
        unknown_is_verdict: bool = False,
    ) -> None:
        self.attempts = 0
        self._timeout_s = timeout_s
        self._began = now
        self._random = random
        self._is_final = is_final
        self._unknown_is_verdict = unknown_is_verdict
        self._refusal: ApiError | None = None
        self._met = 0
        """How often a broker was there, and could not do it."""

    def left_s(self, now: float) -> float:
        """How much of the time is left; the next attempt begins."""
        self.attempts += 1
        return max(self._timeout_s - (now - self._began), 0.0)

    def pause_s(self, error: ApiError | BrokerUnreachable | RequestTimedOut, now: float) -> float:
        """An attempt failed: how long to wait before the next.

        Raises what ends the call, which knows how often and how long it was tried: `error`, or what
        was refused before if there is only silence now.
        """
        elapsed_s, pause_s = now - self._began, self._backoff_s(error)
        next_s = elapsed_s + pause_s
        hopeless = isinstance(error, AuthenticationFailed) or (
            isinstance(error, ApiError) and self._is_final(error, elapsed_s, next_s)
        )
        if hopeless or next_s >= self._timeout_s:
            last = self._refusal if self._refusal and isinstance(error, RequestTimedOut) else error
            last.attempts, last.elapsed_s = self.attempts, elapsed_s
            if not hopeless and not last.knob:
                last.knob = f"timeout {self._timeout_s:g} s"
            raise last from None
        if isinstance(error, ApiError):
            is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._refusal = None if is_unknown and self._unknown_is_verdict else error
        return pause_s

    def _backoff_s(self, error: HightideError) -> float:
        if isinstance(error, NobodyListens):
            return backoff_s(self.attempts, self._random, longest_s=AWAY_MAX_S)
        # Who waited for a broker to start waits no longer for it to be ready than anybody would.
        self._met += 1
        return backoff_s(self._met, self._random)
