"""Batches of a partition that become one Arrow batch are the same rows as one by one.

Goal: joining saves time and changes nothing; a batch that does not add up is noticed although its
neighbour makes up for it. Method: any batches of the log, joined and single.
"""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logkit import make_batch

from hightide.arrow.to_arrow import join_arrow, schema
from hightide.protocol.columns import encode_columns, open_batch
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import encode_batch, parse_header


@st.composite
def logs(draw):
    """Neighbouring batches, some with gaps in or between them, some with wide timestamps."""
    at, found = draw(st.integers(0, 1 << 40)), []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.integers(1, 6))
        span = draw(st.sampled_from([10, 1 << 36]))
        times = draw(st.lists(st.integers(0, span), min_size=count, max_size=count))
        gaps = draw(st.none() | st.just([2 * n for n in range(count)]))
        value = draw(st.binary(max_size=5))
        batch = make_batch(
            count, timestamps=times, value=value, base_offset=at, epoch=1, offset_deltas=gaps
        )
        found.append(opened(batch))
        at = found[-1][0].next_offset + draw(st.integers(0, 3))
    return found


def opened(batch):
    header = parse_header(batch)
    return header, open_batch(batch, header, check_sums=False)


@given(logs())
def test_joined_batches_have_the_rows_of_the_single_ones(parts):
    joined = join_arrow(parts, "t", 3, include_leader_epoch=True)
    joined.validate(full=True)
    single = [join_arrow([part], "t", 3, include_leader_epoch=True) for part in parts]
    assert pa.Table.from_batches([joined]) == pa.Table.from_batches(single).combine_chunks()


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_batch_that_its_neighbour_makes_up_for_is_corrupt(column):
    def part(length, data):
        header, columns = opened(make_batch(1, value=b"v"))
        lengths = memoryview(length.to_bytes(4, "little")).cast("i")
        changed = {f"{column}_lengths": lengths, f"{column}s": memoryview(data)}
        return header, columns._replace(**changed)

    join_arrow([part(2, b"ab"), part(1, b"c")], "t", 0)
    with pytest.raises(CorruptBatch, match="lengths add up to 1, 2 bytes are there"):
        join_arrow([part(1, b"ab"), part(2, b"c")], "t", 0)


def test_arrow_points_into_an_uncompressed_batch():
    batch = make_batch(2, value=b"long value")
    table = join_arrow([opened(batch)], "t", 0)
    start = pa.py_buffer(batch).address
    data = table["value"].buffers()[2]
    assert start < data.address < start + len(batch)


def test_headers_are_left_out_unless_asked_for():
    payload = encode_columns([0], None, [b"v"], {0: (("n", b"x"),)}, base_timestamp=0)
    part = opened(encode_batch(payload, record_count=1, base_timestamp=0, max_timestamp=0))
    assert join_arrow([part], "t", 0).schema == schema()
    assert join_arrow([part], "t", 0, include_headers=True).schema == schema(include_headers=True)
