"""Requests about quotas: how much users and clients may send and read. Pure.

The rules of `messages.py` hold here too. Sources: KIP-13, KIP-546.
"""

from __future__ import annotations

from hightide.protocol.messages import Message

DEFAULT = "<default>"
"""In place of a name: whoever has no quota of their own."""
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
QUOTA_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
"""Bytes a second, at each broker."""


class QuotaSetting(Message, frozen=True, kw_only=True):
    """A quota of a user, of a client, or of a client of a user."""

    key: str
    user: str | None = None
    """None: whichever user it is."""
    client_id: str | None = None
    """None: whichever client it is."""
    value: int | None = None
    """None: there is none any more."""


class AlterClientQuotasRequest(Message, frozen=True, kw_only=True):
    quotas: list[QuotaSetting]


class AlteredQuota(Message, frozen=True, kw_only=True):
    number: int
    """Of the quota in the request."""
    error: str | None = None
    message: str = ""


class AlterClientQuotasResponse(Message, frozen=True, kw_only=True):
    quotas: list[AlteredQuota]


class DescribeClientQuotasRequest(Message, frozen=True, kw_only=True):
    pass


class DescribeClientQuotasResponse(Message, frozen=True, kw_only=True):
    quotas: list[QuotaSetting]
