"""The fetch of a follower, as its leader sees it: what is checked, what it acknowledges, what is
answered.

Goal: a fetch counts as an acknowledgement if, and only if, it comes from the newest process of a
replica, in the leader's epoch, and from a log that agrees with the leader's; consumers see less
than followers. Method: a real broker's replicas on the simulated disk; the fetches of brokers 2
and 3 are made by hand. What waits is `test_parked_fetches.py`'s.
"""

import pytest
import trio
from leaderkit import (
    EPOCH,
    ME,
    STRANGER,
    THREE,
    TWO,
    Here,
    broker_epoch,
    part,
    question,
    remotes_of,
    served,
)
from replicakit import write

from hightide.protocol import messages as m
from hightide_broker.runtime.base.call import Call, Reply

NONE = -1
FORGOTTEN = "UNKNOWN_LEADER_EPOCH"
FENCED = "FENCED_LEADER_EPOCH"
NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"
OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


async def leading(**facts):
    """Broker 1 leads three batches of `jade`; broker 2 has said that it has one of them."""
    here = Here()
    replica = await here.create(**facts)
    here.append(3)
    here.fetch_one(1)
    return here, replica


# --- the order of checks --------------------------------------------------------------------------

WRONGS = {
    "topic": "gone",
    "topic_id": "another id",
    "current_leader_epoch": EPOCH - 1,
    "by": STRANGER,
    "replica_epoch": 0,
    "last_fetched_epoch": EPOCH + 1,
}
"""A fetch with which everything is wrong; each step below repairs one thing."""
STEPS = [
    ({}, "UNKNOWN_TOPIC_OR_PARTITION", "no partition 0 of topic 'gone'"),
    ({"topic": "dark"}, "INCONSISTENT_TOPIC_ID", "another id"),
    ({"topic_id": ""}, "KAFKA_STORAGE_ERROR", "its disk broke"),
    ({"topic": "followed"}, FENCED, "here it is 5"),
    ({"current_leader_epoch": EPOCH + 1}, FORGOTTEN, "here it is 5"),
    ({"current_leader_epoch": EPOCH}, NOT_LEADER, "does not lead"),
    ({"current_leader_epoch": NONE}, NOT_LEADER, "does not lead"),
    ({"topic": "jade", "current_leader_epoch": EPOCH - 1}, FENCED, "here it is 5"),
    ({"current_leader_epoch": EPOCH + 1}, FORGOTTEN, "here it is 5"),
    ({"current_leader_epoch": EPOCH}, FORGOTTEN, "no other replica"),
    ({"current_leader_epoch": NONE}, NOT_LEADER, "no other replica"),
    ({"by": ME, "current_leader_epoch": EPOCH}, FORGOTTEN, "no other replica"),
    ({"by": TWO}, NOT_LEADER, "it is registered with 102"),
    ({"replica_epoch": broker_epoch(TWO)}, OUT_OF_RANGE, "of epoch 6"),
    ({"last_fetched_epoch": NONE}, OUT_OF_RANGE, ""),
]


async def test_of_many_wrongs_the_first_in_order_is_named_at_once_and_nothing_is_acknowledged():
    here, replica = await leading()
    await here.create("followed", leader=TWO)
    (await here.create("dark")).go_offline("its disk broke")
    before, asked = remotes_of(replica), dict(WRONGS)
    for repaired, code, words in STEPS:
        asked |= repaired
        facts = dict(asked)
        whole = {name: facts.pop(name) for name in ("by", "replica_epoch")}
        answer = here.records.fetch(Call(question(part(99, **facts), **whole)))
        assert isinstance(answer, Reply), f"refused at once: {asked}"
        (found,) = served(answer).values()
        assert (found.error, found.offsets) == (code, []), asked
        assert words in found.result.message
        assert remotes_of(replica) == before
    assert here.fetch_one(1).offsets == [1, 2]


async def test_a_stranger_that_names_the_first_epoch_has_named_one():
    here = Here()
    await here.create(epoch=0)
    found = here.fetch_one(0, by=STRANGER, current_leader_epoch=0)
    assert found.error == FORGOTTEN
    found = here.fetch_one(0, by=STRANGER, current_leader_epoch=NONE)
    assert found.error == NOT_LEADER


async def test_the_epoch_is_checked_before_leadership_whatever_is_asked():
    here = Here()
    await here.create("jade", leader=ME)
    await here.create("onyx", leader=TWO)
    for topic, at_it in (("jade", None), ("onyx", NOT_LEADER)):
        for epoch, code in ((NONE, at_it), (EPOCH - 1, FENCED), (EPOCH, at_it), (6, FORGOTTEN)):
            facts = {"topic": topic, "partition": 0, "current_leader_epoch": epoch}
            wants = m.ListOffsetsPartition(timestamp=m.EARLIEST, **facts)
            listed = here.records.list_offsets(Call(m.ListOffsetsRequest(partitions=[wants])))
            ends = m.OffsetForLeaderEpochRequest(
                partitions=[m.EpochPartition(leader_epoch=5, **facts)]
            )
            ended = here.records.offset_for_leader_epoch(Call(ends))
            fetched = [here.fetch_one(0, by=by, **facts).error for by in (TWO, -1)]
            told = [listed.body.partitions[0].error, ended.body.partitions[0].error]
            assert fetched + told == [code] * 4, (topic, epoch)


async def test_an_older_process_of_a_broker_acknowledges_nothing():
    here, replica = await leading()
    here.register(THREE, 200)
    before = remotes_of(replica)
    assert here.fetch_one(3, by=THREE, replica_epoch=199).error == NOT_LEADER
    assert remotes_of(replica) == before


@pytest.mark.parametrize("epoch", [NONE, 103, 104])
async def test_a_process_that_is_newest_as_far_as_is_known_is_believed_and_remembered(epoch):
    here, replica = await leading()
    assert here.fetch_one(2, by=THREE, replica_epoch=epoch).error is None
    assert replica.leader.remotes[THREE].log_end == 2
    assert replica.leader.remotes[THREE].broker_epoch == epoch


async def test_a_refused_partition_takes_no_other_with_it():
    here = Here()
    mine = await here.create("mine", replicas=(ME, THREE))
    ours = await here.create("ours", replicas=(ME, TWO))
    for topic in ("mine", "ours"):
        here.append(2, topic=topic)
    answer = here.fetch(question(part(1, topic="mine"), part(1, topic="ours")))
    assert answer["mine", 0].error == FORGOTTEN
    assert (answer["ours", 0].error, answer["ours", 0].offsets) == (None, [1])
    assert (mine.high_watermark, ours.high_watermark) == (0, 1)


# --- logs that part -------------------------------------------------------------------------------

SPANS = ((0, 2), (3, 6), (4, 5), (7, 1), (9, 3))
"""Batches of one record: (epoch, how many). Epoch 10 begins at 17."""


async def with_a_past(log_start=0):
    """Broker 1 leads epoch 10 of a log that five leaders have written."""
    here = Here()
    replica = await here.create(leader=TWO, epoch=9)
    write(replica.log, *((epoch, 1) for epoch, count in SPANS for _ in range(count)))
    await here.change(leader=ME)
    assert replica.log.epochs.entries == ((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17))
    replica.log.advance_log_start(log_start)
    return here, replica


@pytest.mark.parametrize(
    ("log_start", "asked", "parts_at"),
    [
        (0, (2, 5), (0, 2)),
        (0, (0, 4), (0, 2)),
        (0, (6, 6), (4, 13)),
        (0, (5, 9), (4, 13)),
        (0, (10, 18), (10, 17)),
        (5, (2, 8), (2, 5)),
    ],
)
async def test_a_log_that_differs_is_told_at_once_where_and_acknowledges_nothing(
    log_start, asked, parts_at
):
    here, replica = await with_a_past(log_start)
    here.fetch_one(10, current_leader_epoch=10)
    before = remotes_of(replica)
    facts = {"last_fetched_epoch": asked[0], "current_leader_epoch": 10, "high_watermark": 99}
    (found,) = here.fetch(question(part(asked[1], log_start_offset=99, **facts))).values()
    assert (found.error, found.offsets) == (None, [])
    assert found.result.diverging_epoch == m.EpochEnd(epoch=parts_at[0], end_offset=parts_at[1])
    assert (found.result.high_watermark, found.result.log_start_offset) == (0, log_start)
    assert remotes_of(replica) == before


@pytest.mark.parametrize(
    ("log_start", "asked"),
    [
        (0, (0, 2)),
        (0, (7, 14)),
        (0, (9, 17)),
        (0, (10, 17)),
        (0, (-1, 5)),
        (5, (0, 5)),
        (5, (3, 5)),
    ],
)
async def test_a_log_that_agrees_gets_what_comes_next_and_acknowledges(log_start, asked):
    here, replica = await with_a_past(log_start)
    found = here.fetch_one(asked[1], last_fetched_epoch=asked[0], current_leader_epoch=10)
    assert (found.error, found.result.diverging_epoch) == (None, None)
    assert found.offsets == list(range(asked[1], 17))
    assert replica.leader.remotes[TWO].log_end == asked[1]


@pytest.mark.parametrize(
    ("log_start", "asked"),
    [
        (0, (11, 5)),
        (0, (-1, 18)),
        (5, (0, 0)),
        (5, (3, 4)),
        (5, (-1, 4)),
        (10, (5, 6)),
        (10, (3, 6)),
        (10, (4, 9)),
    ],
)
async def test_what_the_log_does_not_hold_is_refused_and_acknowledges_nothing(log_start, asked):
    here, replica = await with_a_past(log_start)
    before = remotes_of(replica)
    found = here.fetch_one(asked[1], last_fetched_epoch=asked[0], current_leader_epoch=10)
    assert (found.error, found.offsets, found.result.diverging_epoch) == (OUT_OF_RANGE, [], None)
    assert found.result.log_start_offset == log_start
    assert remotes_of(replica) == before


# --- acknowledgements -----------------------------------------------------------------------------


async def test_the_answer_carries_the_watermark_that_its_own_fetch_has_moved():
    here, replica = await leading(replicas=(ME, TWO))
    found = here.fetch_one(2, log_start_offset=0)
    assert (found.result.high_watermark, found.offsets) == (2, [2])
    assert replica.high_watermark == 2
    last = here.fetch(question(part(3, high_watermark=2), wait_ms=0))
    assert last["jade", 0].result.high_watermark == 3
    assert last["jade", 0].offsets == []


async def test_the_watermark_waits_for_the_slowest_member():
    here, replica = await leading()
    told = [here.fetch_one(2, by=by).result.high_watermark for by in (TWO, THREE, TWO, THREE)]
    assert told == [0, 2, 2, 2]
    assert replica.leader.remotes[TWO].log_end == replica.leader.remotes[THREE].log_end == 2


async def test_an_acknowledgement_says_when_and_from_where(mock_clock):
    here, replica = await leading()
    mock_clock.jump(7)
    here.fetch_one(2, by=THREE, log_start_offset=1)
    remote = replica.leader.remotes[THREE]
    assert (remote.log_end, remote.log_start, remote.broker_epoch) == (2, 1, broker_epoch(THREE))
    assert (remote.fetched_at, remote.end_at_fetch) == (trio.current_time(), 3)


async def test_a_consumer_acknowledges_nothing():
    here, replica = await leading()
    before = remotes_of(replica)
    for rack in ("", "r1"):
        assert here.fetch_one(3, by=-1, rack=rack).error is None
    assert remotes_of(replica) == before


async def test_a_replica_that_has_everything_is_proposed_by_its_fetch():
    here, replica = await leading(isr=(ME, TWO))
    here.fetch_one(0, by=THREE)
    assert replica.leader.proposal is None
    here.fetch_one(3, by=THREE)
    assert replica.leader.proposal.isr == (ME, TWO, THREE)
    assert replica.leader.proposal.broker_epochs == tuple(map(broker_epoch, (ME, TWO, THREE)))


# --- what may be read -----------------------------------------------------------------------------


async def test_a_follower_reads_above_the_watermark_and_a_consumer_does_not():
    here, replica = await leading()
    here.fetch_one(1, by=THREE)
    assert replica.high_watermark == 1
    assert here.fetch_one(0).offsets == [0, 1, 2]
    assert here.fetch_one(0, by=-1).offsets == [0]
    for offset in (1, 2, 3):
        found = here.fetch_one(offset, by=-1)
        assert (found.error, found.offsets) == (None, [])
    assert here.fetch_one(4, by=-1).error == OUT_OF_RANGE


async def test_a_consumer_reads_from_a_follower_only_if_it_names_its_rack():
    here = Here()
    replica = await here.create(leader=TWO)
    write(replica.log, (EPOCH, 1), (EPOCH, 1))
    replica.committed.advance(1)
    assert here.fetch_one(0, by=-1).error == NOT_LEADER
    found = here.fetch_one(0, by=-1, rack="r1")
    assert (found.error, found.offsets, found.result.high_watermark) == (None, [0], 1)
    assert here.fetch_one(3, by=-1, rack="r1").error == OUT_OF_RANGE
    for epoch, code in ((EPOCH - 1, FENCED), (EPOCH + 1, FORGOTTEN)):
        assert here.fetch_one(0, by=-1, rack="r1", current_leader_epoch=epoch).error == code
    assert here.fetch_one(0, by=TWO, rack="r1").error == NOT_LEADER, "a rack makes no follower"


async def at(here, timestamp, *, by=-1):
    """(error, offset) of a question for an offset."""
    wanted = m.ListOffsetsPartition(topic="jade", partition=0, timestamp=timestamp)
    request = m.ListOffsetsRequest(partitions=[wanted], replica_id=by)
    outcome = here.records.list_offsets(Call(request))
    reply = await outcome() if callable(outcome) else outcome
    (found,) = reply.body.partitions
    return found.error, found.offset


async def test_a_new_leader_tells_clients_no_end_before_it_knows_what_is_committed():
    here = Here()
    replica = await here.create(leader=TWO, isr=(ME, TWO))
    write(replica.log, *((EPOCH, 1) for _ in range(5)))
    replica.committed.advance(2)
    await here.change(leader=ME)
    unknown = ("OFFSET_NOT_AVAILABLE", -1)
    for offset in (2, 4):
        here.fetch_one(offset, current_leader_epoch=EPOCH + 1)
        assert await at(here, m.LATEST) == unknown
        assert await at(here, 1 << 40) == unknown, "a later record may be committed, too"
        assert await at(here, m.LATEST, by=TWO) == (None, 5)
        assert await at(here, m.EARLIEST) == (None, 0)
        assert await at(here, 0) == (None, 0), "what is committed can be found"
    here.fetch_one(5, current_leader_epoch=EPOCH + 1)
    assert (await at(here, m.LATEST), await at(here, 1 << 40)) == ((None, 5), (None, -1))
    here.append()
    assert (await at(here, m.LATEST), await at(here, m.LATEST, by=TWO)) == ((None, 5), (None, 6))


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_bytes", "part_bytes", "expected"),
    [
        (1, 1, [[0], []]),
        (-5, -5, [[0], []]),
        (10_000, 1, [[0], []]),
        (1, 10_000, [[0], []]),
        (10_000, 250, [[0, 1], [0, 1]]),
        (480, 10_000, [[0, 1, 2], [0]]),
        (10_000, 10_000, [[0, 1, 2], [0, 1, 2]]),
    ],
)
async def test_an_answer_keeps_to_its_limits_but_the_first_records_always_come(
    max_bytes, part_bytes, expected
):
    here = Here()
    await here.create(partitions=3)
    for number in (1, 2):
        here.append(3, partition=number)
    parts = [part(0, partition=number, max_bytes=part_bytes) for number in range(3)]
    answer = here.fetch(question(*parts, max_bytes=max_bytes))
    assert [answer["jade", number].offsets for number in (1, 2)] == expected


async def test_the_watermark_of_a_replica_that_is_offline_may_move_and_nobody_is_struck():
    """By the controller's word on who is in sync; its log says no to everybody."""
    _, replica = await leading()
    replica.leader.on_metadata((ME, TWO, THREE), (ME,), 1, 0.0)
    replica.go_offline("its disk broke")
    replica.recompute()
    assert replica.high_watermark == 3
