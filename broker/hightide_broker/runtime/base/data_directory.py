"""A node stops soon after its data directory was removed: what it goes on writing is in files that
nobody will find again."""

from __future__ import annotations

import trio

from hightide_broker.ports import Disk, NodeMustStop
from hightide_broker.storage.directory import META

LOOK_S = 5.0
"""How often it is looked for."""


async def watch_directory(disk: Disk, directory: str) -> None:
    """Look until cancelled; raises `NodeMustStop`."""
    path = f"{directory}/{META}"
    while True:
        await trio.sleep(LOOK_S)
        if not disk.exists(path):
            raise NodeMustStop(
                f"{path} is gone: the data directory of this node was removed, or another one was "
                f"put in its place. Put it back and start again, or let the node in with an empty "
                f"one (`hightide up --replace`)"
            )
