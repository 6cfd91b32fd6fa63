"""How many connections and files a node's server may hold, by what its process may have open.

Who opens connections and says nothing takes descriptors that the disk needs: a node that cannot
open a segment loses a replica. So the disk has half of them, and everybody else a share.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from hightide.protocol.words import counted

log = logging.getLogger("hightide.server")

AT_THE_DOOR_MAX = 256
"""Connections that agree about TLS at a time: each costs milliseconds if it is in earnest."""
FILES_MAX = 4096
"""Files that are being sent at a time; above that, what is to be sent is read."""


class Room(NamedTuple):
    """So many of each at a time."""

    clients: int
    """Connections by the clients' door."""
    nodes: int
    """Connections by the nodes' own door."""
    at_the_door: int
    """Connections by each door that are not admitted yet."""
    files: int
    """Files that are being sent."""


def room_for(*, connections_max: int, open_files: int) -> Room:
    """`connections_max` is max.connections; `open_files` is what the disk leaves of the
    descriptors that the process may have. A part stays for connections of the node's own."""
    room = Room(
        clients=_at_least_one(min(connections_max, open_files * 3 // 4)),
        nodes=_at_least_one(min(connections_max, open_files // 24)),
        at_the_door=_at_least_one(min(AT_THE_DOOR_MAX, open_files // 24)),
        files=min(FILES_MAX, open_files // 16),
    )
    if room.clients < connections_max:
        log.info(
            "max.connections is %d, and the limit of open files leaves room for %s",
            connections_max,
            counted(room.clients, "connection"),
        )
    return room


def _at_least_one(count: int) -> int:
    return max(count, 1)
