"""Fetch sessions, the follower's end: what is handed over, and when it is fetched again (KIP-227).

Goal: what has no news costs its follower one request that waits, however much there is of it; news
are fetched, and acknowledged, as ever; and whatever becomes of a session, each partition is fetched
on. Method: a real broker's replicas and fetchers on the simulated disk, leaders made by hand
(`quietkit`), and a clock that moves only when a test moves it. What goes wrong with a session is
`test_quiet_troubles.py`'s.
"""

import pytest
import trio
from brokers import GatedDisk
from leaderkit import EPOCH, ME, THREE, TWO, settled
from quietkit import GATHER_S, WAIT_S, There, following, news, quieted
from replicakit import batch

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import SetConfig
from hightide_broker.runtime.replication import fetcher

# --- handing over ---------------------------------------------------------------------------------


async def test_what_came_back_with_nothing_is_handed_over_in_one_request(mock_clock, nursery):
    there = await following(nursery, mock_clock, 5)
    there.two.open[0].answer()
    await settled()
    (asked,) = there.two.open
    assert asked.offsets == dict.fromkeys(range(5), 0)
    assert asked.session == (0, 0)
    part = asked.request.partitions[0]
    assert (part.current_leader_epoch, part.high_watermark, part.log_start_offset) == (EPOCH, 0, 0)
    assert (asked.request.replica_id, asked.request.replica_epoch) == (ME, 10)
    assert asked.request.max_wait_ms > 0


async def test_only_what_has_no_news_is_handed_over(mock_clock, nursery):
    there = await following(nursery, mock_clock, 3)
    there.two.open[0].answer(news(1, records=0), records=[batch(0)])
    await settled()
    (by_itself,), (in_session,) = there.two.by_itself, there.two.in_session
    assert by_itself.offsets == {1: 1}
    assert in_session.offsets == {0: 0, 2: 0}


async def test_what_comes_back_with_nothing_at_about_one_time_is_handed_over_together(
    mock_clock, nursery
):
    there = await following(nursery, mock_clock, 4)
    there.two.open[0].answer(*(news(number, high_watermark=0) for number in (1, 2)))
    await settled()
    assert [each.offsets for each in there.two.by_itself] == [{1: 0, 2: 0}]
    await there.here.create("onyx", leader=TWO)
    await settled()
    for asked in there.two.by_itself:
        asked.answer()
        await settled()
    assert len(there.two.in_session) == 1
    await there.after(GATHER_S * 1.1)
    assert [len(each.request.partitions) for each in there.two.in_session] == [2, 3]


async def test_one_request_of_the_session_waits_while_nothing_joins(mock_clock, nursery):
    there = await quieted(nursery, mock_clock, 3)
    for epoch in range(1, 6):
        there.two.open[0].answer()
        await settled()
        (asked,) = there.two.open
        assert (asked.session, asked.offsets) == ((0, epoch), {})
        await there.after(WAIT_S)
        assert len(there.two.open) == 1


async def test_what_joins_is_handed_over_by_a_request_of_its_own_and_then_one_waits_again(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock)
    first = there.two.open[0]
    await there.here.create("onyx", leader=TWO)
    await settled()
    await there.nothing_is_new()
    assert [each.session for each in there.two.in_session] == [(0, 0), (0, 1)]
    second = there.two.in_session[1]
    assert [part.topic for part in second.request.partitions] == ["onyx"]
    first.answer()
    await settled()
    assert there.two.open == [second], "it waits for the news of both"
    second.answer(news(high_watermark=0, log_start_offset=0))
    await settled()
    assert [each.offsets for each in there.two.by_itself] == [{0: 0}]
    assert [part.topic for part in there.two.by_itself[0].request.partitions] == ["jade"]


async def test_more_than_fits_into_a_request_is_handed_over_in_several(
    mock_clock, nursery, monkeypatch
):
    monkeypatch.setattr(fetcher, "PARTITIONS_MAX", 3)
    there = There(nursery, mock_clock)
    await there.follow(8)
    assert [len(each.offsets) for each in there.two.by_itself] == [3, 3, 2]
    await there.nothing_is_new()
    assert there.two.by_itself == []
    handed_over = there.two.in_session
    assert [each.session for each in handed_over] == [(0, epoch) for epoch in range(3)]
    assert [len(each.offsets) for each in handed_over] == [3, 3, 2]
    assert sorted(number for each in handed_over for number in each.offsets) == list(range(8))
    *early, last = handed_over
    for each in early:
        each.answer()
    await settled()
    assert there.two.open == [last]
    last.answer(*map(news, range(8)))
    await settled()
    assert [len(each.offsets) for each in there.two.by_itself] == [3, 3, 2]
    assert there.two.in_session == []


# --- news -----------------------------------------------------------------------------------------


async def test_news_are_taken_in_fetched_on_and_handed_over_again_when_there_are_no_more(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 2)
    there.two.open[0].answer(news(1, records=0, high_watermark=1), records=[batch(0, 2)])
    await settled()
    assert there.replica(1).log.log_end == 2
    assert there.replica(1).high_watermark == 1
    (by_itself,), (in_session,) = there.two.by_itself, there.two.in_session
    assert by_itself.offsets == {1: 2}
    assert (in_session.session, in_session.offsets) == ((0, 1), {})
    by_itself.answer(news(1, high_watermark=2))
    await settled()
    assert there.replica(1).high_watermark == 2
    await there.nothing_is_new()
    assert there.two.by_itself == []
    assert [each.offsets for each in there.two.in_session] == [{}, {1: 2}]
    assert there.two.in_session[1].request.partitions[0].high_watermark == 2


async def test_a_session_that_holds_nothing_any_more_asks_for_nothing(mock_clock, nursery):
    there = await quieted(nursery, mock_clock, 2)
    there.two.open[0].answer(news(0), news(1))
    await settled()
    assert [each.offsets for each in there.two.open] == [{0: 0, 1: 0}]
    await there.nothing_is_new()
    (asked,) = there.two.open
    assert (asked.session, asked.offsets) == ((0, 1), {0: 0, 1: 0}), "the same session"


async def test_what_an_answer_says_of_a_partition_that_is_not_held_is_nothing_to_the_follower(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 2)
    there.two.open[0].answer(news(0, records=0), records=[batch(0)])
    await settled()
    there.two.in_session[0].answer(news(0, records=0), news(9), records=[batch(1)])
    await settled()
    assert there.replica().log.log_end == 1, "it is fetched by itself"
    assert [each.offsets for each in there.two.by_itself] == [{0: 1}]
    assert [each.session for each in there.two.in_session] == [(0, 2)]


async def test_a_refused_partition_is_fetched_by_itself_after_a_pause_and_takes_no_other_along(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 2)
    there.two.open[0].answer(news(1, error="NOT_LEADER_OR_FOLLOWER", message="not yet"))
    await settled()
    assert [(each.session, each.offsets) for each in there.two.open] == [((0, 1), {})]
    await there.after(0.021)
    assert [each.offsets for each in there.two.by_itself] == [{1: 0}]


async def test_a_follower_that_is_told_that_its_offset_is_gone_asks_where_the_log_begins(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 2)
    there.two.open[0].answer(news(1, error="OFFSET_OUT_OF_RANGE"))
    await settled()
    (asks,) = (each for each in there.two.open if isinstance(each.request, m.ListOffsetsRequest))
    assert [part.partition for part in asks.request.partitions] == [1, 1]
    assert [each.session for each in there.two.in_session] == [(0, 1)]


# --- what has to be synced ------------------------------------------------------------------------


async def synced(nursery, mock_clock):
    """Two partitions that were handed over, of a topic with `flush=synced`; syncs wait now."""
    disk = GatedDisk()
    there = There(nursery, mock_clock, disk=disk)
    await there.follow(2, flush="synced")
    await there.nothing_is_new()
    disk.shut()
    return there, disk


async def test_what_the_session_brought_is_not_acknowledged_before_it_is_synced(
    mock_clock, nursery
):
    there, disk = await synced(nursery, mock_clock)
    there.two.open[0].answer(news(1, records=0), records=[batch(0)])
    await settled()
    assert [(each.session, each.offsets) for each in there.two.open] == [((0, 1), {})]
    await there.after(10 * WAIT_S)
    assert there.two.by_itself == []
    disk.gate.set()
    await settled()
    assert [each.offsets for each in there.two.by_itself] == [{1: 1}]


async def led_meanwhile(there):
    """A record of its own that is not on disk, and broker 2 leads again."""
    await there.here.change(leader=ME)
    there.here.append()
    await there.here.change(leader=TWO)
    await settled()


async def test_what_fell_quiet_and_owes_a_sync_is_not_handed_over_before_it(mock_clock, nursery):
    """It led while its fetch was on its way, and the answer says that there is nothing new."""
    disk = GatedDisk()
    there = There(nursery, mock_clock, disk=disk)
    await there.follow(2, flush="synced")
    (asked,) = there.two.open
    disk.shut()
    await led_meanwhile(there)
    asked.answer()
    await settled()
    assert [each.offsets for each in there.two.open] == [{1: 0}]
    disk.gate.set()
    await settled()
    assert [each.offsets for each in there.two.by_itself] == [{0: 1}]


async def about_to_join(nursery, mock_clock, disk=None):
    """Two partitions that came back with nothing, and no connection; the second has a record."""
    there = There(nursery, mock_clock, disk=disk)
    await there.follow(2)
    there.two.open[0].answer(news(1, records=0), records=[batch(0)])
    await settled()
    there.two.in_session[0].answer(news(0))
    await settled()
    assert [each.offsets for each in there.two.open] == [{1: 1}, {0: 0}]
    for asked in there.two.open:
        asked.answer()
    await settled()
    there.two.gate = trio.Event()
    await there.two.lose()
    await there.after(GATHER_S * 1.1)
    assert (there.two.tries, there.two.open) == (2, [])
    return there


async def test_what_is_about_to_be_handed_over_and_owes_a_sync_is_fetched_after_it(
    mock_clock, nursery
):
    """Its topic gets `flush=synced` before there is a connection."""
    disk = GatedDisk()
    disk.shut()
    there = await about_to_join(nursery, mock_clock, disk)
    await there.here.apply(SetConfig(kind="topic", name="jade", key="flush", value="synced"))
    there.two.gate.set()
    await settled()
    assert [each.offsets for each in there.two.in_session] == [{0: 0}]
    assert there.two.by_itself == []
    disk.gate.set()
    await settled()
    assert [each.offsets for each in there.two.by_itself] == [{1: 1}]


async def test_what_is_about_to_be_handed_over_and_leads_by_then_is_not(mock_clock, nursery):
    there = await about_to_join(nursery, mock_clock)
    await there.here.change(leader=ME)
    there.two.gate.set()
    await settled()
    assert [each.offsets for each in there.two.open] == [{1: 1}]
    there.two.open[0].answer()
    await settled()
    assert [each.offsets for each in there.two.open] == [{}]


async def test_what_is_about_to_be_handed_over_and_follows_another_leader_by_then_is_not(
    mock_clock, nursery
):
    there = await about_to_join(nursery, mock_clock)
    for partition in (0, 1):
        await there.here.change(partition=partition, leader=THREE)
    there.two.gate.set()
    await settled()
    assert there.two.open == [], "not even a request without partitions"
    asked_for = [pair for each in there.three.by_itself for pair in each.offsets.items()]
    assert sorted(asked_for) == [(0, 0), (1, 1)]


# --- roles ----------------------------------------------------------------------------------------


async def test_a_leader_hears_nothing_of_what_it_led_before(mock_clock, nursery):
    there = await quieted(nursery, mock_clock, 2)
    await there.here.change(leader=ME)
    there.here.append(3)
    there.two.open[0].answer(news(0, records=0, high_watermark=1), records=[batch(0)])
    await settled()
    replica = there.replica()
    assert (replica.log.log_end, replica.leader is not None) == (3, True)
    assert [(each.session, each.offsets) for each in there.two.open] == [((0, 1), {})]


async def test_who_led_while_it_was_held_follows_on_when_it_follows_again(mock_clock, nursery):
    there = await quieted(nursery, mock_clock, 2)
    await led_meanwhile(there)
    assert [each.session for each in there.two.open] == [(0, 0)], "it is held still"
    there.two.open[0].answer(news(0, error="FENCED_LEADER_EPOCH"))
    await settled()
    (by_itself,) = there.two.by_itself
    assert by_itself.offsets == {0: 1}
    assert by_itself.request.partitions[0].current_leader_epoch == EPOCH + 2


async def test_another_leader_is_fetched_from_at_once(mock_clock, nursery):
    there = await quieted(nursery, mock_clock, 2)
    held = there.two.open[0]
    await there.here.change(leader=THREE)
    await settled()
    (asked,) = there.three.open
    assert asked.offsets == {0: 0}
    held.answer(news(0, error="FENCED_LEADER_EPOCH"), news(1, high_watermark=0))
    await settled()
    assert [each.offsets for each in there.two.by_itself] == [{1: 0}]
    asked.answer(news(0, records=0), records=[batch(0, epoch=EPOCH + 1)])
    await settled()
    assert there.replica().log.log_end == 1


async def test_what_the_leader_before_had_to_say_is_not_taken_in(mock_clock, nursery):
    there = await quieted(nursery, mock_clock)
    await there.here.change(leader=THREE)
    await settled()
    there.two.open[0].answer(news(records=0, high_watermark=1), records=[batch(0)])
    await settled()
    assert there.replica().log.log_end == 0
    assert there.two.open == []
    there.three.open[0].answer()
    await settled()
    assert [each.session for each in there.three.open] == [(0, 0)]


async def test_a_leader_that_comes_back_is_fetched_from_once_it_lets_go(mock_clock, nursery):
    there = await quieted(nursery, mock_clock)
    held = there.two.open[0]
    for leader in (THREE, TWO):
        await there.here.change(leader=leader)
        await settled()
    assert there.two.open == [held]
    held.answer(news(error="FENCED_LEADER_EPOCH"))
    await settled()
    (asked,) = there.two.by_itself
    assert asked.request.partitions[0].current_leader_epoch == EPOCH + 2
    there.three.open[0].answer(news(error="FENCED_LEADER_EPOCH"))
    await settled()
    assert there.three.open == []


@pytest.mark.parametrize("metadata_comes_first", [True, False])
async def test_a_new_epoch_of_the_same_leader_is_fetched_in(
    metadata_comes_first, mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 2)
    held = there.two.open[0]
    if metadata_comes_first:
        await there.here.change(leader=TWO)
        await settled()
        assert there.two.open == [held]
    held.answer(news(0, error="FENCED_LEADER_EPOCH"))
    await settled()
    if not metadata_comes_first:
        await there.after(60.0)
        assert there.two.by_itself == [], "it waits for the metadata"
        await there.here.change(leader=TWO)
        await settled()
    (asked,) = there.two.by_itself
    assert asked.offsets == {0: 0}
    assert asked.request.partitions[0].current_leader_epoch == EPOCH + 1


async def test_records_of_the_epoch_before_are_not_taken_in(mock_clock, nursery):
    there = await quieted(nursery, mock_clock)
    await there.here.change(leader=TWO)
    there.two.open[0].answer(news(records=0, high_watermark=1), records=[batch(0)])
    await settled()
    assert there.replica().log.log_end == 0
    assert [each.offsets for each in there.two.by_itself] == [{0: 0}]
