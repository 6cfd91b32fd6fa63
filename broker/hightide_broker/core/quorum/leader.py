"""How a leader of the metadata quorum judges a request before it answers it. Pure.

A fetch is valid if its sender's log is a prefix of the leader's: then its offset is an
acknowledgement. Otherwise the answer says where the logs part, or names the snapshot to begin from.
Sources: KIP-595, KIP-630.
"""

from __future__ import annotations

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.divergence import divergence
from hightide_broker.core.quorum.ready import LogView
from hightide_broker.core.quorum.roles import QuorumConfig

METADATA_TOPIC = "__cluster_metadata"


EPOCH_MAX = (1 << 31) - 2
"""Epochs are i32 in a batch, and there must be one more."""


def check_cluster(cluster_id: str, config: QuorumConfig) -> None:
    """Raise `Refused` INCONSISTENT_CLUSTER_ID for a node of another cluster."""
    if cluster_id and config.cluster_id and cluster_id != config.cluster_id:
        raise Refused(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the request is from cluster {cluster_id}, this is cluster {config.cluster_id}",
        )


def check_epoch_range(epoch: int) -> None:
    """Raise `Refused` for an epoch that cannot be."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise Refused(ErrorCode.INVALID_REQUEST, f"epoch {epoch}, expected 0 to {EPOCH_MAX}")


def check_addressee(voter: int, directory: str, sender: int, config: QuorumConfig) -> None:
    """Raise `Refused` unless a node sent the request, for this very voter: this node with this
    directory.

    A sender that knows no directories has no record of the voters, and goes by its configuration.
    Then ours has to say the same: two different ideas of a majority must not meet. A directory that
    was made for a cluster that exists is none of those voters.
    """
    if voter != config.node or directory not in ("", config.directory):
        raise Refused(
            ErrorCode.INVALID_VOTER_KEY,
            f"node {sender} speaks to voter {voter} with directory {directory or 'unknown'}, this "
            f"is node {config.node} with directory {config.directory or 'unknown'}",
        )
    if sender < 0:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"node {sender} speaks to voter {voter}, and is no node"
        )
    is_of_config = not config.joining and voter in config.voters and sender in config.voters
    if not directory and not is_of_config:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"node {sender} speaks to voter {voter}, this is node {config.node} and the voters are "
            f"{config.voters} (controller.quorum.voters)",
        )


def check_fetch(request: m.FetchRequest, config: QuorumConfig) -> m.FetchPartition:
    """The one partition of a fetch of the metadata log; raises `Refused`."""
    check_cluster(request.cluster_id, config)
    if len(request.partitions) != 1 or request.replica_id < 0:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"{METADATA_TOPIC} is fetched by nodes only, and alone in a request",
        )
    part = request.partitions[0]
    if (
        part.partition != 0
        or part.fetch_offset < 0
        or not 0 <= part.last_fetched_epoch <= part.current_leader_epoch
    ):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"fetch of {METADATA_TOPIC}-{part.partition} from {part.fetch_offset} behind epoch "
            f"{part.last_fetched_epoch} in epoch {part.current_leader_epoch}",
        )
    return part


def check_snapshot_fetch(request: c.FetchSnapshotRequest, config: QuorumConfig) -> None:
    """Raise `Refused` unless the request makes sense."""
    check_cluster(request.cluster_id, config)
    if request.replica_id < 0 or request.position < 0:
        raise Refused(
            ErrorCode.POSITION_OUT_OF_RANGE if request.position < 0 else ErrorCode.INVALID_REQUEST,
            f"node {request.replica_id} asks for a snapshot from position {request.position}",
        )


def locate(
    log: LogView, part: m.FetchPartition, high_watermark: int, leader: int, epoch: int
) -> m.FetchResult | None:
    """None if the fetcher's log is a prefix of this one; else what it has to do first."""
    snapshot: m.EpochEnd | None = None
    diverging: m.EpochEnd | None = None
    if _needs_snapshot(log, part.fetch_offset, part.last_fetched_epoch):
        assert log.latest_snapshot is not None, "a log that does not begin at 0 has a snapshot"
        end_offset, of_epoch = log.latest_snapshot
        snapshot = m.EpochEnd(epoch=of_epoch, end_offset=end_offset)
    else:
        diverging = _divergence(log, part.fetch_offset, part.last_fetched_epoch)
    if snapshot is None and diverging is None:
        return None
    return m.FetchResult(
        topic=part.topic,
        partition=part.partition,
        high_watermark=high_watermark,
        log_start_offset=log.log_start,
        snapshot=snapshot,
        diverging_epoch=diverging,
        current_leader=m.LeaderHint(leader=leader, leader_epoch=epoch),
    )


def _needs_snapshot(log: LogView, offset: int, epoch: int) -> bool:
    earliest = log.earliest_snapshot
    if earliest is None:
        return False
    # From 0, too, although the log may begin there: a snapshot is shorter than what made it.
    if offset == 0 or offset < log.log_start:
        return True
    # Epochs from before the earliest snapshot are forgotten: nobody can say where they ended.
    return log.log_start > 0 and (
        epoch < earliest.epoch or (offset == log.log_start and epoch != earliest.epoch)
    )


def _divergence(log: LogView, offset: int, epoch: int) -> m.EpochEnd | None:
    start, earliest = log.log_start, log.earliest_snapshot
    if offset == start and (start == 0 or (earliest is not None and epoch == earliest.epoch)):
        return None
    found, end = log.end_offset_for(epoch)
    # Of a later epoch than any here, or there is none: the two share nothing that is known.
    nothing = m.EpochEnd(epoch=0, end_offset=0)
    return divergence(epoch, offset, found, end) if found >= 0 else nothing


def fetch_refusal(
    request: m.FetchRequest, refusal: Refused, leader: int, epoch: int
) -> m.FetchResponse:
    """A refused fetch, which says who leads."""
    hint = m.LeaderHint(leader=leader, leader_epoch=epoch)
    return m.FetchResponse(
        partitions=[
            m.FetchResult(
                topic=part.topic,
                partition=part.partition,
                error=refusal.code,
                message=refusal.message,
                current_leader=hint,
            )
            for part in request.partitions
        ]
    )
