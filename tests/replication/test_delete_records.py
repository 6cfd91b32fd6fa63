"""Deleting records: where the log begins, and when it does so on every live replica.

Goal: a deletion is answered once no live replica holds what was deleted, at once where that is so
already, and with the reason where it cannot be: time, another leader, a broken disk; what is
refused waits for nobody. Method: the leader is driven by hand; a real broker's replicas on the
simulated disk, the fetches of brokers 2 and 3 made by hand, and a clock that moves only when a test
moves it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from askers import Asker
from leaderkit import ME, THREE, TWO, Here, broker_epoch, part, question, settled

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import RemoveTopic
from hightide_broker.core.replication.leader import Leader
from hightide_broker.runtime.base.call import Call, Reply

NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"
LATE = "REQUEST_TIMED_OUT"


# --- the low watermark ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "starts", "active", "low"),
    [
        (5, {2: 5, 3: 5}, (1, 2, 3), 5),
        (5, {2: 5, 3: 3}, (1, 2, 3), 3),
        (5, {2: 2, 3: 3}, (1, 2, 3), 2),
        (5, {2: 7, 3: 8}, (1, 2, 3), 5),
        (5, {2: 5, 3: 3}, (1, 2), 5),
        (5, {2: 5, 3: 3}, (2, 3), 3),
        (5, {2: 0, 3: 0}, (1,), 5),
        (5, {2: 5}, (1, 2, 3), -1),
        (5, {2: 5}, (1, 2), 5),
        (0, {2: 0, 3: 0}, (1, 2, 3), 0),
    ],
)
def test_the_low_watermark_is_the_smallest_log_start_of_those_who_live(own, starts, active, low):
    leader = Leader(
        now=0.0,
        broker=1,
        epoch=4,
        replicas=(1, 2, 3),
        isr=(1, 2),
        partition_epoch=7,
        min_isr=1,
        synced_counts=False,
        epoch_start=0,
        log_end=10,
        synced_end=10,
        high_watermark=0,
        active={broker: broker_epoch(broker) for broker in active},
    )
    for broker, start in starts.items():
        leader.on_fetch(broker, 10, 0.0, log_start=start, broker_epoch=broker_epoch(broker))
    assert leader.low_watermark(own) == low


# --- waiting --------------------------------------------------------------------------------------


class Deletion:
    """A deletion that waits; `answer` is None until it is done."""

    def __init__(self, here: Here, nursery: trio.Nursery, parts: Any, timeout_ms: int) -> None:
        self.answer: list[m.DeleteRecordsResult] | None = None
        request = m.DeleteRecordsRequest(
            partitions=[
                m.DeleteRecordsPartition(topic=topic, partition=partition, offset=offset)
                for topic, partition, offset in parts
            ],
            timeout_ms=timeout_ms,
        )
        here.run_agenda(nursery)
        parked = here.records.delete_records(Call(request))
        here.agenda.now(partial(parked.begin, Asker(self._take)))

    def _take(self, reply: Reply) -> None:
        self.answer = reply.body.partitions

    @property
    def is_waiting(self) -> bool:
        return self.answer is None

    @property
    def told(self) -> list[tuple[str | None, int]]:
        """(error, low watermark) of each partition."""
        assert self.answer is not None, "it still waits"
        return [(result.error, result.low_watermark) for result in self.answer]


async def leading(*, partitions: int = 1, **facts: Any) -> tuple[Here, Any]:
    """Broker 1 leads four committed batches of each partition; every log begins at 0."""
    here = Here()
    replica = await here.create(partitions=partitions, **facts)
    for number in range(partitions):
        here.append(4, partition=number)
        for broker in replica.leader.remotes:
            has(here, broker, 0, partition=number)
    assert replica.high_watermark == 4
    return here, replica


def has(here: Here, broker: int, log_start: int, *, partition: int = 0) -> None:
    """A broker fetches with a log that begins there, as it does once it has heard of it."""
    leader = here.replicas.get("jade", partition).leader
    facts = {"log_start_offset": log_start, "current_leader_epoch": leader.epoch}
    here.fetch(question(part(4, partition=partition, **facts), by=broker, wait_ms=0))
    assert leader.remotes[broker].log_start == log_start


async def delete(
    here: Here, nursery: trio.Nursery, *parts: tuple[str, int, int], timeout_ms: int = 9000
) -> Deletion:
    """A deletion, begun; of the first two records of `jade`, if not told."""
    found = Deletion(here, nursery, parts or [("jade", 0, 2)], timeout_ms)
    await settled()
    return found


async def test_one_replica_alone_is_answered_at_once(mock_clock, nursery):
    here, replica = await leading(replicas=(ME,))
    for offset, start in ((0, 0), (2, 2), (1, 2), (2, 2), (-1, 4)):
        deletion = await delete(here, nursery, ("jade", 0, offset), timeout_ms=0)
        assert deletion.told == [(None, start)]
        assert (replica.log.log_start, replica.leadership.deleted.value) == (start, start)


async def test_every_live_follower_is_waited_for(mock_clock, nursery):
    here, replica = await leading()
    deletion = await delete(here, nursery)
    assert replica.log.log_start == 2, "here they are gone from the first moment"
    for broker, log_start in ((TWO, 2), (THREE, 0), (THREE, 1), (TWO, 2)):
        has(here, broker, log_start)
        await settled()
        assert deletion.is_waiting
    has(here, THREE, 2)
    await settled()
    assert deletion.told == [(None, 2)]


async def test_a_log_that_begins_further_on_will_do(mock_clock, nursery):
    here, _ = await leading()
    deletion = await delete(here, nursery)
    has(here, TWO, 3)
    has(here, THREE, 3)
    await settled()
    assert deletion.told == [(None, 2)]


async def test_a_follower_out_of_sync_is_waited_for_while_it_lives(mock_clock, nursery):
    here, _ = await leading()
    await here.change(isr=(ME, TWO))
    deletion = await delete(here, nursery)
    has(here, TWO, 2)
    await settled()
    assert deletion.is_waiting
    has(here, THREE, 2)
    await settled()
    assert deletion.told == [(None, 2)]


async def test_a_fetch_that_is_refused_says_nothing(mock_clock, nursery):
    here, _ = await leading(replicas=(ME, TWO))
    deletion = await delete(here, nursery)
    here.fetch_one(3, log_start_offset=2, current_leader_epoch=4)
    here.fetch_one(3, log_start_offset=2, replica_epoch=0)
    await settled()
    assert deletion.is_waiting
    has(here, TWO, 2)
    await settled()
    assert deletion.told == [(None, 2)]


async def test_what_every_replica_has_deleted_already_is_answered_at_once(mock_clock, nursery):
    here, replica = await leading()
    replica.log.advance_log_start(3)
    for broker in (TWO, THREE):
        has(here, broker, 3)
    for offset in (0, 2, 3):
        deletion = await delete(here, nursery, ("jade", 0, offset), timeout_ms=0)
        assert deletion.told == [(None, 3)]
    assert (await delete(here, nursery, ("jade", 0, 4))).is_waiting


async def test_several_wait_each_for_its_own(mock_clock, nursery):
    here, _ = await leading(replicas=(ME, TWO))
    deletions = [await delete(here, nursery, ("jade", 0, offset)) for offset in (1, 3)]
    has(here, TWO, 1)
    await settled()
    assert [deletion.is_waiting for deletion in deletions] == [False, True]
    has(here, TWO, 3)
    await settled()
    assert [deletion.told for deletion in deletions] == [[(None, 1)], [(None, 3)]]


async def test_followers_hear_where_the_log_begins():
    here, replica = await leading()
    replica.delete_records(2)
    facts = {"high_watermark": 4, "log_start_offset": 0}
    assert here.fetch_one(4, **facts).result.log_start_offset == 2
    assert here.fetch(question(part(4, **{**facts, "log_start_offset": 2}), wait_ms=0)) == {}


# --- who is not waited for ------------------------------------------------------------------------


async def test_who_does_not_live_is_not_waited_for(mock_clock, nursery):
    here, _ = await leading()
    await here.fence(THREE)
    deletion = await delete(here, nursery)
    assert deletion.is_waiting
    has(here, TWO, 2)
    await settled()
    assert deletion.told == [(None, 2)]


async def test_if_no_other_lives_nobody_is_waited_for(mock_clock, nursery):
    here, _ = await leading()
    for broker in (TWO, THREE):
        await here.fence(broker)
    assert (await delete(here, nursery, timeout_ms=0)).told == [(None, 2)]


async def test_who_ceases_to_live_is_waited_for_no_longer(mock_clock, nursery):
    here, replica = await leading()
    deletion = await delete(here, nursery)
    await here.fence(THREE)
    await settled()
    assert deletion.is_waiting
    await here.fence(TWO)
    await settled()
    assert deletion.told == [(None, 2)]
    assert replica.leadership.deleted.value == 2


async def test_who_lives_again_is_waited_for_again(mock_clock, nursery):
    here, replica = await leading()
    await here.fence(THREE)
    has(here, TWO, 2)
    assert (await delete(here, nursery)).told == [(None, 2)]
    here.register(THREE, broker_epoch(THREE))
    await here.apply()
    assert replica.leadership.deleted.value == 2, "it does not fall"
    deletion = await delete(here, nursery, ("jade", 0, 3))
    has(here, TWO, 3)
    await settled()
    assert deletion.is_waiting
    has(here, THREE, 3)
    await settled()
    assert deletion.told == [(None, 3)]


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(4000, 4), (1 << 40, 300)])
async def test_when_time_is_up_it_is_said_so(timeout_ms, seconds, mock_clock, nursery):
    here, replica = await leading()
    deletion = await delete(here, nursery, timeout_ms=timeout_ms)
    has(here, TWO, 2)
    mock_clock.jump(seconds - 0.1)
    await settled()
    assert deletion.is_waiting
    mock_clock.jump(0.2)
    await settled()
    assert deletion.told == [(LATE, -1)]
    words = f"not deleted everywhere within {seconds} s; the records will still be"
    assert deletion.answer[0].message == words
    assert replica.log.log_start == 2, "here they are gone all the same"
    has(here, THREE, 2)
    assert (await delete(here, nursery, timeout_ms=0)).told == [(None, 2)]


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_waits(timeout_ms, mock_clock, nursery):
    here, _ = await leading()
    deletion = await delete(here, nursery, timeout_ms=timeout_ms)
    assert deletion.told == [(LATE, -1)]


async def test_only_what_is_late_is_said_to_be(mock_clock, nursery):
    here, _ = await leading(partitions=3)
    parts = [("jade", number, 2) for number in range(3)]
    deletion = await delete(here, nursery, *parts, timeout_ms=4000)
    for number in (0, 2):
        for broker in (TWO, THREE):
            has(here, broker, 2, partition=number)
    has(here, TWO, 2, partition=1)
    await settled()
    assert deletion.is_waiting
    mock_clock.jump(4.1)
    await settled()
    assert deletion.told == [(None, 2), (LATE, -1), (None, 2)]


# --- leaders that go ------------------------------------------------------------------------------


async def lose_leadership(here, replica):
    await here.change(leader=TWO)


async def lose_it_to_nobody(here, replica):
    await here.change(leader=-1)


async def lose_and_win_it_again(here, replica):
    await here.change(leader=TWO)
    await here.change(leader=ME)


async def begin_another_epoch(here, replica):
    await here.change(leader=ME)


async def lose_the_topic(here, replica):
    await here.apply(RemoveTopic(topic_id=replica.topic_id))


async def lose_the_disk(here, replica):
    replica.go_offline("its disk broke")


@pytest.mark.parametrize(
    ("lose", "error", "words"),
    [
        (lose_leadership, NOT_LEADER, "broker 2 leads jade-0 in epoch 6"),
        (lose_it_to_nobody, NOT_LEADER, "nobody leads jade-0 in epoch 6"),
        (lose_and_win_it_again, NOT_LEADER, "broker 2 leads jade-0 in epoch 6"),
        (begin_another_epoch, NOT_LEADER, "broker 1 leads jade-0 in epoch 6"),
        (lose_the_topic, "UNKNOWN_TOPIC_OR_PARTITION", "the topic was deleted"),
        (lose_the_disk, "KAFKA_STORAGE_ERROR", "jade-0 is offline: its disk broke"),
    ],
)
async def test_who_waits_at_a_leader_that_goes_hears_of_it_at_once(
    lose, error, words, mock_clock, nursery
):
    here, replica = await leading()
    deletion = await delete(here, nursery)
    has(here, TWO, 2)
    await lose(here, replica)
    await settled()
    assert deletion.told == [(error, -1)]
    assert deletion.answer[0].message == words


async def test_a_new_epoch_counts_only_its_own_fetches(mock_clock, nursery):
    here, replica = await leading()
    for broker in (TWO, THREE):
        has(here, broker, 4)
    replica.delete_records(2)
    assert replica.leadership.deleted.value == 2
    await lose_and_win_it_again(here, replica)
    assert replica.leadership.deleted.value == 0
    deletion = await delete(here, nursery)
    for broker in (TWO, THREE):
        assert deletion.is_waiting
        has(here, broker, 2)
        await settled()
    assert deletion.told == [(None, 2)]


async def test_one_that_lost_its_leader_lets_the_others_wait(mock_clock, nursery):
    here, _ = await leading(partitions=2)
    deletion = await delete(here, nursery, ("jade", 0, 2), ("jade", 1, 2))
    await here.change(partition=0, leader=TWO)
    await settled()
    assert deletion.is_waiting
    for broker in (TWO, THREE):
        has(here, broker, 2, partition=1)
    await settled()
    assert deletion.told == [(NOT_LEADER, -1), (None, 2)]


# --- refusals -------------------------------------------------------------------------------------

REFUSED = {
    ("jade", 0, 5): ("OFFSET_OUT_OF_RANGE", "offset 5, expected -1 or 0 to 4"),
    ("jade", 0, -2): ("OFFSET_OUT_OF_RANGE", "offset -2"),
    ("compacted", 0, 1): ("POLICY_VIOLATION", "cleanup.policy of compacted is compact"),
    ("followed", 0, 0): (NOT_LEADER, "does not lead followed-0"),
    ("gone", 0, 0): ("UNKNOWN_TOPIC_OR_PARTITION", "no partition 0 of topic 'gone'"),
}


async def with_others() -> tuple[Here, Any]:
    here, replica = await leading(partitions=2)
    await here.create("compacted", cleanup_policy="compact")
    await here.create("followed", leader=TWO)
    return here, replica


async def test_what_is_refused_is_refused_at_once_and_changes_nothing(mock_clock, nursery):
    here, replica = await with_others()
    deletion = await delete(here, nursery, *REFUSED)
    assert deletion.told == [(code, -1) for code, _ in REFUSED.values()]
    for result, (_, words) in zip(deletion.answer, REFUSED.values(), strict=True):
        assert words in result.message
    assert (replica.log.log_start, replica.leadership.deleted.value) == (0, 0)


async def test_what_is_refused_is_said_beside_what_waits_in_the_order_of_the_request(
    mock_clock, nursery
):
    here, replica = await with_others()
    parts = [*REFUSED]
    parts.insert(2, ("jade", 0, 2))
    deletion = await delete(here, nursery, *parts, ("jade", 1, -1))
    assert deletion.is_waiting
    assert replica.log.log_start == 2
    for broker in (TWO, THREE):
        has(here, broker, 2)
        has(here, broker, 4, partition=1)
    await settled()
    told = [(code, -1) for code, _ in REFUSED.values()]
    told.insert(2, (None, 2))
    assert deletion.told == [*told, (None, 4)]


async def test_what_is_refused_is_not_called_late_beside_what_is(mock_clock, nursery):
    here, _ = await with_others()
    deletion = await delete(here, nursery, ("jade", 0, 2), *REFUSED, timeout_ms=4000)
    mock_clock.jump(4.1)
    await settled()
    assert deletion.told == [(LATE, -1), *((code, -1) for code, _ in REFUSED.values())]


async def test_nothing_asked_is_nothing_waited_for(mock_clock, nursery):
    here, _ = await leading()
    deletion = Deletion(here, nursery, [], 9000)
    await settled()
    assert deletion.told == []
