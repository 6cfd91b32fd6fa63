"""Batches: the header's bytes, the checksum, and what a broker stamps.

Goal: a batch is what the documentation says, byte for byte, and no damage to it goes unnoticed.
Method: layouts written out by hand and never taken from the module; Hypothesis picks fields, bits,
cuts and damage.
"""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import (
    COUNT_MAX,
    HEADER_BYTES,
    BatchHeader,
    check_crc,
    crc32c,
    encode_batch,
    iter_batches,
    parse_header,
    stamp,
    stamp_append_time,
)

LAYOUT = {  # Kafka's v2 header: position, bytes, signed
    "base_offset": (0, 8, True),
    "batch_length": (8, 4, True),
    "leader_epoch": (12, 4, True),
    "magic": (16, 1, True),
    "crc": (17, 4, False),
    "attributes": (21, 2, True),
    "last_offset_delta": (23, 4, True),
    "base_timestamp": (27, 8, True),
    "max_timestamp": (35, 8, True),
    "producer_id": (43, 8, True),
    "producer_epoch": (51, 2, True),
    "base_sequence": (53, 4, True),
    "record_count": (57, 4, True),
}
EVERY_CODEC = ["none", "gzip", "snappy", "lz4", "zstd"]

some = settings(max_examples=tries(100), deadline=None)
many = settings(max_examples=tries(300), deadline=None)


def whole_range(name: str) -> st.SearchStrategy[int]:
    _, size, signed = LAYOUT[name]
    bits = 8 * size
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high)


def lay_out(fields: dict[str, int]) -> bytes:
    """The header's bytes by the table above, and by nothing of the module's."""
    raw = bytearray(61)
    for name, (position, size, signed) in LAYOUT.items():
        raw[position : position + size] = fields[name].to_bytes(size, "big", signed=signed)
    return bytes(raw)


def sample_batch(payload: bytes = b"some columns", *, codec: str = "none") -> bytearray:
    return encode_batch(
        payload,
        record_count=3,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_500,
        codec=codec,
        base_offset=40,
        leader_epoch=7,
        producer_id=12,
        producer_epoch=1,
        base_sequence=99,
    )


def flip(batch: bytes | bytearray, bit: int) -> bytearray:
    damaged = bytearray(batch)
    damaged[bit // 8] ^= 1 << bit % 8
    return damaged


# The header.


def test_every_field_stands_where_kafka_v2_has_it() -> None:
    batch = encode_batch(
        b"xyz",
        record_count=0x0000_0102,
        last_offset_delta=0x0304_0506,
        base_timestamp=0x0708_090A_0B0C_0D0E,
        max_timestamp=0x0F10_1112_1314_1516,
        attributes=0x20,
        base_offset=0x1718_191A_1B1C_1D1E,
        leader_epoch=0x1F20_2122,
        producer_id=0x2324_2526_2728_292A,
        producer_epoch=0x2B2C,
        base_sequence=0x2D2E_2F30,
    )
    covered = bytes.fromhex(
        "0020"  # attributes
        "03040506"  # last_offset_delta
        "0708090a0b0c0d0e"  # base_timestamp
        "0f10111213141516"  # max_timestamp
        "232425262728292a"  # producer_id
        "2b2c"  # producer_epoch
        "2d2e2f30"  # base_sequence
        "00000102"  # record_count
    )
    assert batch[:8].hex() == "1718191a1b1c1d1e", "base_offset"
    assert batch[8:12].hex() == "00000034", "batch_length: 61 + 3 bytes less the first 12"
    assert batch[12:16].hex() == "1f202122", "leader_epoch"
    assert batch[16] == 0x48, "magic"
    assert batch[17:21] == struct.pack(">I", crc32c(covered + b"xyz")), "crc"
    assert batch[21:61] == covered
    assert batch[61:] == b"xyz"


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_what_a_producer_leaves_out_is_minus_one() -> None:
    batch = encode_batch(b"", record_count=5, base_timestamp=1, max_timestamp=2)
    header = parse_header(batch)
    assert header == (0, 49, -1, 0x48, header.crc, 0, 4, 1, 2, -1, -1, -1, 5)


@given(st.data())
@many
def test_a_header_parses_to_its_fields_exactly_when_they_are_possible(data: st.DataObject) -> None:
    fields = {name: data.draw(whole_range(name), name) for name in LAYOUT}
    possible = {
        "magic": st.sampled_from([0x48, 2]),
        "batch_length": st.integers(49, (1 << 31) - 1),
        "base_offset": st.integers(0, 1 << 62),
        "last_offset_delta": st.integers(0, (1 << 31) - 1),
        "record_count": st.integers(0, COUNT_MAX),
    }
    for name, strategy in possible.items():
        if data.draw(st.integers(0, 9), f"{name} at large") < 9:
            fields[name] = data.draw(strategy, f"possible {name}")
    fields["base_offset"] = min(fields["base_offset"], 1 << 62)  # the end has its own test below
    legal = (
        fields["magic"] in (0x48, 2)
        and fields["batch_length"] + 12 >= 61
        and fields["base_offset"] >= 0
        and fields["last_offset_delta"] >= 0
        and 0 <= fields["record_count"] <= COUNT_MAX
    )
    if legal:
        assert parse_header(b"??" + lay_out(fields), 2)._asdict() == fields
    else:
        with pytest.raises(CorruptBatch):
            parse_header(b"??" + lay_out(fields), 2)


@pytest.mark.parametrize("size", [0, 1, 12, 60])
def test_a_header_that_is_cut_off_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatch, match="cut off"):
        parse_header(sample_batch()[:size])


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("magic", 1, "0x01"),
        ("magic", -1, "0xff"),
        ("batch_length", 48, "60 bytes"),
        ("batch_length", -(1 << 31), "less than a header"),
        ("base_offset", -1, "-1"),
        ("last_offset_delta", -1, "-1"),
        ("record_count", -1, "-1 records"),
        ("record_count", COUNT_MAX + 1, "16777217"),
    ],
)
def test_an_impossible_field_is_corrupt_and_named(field: str, value: int, names: str) -> None:
    fields = {**parse_header(sample_batch())._asdict(), field: value}
    with pytest.raises(CorruptBatch, match=names):
        parse_header(lay_out(fields))


def test_offsets_beyond_64_bits_are_corrupt() -> None:
    fields = {**parse_header(sample_batch())._asdict(), "base_offset": (1 << 63) - 1}
    with pytest.raises(CorruptBatch):
        parse_header(lay_out(fields))


def test_sizes_and_offsets_follow_from_the_fields() -> None:
    batch = sample_batch()
    header = parse_header(batch)
    assert header.size == len(batch) == HEADER_BYTES + 12
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert header.last_sequence == 101


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (5, 3, 8), ((1 << 31) - 1, 0, (1 << 31) - 1), ((1 << 31) - 1, 1, 0)],
)
def test_sequences_wrap_after_31_bits(base: int, delta: int, last: int) -> None:
    header = parse_header(sample_batch())
    assert header._replace(base_sequence=base, last_offset_delta=delta).last_sequence == last


@pytest.mark.parametrize("delta", [0, 1, 100])
def test_a_batch_without_a_sequence_has_no_last_sequence(delta: int) -> None:
    header = parse_header(sample_batch())._replace(base_sequence=-1, last_offset_delta=delta)
    assert header.last_sequence == -1, "as Kafka's DefaultRecordBatch.lastSequence has it"


def test_attribute_bits_are_kafkas() -> None:
    plain = parse_header(sample_batch())
    seen = {
        bit: (
            header.codec,
            header.is_log_append_time,
            header.is_control,
            header.delete_horizon,
        )
        for bit in (0, 0x03, 0x04, 0x08, 0x20, 0x40)
        for header in [plain._replace(attributes=bit)]
    }
    assert seen == {
        0: ("none", False, False, None),
        0x03: ("lz4", False, False, None),
        0x04: ("zstd", False, False, None),
        0x08: ("none", True, False, None),
        0x20: ("none", False, True, None),
        0x40: ("none", False, False, plain.base_timestamp),
    }


# The checksum and the stamps.


@pytest.mark.parametrize("codec", EVERY_CODEC)
def test_a_batch_as_encoded_passes_its_check(codec: str) -> None:
    batch = sample_batch(codec=codec)
    check_crc(bytes(batch), parse_header(batch))


@given(st.data())
@many
def test_a_flipped_bit_is_found(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(EVERY_CODEC))
    batch = sample_batch(data.draw(st.binary(max_size=200)), codec=codec)
    bit = data.draw(st.integers(21 * 8, len(batch) * 8 - 1))
    with pytest.raises(CorruptBatch, match="CRC"):
        check_crc(flip(batch, bit), parse_header(batch))


@pytest.mark.parametrize("bit", range(17 * 8, 21 * 8))
def test_a_flipped_bit_of_the_checksum_is_found(bit: int) -> None:
    damaged = flip(sample_batch(), bit)
    with pytest.raises(CorruptBatch, match="CRC"):
        check_crc(damaged, parse_header(damaged))


@pytest.mark.parametrize("bit", [*range(8 * 8, 12 * 8), *range(16 * 8, 17 * 8)])
def test_a_flipped_bit_of_length_or_magic_is_found(bit: int) -> None:
    damaged = flip(sample_batch(), bit)
    with pytest.raises(CorruptBatch):
        check_crc(damaged, parse_header(damaged))


@pytest.mark.parametrize("size", [0, 60, 61, -1])
def test_a_batch_of_another_size_than_its_header_says_fails_the_check(size: int) -> None:
    batch = sample_batch()
    with pytest.raises(CorruptBatch, match="its header says 73"):
        check_crc(batch[:size], parse_header(batch))
    with pytest.raises(CorruptBatch, match="its header says 73"):
        check_crc(batch + b"\0", parse_header(batch))


@given(base_offset=whole_range("base_offset"), epoch=whole_range("leader_epoch"))
@some
def test_a_stamp_changes_its_two_fields_and_keeps_the_checksum(
    base_offset: int, epoch: int
) -> None:
    batch = sample_batch()
    header = parse_header(batch)
    stamped = bytearray(batch)
    stamp(memoryview(stamped), base_offset=base_offset, leader_epoch=epoch)
    check_crc(stamped, header)
    fields = {**header._asdict(), "base_offset": base_offset, "leader_epoch": epoch}
    assert stamped == lay_out(fields) + batch[61:]


@given(now_ms=whole_range("max_timestamp"))
@some
def test_append_time_is_stamped_under_a_new_checksum(now_ms: int) -> None:
    batch = sample_batch(codec="lz4")
    stamped = bytearray(batch)
    stamp_append_time(stamped, now_ms)
    header = parse_header(stamped)
    check_crc(stamped, header)
    assert header.is_log_append_time
    assert header.codec == "lz4", "the other attributes stay"
    changed = {"attributes": 0x08 | 0x03, "max_timestamp": now_ms, "crc": header.crc}
    assert stamped == lay_out({**parse_header(batch)._asdict(), **changed}) + batch[61:]


# Many batches in a row.

BATCHES = st.lists(st.binary(max_size=80).map(sample_batch), max_size=5)


@given(batches=BATCHES, cut=st.integers(0, 140), kind=st.sampled_from([bytes, bytearray]))
@many
def test_whole_batches_are_found_and_a_cut_tail_is_left_out(
    batches: list[bytearray], cut: int, kind: type[bytes] | type[bytearray]
) -> None:
    joined = b"".join(batches)
    buffer = kind(joined[: max(0, len(joined) - cut)])
    whole, end = [], 0
    for batch in batches:
        end += len(batch)
        if end <= len(buffer):
            whole.append(batch)
    found = list(iter_batches(buffer))
    assert [view for _, view in found] == whole
    assert [header for header, _ in found] == [parse_header(batch) for batch in whole]
    assert all(view.obj is buffer for _, view in found), "views, not copies"


def test_junk_after_whole_batches_is_corrupt_only_once_it_could_be_a_header() -> None:
    batch = sample_batch()
    assert len(list(iter_batches(batch + bytes(60)))) == 1
    batches = iter_batches(batch + bytes(61))
    assert next(batches)[1] == batch
    with pytest.raises(CorruptBatch, match="magic at byte 73"):
        next(batches)


def check_found(found: list[tuple[BatchHeader, memoryview]], buffer: bytes) -> None:
    assert b"".join(view for _, view in found) == buffer[: sum(len(view) for _, view in found)]
    assert all(len(view) == header.size >= HEADER_BYTES for header, view in found)


@given(buffer=st.binary(max_size=300))
@some
def test_random_bytes_are_corrupt_or_no_batch(buffer: bytes) -> None:
    with suppress(CorruptBatch):
        check_found(list(iter_batches(buffer)), buffer)


@given(batches=BATCHES.filter(bool), data=st.data())
@many
def test_damaged_batches_are_corrupt_or_cover_the_buffer_in_turn(
    batches: list[bytearray], data: st.DataObject
) -> None:
    buffer = b"".join(batches)
    for _ in range(data.draw(st.integers(1, 3))):
        buffer = bytes(flip(buffer, data.draw(st.integers(0, len(buffer) * 8 - 1))))
    with suppress(CorruptBatch):
        check_found(list(iter_batches(buffer)), buffer)
