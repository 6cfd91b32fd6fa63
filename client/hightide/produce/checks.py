"""What a record may be: each check raises `UsageError` with the value and what was expected."""

from __future__ import annotations

from typing import NamedTuple

from hightide.produce.options import ProducerOptions
from hightide.protocol.batch_builder import RECORD_OVERHEAD, header_bytes
from hightide.protocol.columns import Headers
from hightide.protocol.errors import RecordTooLarge, UsageError, whole
from hightide.protocol.records import TIMESTAMP_MAX
from hightide.protocol.words import counted

BYTES = (bytes, type(None))
"""What a key, a value, and the value of a header may be."""


class NewRecord(NamedTuple):
    """A record as its sender wants it; nothing of it is checked yet."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp: int | None
    headers: Headers

    def checked_size(self) -> int:
        """Its bytes as the producer counts them; raises `UsageError` for what no record is."""
        key, value = self.key, self.value
        if value.__class__ not in BYTES or key.__class__ not in BYTES:
            raise UsageError(f"key and value are bytes or None, not {key!r} and {value!r}")
        size = RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if self.headers:
            check_headers(self.headers)
            size += header_bytes(self.headers)
        return size


def check_headers(headers: Headers) -> None:
    """Each header is a name and bytes or None."""
    for pair in headers:
        if not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and pair[1].__class__ in BYTES
        ):
            raise UsageError(f"header {pair!r}, expected (str, bytes or None)")
        try:
            pair[0].encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"header {pair!r}: {error}") from error


def checked_partition(topic: str, partition: int, count: int) -> int:
    """A partition as a plain number; raises `UsageError` if the topic has no such one."""
    number = whole("partition", partition)
    if not 0 <= number < count:
        raise UsageError(f"partition {partition}, topic {topic!r} has 0 to {count - 1}")
    return number


def too_large(size: int, options: ProducerOptions) -> RecordTooLarge:
    """Why no request, or no memory, holds a record of so many bytes."""
    return RecordTooLarge(
        f"record of {counted(size, 'byte')}, max_request_size is "
        f"{options.max_request_size} and buffer_memory is {options.buffer_memory}"
    )


def checked_timestamp(timestamp: int) -> int:
    """A time as a plain number; raises `UsageError` if it is none."""
    number = whole("timestamp", timestamp)
    if not 0 <= number <= TIMESTAMP_MAX:
        raise UsageError(f"timestamp {timestamp}, expected ms since 1970, at most {TIMESTAMP_MAX}")
    return number
