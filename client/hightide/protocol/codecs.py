"""Compression: the codecs of both kinds of batches, and inflating that nobody can blow up.

What this room is: a payload as a whole, deflated or inflated. Every codec is read in pieces,
against a limit, whatever its frame claims of itself; and one frame is one payload: bytes behind it
are damage. Inflating comes in steps for who must not hold its event loop for long (`at_once` takes
them all). Pure: bytes in, bytes out.

Sources: RFC 1952 (gzip), snappy's format description and the frame that Kafka's Java client puts
around its blocks, the LZ4 frame format, RFC 8878 (zstd).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from hightide.protocol.errors import CorruptBatch, InflatesTooFar
from hightide.protocol.words import counted

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that pauses every millisecond or so; its return value is the result."""

INFLATED_BYTES_MAX = 64 << 20
"""What one compressed payload may inflate to, for readers and brokers alike."""

SNAPPY_BLOCK_MAX = 16 << 20
"""What one block of snappy may inflate to, which is done at once."""

CODECS = {"none": 0, "lz4": 3, "zstd": 4}
"""Compression names of batches of columns to Kafka's numbers."""
ROW_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Those of Kafka's own batches."""
CODEC_NAMES = {number: name for name, number in ROW_CODECS.items()}

_PIECE_BYTES = 1 << 20
_DEFLATED_AT_ONCE = 1 << 18
_FED_AT_ONCE = 1 << 18
_ZSTD_WINDOW_MAX = 1 << 27
_ZSTD_LEVEL = 3
_ZSTD_BLOCKS_A_STEP = 2048
_ZSTD_RLE = 1
_GZIP_WINDOW = 31
"""zlib's word for: the largest window, with a gzip header and trailer."""
_SNAPPY_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_SNAPPY_MAGIC_BYTES = 8
_SNAPPY_BLOCK_BYTES = 1 << 16
_LZ4_FLAGS_AT = 4
_LZ4_INDEPENDENT = 0x20
_LZ4_DICTIONARY = 0x01


def at_once(steps: Steps[T]) -> T:
    """The result of work in steps, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def settled(result: T) -> Steps[T]:
    """Work that is done."""
    yield from ()
    return result


def compress(payload: Buffer, codec: str, *, lz4_linked: bool = True) -> Buffer:
    """`payload` compressed as a whole; codec is one of `ROW_CODECS`. Kafka's Java client reads lz4
    only with `lz4_linked` False: no block of it refers to the one before."""
    if codec == "none":
        return payload
    if codec == "gzip":
        deflater = zlib.compressobj(wbits=_GZIP_WINDOW)
        return deflater.compress(payload) + deflater.flush()
    if codec == "snappy":
        return _deflate_snappy(memoryview(payload))
    if codec == "lz4":
        import lz4.frame

        return bytes(lz4.frame.compress(payload, block_linked=lz4_linked))
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(payload)
    raise ValueError(f"codec {codec!r} is none of {', '.join(ROW_CODECS)}")


def compressing(payload: Buffer, codec: str) -> Steps[Buffer]:
    """The same in steps, for Kafka's clients: no block of lz4 refers to the one before."""
    if codec not in ("lz4", "zstd") or len(payload) <= _DEFLATED_AT_ONCE:
        return compress(payload, codec, lz4_linked=False)
    view = memoryview(payload)
    deflater = _deflater(codec, len(view))
    pieces = [deflater.begin()] if codec == "lz4" else []
    for start in range(0, len(view), _DEFLATED_AT_ONCE):
        pieces.append(deflater.compress(view[start : start + _DEFLATED_AT_ONCE]))
        yield
    return b"".join([*pieces, deflater.flush()])


def _deflater(codec: str, size: int) -> Any:
    """Takes a payload of so many bytes piece by piece."""
    if codec == "lz4":
        import lz4.frame

        return lz4.frame.LZ4FrameCompressor(block_linked=False)
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=size)


def decompress(payload: Buffer, codec: str, *, limit: int = INFLATED_BYTES_MAX) -> Buffer:
    """`payload` inflated, reading at most `limit` bytes whatever the frame claims of itself.

    Raises `CorruptBatch` if the bytes do not inflate, `InflatesTooFar` if to more than `limit`.
    """
    return at_once(inflating(payload, codec, limit=limit))


def inflating(payload: Buffer, codec: str, *, limit: int = INFLATED_BYTES_MAX) -> Steps[Buffer]:
    """The same in steps."""
    if codec == "none":
        if len(payload) > limit:
            raise _too_large(limit)
        return payload
    readers: dict[str, Callable[[memoryview, int], Iterator[bytes]]] = {
        "gzip": _inflate_gzip,
        "snappy": _inflate_snappy,
        "lz4": _inflate_lz4,
        "zstd": _inflate_zstd,
    }
    if codec not in readers:
        raise CorruptBatch(f"compression codec {codec} is none of {', '.join(ROW_CODECS)}")
    stated = stated_bytes(payload, codec)
    if stated > limit:
        raise _too_large(limit)
    limit = limit if stated < 0 else stated
    whole: bytes | bytearray = b""
    reader = readers[codec](memoryview(payload), limit)
    for piece in reader:
        if not whole:
            whole = piece
        else:
            # A bytearray grows where it is: to join large pieces at the end would take long.
            whole = whole if isinstance(whole, bytearray) else bytearray(whole)
            whole += piece
        if len(whole) > limit:
            raise _more_than(limit, stated)
        yield
    if len(whole) < stated:
        raise CorruptBatch(
            f"{codec} payload inflates to {counted(len(whole), 'byte')}, it states {stated}"
        )
    return whole


def stated_bytes(payload: Buffer, codec: str) -> int:
    """What a payload says that it inflates to: to no more is it inflated. -1: it does not say, as
    none but lz4 and zstd does. Raises `CorruptBatch`."""
    if codec == "none":
        return len(payload)
    if codec == "lz4":
        import lz4.frame

        try:
            return int(lz4.frame.get_frame_info(payload)["content_size"]) or -1
        except RuntimeError as error:
            raise CorruptBatch(f"lz4 payload does not inflate: {error}") from error
    if codec == "zstd":
        import zstandard

        try:
            stated = zstandard.get_frame_parameters(payload).content_size
        except zstandard.ZstdError as error:
            raise CorruptBatch(f"zstd payload does not inflate: {error}") from error
        return -1 if stated == zstandard.CONTENTSIZE_UNKNOWN else int(stated)
    return -1


def is_lz4_linked(payload: Buffer) -> bool:
    """Whether blocks of an lz4 frame refer to those before, or to a dictionary, which Java's reader
    refuses."""
    view = memoryview(payload)
    if len(view) <= _LZ4_FLAGS_AT:
        return False
    return view[_LZ4_FLAGS_AT] & (_LZ4_INDEPENDENT | _LZ4_DICTIONARY) != _LZ4_INDEPENDENT


def _more_than(limit: int, stated: int) -> CorruptBatch:
    if stated < 0:
        return _too_large(limit)
    return CorruptBatch(f"payload inflates to more than the {counted(stated, 'byte')} it states")


def _too_large(limit: int) -> InflatesTooFar:
    return InflatesTooFar(f"payload inflates to more than {counted(limit, 'byte')}")


def _inflate_gzip(payload: memoryview, limit: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=_GZIP_WINDOW)
    pending: Buffer = b""
    fed = size = 0
    try:
        while size <= limit and not inflater.eof:
            if not pending:
                # All of it at once would be copied for each piece, or inflate to nothing for long.
                pending = payload[fed : fed + _FED_AT_ONCE]
                fed += len(pending)
            piece = inflater.decompress(pending, _PIECE_BYTES)
            if not (piece or pending or inflater.eof):
                raise CorruptBatch("gzip payload ends too early")
            pending = inflater.unconsumed_tail
            size += len(piece)
            yield piece
    except zlib.error as error:
        raise CorruptBatch(f"gzip payload does not inflate: {error}") from error
    if inflater.eof:
        _check_rest("gzip", len(inflater.unused_data) + len(payload) - fed)


def _inflate_snappy(payload: memoryview, limit: int) -> Iterator[bytes]:
    import cramjam

    size = 0
    for block in _snappy_blocks(payload):
        # A block says how large it becomes, and is inflated at once: believe it only within limits.
        stated = _stated_by_snappy(block)
        size += stated
        if size > limit:
            raise _too_large(limit)
        if stated > SNAPPY_BLOCK_MAX:
            raise InflatesTooFar(
                f"a snappy block of {counted(stated, 'byte')}, expected {SNAPPY_BLOCK_MAX} or less"
            )
        try:
            yield bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise CorruptBatch(f"snappy payload does not inflate: {error}") from error


def _snappy_blocks(payload: memoryview) -> Iterator[memoryview]:
    """The blocks of a payload: it is one, or many with the frame of Kafka's Java client."""
    if payload[:_SNAPPY_MAGIC_BYTES] != _SNAPPY_HEADER[:_SNAPPY_MAGIC_BYTES]:
        yield payload
        return
    position = len(_SNAPPY_HEADER)
    if payload[:position] != _SNAPPY_HEADER:
        # Some of Kafka's clients read no other, and what is stored all of them must read.
        raise CorruptBatch("snappy frame of another version than 1")
    while position != len(payload):
        start = position + 4
        position = start + int.from_bytes(payload[position:start], "big")
        if position > len(payload):
            raise CorruptBatch("snappy payload ends too early")
        yield payload[start:position]


def _stated_by_snappy(block: memoryview) -> int:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size
        shift += 7
    raise CorruptBatch("snappy payload does not state its size")


def _deflate_snappy(payload: memoryview) -> bytes:
    import cramjam

    parts = [_SNAPPY_HEADER]
    for start in range(0, len(payload), _SNAPPY_BLOCK_BYTES):
        piece = payload[start : start + _SNAPPY_BLOCK_BYTES]
        block = bytes(cramjam.snappy.compress_raw(piece))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _inflate_lz4(payload: memoryview, limit: int) -> Iterator[bytes]:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    pending: Buffer = payload
    size = 0
    try:
        while size <= limit and not inflater.eof:
            piece = bytes(inflater.decompress(pending, max_length=_PIECE_BYTES))
            pending = b""
            if not piece and inflater.needs_input and not inflater.eof:
                raise CorruptBatch("lz4 payload ends too early")
            size += len(piece)
            yield piece
    except RuntimeError as error:
        raise CorruptBatch(f"lz4 payload does not inflate: {error}") from error
    _check_rest("lz4", len(inflater.unused_data or b""))


def _inflate_zstd(payload: memoryview, limit: int) -> Iterator[bytes]:
    import zstandard

    try:
        has_checksum = zstandard.get_frame_parameters(payload).has_checksum
        # A reader does not tell a frame that is cut off from one that ends.
        yield from _zstd_frame_is_whole(payload, has_checksum=has_checksum)
        inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
        size = 0
        with inflater.stream_reader(payload) as reader:
            while size <= limit and (piece := reader.read(_PIECE_BYTES)):
                size += len(piece)
                yield piece
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd payload does not inflate: {error}") from error


def _zstd_frame_is_whole(payload: memoryview, *, has_checksum: bool) -> Iterator[bytes]:
    """Raise `CorruptBatch` unless the first frame is all of the payload, by the lengths of its
    blocks; pieces are empty."""
    import zstandard

    position = int(zstandard.frame_header_size(payload))
    is_last, count = 0, 0
    while not is_last:
        head = int.from_bytes(payload[position : position + 3], "little")
        is_last, kind, size = head & 1, head >> 1 & 3, head >> 3
        position += 3 + (1 if kind == _ZSTD_RLE else size)
        if position > len(payload):
            raise CorruptBatch("zstd payload ends too early")
        count += 1
        if count % _ZSTD_BLOCKS_A_STEP == 0:
            yield b""
    position += 4 if has_checksum else 0
    if position > len(payload):
        raise CorruptBatch("zstd payload ends too early")
    _check_rest("zstd", len(payload) - position)


def _check_rest(codec: str, byte_count: int) -> None:
    if byte_count:
        raise CorruptBatch(
            f"{counted(byte_count, 'byte follows', 'bytes follow')} the {codec} payload"
        )
