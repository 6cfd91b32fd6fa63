"""What happens to a replica, as events of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from hightide_broker.core.replication.leader import NEVER, Leader, Proposal
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.trace.events import (
    FollowerBegan,
    IsrProposed,
    IsrRefused,
    LeaderBegan,
    RepairBegan,
    RepairEnded,
    Truncated,
)


def led(replica: Replica) -> LeaderBegan:
    """It leads a new epoch."""
    leader = replica.leader
    assert leader is not None, f"{replica!r} does not lead"
    return LeaderBegan(
        **_which(replica),
        log_end=leader.epoch_start,
        high_watermark=replica.high_watermark,
        isr=leader.isr,
    )


def followed(replica: Replica) -> FollowerBegan:
    """It follows in a new epoch."""
    log = replica.log
    return FollowerBegan(
        **_which(replica),
        leader=-1 if replica.follower is None else replica.follower.leader,
        log_end=log.log_end,
        last_epoch=log.epochs.latest_epoch,
        high_watermark=replica.high_watermark,
    )


def cut(
    replica: Replica, before: int, last_epoch: int, *, watermark: int, is_whole: bool
) -> Truncated:
    """Its log was cut; `before`, `last_epoch` and `watermark` are what it had."""
    log = replica.log
    return Truncated(
        **_which(replica),
        leader=-1 if replica.follower is None else replica.follower.leader,
        before=before,
        after=log.log_end,
        epoch_before=last_epoch,
        epoch_after=log.epochs.latest_epoch,
        high_watermark=watermark,
        is_whole=is_whole,
    )


def proposed(
    replica: Replica, leader: Leader, proposal: Proposal, now: float
) -> Iterator[IsrProposed]:
    """Its leader asks for another ISR: an event for each who is to leave or to join."""
    for broker in sorted({*leader.isr} ^ {*proposal.isr}):
        remote = leader.remotes[broker]
        caught_up = remote.log_end == leader.log_end
        behind_s = 0.0 if caught_up else now - remote.caught_up_at
        yield IsrProposed(
            **_which(replica),
            broker=broker,
            joins=broker in proposal.isr,
            isr=leader.isr,
            behind_ms=-1 if remote.caught_up_at == NEVER else int(behind_s * 1000),
            its_end=remote.log_end,
            log_end=leader.log_end,
            high_watermark=leader.high_watermark,
        )


def refused(replica: Replica, proposal: Proposal, error: str, message: str) -> IsrRefused:
    """The controller did not grant an ISR."""
    return IsrRefused(**_which(replica), isr=proposal.isr, error=error, message=message)


def repair_began(replica: Replica) -> RepairBegan:
    """It is cut to what is whole."""
    return RepairBegan(**_which(replica), why=replica.offline)


def repair_ended(replica: Replica) -> RepairEnded:
    """What is left of it."""
    log_end = -1 if replica.offline else replica.log.log_end
    return RepairEnded(**_which(replica), log_end=log_end)


class _Which(TypedDict):
    topic: str
    partition: int
    leader_epoch: int


def _which(replica: Replica) -> _Which:
    return _Which(
        topic=replica.topic, partition=replica.partition, leader_epoch=replica.leader_epoch
    )
