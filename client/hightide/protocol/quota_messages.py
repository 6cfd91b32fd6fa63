"""Requests about quotas: how much users, clients and addresses may do. Pure.

The rules of `messages.py` hold here too. Sources: KIP-13, KIP-546, KIP-599, KIP-612.
"""

from __future__ import annotations

from hightide.protocol.messages import Message

DEFAULT = "<default>"
"""In place of a name: all who have no quota of their own."""
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
"""Bytes a second, at each broker."""
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
"""Partitions a second that are created or deleted, in the whole cluster."""
CONNECTION_CREATION_RATE = "connection_creation_rate"
"""Connections a second that an address makes, to each broker."""
QUOTA_KEYS = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    CONNECTION_CREATION_RATE,
)


FRACTIONAL = (CONTROLLER_MUTATION_RATE,)
"""Those that need no whole number: one partition in two seconds is a rate, too."""


class QuotaSetting(Message, frozen=True, kw_only=True):
    """A quota of a user, of a client, or of a client of a user; or of an address."""

    key: str
    user: str | None = None
    """None: whichever user it is."""
    client_id: str | None = None
    """None: whichever client it is."""
    ip: str | None = None
    """Whose connections are counted; None: those of nobody in particular."""
    value: int | float | None = None
    """None: there is none any more. A fraction, of what may be one: `FRACTIONAL`."""


class AlterClientQuotasRequest(Message, frozen=True, kw_only=True):
    """What one holder is given is set whole, or not at all."""

    quotas: list[QuotaSetting]
    validate_only: bool = False


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
