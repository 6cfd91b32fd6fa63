"""The small text files: Kafka's bytes out, Kafka's bytes in, and a clear error for all else.

Goal: Kafka's rules and the data directory's own files. Method: every text is written out by
hand; what is malformed is a table with the words the message must have. The files are read and
written on the simulated disk; `test_disk_contract.py` holds that the real one is no different.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from logkit import DIRECTORY, TOPIC_ID, create, put, reopen

from hightide.protocol.records import crc32c
from hightide_broker.ports import DiskError, LockHeld
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    MalformedCheckpoint,
    format_entries,
    mend_partition_metadata,
    parse_entries,
    read_epochs,
    read_offsets,
    read_partition_metadata,
    write_epochs,
    write_offsets,
    write_partition_metadata,
)
from hightide_broker.storage.directory import (
    Meta,
    WrongDirectory,
    check_owner,
    format_directory,
    lock_directory,
    read_meta,
    take_clean_marker,
    write_clean_marker,
)

DATA = "data"
OFFSETS = f"{DATA}/{HIGH_WATERMARKS}"
EPOCHS = f"{DIRECTORY}/{LEADER_EPOCHS}"
METADATA = f"{DIRECTORY}/{PARTITION_METADATA}"
META = f"{DATA}/meta.properties"
MARKER = f"{DATA}/.clean_shutdown"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(DIRECTORY)
    return disk


# --- the generic form ---------------------------------------------------------------------------

WELL_FORMED = [
    ({("orders", 0): 1234, ("orders", 1): 99}, b"0\n2\norders 0 1234\norders 1 99\n"),
    ({}, b"0\n0\n"),
    # Numbers are sorted as numbers, topics as text.
    (
        {("b", 10): 1, ("b", 9): 2, ("a-1", 0): 2**63 - 1},
        b"0\n3\na-1 0 9223372036854775807\nb 9 2\nb 10 1\n",
    ),
]


@pytest.mark.parametrize(("offsets", "text"), WELL_FORMED)
def test_an_offset_checkpoint_is_kafkas_text_both_ways(disk, offsets, text):
    write_offsets(disk, OFFSETS, offsets)
    assert disk.read_file(OFFSETS) == text
    assert read_offsets(disk, OFFSETS) == offsets


def test_every_checkpoint_has_kafkas_name():
    names = [HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS, LEADER_EPOCHS]
    assert names == [
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "leader-epoch-checkpoint",
    ]
    assert PARTITION_METADATA == "partition.metadata"


def test_an_epoch_checkpoint_is_kafkas_text_both_ways(disk):
    write_epochs(disk, EPOCHS, [(0, 0), (3, 812)])
    assert disk.read_file(EPOCHS) == b"0\n2\n0 0\n3 812\n"
    assert read_epochs(disk, EPOCHS) == [(0, 0), (3, 812)]


def test_entries_of_one_field_have_a_form_too():
    assert format_entries([("a",), ("b",)]) == b"0\n2\na\nb\n"
    assert format_entries([]) == b"0\n0\n"


@pytest.mark.parametrize("text", [b"", b"0\n", b"0", b"0\n0\n"])
def test_an_empty_file_or_a_lone_version_line_has_no_entries(disk, text):
    put(disk, OFFSETS, text)
    put(disk, EPOCHS, text)
    assert read_offsets(disk, OFFSETS) == {}
    assert read_epochs(disk, EPOCHS) == []


def test_a_missing_file_has_no_entries(disk):
    assert read_offsets(disk, OFFSETS) == {}
    assert read_epochs(disk, EPOCHS) == []
    assert read_partition_metadata(disk, DIRECTORY) is None


MALFORMED = {
    "another version": (b"1\n1\norders 0 5\n", "version"),
    "no version": (b"\n1\norders 0 5\n", "version"),
    "a version that is no number": (b"zero\n0\n", "version"),
    "too few entries": (b"0\n2\norders 0 5\n", "announces '2' entries and has 1"),
    "too many entries": (b"0\n1\norders 0 5\norders 1 6\n", "announces '1' entries and has 2"),
    "a negative count": (b"0\n-1\n", "announces"),
    "a count that is no number": (b"0\nmany\norders 0 5\n", "announces"),
    "an empty count": (b"0\n\norders 0 5\n", "announces"),
    "a blank line": (b"0\n2\norders 0 5\n\n", "line 4"),
    "too few fields": (b"0\n1\norders 5\n", "line 3"),
    "too many fields": (b"0\n1\norders 0 5 6\n", "line 3"),
    "two spaces": (b"0\n1\norders  0 5\n", "line 3"),
    "a trailing space": (b"0\n1\norders 0 5 \n", "line 3"),
    "a tab": (b"0\n1\norders\t0\t5\n", "line 3"),
    "a partition that is no number": (b"0\n1\norders zero 5\n", "line 3"),
    "an offset that is no number": (b"0\n2\norders 0 5\norders 1 6x\n", "line 4"),
    "a negative offset": (b"0\n1\norders 0 -5\n", "line 3"),
    "a number of more than 64 bits": (b"0\n1\norders 0 " + b"1" * 20 + b"\n", "line 3"),
    "a number that Python does not read": (b"0\n1\norders 0 " + b"1" * 5000 + b"\n", "line 3"),
    "as many entries": (b"0\n" + b"1" * 5000 + b"\norders 0 5\n", "announces"),
    "a fraction": (b"0\n1\norders 0 5.0\n", "line 3"),
    "bytes that are no text": (b"0\n1\norders 0 \xff\n", "not text"),
    "a digit of another script": ("0\n1\norders 0 \u0665\n".encode(), "not text"),
    "zeros of a page that was never written": (bytes(64), "version"),
}


@pytest.mark.parametrize(("text", "words"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_checkpoint_is_named_with_its_line(disk, text, words):
    put(disk, OFFSETS, text)
    with pytest.raises(MalformedCheckpoint, match=words) as caught:
        read_offsets(disk, OFFSETS)
    assert OFFSETS in str(caught.value)


TWO = b"0\n2\norders 0 1234\norders 1 99\n"


@pytest.mark.parametrize("cut", range(len(b"0\n2"), TWO.index(b" 99") + 1))
def test_a_checkpoint_that_lost_a_whole_field_of_its_end_is_malformed(cut):
    assert len(parse_entries(OFFSETS, TWO, 3)) == 2
    with pytest.raises(MalformedCheckpoint):
        parse_entries(OFFSETS, TWO[:cut], 3)


@pytest.mark.parametrize(
    "text",
    [
        b"0\n2\n1 5\n1 6\n",
        b"0\n2\n2 5\n1 6\n",
        b"0\n2\n1 5\n2 5\n",
        b"0\n2\n1 6\n2 5\n",
    ],
)
def test_epochs_that_do_not_rise_in_both_columns_are_malformed(disk, text):
    put(disk, EPOCHS, text)
    with pytest.raises(MalformedCheckpoint, match="rise"):
        read_epochs(disk, EPOCHS)


@pytest.mark.parametrize("seed", range(8))
def test_a_written_checkpoint_survives_a_power_loss_and_a_failed_one_changes_nothing(disk, seed):
    write_offsets(disk, OFFSETS, {("orders", 0): 5})
    disk.fail("replace", HIGH_WATERMARKS)
    with pytest.raises(DiskError):
        write_offsets(disk, OFFSETS, {("orders", 0): 6})
    disk.crash(random.Random(seed))
    assert read_offsets(disk, OFFSETS) == {("orders", 0): 5}


# --- partition.metadata -------------------------------------------------------------------------


def test_partition_metadata_is_kafkas_text_both_ways(disk):
    write_partition_metadata(disk, DIRECTORY, TOPIC_ID)
    assert disk.read_file(METADATA) == f"version: 0\ntopic_id: {TOPIC_ID}\n".encode()
    assert read_partition_metadata(disk, DIRECTORY) == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"version: 0\n",
        b"version: 1\ntopic_id: x\n",
        b"version: 0\ntopic_name: x\n",
        b"version: 0\ntopic_id: x\nmore: y\n",
        b"topic_id: x\nversion: 0\n",
        b"\xff\xfe",
    ],
)
def test_malformed_partition_metadata_is_named(disk, text):
    put(disk, METADATA, text)
    with pytest.raises(MalformedCheckpoint, match=METADATA):
        read_partition_metadata(disk, DIRECTORY)


@pytest.mark.parametrize("position", range(len(f"version: 0\ntopic_id: {TOPIC_ID}\n")))
def test_partition_metadata_is_mended_wherever_a_byte_or_two_are_damaged(disk, position):
    write_partition_metadata(disk, DIRECTORY, TOPIC_ID)
    whole = disk.read_file(METADATA)
    assert not mend_partition_metadata(disk, DIRECTORY, TOPIC_ID), "nothing is to be mended"
    for bits in (b"\x01", b"\x80\x40"):
        damaged = bytearray(whole)
        for place, bit in enumerate(bits, position):
            damaged[place % len(whole)] ^= bit
        put(disk, METADATA, bytes(damaged))
        assert mend_partition_metadata(disk, DIRECTORY, TOPIC_ID)
        assert disk.read_file(METADATA) == whole


@pytest.mark.parametrize(
    "text",
    [
        f"version: 0\ntopic_id: {'z' * 3}{TOPIC_ID[3:]}\n",
        f"version: 0\ntopic_id: {TOPIC_ID}",
        f"version: 0\ntopic_id: {TOPIC_ID}x\n",
        "",
    ],
)
def test_partition_metadata_that_says_something_else_is_left_as_it_is(disk, text):
    put(disk, METADATA, text.encode())
    assert not mend_partition_metadata(disk, DIRECTORY, TOPIC_ID)
    assert disk.read_file(METADATA) == text.encode()


def test_where_no_partition_metadata_is_there_is_none_to_mend(disk):
    assert not mend_partition_metadata(disk, DIRECTORY, TOPIC_ID)
    assert not disk.exists(METADATA)


@pytest.mark.parametrize("seed", range(8))
def test_s17_partition_metadata_is_durable_before_the_first_append(seed):
    disk = SimDisk()
    create(disk)
    disk.crash(random.Random(seed))
    assert read_partition_metadata(disk, DIRECTORY) == TOPIC_ID


def test_s17_a_log_of_another_topic_of_the_same_name_is_refused(disk):
    create(disk)
    put(disk, METADATA, b"version: 0\ntopic_id: another\n")
    with pytest.raises(MalformedCheckpoint, match=f"another.*{TOPIC_ID}"):
        reopen(disk)


# --- meta.properties ----------------------------------------------------------------------------

MINE = Meta(cluster_id="tide-pool", node_id=3, directory_id="dir-1")
OLDER_TEXT = b"version=1\ncluster.id=tide-pool\nnode.id=3\ndirectory.id=dir-1\n"
"""From before there was a checksum: Kafka's lines alone."""
MINE_TEXT = OLDER_TEXT + b"checksum=%08x\n" % crc32c(OLDER_TEXT)


def test_meta_properties_is_kafkas_text_both_ways(disk):
    assert read_meta(disk, DATA) is None
    format_directory(disk, DATA, MINE)
    assert disk.read_file(META) == MINE_TEXT
    assert read_meta(disk, DATA) == MINE


def test_comments_and_the_order_of_properties_do_not_matter(disk):
    text = b"#\n#Sat Nov 21\nnode.id=3\ndirectory.id=dir-1\ncluster.id=tide-pool\nversion=1\n"
    put(disk, META, text)
    assert read_meta(disk, DATA) == MINE


@pytest.mark.parametrize("joining", [False, True])
def test_an_older_file_has_no_checksum_and_is_read(disk, joining):
    put(disk, META, OLDER_TEXT + joining * b"joining=true\n")
    assert read_meta(disk, DATA) == replace(MINE, joining=joining)


def meta_or_refused(disk):
    """What it says; None if it is refused, by its name."""
    try:
        return read_meta(disk, DATA)
    except WrongDirectory as refused:
        return None if META in str(refused) else refused


@pytest.mark.parametrize("meta", [MINE, replace(MINE, joining=True)], ids=["founds", "joins"])
def test_a_bit_of_meta_properties_that_turned_makes_nobody_else_of_a_node(disk, meta):
    """With another directory id a voter would be none, and nobody would say so."""
    format_directory(disk, DATA, meta)
    found = []
    for bit in range(8 * len(disk.read_file(META))):
        disk.flip(META, bit // 8, bit % 8)
        found.append(meta_or_refused(disk))
        disk.flip(META, bit // 8, bit % 8)
    assert {*found} <= {meta, None}
    assert found.count(meta) <= 8 * len("checksum="), "where that word is none any more"


def test_formatting_again_keeps_the_directory_id(disk):
    format_directory(disk, DATA, MINE)
    format_directory(disk, DATA, Meta("tide-pool", 3, "dir-2"))
    assert disk.read_file(META) == MINE_TEXT


@pytest.mark.parametrize(
    ("other", "ids"),
    [
        (Meta("rock-pool", 3, "dir-1"), ["tide-pool", "rock-pool"]),
        (Meta("tide-pool", 4, "dir-1"), ["node 3", "is 4"]),
    ],
)
def test_a_directory_of_another_cluster_or_node_is_refused_with_both_ids(disk, other, ids):
    format_directory(disk, DATA, MINE)
    with pytest.raises(WrongDirectory) as caught:
        format_directory(disk, DATA, other)
    assert all(words in str(caught.value) for words in (DATA, *ids))
    assert disk.read_file(META) == MINE_TEXT
    with pytest.raises(WrongDirectory) as caught:
        check_owner(DATA, MINE, cluster_id=other.cluster_id, node_id=other.node_id)
    assert all(words in str(caught.value) for words in (DATA, *ids))


def test_an_unknown_cluster_id_is_not_compared():
    check_owner(DATA, MINE, cluster_id=None, node_id=3)
    with pytest.raises(WrongDirectory):
        check_owner(DATA, MINE, cluster_id=None, node_id=4)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        OLDER_TEXT.replace(b"version=1", b"version=2"),
        OLDER_TEXT.replace(b"version=1\n", b""),
        OLDER_TEXT.replace(b"cluster.id", b"cluster"),
        OLDER_TEXT.replace(b"node.id=3", b"node.id=three"),
        OLDER_TEXT.replace(b"directory.id", b"#directory.id"),
        MINE_TEXT.replace(b"dir-1", b"dir-2"),
        MINE_TEXT.replace(b"checksum=", b"joining=true\nchecksum="),
        MINE_TEXT.replace(b"checksum=", b"checksum=0"),
        MINE_TEXT[:-1],
        MINE_TEXT + b"joining=true\n",
        b"\xff\xfe\x00",
    ],
)
def test_damaged_meta_properties_are_named(disk, text):
    put(disk, META, text)
    with pytest.raises(WrongDirectory, match=META):
        read_meta(disk, DATA)


# --- the lock and the clean marker --------------------------------------------------------------


def test_one_process_at_a_time_uses_a_directory(disk):
    lock = lock_directory(disk, DATA)
    with pytest.raises(LockHeld, match=r"data/\.lock"):
        lock_directory(disk, DATA)
    disk.make_dirs("other")
    lock_directory(disk, "other").release()
    lock.release()
    lock_directory(disk, DATA).release()


def test_the_clean_marker_carries_the_broker_epoch_and_is_gone_after_it_is_taken(disk):
    assert take_clean_marker(disk, DATA) is None
    write_clean_marker(disk, DATA, 1234)
    assert disk.read_file(MARKER) == b'{"version": 0, "brokerEpoch": 1234}'
    assert take_clean_marker(disk, DATA) == 1234
    assert not disk.exists(MARKER)
    assert take_clean_marker(disk, DATA) is None


@pytest.mark.parametrize("seed", range(12))
def test_rc1_a_crash_after_the_marker_was_taken_counts_as_unclean(disk, seed):
    write_clean_marker(disk, DATA, 7)
    take_clean_marker(disk, DATA)
    disk.crash(random.Random(seed))
    assert take_clean_marker(disk, DATA) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"7",
        b'{"version": 0}',
        b'{"version": 0, "brokerEpoch": null}',
        b'{"version": 0, "brokerEpoch": "seven"}',
        b'{"version": 0, "brokerEpoch": Infinity}',
        b"\xff",
    ],
)
def test_a_damaged_marker_counts_as_unclean_and_is_gone(disk, text):
    put(disk, MARKER, text)
    assert take_clean_marker(disk, DATA) is None
    assert not disk.exists(MARKER)
