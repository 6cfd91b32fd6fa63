"""The quorum and its log, as a node describes them to who asks."""

from __future__ import annotations

import trio

from hightide.protocol import node_messages as n
from hightide.protocol import quorum_messages as q
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.core.quorum.state_machine import Quorum
from hightide_broker.runtime.quorum.metadata_log import MetadataLog

EPOCHS_TOLD_MAX = 100
"""The newest of them: a log between two snapshots rarely holds more."""


def as_led(quorum: Quorum, cluster_id: str) -> q.DescribeQuorumResponse:
    """The quorum as its leader sees it; raises `Refused` elsewhere."""
    voters, observers = quorum.describe(trio.current_time())
    return q.DescribeQuorumResponse(
        cluster_id=cluster_id,
        leader=quorum.leader,
        epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        voters=voters,
        observers=observers,
    )


def as_known(quorum: Quorum, cluster_id: str) -> q.DescribeQuorumResponse:
    """The quorum as one node knows it where nobody leads."""
    return q.DescribeQuorumResponse(
        cluster_id=cluster_id,
        leader=NOBODY,
        epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        voters=quorum.describe_alone(),
        observers=[],
    )


def log_of(node: int, log: MetadataLog, high_watermark: int) -> n.DescribeMetadataLogResponse:
    """A node's own copy of the metadata log."""
    return n.DescribeMetadataLogResponse(
        node=node,
        log_start_offset=log.log_start,
        high_watermark=high_watermark,
        synced_offset=log.synced_end,
        log_end_offset=log.log_end,
        epochs=[
            n.EpochStart(epoch=epoch, start_offset=start)
            for epoch, start in log.epochs[-EPOCHS_TOLD_MAX:]
        ],
    )
