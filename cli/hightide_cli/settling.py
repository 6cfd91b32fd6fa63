"""What a node has for as long as it runs, Python's collector need not look at; and what it has no
more, the system may have.

The collector stops the event loop while it looks: some 10 ms for what any node has, and as many
again for each thousand partitions. So what there is when a node begins to serve is put aside, and
once more whenever many partitions have come. Until it serves, nearly all that comes is what it
keeps, and the collector looks once a minute. What is put aside still goes when nothing refers to
it; only what refers to itself in a circle, and is not used any more, stays.

What many connections took is used again by those that come later, and by nobody else. Once they are
gone, the C library is told to give it back. Of small objects that is about half, as
Python gives back whole mebibytes, and what a node does all the time lies in many of them. With
`PYTHONMALLOC=malloc` it is nearly all, for some eight percent more of a processor's time.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from hightide_broker.node import Node

MANY = 1_000
"""So many partitions that have come are worth putting aside."""
GONE = 500
"""So many connections less are worth giving back what they took."""
LOOK_S = 60.0


async def settle(node: Node) -> None:
    """Until cancelled, as the node stops: then there is nothing to collect for any more. For a
    process that is a node and nothing else."""
    try:
        await _keep_settled(node)
    finally:
        gc.disable()


async def _keep_settled(node: Node) -> None:
    await _begun(node)
    held, most = len(node.replicas), 0
    while True:
        await trio.sleep(LOOK_S)
        held = min(held, len(node.replicas))
        if len(node.replicas) >= held + MANY:
            _put_aside()
            held = len(node.replicas)
        most = max(most, node.server.most_since())
        if (left := node.server.connections().total()) <= most - GONE:
            give_back()
            most = left


async def _begun(node: Node) -> None:
    """Until it serves, and what it has is put aside; and what it has by now, if it takes long."""
    gc.disable()
    serves = False
    while not serves:
        with trio.move_on_after(LOOK_S):
            await node.serving.wait()
            serves = True
        _put_aside()
    gc.enable()


def _put_aside() -> None:
    gc.collect()
    gc.freeze()


def _forget_names() -> None:
    """Have Python forget which attributes were looked for last, and where they were. By the address
    of their names: a name that C makes anew for each question stands there once for each of them,
    and one of an error's methods is asked for when a connection ends."""
    for name in ("_clear_internal_caches", "_clear_type_cache"):  # from Python 3.13 on, and before
        if forget := getattr(sys, name, None):
            forget()
            return


def give_back() -> None:
    """Return to the system what the C library keeps of what was freed: some 10 ms, and more
    for what is not put aside."""
    _forget_names()
    gc.collect()  # also empties what Python keeps for objects that come and go
    try:
        from ctypes import CDLL

        trim = CDLL(None).malloc_trim
    except (ImportError, OSError, AttributeError):
        return  # Python was built without, or the library is not glibc
    trim(0)
