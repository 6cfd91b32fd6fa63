"""A log that holds batches of Kafka's rows, alone and among those of columns.

Goal: what a log does for its records it does whichever form they have: find by offset and time,
recover, compact; and a batch of rows stays one that Kafka's clients read. Method: the same records
are stored in both forms, and what comes of them is compared; aiokafka reads what is left.
"""

from __future__ import annotations

import pytest
from brokers import NOW_MS, batch
from cleankit import clean, records_in, records_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_records import JUDGES
from logkit import (
    check_lookups,
    contents,
    create,
    emptied,
    follow,
    lead,
    make_batch,
    newest_record,
    path_of,
    reopen,
    sync,
)
from tries import tries

from hightide.protocol.conversion import to_rows
from hightide.protocol.records import check_crc, encode_batch, parse_header
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.log import Log
from hightide_broker.storage.recovery import LogDamaged, damage_in
from hightide_broker.storage.segment import LogConfig, Segment

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)
ENDLESS = LogConfig(segment_bytes=1 << 30, index_interval_bytes=150)


def rows(*values, **over) -> bytearray:
    """A batch of rows as a producer sends it."""
    return in_rows(batch(*values, **over))


def in_rows(data: bytearray) -> bytearray:
    return bytearray(to_rows(data, parse_header(data)))


def fill(log: Log, batches: int, *, count: int = 3) -> list[bytes]:
    """Batches of both forms in turn; record timestamps are 1000 + their offset."""
    sent = []
    for number in range(batches):
        times = [1000 + log.log_end + each for each in range(count)]
        data = make_batch(count, timestamps=times)
        data = in_rows(data) if number % 2 else data
        lead(log, data)
        sent.append(bytes(data))
    return sent


def test_what_was_stored_is_found_byte_for_byte_by_offset_and_by_time():
    disk = SimDisk()
    log = create(disk, config=SMALL)
    sent = fill(log, 30)
    assert log.segment_count > 3
    check_lookups(log)
    assert [each.data for each in contents(log)] == sent
    sync(disk, log)
    again = reopen(disk, config=SMALL)
    check_lookups(again)
    assert [each.data for each in contents(again)] == sent
    assert newest_record(again).timestamp == 1000 + again.log_end - 1


def test_a_follower_stores_what_its_leader_has():
    log, copy = (create(SimDisk(), config=SMALL) for _ in range(2))
    fill(log, 10)
    for stored in contents(log):
        follow(copy, bytearray(stored.data))
    assert contents(copy) == contents(log)


@pytest.mark.parametrize("lost", [1, 20, 70, 100])
def test_a_torn_batch_of_rows_at_the_end_is_cut(lost):
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    sent = fill(log, 4)
    sync(disk, log)
    file = disk.open(path_of(0), create=False)
    file.truncate(sum(map(len, sent)) - lost)
    file.close()
    again = reopen(disk, config=ENDLESS)
    assert [each.data for each in contents(again)] == sent[: 3 if lost <= len(sent[3]) else 2]


@pytest.mark.parametrize("distance", [1, 15, 16, 17, 1 << 20, (1 << 20) + 1, (1 << 20) - 16])
def test_a_whole_batch_of_rows_behind_damage_is_found_wherever_it_begins(distance):
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    lead(log, make_batch(size=200 + distance))
    lead(log, rows(b"v" * 30))
    lead(log, rows(b"w"))
    sync(disk, log)
    disk.corrupt(path_of(0), 90)
    with pytest.raises(LogDamaged) as caught:
        reopen(disk, config=ENDLESS)
    assert caught.value.position == 0
    segment = Segment(disk, "data/jade-0", 0, config=ENDLESS)
    assert [each.position for each in damage_in(segment)] == [0]


# --- compaction ---------------------------------------------------------------------------------


def judged(data: bytes) -> list[tuple]:
    """What a Kafka client reads of a batch."""
    return [
        (each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
        for each in JUDGES["aiokafka"](data)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_compacted_batch_keeps_its_form_and_its_codec(codec):
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    keys, values = [b"a", b"b", b"a", b"c"], [b"old", None, b"new" * 40, b"x"]
    native = batch(
        *values,
        keys=keys,
        times=[NOW_MS, NOW_MS - 2**40, NOW_MS + 9, NOW_MS - 70],
        headers={0: (("gone", b"1"),), 2: (("h", b"v"), ("h", None))},
        producer=(7, 1, 0),
    )
    data = in_rows(native)
    header = parse_header(data)
    if codec != "none":
        data = recompressed(data, codec)
    lead(log, data)
    log.roll()
    lead(log, rows(b"last", keys=[b"z"]))
    clean(disk, log)
    stored = contents(log)[0].data
    left = parse_header(stored)
    check_crc(stored, left)
    assert (left.magic, left.codec, left.record_count) == (2, codec, 3)
    assert left.delete_horizon == NOW_MS + 1000
    expected = header._replace(
        attributes=left.attributes,
        base_timestamp=left.base_timestamp,
        leader_epoch=0,
        record_count=3,
        batch_length=left.batch_length,
        crc=left.crc,
    )
    assert left == expected
    assert judged(stored) == [
        (1, NOW_MS - 2**40, b"b", None, ()),
        (2, NOW_MS + 9, b"a", b"new" * 40, (("h", b"v"), ("h", None))),
        (3, NOW_MS - 70, b"c", b"x", ()),
    ]


def recompressed(data: bytearray, codec: str) -> bytearray:
    """A batch of rows that was not compressed, in a codec."""
    header = parse_header(data)
    return encode_batch(
        data[61:],
        record_count=header.record_count,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        codec=codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        magic=2,
    )


def test_a_batch_of_rows_that_nothing_is_left_of_but_its_place_is_a_header():
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    lead(log, rows(b"1", b"2", keys=[b"a", b"b"], codec="zstd"))
    log.roll()
    lead(log, rows(b"3", b"4", keys=[b"a", b"b"]))
    log.roll()
    lead(log, rows(b"5", keys=[b"c"]))
    clean(disk, log)
    first = contents(log)[0]
    assert len(first.data) == 61
    assert (first.base_offset, first.next_offset) == (0, 2)
    assert judged(first.data) == []
    assert [record.value for record in records_of(log)] == [b"3", b"4", b"5"]


def test_what_compaction_leaves_of_columns_is_still_columns():
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    lead(log, batch(b"1", keys=[b"a"]))
    log.roll()
    lead(log, rows(b"2", keys=[b"a"]))
    log.roll()
    lead(log, rows(b"3", keys=[b"b"]))
    clean(disk, log)
    assert contents(log)[0].data[16] == 0x48
    assert contents(log)[0].data[61:] == emptied(contents(log)[0].data)[61:]


RECORDS = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"", None]),
    st.sampled_from([None, b"", b"v", b"w" * 30]),
    st.integers(-50, 50),
)
BATCHES = st.lists(
    st.tuples(st.lists(RECORDS, min_size=1, max_size=4), st.booleans(), st.booleans()),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(batches=BATCHES, passes=st.integers(1, 3))
@settings(max_examples=tries(100), deadline=None)
def test_compaction_leaves_the_same_records_in_either_form(batches, passes):
    """A batch is of rows, or of columns in the other log; a segment may end behind it."""
    disks = [SimDisk(), SimDisk()]
    logs = [create(disk, config=ENDLESS) for disk in disks]
    for records, are_rows, ends in batches:
        keys, values, shifts = zip(*records, strict=True)
        data = batch(*values, keys=keys, times=[NOW_MS + shift for shift in shifts])
        lead(logs[0], in_rows(data) if are_rows else bytearray(data))
        lead(logs[1], data)
        if ends:
            for log in logs:
                log.roll()
    for log in logs:
        log.roll()
        lead(log, batch(b"last", keys=[b"z"]))
    forms = {each.base_offset: each.data[16] for each in contents(logs[0])}
    for number in range(passes):
        for disk, log in zip(disks, logs, strict=True):
            clean(disk, log, now_ms=NOW_MS + 600 * number)
        assert records_of(logs[0]) == records_of(logs[1])
    for stored in contents(logs[0]):
        assert stored.data[16] == forms[stored.base_offset]
        if stored.data[16] == 2:
            expected = records_in(parse_header(stored.data), stored.data)
            assert [each[0] for each in judged(stored.data)] == [each.offset for each in expected]
            assert [each[1] for each in judged(stored.data)] == [
                each.timestamp for each in expected
            ]
