"""Who writes: one task of one batch of a sink, as leaders know it."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from hightide.protocol.errors import HightideError

DERIVED_IDS = 1 << 62
"""Producer ids from here on are derived; brokers give out those from 0 on."""
EPOCHS = 1 << 15
TASKS_MAX = 4096
"""Of a batch of a streaming query; the last one is the driver."""


class Attempt(NamedTuple):
    """One task of one batch, whichever attempt at it this is."""

    sink: str
    task: int
    batch: int

    @property
    def producer(self) -> tuple[int, int]:
        """Its producer id and epoch."""
        name = f"{self.sink}/{self.task}/{self.batch // EPOCHS}".encode()
        digest = hashlib.blake2b(name, digest_size=8).digest()
        return DERIVED_IDS | (int.from_bytes(digest, "big") >> 2), self.batch % EPOCHS


class Superseded(HightideError):
    """A later batch was written already: this attempt comes too late."""


def producers_of(sink: str, batch: int) -> dict[int, int]:
    """Every producer that may write a batch of a streaming query: id → epoch."""
    return dict(Attempt(sink, task, batch).producer for task in range(TASKS_MAX))
