"""What a node has for as long as it runs, Python's collector need not look at.

It stops the event loop while it looks: some 10 ms for what any node has, and as many again for each
thousand partitions. So what there is when a node begins to serve is put aside, and once more
whenever many partitions have come. What is put aside still goes when nothing refers to it; only
what refers to itself in a circle, and is not used any more, stays.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from hightide_broker.node import Node

MANY = 1_000
"""So many partitions that have come are worth putting aside."""
LOOK_S = 60.0


async def settle(node: Node) -> None:
    """Until cancelled. For a process that is a node and nothing else."""
    await node.serving.wait()
    while True:
        gc.collect()
        gc.freeze()
        held = len(node.replicas)
        while len(node.replicas) < held + MANY:
            held = min(held, len(node.replicas))
            await trio.sleep(LOOK_S)
