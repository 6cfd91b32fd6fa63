"""A batch that may not be stored, for what it is; not for where it came, or when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from hightide.protocol.errors import NO_RECORDS, ErrorCode, Refused

Cause = Literal["crc", "sequence", "epoch", "size", "timestamp", "magic", "record"]
"""What is wrong with it: it is not what was sent (`crc`: its checksum, or a header that can be no
batch's) · comes out of its producer's order (`sequence`), or from one that another has taken the
place of (`epoch`) · is too large, as it is or inflated · its records' times may not be · no broker,
or not each one, can read its form (`magic`) · what its header or a record says may not be."""
CAUSES: tuple[Cause, ...] = get_args(Cause)


class BatchRefused(Refused):
    """A producer's batch may not be stored; for `records` of it, if there are some (KIP-467)."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        cause: Cause,
        *,
        records: Mapping[int, str] = NO_RECORDS,
    ) -> None:
        super().__init__(code, message, records=records)
        self.cause: Cause = cause
