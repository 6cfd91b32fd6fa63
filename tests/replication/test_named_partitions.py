"""Which partitions an answer to a fetch names, of those that it has no records of.

Goal: a consumer hears of each, a follower only of what is news to it, or of what a session would
hold while it is not in sync. Method: the rule by itself.
"""

from __future__ import annotations

import pytest
from test_leader import of_three

from hightide.protocol import messages as m
from hightide_broker.core.replication.fetches import is_named

CONSUMER = -1
PART = m.FetchPartition(
    topic="a",
    partition=0,
    fetch_offset=5,
    current_leader_epoch=1,
    last_fetched_epoch=1,
    max_bytes=1,
    high_watermark=5,
    log_start_offset=0,
)


def named(replica: int, watermark: int = 5, *, isr: tuple[int, ...] = (0, 1, 2), **how: bool):
    request = m.FetchRequest(replica_id=replica, partitions=[PART], max_wait_ms=0, max_bytes=1)
    result = m.FetchResult(topic="a", partition=0, high_watermark=watermark, log_start_offset=0)
    some = of_three(replicas=(0, 1, 2), isr=isr)
    return is_named(request, PART, result, some, **{"in_session": False, **how})


@pytest.mark.parametrize("in_session", [False, True])
def test_a_consumer_hears_of_every_partition(in_session: bool) -> None:
    assert named(CONSUMER, in_session=in_session)


@pytest.mark.parametrize("replica", [0, 2])
def test_a_follower_hears_of_what_is_news_to_it(replica: int) -> None:
    assert not named(replica)
    assert not named(replica, in_session=True)
    assert named(replica, watermark=6)


@pytest.mark.parametrize("replica", [0, 2])
def test_a_session_holds_nothing_that_its_follower_is_not_in_sync_for(replica: int) -> None:
    assert named(replica, isr=(1,), in_session=True)
    assert not named(replica, isr=(1,))
