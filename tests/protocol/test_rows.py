"""Rows: Kafka's batches are read as every other client reads them, and written so that they can.

Goal: what a Kafka client wrote is what every reader here makes of it, what is written here Kafka's
clients read, and rows that do not add up are `CorruptBatch`. Method: the record classes of aiokafka
and kafka-python stand on the other side; the reading with numpy is held against the plain one; the
named cases are rows written by hand; Hypothesis draws records and damage.
"""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_records import BUILDERS, JUDGES
from tries import tries

from hightide.arrow.to_arrow import join_arrow
from hightide.protocol import row_spans_numpy
from hightide.protocol.codecs import ROW_CODECS
from hightide.protocol.columns import Headers, encode_columns, open_batch, to_records
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import (
    ROWS_MAGIC,
    BatchHeader,
    check_crc,
    encode_batch,
    parse_header,
    stamp,
    stamp_append_time,
)
from hightide.protocol.row_spans import HEADERS_MAX, SPAN_RECORDS, RowHeaders, read_span
from hightide.protocol.rows import NUMPY_FROM, decode_rows, encode_rows, make_ready

BASE = 1_700_000_000_000

some = settings(max_examples=tries(60), deadline=None)
many = settings(max_examples=tries(200), deadline=None)

blobs = st.none() | st.binary(max_size=6) | st.binary(min_size=60, max_size=70)
header_lists = st.lists(st.tuples(st.text(max_size=4), blobs), max_size=3).map(tuple)


class Row(NamedTuple):
    """What a client sees of a record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Draft(NamedTuple):
    """Some records before they are written; compaction may have left gaps."""

    rows: list[Row]
    last_offset_delta: int
    base_timestamp: int
    codec: str

    def batch(self) -> bytearray:
        payload = encode_rows(
            [row.timestamp - self.base_timestamp for row in self.rows],
            [row.offset for row in self.rows],
            [row.key for row in self.rows],
            [row.value for row in self.rows],
            {index: row.headers for index, row in enumerate(self.rows) if row.headers},
        )
        return encode_batch(
            payload,
            record_count=len(self.rows),
            last_offset_delta=self.last_offset_delta,
            base_timestamp=self.base_timestamp,
            max_timestamp=max((row.timestamp for row in self.rows), default=-1),
            codec=self.codec,
            magic=ROWS_MAGIC,
        )

    def columns(self) -> bytearray:
        """The same as a batch of columns."""
        payload = encode_columns(
            [row.timestamp for row in self.rows],
            [row.key for row in self.rows],
            [row.value for row in self.rows],
            {index: row.headers for index, row in enumerate(self.rows) if row.headers},
            base_timestamp=self.base_timestamp,
            offset_deltas=[row.offset for row in self.rows],
        )
        return encode_batch(
            payload,
            record_count=len(self.rows),
            last_offset_delta=self.last_offset_delta,
            base_timestamp=self.base_timestamp,
            max_timestamp=max((row.timestamp for row in self.rows), default=-1),
            codec=self.codec,
            base_offset=1000,
            leader_epoch=6,
            producer_id=12,
            producer_epoch=3,
            base_sequence=70,
        )


@st.composite
def drafts(draw: st.DrawFn, codecs: tuple[str, ...] = tuple(ROW_CODECS)) -> Draft:
    """Batches of up to 9 records."""
    deltas = sorted(draw(st.sets(st.integers(0, 12) | st.integers(0, 1 << 30), max_size=9)))
    if draw(st.booleans()):
        deltas = list(range(len(deltas)))
    times = st.integers(BASE - 50, BASE + 50) | st.integers(0, 1 << 52)
    rows = [Row(at, draw(times), draw(blobs), draw(blobs), draw(header_lists)) for at in deltas]
    last = (deltas[-1] if deltas else 0) + draw(st.integers(0, 2))
    return Draft(rows, last, draw(times), draw(st.sampled_from(codecs)))


def read(batch: bytes | bytearray, header: BatchHeader | None = None) -> list[Row]:
    """What a client of this house reads."""
    header = header or parse_header(batch)
    check_crc(batch, header)
    return [Row(*row) for row in map(as_row, to_records(batch, header, "jade", 3))]


def spoken(draft: Draft, client: str) -> Draft:
    """In a codec that the client has: kafka-python looks for another library of snappy's."""
    lacks_it = client == "kafka-python" and draft.codec == "snappy"
    return draft._replace(codec="gzip") if lacks_it else draft


def as_row(record) -> Row:
    return Row(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


def judged(batch: bytes | bytearray, judge: str) -> list[Row]:
    """What a Kafka client reads."""
    found = JUDGES[judge](bytes(batch))
    assert found.validate_crc()
    return [as_row(record) for record in found]


# There and back.


@given(draft=drafts())
@many
def test_records_come_back_as_they_went_in(draft: Draft) -> None:
    assert read(draft.batch()) == draft.rows


@pytest.mark.parametrize("judge", JUDGES)
@given(draft=drafts())
@many
def test_kafkas_clients_read_what_is_written_here(judge: str, draft: Draft) -> None:
    assert judged(spoken(draft, judge).batch(), judge) == draft.rows


@pytest.mark.parametrize("builder", BUILDERS)
@given(draft=drafts().filter(lambda draft: draft.rows))
@many
def test_what_kafkas_clients_write_is_read_here(builder: str, draft: Draft) -> None:
    codec = ROW_CODECS[spoken(draft, builder).codec]
    built = BUILDERS[builder](2, codec, 0, 5, 1, 40, 1 << 20)
    rows = [row._replace(offset=index) for index, row in enumerate(draft.rows)]
    for row in rows:
        built.append(row.offset, row.timestamp, row.key, row.value, list(row.headers))
    batch = bytearray(built.build())
    header = parse_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 40)
    assert read(batch) == rows


@given(draft=drafts())
@many
def test_arrow_has_the_same_records(draft: Draft) -> None:
    batch = draft.batch()
    header = parse_header(batch)
    opened = open_batch(batch, header, check_sums=False)
    table = join_arrow([(header, opened)], "jade", 3, include_headers=True)
    table.validate(full=True)
    place = table.schema.get_field_index("timestamp")
    table = table.set_column(place, "timestamp", table["timestamp"].cast(pa.int64()))
    found = [
        Row(
            row["offset"],
            row["timestamp"] // 1000,
            row["key"],
            row["value"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
        )
        for row in table.to_pylist()
    ]
    assert found == draft.rows


def test_batches_of_both_kinds_are_one_table_of_arrow() -> None:
    row = Row(0, BASE, b"k", b"v", ())
    draft = Draft([row], 0, BASE, "none")
    batches = [draft.batch(), draft.columns()]
    opened = [(parse_header(b), open_batch(b, parse_header(b))) for b in batches]
    assert join_arrow(opened, "jade", 3).column("value").to_pylist() == [b"v", b"v"]
    assert join_arrow(opened, "jade", 3).column("offset").to_pylist() == [0, 1000]


def test_what_the_broker_stamps_kafkas_clients_read() -> None:
    batch = Draft([Row(0, BASE, b"k", b"v", ())], 0, BASE, "none").batch()
    stamp(batch, base_offset=500, leader_epoch=9)
    stamp_append_time(batch, BASE + 77)
    expected = [Row(500, BASE + 77, b"k", b"v", ())]
    assert read(batch) == judged(batch, "aiokafka") == judged(batch, "kafka-python") == expected


# Numpy and without.


def large(draft_headers: Headers = ()) -> tuple[bytes, list[int]]:
    """A payload of more records than a span has, of all sizes."""
    count = 2 * SPAN_RECORDS + 17
    times = [(index * 7919) % 100_000 - 50_000 for index in range(count)]
    keys = [None if index % 5 == 0 else b"k" * (index % 200) for index in range(count)]
    values = [None if index % 7 == 0 else b"v" * (index % 150) for index in range(count)]
    headers = {index: draft_headers for index in range(0, count, 3) if draft_headers}
    return encode_rows(times, range(count), keys, values, headers), times


@pytest.mark.parametrize("headers", [(), (("a", b"x"), ("b", None))])
def test_many_records_are_read_alike_with_numpy_and_without(
    headers: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_ready()
    payload, times = large(headers)
    fast = decode_rows(payload, len(times))
    monkeypatch.setattr("hightide.protocol.rows._numpy_reader", lambda: None)
    plain = decode_rows(payload, len(times))
    assert fast == plain
    assert fast.timestamp_deltas.tolist() == times
    assert fast.offset_deltas is None
    assert len(times) > NUMPY_FROM


@given(draft=drafts(("none",)).filter(lambda draft: draft.rows), data=st.data())
@many
def test_numpy_reads_the_same_or_leaves_it_to_the_plain_reading(
    draft: Draft, data: st.DataObject
) -> None:
    payload = bytearray(draft.batch()[61:])
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    arguments = {"first": 0, "limit": len(draft.rows)}
    plain = fast = None
    with suppress(CorruptBatch):
        found = RowHeaders()
        plain = (*read_span(bytes(payload), 0, **arguments, headers=found), found.columns())
    with suppress(CorruptBatch):
        found = RowHeaders()
        span = row_spans_numpy.read_span(bytes(payload), 0, **arguments, headers=found)
        if span is None:
            return
        fast = (*span, found.columns())
    assert fast == plain


# Rows that do not add up.


def varint(number: int) -> bytes:
    raw, written = (number << 1) ^ (number >> 63), b""
    while raw > 0x7F:
        written, raw = written + bytes([raw & 0x7F | 0x80]), raw >> 7
    return written + bytes([raw])


def record(
    *,
    attributes: bytes = b"\0",
    time: bytes = varint(0),
    offset: int = 0,
    key: bytes = varint(1) + b"k",
    value: bytes = varint(2) + b"vv",
    headers: bytes = varint(0),
    extra: int = 0,
) -> bytes:
    """A record by hand; `extra` is added to what its length says."""
    body = attributes + time + varint(offset) + key + value + headers
    return varint(len(body) + extra) + body


def in_batch(payload: bytes, *, count: int = 1, last: int = 0) -> bytes:
    raw = encode_batch(
        payload,
        record_count=count,
        last_offset_delta=last,
        base_timestamp=0,
        max_timestamp=0,
        magic=ROWS_MAGIC,
    )
    return bytes(raw)


def test_the_row_that_the_cases_change_is_good_unchanged() -> None:
    batch = in_batch(record(headers=varint(1) + varint(1) + b"h" + varint(-1)))
    assert read(batch) == judged(batch, "aiokafka") == [Row(0, 0, b"k", b"vv", (("h", None),))]


def test_a_number_that_is_written_too_long_is_read_all_the_same() -> None:
    assert read(in_batch(record(time=b"\x82\x80\0"))) == [Row(0, 1, b"k", b"vv", ())]


LONG = b"\xff" * 4 + b"\x7f"
"""More than 32 bits."""
CASES = {
    "no bytes": b"",
    "a length and nothing": b"\x0a",
    "attributes": record(attributes=b"\x01"),
    "a length of 0": b"\0",
    "a negative length": b"\x01" + record()[1:],
    "a length that is too large": record(extra=1),
    "a length that is too small": record(extra=-1),
    "a length of 36 bits": LONG + record()[1:],
    "a length of 40 bits": b"\xff" * 6 + record()[1:],
    "a key length of -2": record(key=varint(-2)),
    "a value length of -2": record(value=varint(-2)),
    "a key that is not there": record(key=varint(100)),
    "a value of 2 GiB": record(value=varint((1 << 31) - 1)),
    "a key length of 36 bits": record(key=LONG),
    "a value with a byte too few": record(value=varint(3) + b"vv"),
    "a timestamp of 70 bits": record(time=b"\xff" * 9 + b"\x7f"),
    "a timestamp of 77 bits": record(time=b"\xff" * 10 + b"\x01"),
    "headers of which there are -1": record(headers=varint(-1)),
    "headers that are not there": record(headers=varint(1)),
    "a header without a name": record(headers=varint(1) + varint(-1) + varint(-1)),
    "a header value of length -2": record(headers=varint(1) + varint(0) + varint(-2)),
    "a header name into the next record": record(headers=varint(1) + varint(3) + b"h"),
    "a header value into the next record": record(headers=varint(1) + varint(0) + varint(1)),
    "more headers than say so": record(headers=varint(1) + (varint(0) + varint(-1)) * 2),
    "headers by the million": record(headers=varint(1 << 20)),
    "a byte behind the record": record() + b"\0",
    "a record behind the last": record() + record(offset=1),
}


@pytest.mark.parametrize("padding", [0, NUMPY_FROM])
@pytest.mark.parametrize("case", CASES)
def test_rows_that_do_not_add_up_are_corrupt(case: str, padding: int) -> None:
    """Alone, and behind so many good ones that numpy reads them."""
    good = b"".join(record(offset=index) for index in range(padding))
    with pytest.raises(CorruptBatch):
        read(in_batch(good + CASES[case], count=padding + 1, last=padding + 1))


def test_more_headers_than_the_limit_are_refused_by_name() -> None:
    headers = (varint(0) + varint(-1)) * (HEADERS_MAX + 1)
    assert len(read(in_batch(record(headers=varint(HEADERS_MAX) + headers[2:])))) == 1
    with pytest.raises(CorruptBatch, match=f"0 to {HEADERS_MAX}"):
        read(in_batch(record(headers=varint(HEADERS_MAX + 1) + headers)))


OFFSETS = {
    "twice the same": ([0, 0], 1),
    "falling": ([1, 0], 1),
    "before the batch": ([-1, 0], 1),
    "behind the batch": ([0, 2], 1),
}


@pytest.mark.parametrize("case", OFFSETS)
def test_offsets_that_do_not_rise_within_the_batch_are_corrupt(case: str) -> None:
    deltas, last = OFFSETS[case]
    payload = b"".join(record(offset=delta) for delta in deltas)
    with pytest.raises(CorruptBatch, match="do not rise"):
        read(in_batch(payload, count=2, last=last))


@pytest.mark.parametrize("count", [0, 2, 1 << 24])
def test_a_count_that_is_not_the_rows_is_corrupt(count: int) -> None:
    with pytest.raises(CorruptBatch):
        read(in_batch(record(), count=count, last=1 << 24))


@pytest.mark.parametrize("codec", ROW_CODECS)
def test_a_batch_that_compaction_emptied_is_a_header_alone(codec: str) -> None:
    batch = Draft([], 7, BASE, codec).batch()
    assert len(batch) == 61
    assert read(batch) == judged(batch, "aiokafka") == []
    assert parse_header(batch).next_offset == 8


@pytest.mark.parametrize("codec", ROW_CODECS)
def test_a_payload_above_the_readers_limit_is_corrupt(codec: str) -> None:
    rows = [Row(index, BASE, b"k", b"v" * 50, ()) for index in range(20)]
    batch = Draft(rows, 19, BASE, codec).batch()
    header = parse_header(batch)
    size = len(Draft(rows, 19, BASE, "none").batch()) - 61
    assert open_batch(batch, header, inflated_max=size).record_count == 20
    with pytest.raises(CorruptBatch):
        open_batch(batch, header, inflated_max=size - 1)


@given(draft=drafts(("none",)).filter(lambda draft: draft.rows))
@some
def test_rows_cut_anywhere_are_corrupt(draft: Draft) -> None:
    payload = bytes(draft.batch()[61:])
    for size in range(len(payload)):
        with pytest.raises(CorruptBatch):
            decode_rows(payload[:size], len(draft.rows))


@given(draft=drafts(("none",)).filter(lambda draft: draft.rows), data=st.data())
@many
def test_a_flipped_bit_makes_rows_corrupt_or_other_ones_of_the_same_number(
    draft: Draft, data: st.DataObject
) -> None:
    damaged = draft.batch()[61:]
    for _ in range(10):
        bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
        damaged[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptBatch):
            columns = decode_rows(damaged, len(draft.rows))
            assert len(columns.timestamp_deltas) == len(draft.rows)


@given(payload=st.binary(max_size=200), count=st.integers(0, 30))
@many
def test_random_bytes_are_corrupt_or_rows(payload: bytes, count: int) -> None:
    with suppress(CorruptBatch):
        assert decode_rows(payload, count).record_count == count


def test_a_count_of_millions_over_few_rows_costs_no_memory() -> None:
    payload = b"".join(record(offset=index) for index in range(1000))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="cut off"):
            decode_rows(payload, 1 << 24)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
