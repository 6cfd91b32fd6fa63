"""What coordinators keep in `__consumer_offsets`: keys, values, and where a group's are.

Goal: what is written is read again, a record that no coordinator wrote is refused and nothing else
happens, and a group is in the partition where Kafka has it. Method: round trips, bytes that are
cut, changed or anything at all, and hashes that were worked out by hand from Java's rule.
"""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol.columns import batch_at
from hightide.protocol.group_messages import Protocol
from hightide_broker.core.groups.records import (
    GroupKey,
    GroupRecordDamaged,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode,
    encode,
    in_portions,
    partition_of,
)

OFFSET = OffsetKey("g", "x", 3)
COMMITTED = OffsetValue(offset=7, leader_epoch=2, metadata="why", commit_time_ms=1000)
MEMBER = MemberValue(
    member_id="a",
    session_ms=10_000,
    rebalance_ms=60_000,
    protocols=[Protocol(name="range", metadata=b"\x00\xff")],
    instance_id="i",
    client_id="c",
    host="/10.0.0.1",
    assignment=b"\x01",
)
GROUP = GroupValue(
    generation=4,
    protocol_type="consumer",
    protocol="range",
    leader="a",
    written_at_ms=5,
    members=[MEMBER],
)
PAIRS = [
    (OFFSET, COMMITTED),
    (OFFSET, OffsetValue(offset=0)),
    (OFFSET, None),
    (GroupKey("g"), GROUP),
    (GroupKey("g"), GroupValue(generation=0)),
    (GroupKey(""), None),
]


@pytest.mark.parametrize(("key", "value"), PAIRS)
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_what_is_written_is_read_again(key, value, buffer):
    kept = None if value is None else buffer(encode(value))
    assert decode(buffer(encode(key)), kept) == (key, value)


def test_keys_are_arrays_and_values_maps():
    assert msgspec.msgpack.decode(encode(OFFSET)) == ["offset", "g", "x", 3]
    assert msgspec.msgpack.decode(encode(GroupKey("g"))) == ["group", "g"]
    assert msgspec.msgpack.decode(encode(OffsetValue(offset=7))) == {"offset": 7}


def test_a_key_is_the_same_bytes_each_time():
    assert encode(OffsetKey("g", "x", 3)) == encode(OFFSET)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\xc1",
        encode([]),
        encode({}),
        encode("group"),
        encode(["group"]),
        encode(["group", 7]),
        encode(["offset", "g", "x"]),
        encode(["offset", "g", "x", "3"]),
        encode(["offset", "g", "x", 2**64 - 1])[:-1],
        encode(["transaction", "g"]),
        encode([7, "g"]),
        encode(OFFSET)[:-1],
        encode(OFFSET) + b"\x00",
    ],
)
def test_a_damaged_key_is_refused(key):
    for value in (None, encode(COMMITTED)):
        with pytest.raises(GroupRecordDamaged):
            decode(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (OFFSET, b""),
        (OFFSET, encode({})),
        (OFFSET, encode({"offset": "7"})),
        (OFFSET, encode({"offset": None})),
        (OFFSET, encode([7])),
        (OFFSET, encode(COMMITTED)[:-1]),
        (OFFSET, encode(COMMITTED) + b"\x00"),
        (OFFSET, encode(GROUP)),
        (GroupKey("g"), encode(COMMITTED)),
        (GroupKey("g"), encode({"generation": 1, "members": [{"member_id": "a"}]})),
        (GroupKey("g"), encode({"generation": 1, "members": {}})),
    ],
)
def test_a_damaged_value_is_refused(key, value):
    with pytest.raises(GroupRecordDamaged):
        decode(encode(key), value)


def portions_of(records, batch_bytes):
    found = [*in_portions(records, batch_bytes)]
    for records, keys, values in found:
        assert keys == [encode(key) for key, _ in records]
        assert values == [None if value is None else encode(value) for _, value in records]
        size = len(batch_at(0, values, keys))
        assert size <= batch_bytes or len(records) == 1
    return [len(records) for records, _, _ in found]


@given(st.lists(st.integers(0, 4000), max_size=20), st.integers(2000, 9000))
def test_records_are_put_into_batches_that_are_not_too_large(notes, batch_bytes):
    records = [
        (OffsetKey("g", "x", number), OffsetValue(offset=1, metadata="n" * note) if note else None)
        for number, note in enumerate(notes)
    ]
    assert sum(portions_of(records, batch_bytes)) == len(records)
    assert [each for records, _, _ in in_portions(records, batch_bytes) for each in records] == [
        *records
    ]


def test_as_many_records_share_a_batch_as_have_room_in_it():
    records = [(OffsetKey("g", "x", number), None) for number in range(1000)]
    assert portions_of(records, 1 << 20) == [1000]
    assert portions_of([], 1 << 20) == []
    large = (OFFSET, OffsetValue(offset=1, metadata="n" * 4000))
    assert portions_of([large, large, (OFFSET, None)], 2000) == [1, 1, 1]


def test_text_that_is_no_utf8_is_damage():
    with pytest.raises(GroupRecordDamaged):
        decode(encode(GroupKey("gg")).replace(b"gg", b"\xff\xff"), None)
    with pytest.raises(GroupRecordDamaged):
        decode(encode(OFFSET), encode(COMMITTED).replace(b"why", b"\xff\xfe\xfd"))


def test_what_is_nested_without_end_is_damage():
    nested = b"\x82\xa6offset\x07\xa5later" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(GroupRecordDamaged):
        decode(encode(OFFSET), nested)


def test_a_field_of_a_later_version_is_passed_over():
    later = encode({"offset": 7, "expires_ms": 9})
    assert decode(encode(OFFSET), later) == (OFFSET, OffsetValue(offset=7))


pieces = st.one_of(st.binary(max_size=40), st.sampled_from([encode(k) for k, _ in PAIRS]))


@settings(max_examples=tries(200), deadline=None)
@given(key=pieces, value=st.one_of(st.none(), pieces, st.just(encode(GROUP))))
@example(key=b"\x92\xa5group\xa1\xff", value=None)
def test_any_bytes_are_a_record_or_damage(key, value):
    try:
        known, _ = decode(key, value)
    except GroupRecordDamaged:
        return
    assert isinstance(known, (OffsetKey, GroupKey))


@settings(max_examples=tries(200), deadline=None)
@given(at=st.integers(0, len(encode(GROUP)) - 1), byte=st.integers(0, 255))
@example(at=encode(GROUP).index(b"range"), byte=255)
def test_one_changed_byte_is_another_value_or_damage(at, byte):
    damaged = bytearray(encode(GROUP))
    damaged[at] = byte
    try:
        key, value = decode(encode(GroupKey("g")), damaged)
    except GroupRecordDamaged:
        return
    assert key == GroupKey("g")
    assert isinstance(value, GroupValue)


# --- where a group is -----------------------------------------------------------------------------

BIG = 2**31 - 1


@pytest.mark.parametrize(
    ("group", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 31 * 97 + 98),
        ("ba", 31 * 98 + 97),
        ("é", 0xE9),
        ("\uffff", 0xFFFF),
        ("hello", 99162322),
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
        ("\ud83d", 0xD83D),
    ],
)
def test_the_hash_is_that_of_javas_strings(group, hashed):
    assert partition_of(group, BIG) == hashed
    assert partition_of(group, 50) == hashed % 50


def test_a_negative_hash_counts_by_its_absolute_value():
    # Six times z: 122 * (1 + 31 + ... + 31^5) = 122 * 29583456 = 3609181632 = 2^32 - 685785664.
    assert 3609181632 - 2**32 == -685785664
    assert partition_of("z" * 6, BIG) == 685785664
    assert partition_of("z" * 6, 50) == 14


def test_the_smallest_hash_has_no_absolute_value():
    for partitions in (1, 3, 50, BIG):
        assert partition_of("polygenelubricants", partitions) == 0


@given(group=st.text(max_size=20), partitions=st.integers(1, 100))
def test_every_group_has_a_partition(group, partitions):
    assert 0 <= partition_of(group, partitions) < partitions
