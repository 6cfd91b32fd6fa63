"""Fetches that wait at a leader: what wakes them, and what they say then.

Goal: a fetch waits only while there is nothing to say, is woken by exactly what it waits for, and
is no second acknowledgement when it is looked at again. Method: a real broker's replicas on the
simulated disk, fetches made by hand, and a clock that moves only when a test moves it.
"""

from functools import partial

import pytest
from leaderkit import EPOCH, ME, THREE, TWO, Here, broker_epoch, part, question, remotes_of, settled
from replicakit import write

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import ChangePartition, RemoveTopic
from hightide_broker.runtime.server.fetch_handler import WATERMARK_WAIT_S, ParkedFetch

NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"
FENCED = "FENCED_LEADER_EPOCH"


async def leading(**facts):
    """Broker 1 leads three batches of `jade` that everybody has said to have."""
    here = Here()
    replica = await here.create(**facts)
    here.append(3)
    for broker in replica.leader.remotes:
        here.fetch_one(3, by=broker)
    assert replica.high_watermark == 3
    return here, replica


# --- what wakes -----------------------------------------------------------------------------------


async def test_a_follower_is_woken_by_an_append_and_a_consumer_by_its_commit(mock_clock, nursery):
    here, _ = await leading()
    follower = await here.park(nursery, question(part(3, high_watermark=3)))
    consumer = await here.park(nursery, question(part(3), by=-1))
    here.append()
    await settled()
    assert (follower.only.offsets, follower.only.result.high_watermark) == ([3], 3)
    here.fetch_one(4)
    await settled()
    assert consumer.is_waiting
    here.fetch_one(4, by=THREE)
    await settled()
    assert (consumer.only.offsets, consumer.only.result.high_watermark) == ([3], 4)


async def test_a_new_watermark_wakes_the_follower_that_says_which_one_it_knows(mock_clock, nursery):
    here, _ = await leading()
    here.append()
    knows = await here.park(nursery, question(part(4, high_watermark=3)))
    does_not_care = await here.park(nursery, question(part(4, high_watermark=-1)))
    here.fetch_one(4, by=THREE)
    await a_moment(mock_clock)
    assert (knows.only.offsets, knows.only.result.high_watermark) == ([], 4)
    assert does_not_care.is_waiting
    here.append()
    await settled()
    assert does_not_care.only.offsets == [4]


async def a_moment(mock_clock):
    """As long as a watermark waits for records at the most."""
    await settled()
    mock_clock.jump(2 * WATERMARK_WAIT_S)
    await settled()


async def test_a_watermark_that_a_follower_does_not_know_is_told_in_a_moment(mock_clock, nursery):
    here, _ = await leading()
    parked = await here.park(nursery, question(part(3, high_watermark=2)))
    mock_clock.jump(0.9 * WATERMARK_WAIT_S)
    await settled()
    assert parked.is_waiting
    await a_moment(mock_clock)
    assert (parked.only.offsets, parked.only.result.high_watermark) == ([], 3)
    assert isinstance(here.fetch(question(part(3, high_watermark=3))), ParkedFetch)
    assert isinstance(here.fetch(question(part(3, high_watermark=-1))), ParkedFetch)


async def test_where_consumers_may_read_a_watermark_is_told_at_once(mock_clock, nursery):
    here, _ = await leading()
    here.register(TWO, broker_epoch(TWO), rack="r2")
    await here.apply()
    answer = here.fetch(question(part(3, high_watermark=2)))
    assert answer["jade", 0].result.high_watermark == 3
    here.append()
    parked = await here.park(nursery, question(part(4, high_watermark=3)))
    here.fetch_one(4, by=THREE)
    await settled()
    assert (parked.only.offsets, parked.only.result.high_watermark) == ([], 4)


async def test_a_watermark_goes_with_the_records_that_come_meanwhile(mock_clock, nursery):
    here = await many(3)
    parts = [same(0, high_watermark=2), same(1), same(2)]
    for number in range(3):
        here.fetch_one(3, partition=number)
    parked = await here.park(nursery, question(*parts))
    here.append(partition=1)
    await settled()
    assert {number: each.offsets for (_, number), each in parked.answer.items()} == {0: [], 1: [3]}
    assert parked.answer["jade", 0].result.high_watermark == 3
    await a_moment(mock_clock)  # nothing is left that would answer it again


async def test_all_watermarks_of_a_moment_are_told_together(mock_clock, nursery):
    here = await many(3)
    for number in range(3):
        here.append(partition=number)
        here.fetch_one(4, by=THREE, partition=number)
    parked = await here.park(nursery, question(*(same(number, 4) for number in range(3))))
    assert parked.is_waiting, "its own arrival has moved all of them"
    await a_moment(mock_clock)
    assert [each.result.high_watermark for each in parked.answer.values()] == [4, 4, 4]


async def test_a_follower_hears_of_deleted_records_at_once(mock_clock, nursery):
    here, replica = await leading()
    parked = await here.park(nursery, question(part(3, high_watermark=3, log_start_offset=0)))
    replica.delete_records(2)
    await settled()
    assert parked.only.result.log_start_offset == 2


async def test_a_fetch_without_partitions_or_without_time_does_not_wait():
    here, _ = await leading()
    assert here.fetch(question()) == {}
    for wait_ms in (0, -1):
        assert (
            here.fetch(question(part(3, high_watermark=3, log_start_offset=0), wait_ms=wait_ms))
            == {}
        )


async def test_nothing_new_is_an_empty_answer_when_the_time_is_up(mock_clock, nursery):
    here, _ = await leading()
    same = part(3, high_watermark=3, log_start_offset=0)
    parked = await here.park(nursery, question(same, wait_ms=4000))
    mock_clock.jump(3.9)
    await settled()
    assert parked.is_waiting
    mock_clock.jump(0.2)
    await settled()
    assert parked.answer == {}


async def test_nobody_waits_for_more_than_a_minute(mock_clock, nursery):
    here, _ = await leading()
    parked = await here.park(nursery, question(part(3, high_watermark=3), wait_ms=1 << 40))
    mock_clock.jump(60.1)
    await settled()
    assert not parked.is_waiting


# --- one acknowledgement --------------------------------------------------------------------------


async def test_looking_again_acknowledges_nothing(mock_clock, nursery):
    here, replica = await leading()
    parked = await here.park(nursery, question(part(3)))
    mock_clock.jump(2)
    here.append()
    here.fetch_one(4)
    before = remotes_of(replica)
    await settled()
    assert not parked.is_waiting, "it was looked at, and answered"
    assert remotes_of(replica) == before
    here.fetch_one(4, by=THREE)
    assert replica.high_watermark == 4, "what was acknowledged meanwhile stays so"


async def test_a_parked_fetch_has_been_an_acknowledgement_from_its_arrival(mock_clock, nursery):
    here, replica = await leading()
    here.append()
    for broker in (TWO, THREE):
        await here.park(nursery, question(part(4), by=broker))
    assert replica.high_watermark == 4


# --- leaders that go ------------------------------------------------------------------------------


async def lose_leadership(here, replica):
    await here.change(leader=TWO)


async def lose_and_win_it_again(here, replica):
    await here.change(leader=TWO)
    await here.change(leader=ME)


async def lose_it_to_nobody(here, replica):
    await here.change(leader=-1)


async def lose_the_topic(here, replica):
    await here.apply(RemoveTopic(topic_id=replica.topic_id))


async def lose_the_disk(here, replica):
    replica.go_offline("its disk broke")


@pytest.mark.parametrize(
    ("lose", "with_epoch", "without"),
    [
        (lose_leadership, FENCED, NOT_LEADER),
        (lose_it_to_nobody, FENCED, NOT_LEADER),
        (lose_and_win_it_again, FENCED, None),
        (lose_the_topic, *["UNKNOWN_TOPIC_OR_PARTITION"] * 2),
        (lose_the_disk, *["KAFKA_STORAGE_ERROR"] * 2),
    ],
)
async def test_who_waits_at_a_leader_that_goes_hears_of_it_at_once(
    lose, with_epoch, without, mock_clock, nursery
):
    here, replica = await leading()
    ask = partial(part, 3, high_watermark=3, log_start_offset=0)
    told = [
        await here.park(nursery, question(ask(current_leader_epoch=epoch), by=by))
        for by in (TWO, -1)
        for epoch in (EPOCH, -1)
    ]
    await lose(here, replica)
    await settled()
    errors = ["waits" if each.is_waiting else each.only.error for each in told]
    assert errors == [with_epoch, without or "waits"] * 2


async def test_a_follower_hears_of_an_epoch_that_the_leader_itself_did_not_notice(
    mock_clock, nursery
):
    """Another broker led in between, and the metadata of both came at once."""
    here, replica = await leading()
    ask = partial(part, 3, high_watermark=3, log_start_offset=0)
    fenced = await here.park(nursery, question(ask()))
    parked = await here.park(nursery, question(ask(current_leader_epoch=-1)))
    moves = [ChangePartition(topic_id=replica.topic_id, partition=0, leader=b) for b in (TWO, ME)]
    await here.apply(*moves)
    await settled()
    assert fenced.only.error == FENCED
    assert parked.is_waiting
    here.append()
    await settled()
    assert parked.only.offsets == [3]


async def test_a_consumer_goes_on_waiting_where_it_may_read_from_followers(mock_clock, nursery):
    here, replica = await leading()
    fenced = await here.park(nursery, question(part(3), by=-1, rack="r1"))
    ask = question(part(3, current_leader_epoch=-1), by=-1, rack="r1")
    parked = await here.park(nursery, ask)
    await here.change(leader=TWO)
    await settled()
    assert fenced.only.error == FENCED
    assert parked.is_waiting
    write(replica.log, (EPOCH + 1, 1))
    replica.committed.advance(4)
    await settled()
    assert parked.only.offsets == [3]


async def test_a_log_that_parts_from_the_followers_meanwhile_is_told_so(mock_clock, nursery):
    """The leader is deposed, cut, and elected again, while a follower that names no epoch waits."""
    here, replica = await leading()
    parked = await here.park(
        nursery, question(part(3, last_fetched_epoch=EPOCH, current_leader_epoch=-1))
    )
    await here.change(leader=TWO)
    replica.log.truncate_to(2)
    replica.lower_watermark(2)
    await here.change(leader=ME)
    await settled()
    assert (parked.only.error, parked.only.offsets) == (None, [])
    assert parked.only.result.diverging_epoch == m.EpochEnd(epoch=EPOCH, end_offset=2)


async def test_a_consumer_of_a_follower_whose_log_is_cut_below_it_hears_so(mock_clock, nursery):
    here, replica = await leading()
    ask = question(part(3, current_leader_epoch=EPOCH + 1), by=-1, rack="r1")
    await here.change(leader=TWO)
    parked = await here.park(nursery, ask)
    replica.log.truncate_to(2)
    replica.lower_watermark(2)
    await settled()
    assert parked.only.error == "OFFSET_OUT_OF_RANGE"


# --- many partitions ------------------------------------------------------------------------------


async def many(count):
    """Partitions of three batches each, of which broker 3 has said to have everything."""
    here = Here()
    await here.create(partitions=count)
    for number in range(count):
        here.append(3, partition=number)
        here.fetch_one(3, by=THREE, partition=number)
    return here


def same(number, offset=3, **over):
    """What there is nothing to say about, unless a test says otherwise."""
    facts = {"high_watermark": 3, "log_start_offset": 0, **over}
    return part(offset, partition=number, **facts)


async def test_an_answer_to_a_follower_names_only_partitions_with_news():
    here = await many(8)
    here.replicas.get("jade", 5).log.advance_log_start(1)
    here.append(partition=6)
    parts = [
        same(0),
        same(1, 2, high_watermark=2),
        same(2, high_watermark=2),
        same(3, current_leader_epoch=4),
        same(4, 4, last_fetched_epoch=EPOCH),
        same(5),
        same(6),
        same(7),
    ]
    answer = here.fetch(question(*parts))
    assert [number for _, number in answer] == [1, 2, 3, 4, 5, 6]
    assert (answer["jade", 1].offsets, answer["jade", 6].offsets) == ([2], [3])
    assert answer["jade", 2].result.high_watermark == 3
    assert answer["jade", 3].error == FENCED
    assert answer["jade", 4].result.diverging_epoch == m.EpochEnd(epoch=EPOCH, end_offset=3)
    assert answer["jade", 5].result.log_start_offset == 1


async def test_an_answer_to_a_consumer_names_every_partition():
    here = await many(3)
    answer = here.fetch(question(*(same(number) for number in range(3)), by=-1, wait_ms=0))
    assert [number for _, number in answer] == [0, 1, 2]


async def test_a_fetch_of_many_partitions_is_woken_by_any_and_names_that_one(mock_clock, nursery):
    here = await many(3)
    ask = question(*(same(number) for number in range(3)))
    for number in range(3):
        here.fetch_one(3, partition=number)
    parked = await here.park(nursery, ask)
    here.append(partition=1)
    await settled()
    assert list(parked.answer) == [("jade", 1)]
    assert parked.only.offsets == [3]


async def test_one_refusal_ends_the_wait_of_all(mock_clock, nursery):
    here = await many(2)
    for number in range(2):
        here.fetch_one(3, partition=number)
    parked = await here.park(nursery, question(same(0), same(1)))
    await here.change(partition=1, leader=TWO)
    await settled()
    assert list(parked.answer) == [("jade", 1)]
    assert parked.only.error == FENCED
