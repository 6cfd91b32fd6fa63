"""Batches of a partition that become one Arrow batch are the same rows as one by one.

Goal: joining saves time and changes nothing; a batch that does not add up is noticed although its
neighbour makes up for it. Method: any batches of the log, joined and single.
"""

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logkit import make_batch

from hightide.arrow.to_arrow import cut, join_arrow, schema
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


@given(logs(), st.integers(0, 20), st.integers(0, 20))
def test_rows_are_cut_by_their_offsets(parts, begin, size):
    rows = join_arrow(parts, "t", 3)
    start = rows.column("offset")[0].as_py() - 2 + begin
    offsets = rows.column("offset").to_pylist()
    inside = [offset for offset in offsets if start <= offset < start + size]
    assert cut(rows, start, start + size).column("offset").to_pylist() == inside


def test_a_topic_whose_name_does_not_fit_is_told():
    header, columns = opened(make_batch(1, value=b""))
    many = 1 << 24
    zeros = memoryview(bytes(4 * many)).cast("i")
    columns = columns._replace(
        record_count=many, key_lengths=zeros, value_lengths=zeros, timestamp_deltas=zeros
    )
    with pytest.raises(CorruptBatch, match="more than 2 GiB"):
        join_arrow([(header, columns)], "t" * 249, 0)


ROWS = """
import sys
from logkit import make_batch
from hightide.arrow.to_arrow import rows_from
from hightide.protocol.columns import open_batch
from hightide.protocol.records import parse_header
batch = make_batch(3, value=b"v")
header = parse_header(batch)
rows = rows_from([(header, open_batch(batch, header, check_sums=False))], "t", 0, start=1)
print(rows.num_rows, "pandas" in sys.modules)
"""


def test_rows_do_not_import_pandas():
    # Half a second, at the first poll of a program and in each of Spark's workers.
    ran = subprocess.run(
        [sys.executable, "-c", ROWS],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["2", "False"]
