"""Kafka's numbers of errors: those of hightide's own table, and what a few of them are instead.

`ERRORS` has Kafka's number for every code; codes that only Kafka's protocol has are here. Pure.
"""

from __future__ import annotations

from hightide.protocol.errors import ERRORS, ErrorCode, error_code

NONE = 0
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
MISMATCHED_ENDPOINT_TYPE = 114
UNSUPPORTED_ENDPOINT_TYPE = 115

CLOSING = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.CORRUPT_FRAME)
"""What is said by closing the connection: the first is no reason to try again in Java, the other
is not Kafka's."""


def number_of(error: str | None) -> int:
    """Kafka's number for an error of an answer; None: there is none."""
    return NONE if error is None else ERRORS[error_code(error)].number
