"""Who votes by what a data directory holds, read without a node and without writing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hightide.protocol.columns import to_records
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import check_crc, iter_batches

if TYPE_CHECKING:
    from hightide_broker.core.quorum.roles import Voter


def recorded_voters(metadata: Path) -> tuple[Voter, ...]:
    """The last record of the voters in the log and the snapshots of a metadata directory, committed
    or not; none: there is no record, or it cannot be read."""
    files = [file for file in metadata.glob("0*") if file.suffix in (".log", ".checkpoint")]
    # By where each begins, or ends: the newest first, and a log before the snapshot at its start.
    for file in sorted(files, key=lambda each: (each.name[:20], each.suffix), reverse=True):
        if found := _last_in(file):
            return found
    return ()


def _last_in(file: Path) -> tuple[Voter, ...]:
    from hightide_broker.core.cluster.changes import SetVoters, decode_change

    found: tuple[Voter, ...] = ()
    with suppress(CorruptBatch, OSError):  # a node at work writes on, and its end may be half
        for header, batch in iter_batches(file.read_bytes()):
            check_crc(batch, header)
            for record in () if header.is_control else to_records(batch, header, "", 0):
                with suppress(msgspec.MsgspecError):
                    change = decode_change(record.value or b"")
                    found = change.voters if isinstance(change, SetVoters) else found
    return found
