"""msgpack `bin` headers by hand: the one msgpack type that is read without a copy.

Frames carry record batches, and batches carry columns, as msgpack `bin` objects. A msgpack library
copies each one out; these two functions find where the bytes lie instead, so that a broker can send
them from the file and a client can give them to Arrow as they came. Pure; raises `ValueError`.
"""

from __future__ import annotations

import struct

from hightide.protocol.words import counted

_BIN8, _BIN16, _BIN32 = 0xC4, 0xC5, 0xC6
BIN_HEADER_BYTES_MAX = 5


def bin_header(size: int) -> bytes:
    """The msgpack header of a `bin` of `size` bytes."""
    if size < 1 << 8:
        return struct.pack(">BB", _BIN8, size)
    if size < 1 << 16:
        return struct.pack(">BH", _BIN16, size)
    return struct.pack(">BI", _BIN32, size)


def read_bin(view: memoryview, position: int) -> tuple[memoryview, int]:
    """The bytes of the `bin` at `position`, without a copy, and the position after it.

    Raises `ValueError` if there is no complete `bin` at `position`.
    """
    try:
        kind = view[position]
        if kind == _BIN8:
            start, size = position + 2, view[position + 1]
        elif kind == _BIN16:
            start, size = position + 3, struct.unpack_from(">H", view, position + 1)[0]
        elif kind == _BIN32:
            start, size = position + 5, struct.unpack_from(">I", view, position + 1)[0]
        else:
            raise ValueError(f"byte {position} is 0x{kind:02x}, expected a msgpack bin")
    except (IndexError, struct.error) as error:
        raise ValueError(f"the bin header at byte {position} is cut off") from error
    end = start + size
    if end > len(view):
        raise ValueError(
            f"the bin at byte {position} needs {counted(size, 'byte')}, "
            f"{len(view) - start} are there"
        )
    return view[start:end], end
