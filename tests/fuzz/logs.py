"""Target: the files of a partition with anything written into them, opened as at a start.

Held: opening them ends with a log, or names the damage; a log that was opened keeps its invariants,
and each read of it gives a whole batch with the right checksum or names the damage. No test lives
here.
"""

import struct
from functools import cache

from logkit import DIRECTORY, create, files_of, fill, put, reopen

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import CRC_FROM, check_crc, crc32c, iter_batches
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import MalformedCheckpoint
from hightide_broker.storage.recovery import LogDamaged
from hightide_broker.storage.segment import LogConfig, SegmentDamage

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150)
SEALED, CLEAN, CUT, FROM_END = 0x01, 0x02, 0x04, 0x08
"""Of the first byte: checksums are made right again; it was stopped in order; the last file that is
written to ends there; only what lies behind the last batch is scanned."""
READS_MAX = 64
"""Batches read of a log: a gap of offsets may be wide."""


@cache
def sound_files():
    """A log of some segments and two epochs."""
    disk = SimDisk()
    log = create(disk, config=CONFIG)
    for epoch in (0, 3):
        for count in (1, 2, 1, 3, 1):
            fill(log, 1, count=count, epoch=epoch)
    log.flush_indexes()
    log.producer_snapshots.write(log.log_end, b"snapshot")
    return files_of(disk), log.log_end


def stored_log(data):
    """A byte, and any number of `u8 file, u16 place, u8 size` with so many bytes behind them."""
    flags = data[0] if data else 0
    files, log_end = sound_files()
    disk = SimDisk()
    disk.make_dirs(DIRECTORY)
    for name, content in _changed(files, data[1:], flags).items():
        put(disk, f"{DIRECTORY}/{name}", content)
    point = log_end if flags & FROM_END else 0
    try:
        log = reopen(disk, clean=bool(flags & CLEAN), recovery_point=point, config=CONFIG)
    except (LogDamaged, MalformedCheckpoint):
        return
    _read_through(log)
    log.close()


def _changed(files, writes, flags):
    changed = {name: bytearray(content) for name, content in files.items()}
    names = sorted(changed)
    name, end = names[0], None
    while len(writes) >= 4:
        number, place, size = struct.unpack_from(">BHB", writes)
        name = names[number % len(names)]
        place %= len(changed[name]) + 1
        end = place + size
        changed[name][place:end] = writes[4 : 4 + size]
        writes = writes[4 + size :]
    if flags & CUT and end is not None:
        del changed[name][end:]
    if flags & SEALED:
        for name, content in changed.items():
            if name.endswith(".log"):
                seal(content)
    return {name: bytes(content) for name, content in changed.items()}


def seal(content):
    """Make the checksum of each batch right, as far as batches can be told."""
    position = 0
    try:
        for header, batch in iter_batches(bytes(content)):
            struct.pack_into(">I", content, position + 17, crc32c(batch[CRC_FROM:]))
            position += header.size
    except CorruptBatch:
        pass


def _read_through(log):
    offset = log.log_start
    for _ in range(READS_MAX):
        if offset >= log.log_end:
            return
        try:
            part = log.read(offset, max_bytes=1)
        except SegmentDamage:
            return
        assert part is not None, f"nothing at {offset}, the log ends at {log.log_end}"
        for header, batch in iter_batches(part.read()):
            check_crc(batch, header)
        assert part.next_offset > offset
        offset = part.next_offset
