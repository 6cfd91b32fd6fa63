"""What a leader refuses to store of Kafka's own batches, with the code that Kafka has for it.

Goal: a batch of rows is stored as it came, or refused with a code that the client acts on rightly:
2 is tried again, 10 is split, 87 is given up. Method: one good batch that passes; then one change
at a time under a right checksum; limits at the limit and one beyond; steps are counted, not timed.
"""

import struct

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_records import BUILDERS, JUDGES
from tries import tries

from hightide.protocol.codecs import at_once, compress
from hightide.protocol.columns import to_records
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.records import (
    ROWS_MAGIC,
    TIMESTAMP_MAX,
    check_crc,
    crc32c,
    encode_batch,
    parse_header,
)
from hightide.protocol.row_spans import SPAN_RECORDS
from hightide.protocol.rows import encode_rows
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication import validation
from hightide_broker.core.replication.validation import (
    STEPS_AT_ONCE,
    admit,
    check_sent,
    looking_at,
)
from hightide_broker.kafka.about_records import why_not_one_batch
from hightide_broker.runtime.base.slices import in_slices

NOW = 1_700_000_000_000
COMPACT = {"cleanup.policy": "compact"}
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
LARGE = {"max.message.bytes": str(32 << 20)}


def good(times=(NOW,), *, keys=None, values=None, offsets=None, codec="none", **over):
    """A batch that breaks no rule, but for what `over` says in its header."""
    count = len(times)
    payload = encode_rows(
        [time - times[0] for time in times],
        offsets or range(count),
        keys or [None] * count,
        values or [b"v"] * count,
        {},
    )
    fields = {
        "record_count": count,
        "base_timestamp": times[0],
        "max_timestamp": max(times),
        **over,
    }
    return encode_batch(payload, codec=codec, magic=ROWS_MAGIC, **fields)


def of(payload, *, codec="none", count=1):
    """A batch around a payload as given."""
    raw = encode_batch(
        payload, record_count=count, base_timestamp=NOW, max_timestamp=NOW, magic=ROWS_MAGIC
    )
    number = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec]
    return patched(raw, 21, ">h", number)


def patched(data, at, kind, value):
    """The batch with one header field changed, its checksum made right again."""
    struct.pack_into(kind, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def look(data, *, inflated_max=1 << 20):
    if why := why_not_one_batch(memoryview(data)):
        raise Refused("INVALID_RECORD", why)
    config = TopicConfig.of(LARGE, {})
    return looking_at(memoryview(data), config, lambda _: False, inflated_max=inflated_max)


def check(data, over=None, *, inflated_max=1 << 20):
    """What is stored, by way of the steps that Kafka's listener takes."""
    config = TopicConfig.of(over or {}, {})
    facts = at_once(look(data, inflated_max=inflated_max))
    return admit(
        memoryview(data), facts.header, facts, config, now_ms=NOW, inflated_max=inflated_max
    )


def assert_refused(code, data, over=None, **more):
    before = bytes(data)
    with pytest.raises(Refused) as refusal:
        check(data, over, **more)
    assert refusal.value.code == code, refusal.value
    assert len(refusal.value.message) > 10
    assert bytes(data) == before


# --- stored as it came --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("over", [{}, COMPACT])
def test_a_good_batch_passes_byte_for_byte(codec, over):
    data = good([NOW, NOW - 5, NOW + 7], keys=[b"a", b"", b"c"], codec=codec)
    sent = bytes(data)
    assert check(data, over) == parse_header(sent)
    assert bytes(data) == sent


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("codec", [0, 1, 3, 4])
def test_what_kafkas_clients_send_passes(builder, codec):
    built = BUILDERS[builder](2, codec, 0, 7, 2, 0, 1 << 20)
    for number in range(5):
        built.append(number, NOW + number, b"k", b"v" * 100, [("h", b"x")])
    header = check(bytearray(built.build()), COMPACT)
    assert (header.producer_id, header.record_count, header.max_timestamp) == (7, 5, NOW + 4)


@pytest.mark.parametrize("epoch", [-1, 0, 7])
def test_the_leader_epoch_that_a_client_fills_in_does_not_matter(epoch):
    check(good(leader_epoch=epoch))


@pytest.mark.parametrize("lie", [NOW - 1, NOW + 1, -1, 2**62])
def test_a_max_timestamp_that_is_not_the_newest_records_is_put_right(lie):
    data = good([NOW - 10, NOW, NOW - 20], max_timestamp=lie)
    header = check(data)
    assert header.max_timestamp == NOW
    stored = parse_header(data)
    assert stored.max_timestamp == NOW
    check_crc(data, stored)
    assert [record.timestamp for record in JUDGES["aiokafka"](bytes(data))] == [
        NOW - 10,
        NOW,
        NOW - 20,
    ]


def test_under_log_append_time_the_brokers_time_is_stamped():
    data = good([5, 2**50], max_timestamp=3)
    assert check(data, APPEND_TIME).max_timestamp == NOW
    stored = parse_header(data)
    assert (stored.is_log_append_time, stored.max_timestamp) == (True, NOW)
    check_crc(data, stored)


# --- headers ------------------------------------------------------------------------------------

IDEMPOTENT = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
HEADERS = {
    "a base offset of 1": ("INVALID_RECORD", good(base_offset=1)),
    "a length that is too small": ("CORRUPT_MESSAGE", patched(good(), 8, ">i", 40)),
    "a length that is too large": ("CORRUPT_MESSAGE", patched(good(), 8, ">i", 4000)),
    "magic 0": ("INVALID_RECORD", patched(good(), 16, ">b", 0)),
    "magic 1": ("INVALID_RECORD", patched(good(), 16, ">b", 1)),
    "our own magic": ("INVALID_RECORD", patched(good(), 16, ">b", 0x48)),
    "no records": ("INVALID_RECORD", patched(good(), 57, ">i", 0)),
    "a larger last offset": ("INVALID_RECORD", good(last_offset_delta=1)),
    "a smaller last offset": ("INVALID_RECORD", good([NOW] * 3, last_offset_delta=1)),
    "records by the billion": ("CORRUPT_MESSAGE", patched(good(), 57, ">i", 2**31 - 1)),
    "a control batch": ("INVALID_RECORD", good(attributes=0x20)),
    "a transaction": ("INVALID_TXN_STATE", good(attributes=0x10, **IDEMPOTENT)),
    "a delete horizon": ("INVALID_RECORD", good(attributes=0x40)),
    "an attribute that does not exist": ("INVALID_RECORD", good(attributes=0x4000)),
    "log append time": ("INVALID_TIMESTAMP", good(attributes=0x08)),
    "codec 5": ("UNSUPPORTED_COMPRESSION_TYPE", good(attributes=0x05)),
    "codec 7": ("UNSUPPORTED_COMPRESSION_TYPE", good(attributes=0x07)),
    "a producer without an epoch": ("INVALID_RECORD", good(**{**IDEMPOTENT, "producer_epoch": -1})),
    "a producer without a sequence": (
        "INVALID_RECORD",
        good(**{**IDEMPOTENT, "base_sequence": -1}),
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_breaks_a_rule_is_refused(name):
    code, data = HEADERS[name]
    assert_refused(code, data)


def test_there_is_exactly_one_batch():
    assert_refused("INVALID_RECORD", bytearray())
    assert_refused("INVALID_RECORD", good() + good())
    assert_refused("INVALID_RECORD", good() + b"\0")


@pytest.mark.parametrize("size", [1, 16, 17, 60, 61, -1])
def test_a_batch_that_is_cut_off_is_refused(size):
    assert_refused("CORRUPT_MESSAGE", good()[:size])


def test_any_flipped_bit_the_checksum_covers_is_refused():
    data = good()
    for position in range(17, len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            assert_refused("CORRUPT_MESSAGE", flipped)


# --- sizes --------------------------------------------------------------------------------------


def test_a_batch_may_be_as_large_as_the_topic_says_and_no_larger():
    data = good(values=[b"x" * 2000])
    check(data, {"max.message.bytes": str(len(data))})
    assert_refused("MESSAGE_TOO_LARGE", data, {"max.message.bytes": str(len(data) - 1)})
    check(data, {"segment.bytes": str(len(data))})
    assert_refused("RECORD_LIST_TOO_LARGE", data, {"segment.bytes": str(len(data) - 1)})


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_may_inflate_up_to_the_limit_and_who_sent_more_may_split_it(codec):
    data = good(values=[bytes(100_000)], codec=codec)
    size = len(good(values=[bytes(100_000)])) - 61
    check(data, inflated_max=size)
    assert_refused("MESSAGE_TOO_LARGE", data, inflated_max=size - 1)


# --- records ------------------------------------------------------------------------------------

ROW = bytes([14, 0, 0, 0, 1, 2, ord("v"), 0])
RECORDS = {
    "no bytes": b"",
    "half a record": ROW[:4],
    "bytes behind the records": ROW + b"\0",
    "two records": ROW + ROW,
    "attributes": bytes([14, 1, 0, 0, 1, 2, ord("v"), 0]),
    "an offset delta of 1": bytes([14, 0, 0, 2, 1, 2, ord("v"), 0]),
    "an offset delta of -1": bytes([14, 0, 0, 1, 1, 2, ord("v"), 0]),
    "a header without a name": bytes([18, 0, 0, 0, 1, 2, ord("v"), 2, 1, 1]),
}


def test_the_record_that_the_cases_change_passes_unchanged():
    check(of(ROW))


@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("name", RECORDS)
def test_records_that_break_a_rule_are_refused_for_good(name, codec):
    assert_refused("INVALID_RECORD", of(bytes(compress(RECORDS[name], codec)), codec=codec))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_bytes_that_are_not_compressed_as_they_say_are_refused_for_good(codec):
    assert_refused("INVALID_RECORD", of(b"no frame at all", codec=codec))


def test_a_gap_in_the_offsets_behind_many_records_is_found_and_named():
    offsets = [*range(3000), 3001]
    data = good([NOW] * 3001, offsets=offsets)
    with pytest.raises(Refused, match="record 3000 of the batch has offset delta 3001"):
        check(data)


def test_lz4_that_javas_clients_cannot_read_is_refused():
    payload = of(bytes(compress(ROW, "lz4")), codec="lz4")
    check(of(bytes(compress(ROW, "lz4", lz4_linked=False)), codec="lz4"))
    large = good([NOW] * 300, values=[bytes(range(256)) * 4] * 300)[61:]
    linked = of(bytes(compress(large, "lz4")), codec="lz4", count=300)
    patched(linked, 23, ">i", 299)
    assert_refused("INVALID_RECORD", linked, LARGE)
    check(payload)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_refuses_a_batch_with_any_null_key_and_takes_empty_ones(policy):
    over = {"cleanup.policy": policy}
    check(good([NOW, NOW], keys=[b"", b"k"]), over)
    for keys in ([b"k", None], [None, b"k"], None):
        assert_refused("INVALID_RECORD", good([NOW, NOW], keys=keys), over)
        check(good([NOW, NOW], keys=keys))


# --- timestamps ---------------------------------------------------------------------------------


def test_a_record_may_be_as_old_and_as_new_as_the_topic_says():
    over = {"message.timestamp.before.max.ms": "100", "message.timestamp.after.max.ms": "50"}
    for times in ([NOW - 100], [NOW + 50], [NOW - 100, NOW + 50], [NOW, NOW - 100]):
        check(good(times), over)
    for times in ([NOW - 101], [NOW + 51], [NOW, NOW - 101], [NOW, NOW + 51], [NOW - 101, NOW]):
        assert_refused("INVALID_TIMESTAMP", good(times), over)


def test_a_time_that_is_none_is_refused_whatever_the_topic_says():
    """-1, which Kafka would store, too: by which time would such a record be let go?"""
    longest = str(2**63 - 1)
    over = {"message.timestamp.before.max.ms": longest, "message.timestamp.after.max.ms": longest}
    check(good([0, TIMESTAMP_MAX]), over)
    for times in ([-1], [NOW, -1], [TIMESTAMP_MAX + 1], [TIMESTAMP_MAX + 1, NOW]):
        assert_refused("INVALID_TIMESTAMP", good(times), over)


def test_a_base_that_no_reader_can_count_from_is_refused():
    payload = encode_rows([NOW - 2**62], [0], [None], [b"v"], {})
    data = encode_batch(
        payload, record_count=1, base_timestamp=2**62, max_timestamp=NOW, magic=ROWS_MAGIC
    )
    assert_refused("INVALID_TIMESTAMP", data)


# --- how long it takes --------------------------------------------------------------------------


def test_more_rows_than_a_client_sends_are_refused_before_they_are_inflated(monkeypatch):
    """Some KiB may hold millions."""
    monkeypatch.setattr(validation, "ROWS_RECORDS_MAX", 3)
    assert check(good([NOW] * 3, codec="zstd"))
    monkeypatch.setattr(validation, "_inflated", None)
    with pytest.raises(Refused, match="4 records in one batch, expected 3 or less") as refused:
        check(good([NOW] * 4, codec="zstd"))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_large_batch_is_looked_at_in_steps():
    data = good([NOW] * (10 * SPAN_RECORDS))
    assert sum(1 for _ in look(data)) == 10


async def test_between_the_slices_others_have_their_turn():
    turns = []

    async def other():
        for number in range(3):
            turns.append(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        facts = await in_slices(look(good([NOW] * (10 * SPAN_RECORDS))))
        assert turns == [0, 1, 2]
    assert facts.newest == NOW


async def test_who_is_cancelled_between_slices_leaves_nothing_open():
    steps = look(good([NOW] * (10 * SPAN_RECORDS)))
    with trio.CancelScope() as scope:
        scope.cancel()
        await in_slices(steps)
    assert scope.cancelled_caught
    assert list(steps) == []


async def test_a_refusal_comes_out_of_the_slices():
    with pytest.raises(Refused, match="base offset is 1"):
        await in_slices(look(good(base_offset=1)))


def unlooked(data):
    header = check_sent(memoryview(data))
    config = TopicConfig.of({}, {})
    return admit(memoryview(data), header, None, config, now_ms=NOW, inflated_max=1 << 20)


def test_rows_that_nobody_looked_at_before_may_be_few():
    few = good([NOW] * (STEPS_AT_ONCE * SPAN_RECORDS))
    assert unlooked(few) == parse_header(few)
    with pytest.raises(Refused, match="smaller batches") as refusal:
        unlooked(good([NOW] * (STEPS_AT_ONCE * SPAN_RECORDS + 1)))
    assert refusal.value.code == "MESSAGE_TOO_LARGE"


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
    assert header == parse_header(data)
    records = to_records(data, header, "t", 0)
    assert [record.offset for record in records] == [0, 1, 2]
    assert max(record.timestamp for record in records) == header.max_timestamp
    judge = JUDGES["aiokafka"](bytes(data))
    assert [record.value for record in judge] == [record.value for record in records]
