"""The election state of a node: read as it was written, or the node must not vote.

Method: files on the simulated disk, written by the code and by hand; every bit of one is turned.
"""

import pytest

from hightide.protocol.records import crc32c
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.quorum_state import (
    QUORUM_STATE,
    QuorumState,
    QuorumStateDamaged,
    read_quorum_state,
    write_quorum_state,
)

HERE = "data/__cluster_metadata-0"
STATE = QuorumState(leader_id=2, leader_epoch=7, voted_id=3, voted_directory_id="3a")
SAID = (
    b'{"leaderId": 2, "leaderEpoch": 7, "votedId": 3, "votedDirectoryId": "3a", "data_version": 1}'
)
WHOLE = SAID[:-1] + b', "checksum": %d}' % crc32c(SAID)
OLDER = b'{"leaderId": 2, "leaderEpoch": 7, "votedId": 3, "data_version": 1}'
"""From before votes had directories and files had checksums."""


def disk_with(data):
    disk = SimDisk()
    disk.make_dirs(HERE)
    disk.replace(f"{HERE}/{QUORUM_STATE}", data)
    return disk


def test_it_is_read_as_it_was_written():
    assert read_quorum_state(disk_with(WHOLE), HERE) == STATE
    disk = disk_with(b"")
    write_quorum_state(disk, HERE, STATE)
    assert disk.read_file(f"{HERE}/{QUORUM_STATE}") == WHOLE


@pytest.mark.parametrize("voted_directory", ["", "3a", 'a "quoted" one', "Ebbe und Flüt"])
def test_the_directory_of_a_vote_is_kept(voted_directory):
    state = QuorumState(-1, 7, 3, voted_directory)
    disk = disk_with(b"")
    write_quorum_state(disk, HERE, state)
    assert read_quorum_state(disk, HERE) == state


def test_an_older_file_is_read_whose_vote_has_no_directory():
    assert read_quorum_state(disk_with(OLDER), HERE) == QuorumState(2, 7, 3, "")


def read_or_refused(data):
    """The state; None if the file is refused, by its name."""
    try:
        return read_quorum_state(disk_with(data), HERE)
    except QuorumStateDamaged as refused:
        return None if f"{HERE}/{QUORUM_STATE}" in str(refused) else refused


@pytest.mark.parametrize("state", [STATE, QuorumState(), QuorumState(-1, 41, 2)])
def test_a_bit_that_turned_makes_no_other_state(state):
    """Another epoch or another vote would let this node vote twice in one epoch."""
    whole = state.format()
    found = []
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        found.append(read_or_refused(bytes(damaged)))
    assert {*found} <= {state, None}
    assert found.count(state) <= 8 * len("checksum"), "where that word is another"


# Of the older form, so that it is not the checksum that notices.
DAMAGED = {
    "nothing": b"",
    "no text": b"\xff",
    "a list": b"[]",
    "half of it": WHOLE[:40],
    "no vote": OLDER.replace(b"votedId", b"voted"),
    "a word for a number": OLDER.replace(b"7", b'"seven"'),
    "an epoch without end": OLDER.replace(b"7", b"Infinity"),
    "an epoch below zero": OLDER.replace(b"7", b"-7"),
    "another version": OLDER.replace(b"1}", b"2}"),
    "another vote": WHOLE.replace(b'"votedId": 3', b'"votedId": 1'),
    "another directory": WHOLE.replace(b"3a", b"3b"),
    "another checksum": WHOLE.replace(b'"checksum": ', b'"checksum": 1'),
    "a checksum that is no number": SAID[:-1] + b', "checksum": "none"}',
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
