"""What is told of a file that should be a snapshot of producers, and is none.

Goal: who looks for the cause finds in the log what the file has and what it should have. That no
damage is taken for a snapshot is in `test_producers.py`.
"""

from __future__ import annotations

import struct

import pytest

from hightide.protocol.records import crc32c
from hightide_broker.core.replication.producers import Producers, SnapshotDamaged


def sealed(body: bytes, *, version: int = 1) -> bytes:
    """With a checksum that is right."""
    return struct.pack(">hI", version, crc32c(body)) + body


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "0 bytes are no producer snapshot"),
        (b"x", "1 byte is no producer snapshot"),
        (b"123456789", "9 bytes are no producer snapshot"),
        (sealed(bytes(4), version=2), "version 2 or checksum of a producer snapshot is wrong"),
        (
            sealed(bytes(4))[:-1] + b"x",
            "version 1 or checksum of a producer snapshot is wrong",
        ),
        (sealed(struct.pack(">i", 1)), "producer snapshot of 1 entry has 10 bytes"),
        (sealed(bytes(5)), "producer snapshot of 0 entries has 11 bytes"),
    ],
)
def test_what_is_no_snapshot_is_told(data: bytes, sentence: str) -> None:
    with pytest.raises(SnapshotDamaged) as caught:
        Producers().restore(data)
    assert str(caught.value) == sentence


def test_the_shortest_snapshot_is_of_nobody() -> None:
    producers = Producers()
    producers.restore(sealed(bytes(4)))
    assert (len(producers), producers.snapshot()) == (0, sealed(bytes(4)))
