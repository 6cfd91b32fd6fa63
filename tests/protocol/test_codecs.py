"""Compression: what every codec inflates to, and what it may never cost.

Goal: a payload comes back as it was, whoever compressed it; a frame that is cut, damaged, followed
by something or far too large is `CorruptBatch`, within the memory that the caller allowed. Method:
other libraries and frames written by hand on the other side; Hypothesis picks cuts and damage;
bombs are inflated under tracemalloc.
"""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from contextlib import suppress

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka import codec as judge
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import few, tries

from hightide.protocol.codecs import (
    ROW_CODECS,
    SNAPPY_BLOCK_MAX,
    at_once,
    compress,
    compressing,
    decompress,
    inflating,
    is_lz4_linked,
    stated_bytes,
)
from hightide.protocol.errors import CorruptBatch, InflatesTooFar
from hightide.protocol.records import encode_batch, parse_header

COMPRESSED = ["gzip", "snappy", "lz4", "zstd"]
EVERY_CODEC = ["none", *COMPRESSED]
MIB = 1 << 20
BOMB_BYTES = 200 * MIB
SNAPPY_FRAME = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"

some = settings(max_examples=tries(100), deadline=None)
many = settings(max_examples=tries(300), deadline=None)


def flip(data: bytes, bit: int) -> bytearray:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return damaged


# The same comes back.


@given(payload=st.binary(max_size=2000), codec=st.sampled_from(EVERY_CODEC))
@some
def test_what_was_compressed_inflates_to_the_same(payload: bytes, codec: str) -> None:
    packed = compress(payload, codec)
    assert bytes(decompress(memoryview(packed), codec)) == payload


def test_other_libraries_read_what_was_compressed() -> None:
    payload = bytes(range(256)) * 1000
    assert gzip.decompress(compress(payload, "gzip")) == payload
    assert judge.snappy_decode(compress(payload, "snappy")) == payload
    assert lz4.frame.decompress(compress(payload, "lz4")) == payload
    assert zstandard.ZstdDecompressor().decompress(compress(payload, "zstd")) == payload


def streamed_zstd(payload: bytes) -> bytes:
    """A frame that does not state its size, as Kafka's Java client writes them."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(payload) + stream.flush()


def summed_zstd(payload: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(payload)


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000, 3 * MIB])
def test_what_other_libraries_compressed_is_read(size: int) -> None:
    payload = (bytes(range(250)) * (size // 250 + 1))[:size]
    packed = [
        ("gzip", gzip.compress(payload)),
        ("gzip", judge.gzip_encode(payload)),
        ("snappy", bytes(cramjam.snappy.compress_raw(payload))),
        ("snappy", judge.snappy_encode(payload)),
        ("lz4", lz4.frame.compress(payload)),
        ("lz4", lz4.frame.compress(payload, content_checksum=True, store_size=False)),
        ("zstd", streamed_zstd(payload)),
        ("zstd", summed_zstd(payload)),
    ]
    for codec, frame in packed:
        assert decompress(frame, codec) == payload, codec


def test_lz4_blocks_are_linked_only_where_that_is_allowed() -> None:
    payload = bytes(range(256)) * 1000
    assert is_lz4_linked(compress(payload, "lz4"))
    free = compress(payload, "lz4", lz4_linked=False)
    assert not is_lz4_linked(free)
    assert decompress(free, "lz4") == payload
    assert not is_lz4_linked(b"\x04\x22")


def test_an_lz4_frame_that_names_a_dictionary_counts_as_linked() -> None:
    """The library reads it without the dictionary, if no block refers to that; Java's does not."""
    frame = bytes(compress(b"rows" * 9, "lz4", lz4_linked=False))
    size = (36).to_bytes(8, "little")
    assert frame[4:15] == b"\x68\x40" + size + b"\xec"  # flags, block size, size, checksum
    named = frame[:4] + b"\x69\x40" + size + b"\7\0\0\0" + b"\xd8" + frame[15:]
    assert decompress(named, "lz4") == b"rows" * 9
    assert is_lz4_linked(named)


@pytest.mark.parametrize("version", [b"\0\0\0\0\0\0\0\1", b"\0\0\0\2\0\0\0\2", b"\0\0\0\1"])
def test_a_snappy_frame_of_another_version_is_corrupt(version: bytes) -> None:
    block = bytes(cramjam.snappy.compress_raw(b"rows"))
    blocks = struct.pack(">i", len(block)) + block
    assert decompress(SNAPPY_FRAME + blocks, "snappy") == b"rows"
    with pytest.raises(CorruptBatch, match="another version"):
        decompress(SNAPPY_FRAME[:8] + version + blocks, "snappy")


def test_an_unknown_codec_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="'brotli'"):
        compress(b"", "brotli")


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_codec_of_another_number_is_corrupt(number: int) -> None:
    batch = encode_batch(b"", record_count=1, base_timestamp=0, max_timestamp=0)
    codec = parse_header(batch)._replace(attributes=number).codec
    with pytest.raises(CorruptBatch, match=str(number)):
        decompress(b"payload", codec)


# Limits.


@pytest.mark.parametrize("codec", EVERY_CODEC)
def test_the_limit_is_what_may_be_inflated_and_not_a_byte_more(codec: str) -> None:
    packed = compress(bytes(1000), codec)
    assert len(decompress(packed, codec, limit=1000)) == 1000
    with pytest.raises(CorruptBatch, match="999"):
        decompress(packed, codec, limit=999)


BOMBS = [
    ("zstd", False),
    ("gzip", True),
    ("lz4", False),
    ("gzip", False),
    ("zstd", True),
    ("lz4", True),
]
"""A codec, and whether what is sent says how large it gets: who says so is refused by that."""


def bomb(codec: str, *, announced: bool) -> bytes:
    """A frame of 200 MiB of zeros, which says so in its header or does not."""
    piece = bytes(MIB)
    size = BOMB_BYTES if announced else 0
    if codec == "gzip":
        deflater = zlib.compressobj(wbits=31)
        parts = [deflater.compress(piece) for _ in range(BOMB_BYTES // MIB)]
        return b"".join([*parts, deflater.flush()])
    if codec == "lz4":
        squeezer = lz4.frame.LZ4FrameCompressor()
        parts = [squeezer.begin(source_size=size)]
        parts += [squeezer.compress(piece) for _ in range(BOMB_BYTES // MIB)]
        return b"".join([*parts, squeezer.flush()])
    stream = zstandard.ZstdCompressor(level=1).compressobj(size=size or -1)
    return b"".join([*(stream.compress(piece) for _ in range(BOMB_BYTES // MIB)), stream.flush()])


@pytest.mark.parametrize(("codec", "announced"), few(BOMBS, 3))
def test_a_bomb_is_refused_within_the_limits_memory(codec: str, announced: bool) -> None:
    packed = bomb(codec, announced=announced)
    assert len(packed) < MIB, "what is sent is small"
    assert_refused_cheaply(packed, codec)


def assert_refused_cheaply(packed: bytes, codec: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="more than"):
            decompress(packed, codec, limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_snappy_blocks_that_are_too_large_are_refused_by_what_they_state() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB // 4)))
    framed = SNAPPY_FRAME + (struct.pack(">i", len(block)) + block) * 800
    assert_refused_cheaply(framed, "snappy")
    assert_refused_cheaply(b"\xff\xff\xff\xff\x0f" + block, "snappy")


def test_a_snappy_block_that_understates_its_size_is_corrupt() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    assert block[:2] == b"\xe8\x07"
    with pytest.raises(CorruptBatch, match="does not inflate"):
        decompress(b"\x64" + block[2:], "snappy")


def test_a_zstd_frame_that_asks_for_a_huge_window_is_refused() -> None:
    frame = bytes.fromhex("28b52ffd00a0010000")  # window 2**30; one last block, empty
    with pytest.raises(CorruptBatch, match="memory"):
        decompress(frame, "zstd")


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_large_payload_is_inflated_in_steps_of_a_mebibyte(codec: str) -> None:
    packed = compress(bytes(8 * MIB), codec)
    assert sum(1 for _ in inflating(packed, codec)) >= 8
    assert len(at_once(inflating(packed, codec))) == 8 * MIB


def test_gzip_of_what_does_not_shrink_or_of_nothing_is_taken_in_pieces_too() -> None:
    """All that was left was copied for each piece, or gone through in one step."""
    noise = random.Random(1).randbytes(3 * MIB)
    packed = compress(noise, "gzip")
    assert sum(1 for _ in inflating(packed, "gzip")) >= len(packed) / (MIB // 4)
    assert at_once(inflating(packed, "gzip")) == noise
    deflater = zlib.compressobj(wbits=31)
    head = deflater.compress(b"") + deflater.flush(zlib.Z_FULL_FLUSH)
    packed = head + b"\0\0\0\xff\xff" * 10**6 + deflater.flush()
    assert sum(1 for _ in inflating(packed, "gzip")) >= len(packed) / (MIB // 4)
    assert decompress(packed, "gzip") == b""
    for wrong in (packed + b"x", packed[:-1]):
        with pytest.raises(CorruptBatch):
            decompress(wrong, "gzip")


def test_a_frame_of_a_million_empty_blocks_is_looked_at_in_steps() -> None:
    frame = bytes.fromhex("28b52ffd0058") + bytes(3 * 100_000) + b"\1\0\0"
    assert sum(1 for _ in inflating(frame, "zstd")) > 40
    assert decompress(frame, "zstd") == b""


# Damage.


@pytest.mark.parametrize("pack", [streamed_zstd, summed_zstd])
def test_a_zstd_frame_cut_anywhere_is_corrupt(pack) -> None:
    packed = pack(bytes(range(256)) * 4)
    for size in range(len(packed)):
        with pytest.raises(CorruptBatch):
            decompress(packed[:size], "zstd")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_compressed_payload_cut_anywhere_is_corrupt(codec: str) -> None:
    packed = bytes(compress(bytes(range(256)) * 4, codec))
    whole = [len(SNAPPY_FRAME)] if codec == "snappy" else []  # a frame of no blocks
    accepted = []
    for size in range(len(packed)):
        with suppress(CorruptBatch):
            decompress(packed[:size], codec)
            accepted.append(size)
    assert accepted == whole, "bytes kept of cut payloads that were taken for whole"


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bytes_behind_a_payload_are_corrupt(codec: str) -> None:
    packed = bytes(compress(b"payload", codec))
    for rest in (b"\0", packed):
        with pytest.raises(CorruptBatch):
            decompress(packed + rest, codec)


@given(data=st.data())
@many
def test_damaged_compressed_bytes_are_corrupt_or_stay_within_the_limit(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(COMPRESSED))
    packed = compress(data.draw(st.binary(max_size=60)) * 20, codec)
    damaged = flip(packed, data.draw(st.integers(0, len(packed) * 8 - 1)))
    position = data.draw(st.integers(0, len(packed)))
    damaged[position:position] = data.draw(st.binary(max_size=3))
    with suppress(CorruptBatch):
        assert len(decompress(damaged, codec, limit=4096)) <= 4096


@given(junk=st.binary(max_size=100), codec=st.sampled_from(COMPRESSED))
@some
def test_bytes_of_no_compression_are_corrupt(junk: bytes, codec: str) -> None:
    with pytest.raises(CorruptBatch):
        decompress(b"no frame" + junk, codec)


@pytest.mark.parametrize("codec", [*ROW_CODECS])
@pytest.mark.parametrize("size", [0, 10, 1 << 20, (3 << 20) + 5])
def test_what_is_compressed_in_steps_inflates_to_the_same(codec: str, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    steps = compressing(payload, codec)
    taken = 0
    try:
        while True:
            next(steps)
            taken += 1
    except StopIteration as done:
        compressed = done.value
    assert decompress(compressed, codec) == payload
    if codec == "lz4":
        assert not is_lz4_linked(compressed)
    if codec in ("lz4", "zstd"):
        assert taken == {0: 0, 10: 0, 1 << 20: 4}.get(size, 13)


def test_a_zstd_frame_is_inflated_to_no_more_than_it_states() -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(1 << 20)))
    assert stated_bytes(frame, "zstd") == 1 << 20
    at = frame.index((1 << 20).to_bytes(4, "little"))
    frame[at : at + 4] = (1 << 10).to_bytes(4, "little")
    assert stated_bytes(frame, "zstd") == 1 << 10
    with pytest.raises(CorruptBatch):
        decompress(frame, "zstd")


def test_a_block_of_snappy_becomes_so_large_and_no_larger() -> None:
    """It is inflated at once."""
    largest = bytes(cramjam.snappy.compress_raw(bytes(SNAPPY_BLOCK_MAX)))
    assert len(decompress(largest, "snappy")) == SNAPPY_BLOCK_MAX
    too_large = bytes(cramjam.snappy.compress_raw(bytes(SNAPPY_BLOCK_MAX + 1)))
    with pytest.raises(InflatesTooFar, match="a snappy block of 16777217 bytes"):
        decompress(too_large, "snappy")
