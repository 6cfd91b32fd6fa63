"""What a leader refuses to store, rule by rule, with the code that says so.

Goal: no stored batch can break a reader, and every refusal carries Kafka's code. Method: one good
batch that passes; then one change at a time, with the checksum made right again, so that only the
rule under test can refuse it; limits are tried at the limit and one beyond.
"""

import struct

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol.codecs import at_once
from hightide.protocol.columns import encode_columns, encode_headers, pack_columns, to_records
from hightide.protocol.errors import Refused
from hightide.protocol.records import (
    MAGIC,
    TIMESTAMP_MAX,
    crc32c,
    encode_batch,
    parse_header,
    resealing,
)
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication.validation import (
    COLUMNS_HEADERS_MAX,
    COLUMNS_RECORDS_MAX,
    INFLATED_AT_ONCE,
    RECORDS_AT_ONCE,
    admit,
    check_sent,
    takes_long,
)

NOW = 1_700_000_000_000
HOUR = 3_600_000
COMPACT = {"cleanup.policy": "compact"}
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
I32_1 = struct.pack("<i", 1)


def good(times=(NOW,), *, keys=None, values=None, **over):
    """A batch that breaks no rule, but for what `over` says in its header."""
    values = [b"v"] * len(times) if values is None else values
    payload = encode_columns(times, keys, values, base_timestamp=times[0])
    fields = {
        "record_count": len(times),
        "base_timestamp": times[0],
        "max_timestamp": max(times),
        **over,
    }
    return encode_batch(payload, **fields)


def of_columns(**over):
    """A batch of one record `v` whose columns are bytes as given."""
    columns = {
        "offset_deltas": None,
        "timestamp_deltas": bytes(4),
        "key_lengths": b"\xff" * 4,
        "keys": b"",
        "value_lengths": I32_1,
        "values": b"v",
        "headers": None,
        **over,
    }
    return encode_batch(
        pack_columns(**columns), record_count=1, base_timestamp=NOW, max_timestamp=NOW
    )


def patched(data, at, kind, value):
    """The batch with one header field changed, its checksum made right again."""
    struct.pack_into(kind, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def check(data, over=None, *, inflated_max=1 << 20):
    config = TopicConfig.of(over or {}, {})
    header = check_sent(memoryview(data))
    admit(memoryview(data), header, None, config, now_ms=NOW, inflated_max=inflated_max)
    return header


def assert_refused(code, data, over=None, **more):
    before = bytes(data)
    with pytest.raises(Refused) as refusal:
        check(data, over, **more)
    assert refusal.value.code == code, refusal.value
    assert len(refusal.value.message) > 10
    assert bytes(data) == before


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("over", [{}, COMPACT, APPEND_TIME])
def test_a_good_batch_passes_with_its_header_as_it_was(codec, over):
    data = good([NOW, NOW - 5, NOW + 7], keys=[b"a", b"", b"c"], codec=codec)
    sent = parse_header(data)
    assert check(data, over) == sent


# --- sizes --------------------------------------------------------------------------------------


def test_a_batch_may_be_as_large_as_max_message_bytes_and_no_larger():
    data = good(values=[b"x" * 2000])
    check(data, {"max.message.bytes": str(len(data))})
    assert_refused("MESSAGE_TOO_LARGE", data, {"max.message.bytes": str(len(data) - 1)})


def test_a_batch_may_be_as_large_as_a_segment_and_no_larger():
    data = good(values=[b"x" * 2000])
    check(data, {"segment.bytes": str(len(data))})
    assert_refused("RECORD_LIST_TOO_LARGE", data, {"segment.bytes": str(len(data) - 1)})


def test_size_is_judged_before_content_and_damage_before_both():
    junk, large = b"\xff" * 2000, bytearray(good())
    large += bytes(2000 - len(large))
    patched(large, 8, ">i", 2000 - 12)
    assert_refused("CORRUPT_MESSAGE", junk, {"max.message.bytes": "1999"})
    assert_refused("MESSAGE_TOO_LARGE", large, {"max.message.bytes": "1999"})
    assert_refused("RECORD_LIST_TOO_LARGE", large, {"segment.bytes": "1999"})


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_batch_may_inflate_up_to_the_limit_and_no_further(codec):
    payload = encode_columns([NOW], None, [bytes(100_000)], base_timestamp=NOW)
    data = good(values=[bytes(100_000)], codec=codec)
    assert len(data) < 2000
    check(data, inflated_max=len(payload))
    assert_refused("MESSAGE_TOO_LARGE", data, inflated_max=len(payload) - 1)


def test_a_batch_may_have_so_many_records_and_no_more():
    check(good([NOW] * COLUMNS_RECORDS_MAX, codec="zstd"), inflated_max=1 << 24)
    many = good([NOW] * (COLUMNS_RECORDS_MAX + 1), codec="zstd")
    assert len(many) < 2000
    assert_refused("MESSAGE_TOO_LARGE", many, inflated_max=1 << 24)


def test_a_batch_may_have_so_many_headers_and_no_more():
    def with_headers(count):
        headers = encode_headers({0: (("", b""),) * count})
        columns = {"timestamp_deltas": bytes(4), "key_lengths": b"\xff" * 4, "keys": b""}
        values = {"value_lengths": I32_1, "values": b"v", "headers": headers}
        payload = pack_columns(offset_deltas=None, **columns, **values)
        one = {"record_count": 1, "base_timestamp": NOW, "max_timestamp": NOW}
        return encode_batch(payload, codec="zstd", **one)

    check(with_headers(COLUMNS_HEADERS_MAX), inflated_max=1 << 24)
    assert_refused("MESSAGE_TOO_LARGE", with_headers(COLUMNS_HEADERS_MAX + 1), inflated_max=1 << 24)


def views(*batches):
    return [memoryview(bytes(batch)) for batch in batches]


def test_what_takes_long_is_told_by_what_batches_say():
    some = good([NOW] * (RECORDS_AT_ONCE // 2))
    assert not takes_long(views(some, some))
    assert takes_long(views(some, some, good()))
    for codec in ("lz4", "zstd"):
        half = good(values=[bytes(INFLATED_AT_ONCE // 2 - 100)], codec=codec)
        assert not takes_long(views(half, half))
        assert takes_long(views(half, half, half))
    plain = good(values=[bytes(INFLATED_AT_ONCE // 2 - 100)])
    assert not takes_long(views(plain, plain))
    assert takes_long(views(plain, plain, plain))
    assert not takes_long(views(b"", b"\xff" * 100, patched(good(), 21, ">h", 4)))
    with_codec = {"record_count": 1, "base_timestamp": NOW, "max_timestamp": NOW}
    unstated = zstandard.ZstdCompressor(write_content_size=False).compress(b"v")
    plain = encode_batch(unstated, **with_codec)
    at_once(resealing(plain, parse_header(plain), codec="zstd", magic=MAGIC))
    assert takes_long(views(plain))


# --- headers ------------------------------------------------------------------------------------

IDEMPOTENT = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
HEADERS = {
    "a base offset of 1": ("INVALID_RECORD", good(base_offset=1)),
    "a negative base offset": ("CORRUPT_MESSAGE", patched(good(), 0, ">q", -1)),
    "a length that is too small": ("CORRUPT_MESSAGE", patched(good(), 8, ">i", 40)),
    "a length that is too large": ("CORRUPT_MESSAGE", patched(good(), 8, ">i", 4000)),
    "a negative length": ("CORRUPT_MESSAGE", patched(good(), 8, ">i", -1)),
    "a magic of nobody's": ("CORRUPT_MESSAGE", patched(good(), 16, ">b", 3)),
    "columns under the magic of rows": ("INVALID_RECORD", patched(good(), 16, ">b", 2)),
    "no records": ("INVALID_RECORD", patched(good(), 57, ">i", 0)),
    "fewer records than offsets": ("INVALID_RECORD", patched(good([NOW] * 3), 57, ">i", 2)),
    "more records than offsets": ("INVALID_RECORD", patched(good([NOW] * 3), 57, ">i", 4)),
    "a larger last offset": ("INVALID_RECORD", good(last_offset_delta=1)),
    "a smaller last offset": ("INVALID_RECORD", good([NOW] * 3, last_offset_delta=1)),
    "a negative last offset": ("CORRUPT_MESSAGE", patched(good(), 23, ">i", -1)),
    "records by the billion": ("CORRUPT_MESSAGE", patched(good(), 57, ">i", 2**31 - 1)),
    "a negative count": ("CORRUPT_MESSAGE", patched(good(), 57, ">i", -1)),
    "a control batch": ("INVALID_RECORD", good(attributes=0x20)),
    "a transaction": ("INVALID_RECORD", good(attributes=0x10)),
    "a delete horizon": ("INVALID_RECORD", good(attributes=0x40)),
    "an attribute that does not exist": ("INVALID_RECORD", good(attributes=0x4000)),
    "the sign bit of the attributes": ("INVALID_RECORD", patched(good(), 21, ">h", -0x8000)),
    "log append time": ("INVALID_RECORD", good(attributes=0x08)),
    "gzip": ("CORRUPT_MESSAGE", good(attributes=0x01)),
    "snappy": ("CORRUPT_MESSAGE", good(attributes=0x02)),
    "a codec that does not exist": ("CORRUPT_MESSAGE", good(attributes=0x07)),
    "lz4 that is none": ("CORRUPT_MESSAGE", good(attributes=0x03)),
    "a producer without an epoch": ("INVALID_RECORD", good(**{**IDEMPOTENT, "producer_epoch": -1})),
    "a producer without a sequence": (
        "INVALID_RECORD",
        good(**{**IDEMPOTENT, "base_sequence": -1}),
    ),
    "a negative producer": ("INVALID_RECORD", good(**{**IDEMPOTENT, "producer_id": -2})),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_breaks_a_rule_is_refused(name):
    code, data = HEADERS[name]
    assert_refused(code, data)


def test_the_first_sequence_of_an_idempotent_producer_passes():
    assert check(good(**IDEMPOTENT)).producer_id == 5


@pytest.mark.parametrize("change", [b"", b"\0", b"\x48" * 61])
def test_bytes_behind_the_batch_and_none_at_all_are_refused(change):
    assert_refused("CORRUPT_MESSAGE", good() + change if change else b"")


def test_any_flipped_bit_the_checksum_covers_is_refused():
    data = good()
    for position in range(17, len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            assert_refused("CORRUPT_MESSAGE", flipped)


# --- columns ------------------------------------------------------------------------------------


def integers(*items):
    return struct.pack(f"<{len(items)}i", *items)


COLUMNS = {
    "no timestamps": {"timestamp_deltas": b""},
    "half a timestamp": {"timestamp_deltas": bytes(2)},
    "two timestamps": {"timestamp_deltas": bytes(12)},
    "no key lengths": {"key_lengths": b""},
    "two key lengths": {"key_lengths": integers(-1, -1)},
    "a key length below null": {"key_lengths": integers(-2)},
    "a key that is not there": {"key_lengths": integers(1)},
    "a key of nobody": {"keys": b"k"},
    "a value that is too long": {"value_lengths": integers(2)},
    "a value that is too short": {"value_lengths": integers(0)},
    "a value of 2 GiB": {"value_lengths": integers(2**31 - 1)},
    "bytes behind the columns": {"headers": b"\xc0\xc0"},
    "headers that are none": {"headers": b"\x01"},
    "headers cut off": {"headers": b"\x96\xc4\x04"},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_do_not_add_up_are_refused(name):
    check(of_columns())
    assert_refused("CORRUPT_MESSAGE", of_columns(**COLUMNS[name]))


def test_offset_deltas_are_not_a_producers_to_send_even_right_ones():
    for delta in (0, 1):
        assert_refused("INVALID_RECORD", of_columns(offset_deltas=integers(delta)))


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_refuses_a_batch_with_any_null_key_and_takes_empty_ones(policy):
    over = {"cleanup.policy": policy}
    check(good([NOW, NOW], keys=[b"", b"k"]), over)
    for keys in ([b"k", None], [None, b"k"], None):
        assert_refused("INVALID_RECORD", good([NOW, NOW], keys=keys), over)
        check(good([NOW, NOW], keys=keys))


# --- timestamps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [NOW - 1, NOW + 1, -1, 2**62])
@pytest.mark.parametrize("over", [{}, APPEND_TIME])
def test_a_max_timestamp_that_is_not_the_newest_records_is_refused(lie, over):
    times = [NOW - 10, NOW, NOW - 20]
    check(good(times), over)
    assert_refused("INVALID_RECORD", good(times, max_timestamp=lie), over)


def test_a_record_may_be_as_old_and_as_new_as_the_topic_says():
    over = {"message.timestamp.before.max.ms": "100", "message.timestamp.after.max.ms": "50"}
    for times in ([NOW - 100], [NOW + 50], [NOW - 100, NOW + 50], [NOW, NOW - 100]):
        check(good(times), over)
    for times in ([NOW - 101], [NOW + 51], [NOW, NOW - 101], [NOW, NOW + 51], [NOW - 101, NOW]):
        assert_refused("INVALID_TIMESTAMP", good(times), over)


def test_by_default_a_record_may_be_an_hour_ahead_and_from_the_beginning_of_time():
    check(good([0, NOW + HOUR]))
    assert_refused("INVALID_TIMESTAMP", good([NOW + HOUR + 1]))


def test_a_time_that_is_none_is_refused_whatever_the_topic_says():
    """Before 1970, which Kafka refuses too; and what would not be a time in microseconds."""
    longest = str(2**63 - 1)
    over = {"message.timestamp.before.max.ms": longest, "message.timestamp.after.max.ms": longest}
    check(good([0, TIMESTAMP_MAX]), over)
    for times in ([-1], [NOW, -1], [TIMESTAMP_MAX + 1], [TIMESTAMP_MAX + 1, NOW]):
        assert_refused("INVALID_TIMESTAMP", good(times), over)


def test_a_base_that_no_reader_can_count_from_is_refused():
    wide = pack_columns(
        offset_deltas=None,
        timestamp_deltas=struct.pack("<q", NOW - 2**62),
        key_lengths=b"\xff" * 4,
        keys=b"",
        value_lengths=I32_1,
        values=b"v",
        headers=None,
    )
    data = encode_batch(wide, record_count=1, base_timestamp=2**62, max_timestamp=NOW)
    assert_refused("INVALID_TIMESTAMP", data)


def test_under_log_append_time_a_producers_clock_does_not_matter():
    over = {**APPEND_TIME, "message.timestamp.before.max.ms": "1"}
    check(good([5, NOW + 10 * HOUR]), over)


# --- all of it ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=5))
@settings(max_examples=tries(400), deadline=None)
def test_whatever_passes_can_be_read(changes):
    data = good([NOW, NOW + 1, NOW], keys=[b"k", None, b""], values=[b"a", b"bb", None])
    for position, value in changes:
        data[position % len(data)] = value
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    try:
        header = check(data)
    except Refused:
        return
    records = to_records(data, header, "t", 0)
    assert [record.offset for record in records] == [0, 1, 2]
    assert max(record.timestamp for record in records) == header.max_timestamp
