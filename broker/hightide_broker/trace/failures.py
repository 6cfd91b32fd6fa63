"""What ended a node, as an event. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from hightide_broker.ports import DiskError, NodeMustStop
from hightide_broker.trace.events import NodeFailed

SAID = DiskError, NodeMustStop
"""Exceptions whose words are for whoever runs the node; those of others may hold anything."""
PACKAGES = ("hightide_broker.", "hightide.", "hightide_cli.")
"""Of the house: a bug is theirs, whoever was called last."""


def failure_of(error: BaseException) -> NodeFailed | None:
    """The first of what an exception is made of; None if it only is the end that somebody wanted,
    a cancellation or a signal."""
    first = next(_causes(error), None)
    if first is None:
        return None
    why = str(first) if isinstance(first, SAID) else ""
    return NodeFailed(error=type(first).__name__, place=_place(first.__traceback__), why=why)


def _causes(error: BaseException) -> Iterator[Exception]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    elif isinstance(error, Exception):
        yield error


def _place(traceback: TracebackType | None) -> str:
    """The innermost line of the house that a traceback goes through."""
    place = "unknown"
    while traceback is not None:
        frame = traceback.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(PACKAGES):
            place = f"{module}:{traceback.tb_lineno} in {frame.f_code.co_qualname}"
        traceback = traceback.tb_next
    return place
