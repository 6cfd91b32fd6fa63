"""The election state of a node: read as it was written, or the node must not vote.

Method: files on the simulated disk, written by the code and by hand.
"""

import pytest

from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.quorum_state import (
    QUORUM_STATE,
    QuorumState,
    QuorumStateDamaged,
    read_quorum_state,
    write_quorum_state,
)

HERE = "data/__cluster_metadata-0"
WHOLE = b'{"leaderId": 2, "leaderEpoch": 7, "votedId": -1, "data_version": 1}'


def disk_with(data):
    disk = SimDisk()
    disk.make_dirs(HERE)
    disk.replace(f"{HERE}/{QUORUM_STATE}", data)
    return disk


def test_it_is_read_as_it_was_written():
    state = QuorumState(leader_id=2, leader_epoch=7, voted_id=-1)
    assert read_quorum_state(disk_with(WHOLE), HERE) == state
    disk = disk_with(b"")
    write_quorum_state(disk, HERE, state)
    assert disk.read_file(f"{HERE}/{QUORUM_STATE}") == WHOLE


DAMAGED = {
    "nothing": b"",
    "no text": b"\xff",
    "a list": b"[]",
    "half of it": WHOLE[:40],
    "no vote": WHOLE.replace(b"votedId", b"voted"),
    "a word for a number": WHOLE.replace(b"7", b'"seven"'),
    "an epoch without end": WHOLE.replace(b"7", b"Infinity"),
    "an epoch below zero": WHOLE.replace(b"7", b"-7"),
    "another version": WHOLE.replace(b"1}", b"2}"),
    "lists in lists": b"[" * 100_000,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(data):
    with pytest.raises(QuorumStateDamaged, match=QUORUM_STATE):
        read_quorum_state(disk_with(data), HERE)


def test_a_lost_file_is_damage_too():
    disk = disk_with(WHOLE)
    disk.remove(f"{HERE}/{QUORUM_STATE}")
    with pytest.raises(QuorumStateDamaged, match="lost"):
        read_quorum_state(disk, HERE)
