"""What a leader of the quorum answers to a fetch from another log, word by word.

Goal: KIP-595's and KIP-630's answers: nothing to say, a divergence, a snapshot. Method: the rule by
itself, over a log in memory.
"""

from __future__ import annotations

import pytest
from quorum_node import Entry, FakeLog

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.leader import (
    METADATA_TOPIC,
    check_fetch,
    check_snapshot_fetch,
    fetch_refusal,
    locate,
)
from hightide_broker.core.quorum.roles import QuorumConfig

CONFIG = QuorumConfig(node=1, voters=(1, 2, 3), cluster_id="ours")


def fetch(offset: int, epoch: int, **more: int) -> m.FetchPartition:
    return m.FetchPartition(
        topic=METADATA_TOPIC,
        partition=0,
        fetch_offset=offset,
        last_fetched_epoch=epoch,
        current_leader_epoch=5,
        **more,
    )


def request(replica: int, *parts: m.FetchPartition) -> m.FetchRequest:
    return m.FetchRequest(
        replica_id=replica, cluster_id="ours", partitions=list(parts), max_wait_ms=0, max_bytes=1
    )


def log(*epochs: int) -> FakeLog:
    return FakeLog(Entry(epoch, str(offset)) for offset, epoch in enumerate(epochs))


def answer(kept: FakeLog, offset: int, epoch: int) -> m.FetchResult | None:
    return locate(kept, fetch(offset, epoch), 2, 1, 5)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (1, 1), (2, 1), (3, 3), (4, 3)])
def test_whose_log_is_a_prefix_is_told_nothing(offset: int, epoch: int) -> None:
    assert answer(log(1, 1, 3, 3), offset, epoch) is None


@pytest.mark.parametrize(
    ("offset", "epoch", "ends"),
    [
        (3, 1, (1, 2)),
        (3, 2, (1, 2)),
        (5, 3, (3, 4)),
        (1, 9, (0, 0)),
    ],
    ids=["beyond its end", "an epoch that is not here", "longer", "of a later epoch"],
)
def test_whose_log_differs_is_told_where_and_who_leads(
    offset: int, epoch: int, ends: tuple[int, int]
) -> None:
    assert answer(log(1, 1, 3, 3), offset, epoch) == m.FetchResult(
        topic=METADATA_TOPIC,
        partition=0,
        high_watermark=2,
        log_start_offset=0,
        diverging_epoch=m.EpochEnd(epoch=ends[0], end_offset=ends[1]),
        current_leader=m.LeaderHint(leader=1, leader_epoch=5),
    )


@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(0, 0), (1, 1), (3, 1), (4, 1), (2, 9)],
    ids=[
        "nothing",
        "before the start",
        "an old epoch at the start",
        "an old epoch",
        "from nowhere",
    ],
)
def test_who_needs_what_is_forgotten_is_told_which_snapshot(offset: int, epoch: int) -> None:
    kept = log(1, 1, 3, 3, 4)
    kept.start_at(kept.snapshot(3))
    assert answer(kept, offset, epoch) == m.FetchResult(
        topic=METADATA_TOPIC,
        partition=0,
        high_watermark=2,
        log_start_offset=3,
        snapshot=m.EpochEnd(epoch=3, end_offset=3),
        current_leader=m.LeaderHint(leader=1, leader_epoch=5),
    )


def test_who_begins_where_the_log_does_is_told_nothing_if_the_epoch_is_the_snapshots() -> None:
    kept = log(1, 1, 3, 3, 4)
    kept.start_at(kept.snapshot(3))
    assert answer(kept, 3, 3) is None
    later = answer(kept, 3, 4)
    assert later is not None
    assert later.snapshot == m.EpochEnd(epoch=3, end_offset=3)


def test_a_log_that_begins_at_its_first_record_is_not_taken_for_one_that_was_cut() -> None:
    kept = log(1, 1)
    kept.start_at(kept.snapshot(1))
    found = answer(kept, 1, 0)
    assert found is not None
    assert found.snapshot == m.EpochEnd(epoch=1, end_offset=1)


def test_a_refused_fetch_says_why_and_who_leads() -> None:
    refusal = Refused(ErrorCode.INVALID_REQUEST, "for a reason")
    assert fetch_refusal(request(2, fetch(7, 3)), refusal, 1, 5).partitions == [
        m.FetchResult(
            topic=METADATA_TOPIC,
            partition=0,
            error=ErrorCode.INVALID_REQUEST,
            message="for a reason",
            current_leader=m.LeaderHint(leader=1, leader_epoch=5),
        )
    ]


def test_node_0_may_fetch_and_who_is_no_node_is_told_what_may() -> None:
    assert check_fetch(request(0, fetch(7, 3)), CONFIG) == fetch(7, 3)
    for wrong in (request(-1, fetch(7, 3)), request(2, fetch(7, 3), fetch(7, 3)), request(2)):
        with pytest.raises(Refused, match="is fetched by nodes only, and alone in a request"):
            check_fetch(wrong, CONFIG)


def test_a_fetch_from_where_nothing_can_be_names_offset_and_epochs() -> None:
    with pytest.raises(Refused, match=r"from -1 behind epoch 3 in epoch 5"):
        check_fetch(request(2, fetch(-1, 3)), CONFIG)


@pytest.mark.parametrize(
    ("replica", "position", "code"),
    [(-1, 0, ErrorCode.INVALID_REQUEST), (2, -1, ErrorCode.POSITION_OUT_OF_RANGE)],
)
def test_a_snapshot_that_cannot_be_read_is_refused_by_node_and_position(
    replica: int, position: int, code: ErrorCode
) -> None:
    def asked(replica: int, position: int) -> c.FetchSnapshotRequest:
        return c.FetchSnapshotRequest(
            cluster_id="ours",
            replica_id=replica,
            current_leader_epoch=5,
            snapshot=m.EpochEnd(epoch=3, end_offset=7),
            position=position,
            max_bytes=1,
        )

    check_snapshot_fetch(asked(0, 0), CONFIG)
    told = f"node {replica} asks for a snapshot from position {position}"
    with pytest.raises(Refused, match=told) as refused:
        check_snapshot_fetch(asked(replica, position), CONFIG)
    assert refused.value.code is code
