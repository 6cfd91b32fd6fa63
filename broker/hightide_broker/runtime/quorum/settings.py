"""What a node's configuration says about its part in the quorum."""

from __future__ import annotations

from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.quorum.roles import QuorumConfig
from hightide_broker.storage.directory import Meta

FETCH_WAIT_MS = 500
"""How long a follower of the metadata lets its leader wait for news."""


def quorum_config(config: BrokerConfig, meta: Meta) -> QuorumConfig:
    """For the node whose directory says this of it."""
    fetch_timeout_s = config.seconds(keys.CONTROLLER_QUORUM_FETCH_TIMEOUT_MS)
    return QuorumConfig(
        node=config[keys.NODE_ID],
        voters=tuple(config.voters),
        addresses=config.voters,
        directory=meta.directory_id,
        joining=meta.joining,
        cluster_id=meta.cluster_id,
        election_timeout_s=config.seconds(keys.CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS),
        fetch_timeout_s=fetch_timeout_s,
        fetch_wait_ms=min(FETCH_WAIT_MS, int(fetch_timeout_s * 1000 / 4)),
        election_backoff_max_s=config.seconds(keys.CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS),
        retry_backoff_s=config.seconds(keys.CONTROLLER_QUORUM_RETRY_BACKOFF_MS),
    )
