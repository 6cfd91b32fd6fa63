"""What a leader makes of a fetch of one partition: may it be answered, by whom, and what is news.
Pure.

Sources: KIP-320 and KIP-595 (divergence), KIP-392 (the nearest replica), KIP-903 (which process of
a broker), KIP-1166 (a follower hears of the watermark).
"""

from __future__ import annotations

from collections.abc import Callable

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.divergence import divergence
from hightide_broker.core.replication.leader import Leader


def check_follower(
    request: m.FetchRequest, part: m.FetchPartition, leader: Leader, *, registered: int, name: str
) -> None:
    """Raise `Refused` unless a replica of this partition asks, and its newest process; its broker
    is registered with that epoch."""
    follower = request.replica_id
    if follower not in leader.remotes:
        known = part.current_leader_epoch >= 0
        code = ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise Refused(code, f"broker {follower} is no other replica of {name}: {leader.replicas}")
    if 0 <= request.replica_epoch < registered:
        raise Refused(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {follower} fetches with epoch {request.replica_epoch}, "
            f"it is registered with {registered}",
        )


def check_reader(request: m.FetchRequest, offset: int, name: str, *, has_rows: bool) -> None:
    """Raise `Refused` if a consumer is of a version that cannot read what was found for it."""
    if has_rows and not request.reads_rows and request.replica_id < 0:
        raise Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{name} holds batches of Kafka's rows behind offset {offset}, which this consumer is "
            "of a version too old to read: use a newer one",
        )


def diverging(
    part: m.FetchPartition, found: int, end: int, *, log_start: int, log_end: int, name: str
) -> m.EpochEnd | None:
    """Where the logs part, if they do before the fetch offset; None if they agree, or it is not
    asked. `found` and `end` are what the epochs here say of the one that is named
    (`end_offset_for`). Raises `Refused` OFFSET_OUT_OF_RANGE where this log does not reach back so
    far."""
    if part.last_fetched_epoch < 0:
        return None
    if found < 0 or part.fetch_offset < log_start:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{name}: offset {part.fetch_offset} of epoch {part.last_fetched_epoch}, "
            f"the log holds {log_start} to {log_end}",
        )
    return divergence(part.last_fetched_epoch, part.fetch_offset, found, end)


def nearer(
    request: m.FetchRequest,
    part: m.FetchPartition,
    leader: Leader,
    log_start: int,
    rack_of: Callable[[int], str],
) -> int:
    """The other broker that a consumer should ask, -1 if there is none better."""
    if not request.rack or request.replica_id >= 0:
        return -1
    if part.fetch_offset < log_start:
        return -1  # out of range, even if somebody has not deleted it yet
    nearest = leader.nearest(part.fetch_offset, request.rack, rack_of)
    return -1 if nearest == leader.broker else nearest


def is_named(
    request: m.FetchRequest,
    part: m.FetchPartition,
    result: m.FetchResult,
    leader: Leader | None,
    *,
    in_session: bool,
) -> bool:
    """Whether an answer names a partition of which it has no records: to consumers always, to
    followers with other news; and where a session would hold what its follower is not in sync
    for."""
    if request.replica_id < 0 or is_news(part, result):
        return True
    return in_session and (leader is None or request.replica_id not in leader.isr)


def completes(
    request: m.FetchRequest, part: m.FetchPartition, result: m.FetchResult, *, can_wait: bool
) -> bool:
    """Whether an answer is sent for the sake of this result, whatever its size. `can_wait`: a
    watermark waits for records to go with."""
    if result.diverging_epoch is not None or result.preferred_read_replica >= 0:
        return True
    if request.replica_id < 0:
        return False
    return tells_deletions(part, result) or (not can_wait and tells_commits(part, result))


def enough(request: m.FetchRequest) -> int:
    """So many bytes are sent at once. A follower takes whatever there is: what it has waited for is
    news of single partitions."""
    return 1 if request.replica_id >= 0 else max(request.min_bytes, 1)


def is_news(part: m.FetchPartition, result: m.FetchResult) -> bool:
    """Whether a follower learns anything from a result without records."""
    return (
        result.diverging_epoch is not None
        or result.high_watermark > part.high_watermark
        or result.log_start_offset > part.log_start_offset
    )


def tells_commits(part: m.FetchPartition, result: m.FetchResult) -> bool:
    """Whether a follower that says which watermark it knows hears of a higher one."""
    return 0 <= part.high_watermark < result.high_watermark


def tells_deletions(part: m.FetchPartition, result: m.FetchResult) -> bool:
    """Whether a follower hears of a later log start, which somebody may be waiting for."""
    return 0 <= part.log_start_offset < result.log_start_offset
