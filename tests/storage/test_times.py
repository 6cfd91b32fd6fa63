"""Records are found by their time, whatever a batch holds, and nobody is held up meanwhile.

Goal: what is found is what somebody finds who reads everything, also where the log begins inside a
batch; and a batch of many records is looked into in steps. Method: Hypothesis over logs of both
forms of batches, against the naive answer; a batch of many by hand.
"""

from functools import partial

import pytest
from brokers import batch
from hypothesis import given, settings
from hypothesis import strategies as st
from logkit import contents, create, lead, newest_record, record_since
from tries import tries

from hightide.protocol.codecs import at_once
from hightide.protocol.columns import to_records
from hightide.protocol.conversion import to_rows
from hightide.protocol.records import LOG_APPEND_TIME, iter_batches, parse_header
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.segment import LogConfig
from hightide_broker.storage.times import Dated, first_since, newest_from

TIMES = st.integers(0, 30)
BATCHES = st.lists(
    st.tuples(
        st.lists(TIMES, min_size=1, max_size=6),
        st.sampled_from(["none", "lz4", "zstd"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def made(times, codec="none", *, rows):
    data = batch(*[b"v"] * len(times), times=times, codec=codec)
    return bytearray(to_rows(data, parse_header(data))) if rows else data


@settings(max_examples=tries(200), deadline=None)
@given(BATCHES, st.floats(0, 1), st.integers(200, 600))
def test_what_is_found_is_what_a_reader_of_everything_finds(batches, share, segment_bytes):
    log = create(SimDisk(), config=LogConfig(segment_bytes=segment_bytes, index_interval_bytes=80))
    for times, codec, rows in batches:
        lead(log, made(times, codec, rows=rows))
    log.advance_log_start(int(share * log.log_end))
    there = [
        (record.timestamp, record.offset)
        for stored in contents(log)
        for header, data in iter_batches(stored.data)
        for record in to_records(data, header, "t", 0)
        if record.offset >= log.log_start
    ]
    for time in range(32):
        expected = next((pair for pair in there if pair[0] >= time), None)
        found = record_since(log, time)
        assert (found and (found.timestamp, found.offset)) == expected
    newest = max((time for time, _ in there), default=None)
    expected = next((pair for pair in there if pair[0] == newest), None)
    found = newest_record(log)
    assert (found and (found.timestamp, found.offset)) == expected


@pytest.mark.parametrize(
    "looking",
    [partial(first_since, timestamp=2, start_offset=0), partial(newest_from, start_offset=0)],
)
def test_a_batch_of_many_records_is_looked_into_in_steps(looking):
    data = made([1] * 50_000, "zstd", rows=True)
    many = Dated(parse_header(data), memoryview(data))
    assert sum(1 for _ in looking(many)) > 20


def test_where_the_broker_said_when_all_records_have_its_time():
    for rows in (False, True):
        data = made([1, 2, 3], rows=rows)
        header = parse_header(data)._replace(attributes=LOG_APPEND_TIME, max_timestamp=9)
        found = at_once(first_since(Dated(header, memoryview(data)), 9, start_offset=1))
        assert (found.timestamp, found.offset) == (9, 1)
