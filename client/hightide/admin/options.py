"""What an admin client may be told."""

from __future__ import annotations

from dataclasses import dataclass

from hightide.net.explained import explained
from hightide.net.options import ClientOptions


@explained
@dataclass(frozen=True, kw_only=True)
class AdminOptions(ClientOptions):
    """The options of `Admin`: Kafka's names, times in ms."""

    client_id: str = "hightide-admin"
    default_api_timeout_ms: float = 30_000
    """How long a call may take in all. Kafka: default.api.timeout.ms, there 60 000."""
