"""Target: the small files beside a log and the records of the house's own topics, with anything in
them.

Held: each is read, or its damage is named in the way that its reader declares; what was read is
written as something that is read the same. No test lives here.
"""

import struct

import msgspec
from logs import seal

from hightide.protocol.records import crc32c
from hightide_broker.core.cluster.changes import decode_change, encode_change
from hightide_broker.core.groups import records
from hightide_broker.core.replication.producers import Producers, SnapshotDamaged
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage import checkpoint, directory, quorum_state, snapshots

PLACE = "d"
SNAPSHOT = (9, 3)
"""End offset and epoch of one of the metadata."""


def kept_file(data):
    """A byte for what it is, and what is in it."""
    if data:
        KINDS[data[0] % len(KINDS)](data[1:])


def _disk_with(name, data):
    disk = SimDisk()
    disk.make_dirs(PLACE)
    disk.replace(f"{PLACE}/{name}", data)
    return disk


def _read(damaged, read, *arguments):
    """What is read; None: its damage was named."""
    try:
        return read(*arguments)
    except damaged:
        return None


def _election(data):
    disk = _disk_with(quorum_state.QUORUM_STATE, data)
    state = _read(quorum_state.QuorumStateDamaged, quorum_state.read_quorum_state, disk, PLACE)
    if state is not None:
        quorum_state.write_quorum_state(disk, PLACE, state)
        assert quorum_state.read_quorum_state(disk, PLACE) == state


def _last_stop(data):
    epoch = directory.take_clean_marker(_disk_with(directory.CLEAN_SHUTDOWN, data), PLACE)
    assert epoch is None or isinstance(epoch, int)


def _owner(data):
    disk = _disk_with(directory.META, data)
    _read(directory.WrongDirectory, directory.read_meta, disk, PLACE)


def _offsets(data):
    disk, path = _disk_with("offsets", data), f"{PLACE}/offsets"
    found = _read(checkpoint.MalformedCheckpoint, checkpoint.read_offsets, disk, path)
    if found is not None:
        checkpoint.write_offsets(disk, path, found)
        assert checkpoint.read_offsets(disk, path) == found


def _epochs(data):
    disk, path = _disk_with("epochs", data), f"{PLACE}/epochs"
    found = _read(checkpoint.MalformedCheckpoint, checkpoint.read_epochs, disk, path)
    if found is not None:
        checkpoint.write_epochs(disk, path, found)
        assert checkpoint.read_epochs(disk, path) == found == sorted(found)


def _topic(data):
    disk = _disk_with(checkpoint.PARTITION_METADATA, data)
    _read(checkpoint.MalformedCheckpoint, checkpoint.read_partition_metadata, disk, PLACE)


def _producers(data):
    """With the right checksum."""
    whole = data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]
    known, again = Producers(), Producers()
    _read(SnapshotDamaged, known.restore, whole)
    again.restore(known.snapshot())
    assert again.snapshot() == known.snapshot()


def _of_groups(data):
    """A record of `__consumer_offsets`; a byte says where its value begins."""
    end = 1 + (data[0] if data else 0)
    value = data[end:] or None
    said = _read(records.GroupRecordDamaged, records.decode, data[1:end], value)
    if said is not None:
        key, found = said
        again = None if found is None else records.encode(found)
        assert records.decode(records.encode(key), again) == said
        if isinstance(found, records.GroupValue):
            records.is_sound(found)


def _of_metadata(data):
    change = _read(msgspec.MsgspecError, decode_change, data)
    if change is not None:
        assert decode_change(encode_change(change)) == change


def _metadata_snapshot(data):
    """With the right checksums."""
    content = bytearray(data)
    seal(content)
    disk = SimDisk()
    disk.make_dirs(PLACE)
    disk.replace(snapshots.snapshot_path(PLACE, SNAPSHOT), bytes(content))
    values = _read(snapshots.SnapshotDamaged, snapshots.read_snapshot, disk, PLACE, SNAPSHOT)
    assert values is None or sum(map(len, values)) <= len(data)


KINDS = (
    _election,
    _last_stop,
    _owner,
    _offsets,
    _epochs,
    _topic,
    _producers,
    _of_groups,
    _of_metadata,
    _metadata_snapshot,
)
