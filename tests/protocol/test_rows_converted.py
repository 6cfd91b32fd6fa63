"""Batches of columns, converted for Kafka's clients: the same records, and a batch that says the
same.

Method: as in `test_rows.py`, whose drafts and judges these are.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from test_rows import BASE, Draft, Row, drafts, judged, many, read

from hightide.protocol.columns import encode_columns
from hightide.protocol.conversion import converting, to_rows
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import (
    ROWS_MAGIC,
    check_crc,
    encode_batch,
    parse_header,
    stamp_append_time,
)
from hightide.protocol.row_spans import SPAN_RECORDS


@given(draft=drafts(("none", "lz4", "zstd")))
@many
def test_a_converted_batch_has_the_same_records_and_says_the_same(draft: Draft) -> None:
    native = draft.columns()
    header = parse_header(native)
    batch = to_rows(native, header)
    attributes = header.attributes if draft.rows else 0
    expected = header._replace(
        magic=ROWS_MAGIC, batch_length=len(batch) - 12, attributes=attributes
    )
    assert parse_header(batch)._replace(crc=header.crc) == expected
    rows = [row._replace(offset=1000 + row.offset) for row in draft.rows]
    assert read(batch) == judged(batch, "aiokafka") == judged(batch, "kafka-python") == rows


def test_the_stamped_time_of_a_converted_batch_is_that_of_its_records() -> None:
    native = Draft([Row(0, BASE, b"k", b"v", ())], 0, BASE, "zstd").columns()
    stamp_append_time(native, BASE + 5)
    batch = to_rows(native, parse_header(native))
    assert [row.timestamp for row in judged(batch, "aiokafka")] == [BASE + 5]


def test_a_batch_of_rows_is_not_converted() -> None:
    batch = Draft([Row(0, BASE, None, b"v", ())], 0, BASE, "snappy").batch()
    assert to_rows(batch, parse_header(batch)) is batch


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_batch_of_several_spans_has_the_same_records_when_it_is_converted(
    codec: str, gaps: bool
) -> None:
    count = 2 * SPAN_RECORDS + 17
    step = 3 if gaps else 1
    rows = [
        Row(
            step * index,
            BASE + index * 7919 % 1000,
            None if index % 5 == 0 else b"k" * (index % 40),
            None if index % 7 == 0 else b"v%d" % index,
            (("a", b"%d" % index), ("b", None)) if index % 11 == 3 else (),
        )
        for index in range(count)
    ]
    native = Draft(rows, step * (count - 1), BASE, codec).columns()
    batch = to_rows(native, parse_header(native))
    check_crc(batch, parse_header(batch))
    expected = [row._replace(offset=1000 + row.offset) for row in rows]
    assert read(batch) == judged(batch, "aiokafka") == expected


def test_a_batch_of_large_records_is_converted_in_steps() -> None:
    rows = [Row(index, BASE, b"k" * 50_000, b"v" * 50_000, ()) for index in range(100)]
    native = Draft(rows, len(rows) - 1, BASE, "none").columns()
    assert sum(1 for _ in converting(native, parse_header(native))) >= 10


def test_a_large_batch_is_converted_in_steps() -> None:
    rows = [Row(index, BASE, b"k", b"v", ()) for index in range(5 * SPAN_RECORDS)]
    native = Draft(rows, len(rows) - 1, BASE, "none").columns()
    assert sum(1 for _ in converting(native, parse_header(native))) >= 5


def test_a_batch_of_columns_that_cannot_be_opened_is_not_converted() -> None:
    native = encode_batch(b"no columns", record_count=1, base_timestamp=0, max_timestamp=0)
    with pytest.raises(CorruptBatch):
        to_rows(native, parse_header(native))


@pytest.mark.parametrize("deltas", [[-20_000, 1], [-1, 0], [1, 1], [0, 9]])
def test_offsets_that_do_not_rise_within_their_batch_are_not_converted(deltas: list[int]) -> None:
    payload = encode_columns([0, 0], None, [b"a", b"b"], base_timestamp=0, offset_deltas=deltas)
    native = encode_batch(
        payload, record_count=2, last_offset_delta=8, base_timestamp=0, max_timestamp=0
    )
    with pytest.raises(CorruptBatch, match="do not rise"):
        to_rows(native, parse_header(native))
