"""Threads that wait for what happens in trio's thread, without a task there that waits for them: a
list of whom to tell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

Told = list[Callable[[], None]]


def wait_to_be_told(told: Told, is_over: Callable[[], bool], timeout_s: float) -> None:
    """In a thread: until something is over, after which `tell` is called for the list; or until so
    much time has passed, or something else came to pass of which those in the list are told."""
    inbox: SimpleQueue[None] = SimpleQueue()
    call = partial(inbox.put, None)
    try:
        told.append(call)
        if not is_over():  # looked at only now: from here on this thread is told
            with suppress(Empty):
                inbox.get(timeout=max(timeout_s, 0.0))
    finally:
        with suppress(ValueError):
            told.remove(call)


def tell(told: Told) -> None:
    """Wake all that wait. They take themselves out of the list meanwhile."""
    with suppress(IndexError):
        while True:
            told.pop()()


def pass_on(told: Told, later: Told) -> None:
    """They are told of something else instead, which is over later."""
    with suppress(IndexError):
        while True:
            later.append(told.pop())
