"""Columns: records in, the same records out, by Python and by Arrow; nothing else out of damage.

Goal: what a producer wrote is what every reader makes of it, and a payload that does not add up is
`CorruptBatch`, whichever way it is read; a batch that `open_batch` lets pass breaks no reader, for
that is what a broker relies on when it stores one. Method: Hypothesis draws the records and the
damage; the two readers are held against a plain list of records and against each other; the named
cases are columns packed by hand.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.arrow.to_arrow import TIMESTAMP_MAX, join_arrow, schema
from hightide.protocol.columns import (
    Headers,
    Record,
    encode_columns,
    open_batch,
    pack_columns,
    to_records,
)
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import HEADER_BYTES, BatchHeader, Buffer, encode_batch, parse_header

I32_MAX = (1 << 31) - 1
I64_MAX = (1 << 63) - 1

some = settings(max_examples=tries(60), deadline=None)
many = settings(max_examples=tries(150), deadline=None)

blobs = st.none() | st.binary(max_size=6)
names = st.sampled_from(["a", "b"]) | st.text(max_size=4)
header_lists = st.lists(st.tuples(names, blobs), max_size=3).map(tuple)
near_times = st.integers(1_700_000_000_000, 1_700_000_100_000)
far_times = st.integers(-(1 << 52), 1 << 52)


class Draft(NamedTuple):
    """The records of one batch, before they are encoded."""

    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]
    offset_deltas: list[int] | None
    last_offset_delta: int
    base_timestamp: int
    append_time: int | None
    codec: str

    def payload(self) -> bytes:
        sparse = {index: pairs for index, pairs in enumerate(self.headers) if pairs}
        return encode_columns(
            self.timestamps,
            None if not any(self.keys) and b"" not in self.keys else self.keys,
            self.values,
            sparse,
            base_timestamp=self.base_timestamp,
            offset_deltas=self.offset_deltas,
        )

    def batch(self) -> bytes:
        stamped = self.append_time is not None
        raw = encode_batch(
            self.payload(),
            record_count=len(self.values),
            last_offset_delta=self.last_offset_delta,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.append_time if stamped else max(self.timestamps, default=0),
            codec=self.codec,
            attributes=0x08 if stamped else 0,
            base_offset=1000,
            leader_epoch=6,
        )
        return bytes(raw)

    def records(self) -> list[Record]:
        """What a reader should get, one plain step after the other."""
        deltas = self.offset_deltas
        return [
            Record(
                topic="jade",
                partition=3,
                offset=1000 + (index if deltas is None else deltas[index]),
                timestamp=self.timestamps[index] if self.append_time is None else self.append_time,
                key=self.keys[index],
                value=self.values[index],
                headers=self.headers[index],
                timestamp_type=0 if self.append_time is None else 1,
                leader_epoch=6,
            )
            for index in range(len(self.values))
        ]


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Batches of up to 9 records; compaction left gaps in some, and some it emptied."""
    count = draw(st.integers(0, 9))
    times = draw(st.sampled_from([near_times, far_times]))

    def column(items: st.SearchStrategy) -> list:
        return draw(st.lists(items, min_size=count, max_size=count))

    deltas, last = None, max(count - 1, 0)
    if draw(st.booleans()):
        steps = column(st.integers(1, 4) | st.integers(1, 1 << 24))
        deltas = [sum(steps[: index + 1]) - 1 for index in range(count)]
        last = deltas[-1] if deltas else 0
    return Draft(
        timestamps=column(times),
        keys=column(blobs),
        values=column(blobs),
        headers=column(st.just(()) | header_lists),
        offset_deltas=deltas,
        last_offset_delta=last + draw(st.integers(0, 2)),
        base_timestamp=draw(times),
        append_time=draw(st.none() | times),
        codec=draw(st.sampled_from(["none", "none", "lz4", "zstd"])),
    )


def read_records(batch: Buffer, header: BatchHeader | None = None) -> list[Record]:
    return to_records(batch, header or parse_header(batch), "jade", 3)


def read_arrow(batch: bytes, header: BatchHeader | None = None) -> list[dict[str, object]]:
    """Every row as plain values, the timestamp as a number: not all of them fit a datetime."""
    header = header or parse_header(batch)
    opened = open_batch(batch, header, check_sums=False)
    table = join_arrow([(header, opened)], "jade", 3, include_headers=True)
    table.validate(full=True)
    assert table.schema == schema(include_headers=True)
    place = table.schema.get_field_index("timestamp")
    return table.set_column(place, "timestamp", table["timestamp"].cast(pa.int64())).to_pylist()


def as_row(record: Record) -> dict[str, object]:
    """The Arrow row of a record."""
    pairs = [{"key": name, "value": value} for name, value in record.headers]
    return {
        "key": record.key,
        "value": record.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000,
        "timestampType": record.timestamp_type,
        "headers": pairs or None,
    }


# The same records come back.


@given(draft=drafts())
@many
def test_records_come_back_as_they_went_in(draft: Draft) -> None:
    assert read_records(draft.batch()) == draft.records()
    assert read_records(memoryview(draft.batch())) == draft.records()


@given(draft=drafts())
@many
def test_arrow_has_the_same_records(draft: Draft) -> None:
    assert read_arrow(draft.batch()) == [as_row(record) for record in draft.records()]


def test_the_payload_is_the_documented_msgpack() -> None:
    payload = encode_columns(
        [1005, 1001],
        [b"k", None],
        [b"", b"vv"],
        {1: (("n", None), ("n", b"x"))},
        base_timestamp=1000,
        offset_deltas=[0, 4],
    )
    assert msgpack.unpackb(payload) == [
        bytes.fromhex("00000000 04000000"),
        bytes.fromhex("05000000 01000000"),
        bytes.fromhex("01000000 ffffffff"),
        b"k",
        bytes.fromhex("00000000 02000000"),
        b"vv",
        [
            bytes.fromhex("01000000"),
            bytes.fromhex("02000000"),
            bytes.fromhex("01000000 01000000"),
            b"nn",
            bytes.fromhex("ffffffff 01000000"),
            b"x",
        ],
    ]


@pytest.mark.parametrize(
    ("delta", "width"),
    [(I32_MAX, 4), (I32_MAX + 1, 8), (-I32_MAX - 1, 4), (-I32_MAX - 2, 8)],
)
def test_timestamps_take_64_bits_only_where_32_do_not_reach(delta: int, width: int) -> None:
    payload = encode_columns([0, delta], None, [None, None], base_timestamp=0)
    assert len(msgpack.unpackb(payload)[1]) == 2 * width
    assert [record.timestamp for record in read_records(pack(payload))] == [0, delta]
    assert [row["timestamp"] for row in read_arrow(pack(payload))] == [0, delta * 1000]


def test_a_header_name_that_is_no_utf8_is_replaced_and_a_null_one_is_empty() -> None:
    headers = pack_headers(counts=i32(2), name_lengths=i32(1, -1), names=b"\xff")
    batch = pack(two_records(headers=headers))
    pairs = (("\ufffd", b"x"), ("", b"yz"))
    assert [record.headers for record in read_records(batch)] == [pairs, ()]
    assert read_arrow(batch)[0]["headers"] == [{"key": k, "value": v} for k, v in pairs]


# Columns that do not add up.


def i32(*items: int) -> bytes:
    return array("i", items).tobytes()


def pack_headers(**changed: bytes) -> bytes:
    """Two headers of record 0, as header columns with some of them changed."""
    columns = {
        "indexes": i32(0),
        "counts": i32(2),
        "name_lengths": i32(1, 1),
        "names": b"ab",
        "value_lengths": i32(1, 2),
        "values": b"xyz",
    }
    assert changed.keys() <= columns.keys()
    return msgpack.packb(list({**columns, **changed}.values()))


def two_records(**changed: bytes | None) -> bytes:
    """The payload of two records with some columns changed."""
    columns: dict[str, bytes | None] = {
        "offset_deltas": None,
        "timestamp_deltas": i32(0, 5),
        "key_lengths": i32(-1, 2),
        "keys": b"kk",
        "value_lengths": i32(3, 0),
        "values": b"vvv",
        "headers": pack_headers(),
    }
    assert changed.keys() <= columns.keys()
    return pack_columns(**{**columns, **changed})


def pack(payload: bytes, *, count: int = 2, last: int = 4, at: int = 0, since: int = 0) -> bytes:
    raw = encode_batch(
        payload,
        record_count=count,
        last_offset_delta=last,
        base_timestamp=since,
        max_timestamp=since,
        base_offset=at,
    )
    return bytes(raw)


def test_the_columns_that_the_cases_change_are_good_unchanged() -> None:
    batch = pack(two_records())
    first, second = read_records(batch)
    assert (first.key, first.value, first.headers) == (None, b"vvv", (("a", b"x"), ("b", b"yz")))
    assert (second.key, second.value, second.headers) == (b"kk", b"", ())
    assert read_arrow(batch) == [as_row(first), as_row(second)]


CASES = {
    "lengths of values add up to too much": two_records(value_lengths=i32(3, 1)),
    "lengths of values add up to too little": two_records(value_lengths=i32(2, 0)),
    "lengths of values but no values": two_records(values=b""),
    "values but lengths of nulls": two_records(value_lengths=i32(-1, -1)),
    "lengths of keys add up to too much": two_records(key_lengths=i32(1, 2)),
    "lengths of keys add up to too little": two_records(key_lengths=i32(-1, 1)),
    "a length of -2 among values": two_records(value_lengths=i32(-2, 3)),
    "a length of -2 that makes the sum right": two_records(value_lengths=i32(5, -2)),
    "a length of -2 among keys": two_records(key_lengths=i32(-2, 2)),
    "the least length": two_records(key_lengths=i32(-I32_MAX - 1, 2)),
    "lengths of one value": two_records(value_lengths=i32(3)),
    "lengths of three values": two_records(value_lengths=i32(3, 0, 0)),
    "lengths of one key": two_records(key_lengths=i32(2)),
    "lengths that are no multiple of four bytes": two_records(key_lengths=i32(-1, 2)[:-1]),
    "one timestamp": two_records(timestamp_deltas=i32(0)),
    "three timestamps": two_records(timestamp_deltas=i32(0, 1, 2)),
    "no timestamps": two_records(timestamp_deltas=b""),
    "one offset": two_records(offset_deltas=i32(0)),
    "three offsets": two_records(offset_deltas=i32(0, 1, 2)),
    "an offset twice": two_records(offset_deltas=i32(1, 1)),
    "falling offsets": two_records(offset_deltas=i32(2, 1)),
    "an offset before the batch": two_records(offset_deltas=i32(-1, 0)),
    "an offset after the batch": two_records(offset_deltas=i32(0, 5)),
    "a byte after the columns": two_records() + b"\xc0",
    "no bytes at all": b"",
    "six columns": b"\x96" + two_records()[1:],
    "a map of columns": b"\x87" + two_records()[1:],
    "nil for the values": b"\x97\xc0" + msgpack.packb(i32(0, 5)) + b"\xc0" * 5,
    "a string for the timestamps": b"\x97\xc0\xa8" + two_records()[4:],
}
HEADER_CASES = {
    "an index twice": pack_headers(indexes=i32(1, 1), counts=i32(1, 1)),
    "falling indexes": pack_headers(indexes=i32(1, 0), counts=i32(1, 1)),
    "an index before the records": pack_headers(indexes=i32(-1)),
    "an index after the records": pack_headers(indexes=i32(2)),
    "indexes of five bytes": pack_headers(indexes=i32(0) + b"\0"),
    "more indexes than counts": pack_headers(indexes=i32(0, 1)),
    "a count of 0": pack_headers(indexes=i32(0, 1), counts=i32(2, 0)),
    "a count of -1": pack_headers(indexes=i32(0, 1), counts=i32(3, -1)),
    "counts above the names": pack_headers(counts=i32(3)),
    "counts below the names": pack_headers(counts=i32(1)),
    "a count of 2**31 - 1": pack_headers(counts=i32(I32_MAX)),
    "names too short": pack_headers(names=b"a"),
    "a name of length -2": pack_headers(name_lengths=i32(-2, 2)),
    "values too long": pack_headers(values=b"wxyz"),
    "a value of length -2": pack_headers(value_lengths=i32(5, -2)),
    "one value": pack_headers(value_lengths=i32(3)),
    "five columns": b"\x95" + pack_headers()[1:],
    "a number": b"\x01",
    "a bin": b"\xc4\x00",
}


def assert_corrupt(batch: bytes, header: BatchHeader | None = None) -> None:
    """Every way to read the batch says that it is corrupt."""
    header = header or parse_header(batch)
    for read in (open_batch, read_records, read_arrow):
        with pytest.raises(CorruptBatch):
            read(batch, header)


@pytest.mark.parametrize("case", CASES)
def test_columns_that_do_not_add_up_are_corrupt(case: str) -> None:
    assert_corrupt(pack(CASES[case]))


@pytest.mark.parametrize("case", HEADER_CASES)
def test_header_columns_that_do_not_add_up_are_corrupt(case: str) -> None:
    assert_corrupt(pack(two_records(headers=HEADER_CASES[case])))


def test_lengths_that_add_up_only_in_32_bits_are_corrupt() -> None:
    lengths = i32(I32_MAX, I32_MAX, 5)  # 2**32 + 3
    payload = pack_columns(i32(0, 1, 2), i32(0, 0, 0), i32(-1, -1, -1), b"", lengths, b"vvv", None)
    assert_corrupt(pack(payload, count=3))


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 24])
def test_a_count_that_is_not_the_columns_is_corrupt(count: int) -> None:
    assert_corrupt(pack(two_records(), count=count, last=1 << 24))


def test_more_records_than_offsets_are_corrupt() -> None:
    assert_corrupt(pack(two_records(), last=0))
    assert len(read_records(pack(two_records(), last=1))) == 2


def test_header_columns_of_no_record_are_corrupt_or_no_headers() -> None:
    batch = pack(two_records(headers=msgpack.packb([b""] * 6)))
    for read in (read_records, read_arrow):
        rows = read_or_none(read, batch)
        assert rows is None or len(rows) == 2


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_payload_above_the_readers_limit_is_corrupt(codec: str) -> None:
    payload = two_records()
    batch = encode_batch(payload, record_count=2, base_timestamp=0, max_timestamp=5, codec=codec)
    header = parse_header(batch)
    assert open_batch(batch, header, inflated_max=len(payload)).record_count == 2
    with pytest.raises(CorruptBatch):
        open_batch(batch, header, inflated_max=len(payload) - 1)


# Numbers at the edge of 64 bits.


@pytest.mark.parametrize("deltas", [None, [0, 1], [0, 5]])
@pytest.mark.parametrize("base_offset", [I64_MAX - 6, I64_MAX - 2, I64_MAX - 1, I64_MAX])
def test_offsets_at_the_end_of_64_bits_are_kept_or_corrupt(
    base_offset: int, deltas: list[int] | None
) -> None:
    payload = encode_columns([0, 0], None, [None] * 2, base_timestamp=0, offset_deltas=deltas)
    last = 1 if deltas is None else deltas[-1]
    rows = read_or_none(read_arrow, pack(payload, last=last, at=base_offset))
    expected = [base_offset, base_offset + last]
    assert rows is None or [row["offset"] for row in rows] == expected


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("timestamp", [I64_MAX // 1000, I64_MAX // 1000 + 1, 1 << 62])
def test_a_timestamp_is_kept_by_arrow_or_corrupt(timestamp: int, sign: int) -> None:
    payload = encode_columns([0], None, [None], base_timestamp=0)
    rows = read_or_none(read_arrow, pack(payload, count=1, since=sign * timestamp))
    assert rows is None or rows[0]["timestamp"] == sign * timestamp * 1000


# Damage.

EXTREMES = [0, 1, 2, 3, 4, 100, I32_MAX, -1, -2, -3, -I32_MAX - 1]


def read_or_none(read, *batch):
    """What `read` makes of it, None for CorruptBatch; any other exception fails the test."""
    try:
        return read(*batch)
    except CorruptBatch:
        return None


def damage(data: st.DataObject, payload: bytes) -> bytes:
    """One to three cuts, insertions, flipped bits, or integers written over what was there."""
    raw = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 3), "wounds")):
        kind = data.draw(st.sampled_from(["integer", "bit", "insert", "delete", "cut"]))
        place = data.draw(st.integers(0, max(len(raw) - 1, 0)), "place")
        if kind == "integer":
            raw[place : place + 4] = i32(data.draw(st.sampled_from(EXTREMES)))
        elif kind == "bit" and raw:
            raw[place] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "insert":
            raw[place:place] = data.draw(st.binary(min_size=1, max_size=4))
        elif kind == "delete":
            del raw[place : place + data.draw(st.integers(1, 4))]
        else:
            del raw[place:]
    return bytes(raw)


def check_readers_agree(batch: bytes, header: BatchHeader) -> None:
    """What opens can be read both ways to the same rows, but for times that Arrow cannot say; what
    does not open cannot be read."""
    opened = read_or_none(open_batch, batch, header)
    records = read_or_none(read_records, batch, header)
    rows = read_or_none(read_arrow, batch, header)
    if any(abs(record.timestamp) > TIMESTAMP_MAX for record in records or ()):
        assert rows is None
        return
    assert (records is None) == (rows is None) == (opened is None)
    if records is None or rows is None:
        return
    offsets = [record.offset for record in records]
    assert len(records) == header.record_count
    assert offsets == sorted(set(offsets)), "offsets rise"
    assert all(header.base_offset <= offset <= header.last_offset for offset in offsets)
    for record, row in zip(records, rows, strict=True):
        assert {**as_row(record), "timestamp": 0} == {**row, "timestamp": 0}


@given(draft=drafts(), data=st.data())
@settings(max_examples=tries(600), deadline=None)
def test_damaged_columns_are_corrupt_or_read_the_same_both_ways(
    draft: Draft, data: st.DataObject
) -> None:
    batch = draft.batch()
    header = parse_header(batch)
    if data.draw(st.booleans(), "damaged count"):
        count = data.draw(st.integers(0, 12) | st.integers(0, 1 << 24))
        last = data.draw(st.integers(0, 12) | st.integers(0, I32_MAX))
        header = header._replace(record_count=count, last_offset_delta=last)
    check_readers_agree(batch[:HEADER_BYTES] + damage(data, batch[HEADER_BYTES:]), header)


@given(data=st.data())
@some
def test_a_payload_cut_anywhere_is_corrupt(data: st.DataObject) -> None:
    batch = data.draw(drafts()).batch()
    size = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    assert_corrupt(batch[:size], parse_header(batch))


@given(payload=st.binary(max_size=60), count=st.integers(0, 3))
@some
def test_random_columns_are_corrupt(payload: bytes, count: int) -> None:
    assert_corrupt(pack(payload, count=count))
    assert_corrupt(pack(b"\x97\xc0" + payload, count=count + 100, last=200))
