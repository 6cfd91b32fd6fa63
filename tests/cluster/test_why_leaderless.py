"""What people are told of a partition that nobody leads: who is waited for, what there is to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hightide_broker.core.cluster.image import NO_LEADER, PartitionState
from hightide_broker.core.cluster.leaderless import why_nobody_leads

ALONE = PartitionState(
    replicas=(1, 2, 3), isr=(), leader=NO_LEADER, leader_epoch=4, partition_epoch=7, elr=()
)


def told(**facts: object) -> str:
    return why_nobody_leads("t-0", replace(ALONE, **facts), lambda broker: broker == 1)


def test_who_is_led_is_told_nothing() -> None:
    assert told(leader=1) == ""


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"elr": (2,)}, "what is committed is on broker 2, of which one is waited for"),
        ({"elr": (2, 3)}, "what is committed is on brokers 2, 3, of which one is waited for"),
        (
            {"last_known_elr": (1, 3)},
            "brokers 1, 3 stopped uncleanly and may lack what was not synced; the longest log "
            "leads once all of them are back, and broker 3 is waited for",
        ),
        (
            {"last_known_elr": (1,)},
            "broker 1 stopped uncleanly and may lack what was not synced; the longest log leads "
            "once all of them are back, and broker 1 is waited for",
        ),
        ({"last_leader": 2}, "it was held last by broker 2, whose disk was lost or replaced"),
        ({}, "it was held last by nobody known, whose disk was lost or replaced"),
    ],
)
def test_who_is_led_by_nobody_is_told_why(facts: dict[str, object], words: str) -> None:
    assert told(**facts).startswith("nobody leads t-0: ")
    assert words in told(**facts)
