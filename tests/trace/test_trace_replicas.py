"""What happens to replicas, as events: who leads and follows, what is cut, who leaves an ISR.

Goal: an event has the numbers that somebody needs who was not there: what the watermark was, how
far behind, since when. Method: replicas on the simulated disk whose leaders' answers and followers'
fetches are made by hand; virtual time.
"""

from __future__ import annotations

import pytest
import trio
from brokers import NOW_MS, FakeClock
from faulty_broker import DIRECTORY, Frail
from leaderkit import EPOCH, ME, THREE, TWO, FakeController, Here, granted, saying, unanswered
from replicakit import Place, batch
from tracekit import of_kind

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.image import NO_LEADER
from hightide_broker.core.replication.follower import Truncate, TruncateFully
from hightide_broker.runtime.replication.housekeeping import Housekeeping
from hightide_broker.runtime.replication.positions import (
    EVERY_S,
    IN_ONE,
    IN_ONE_LOOK,
    Positions,
)
from hightide_broker.trace.events import (
    Event,
    FollowerBegan,
    IsrProposed,
    IsrRefused,
    LeaderBegan,
    Offsets,
    RepairBegan,
    RepairEnded,
    ReplicaOffline,
    Truncated,
)

LAG_S = 30.0
JADE = {"topic": "jade", "partition": 0, "leader_epoch": EPOCH}


# --- cuts -----------------------------------------------------------------------------------------


def test_a_cut_says_from_where_to_where_and_what_the_watermark_was() -> None:
    place = Place((1, 3), (2, 4), high_watermark=6)
    place.do(Truncate(4))
    assert place.told == [
        Truncated(
            **JADE,
            leader=1,
            before=7,
            after=place.log.log_end,
            epoch_before=2,
            epoch_after=place.log.epochs.latest_epoch,
            high_watermark=6,
        )
    ]
    assert place.log.log_end <= 4


def test_a_log_that_is_given_up_whole_is_told_so() -> None:
    place = Place((1, 3), high_watermark=2)
    place.do(TruncateFully(9))
    (cut,) = of_kind(place.told, Truncated)
    assert (cut.before, cut.after, cut.is_whole, cut.high_watermark) == (3, 9, True, 2)


def test_what_cuts_nothing_is_not_told() -> None:
    place = Place((1, 3))
    place.do(Truncate(3))
    place.answer(batch(3), watermark=2)
    assert place.told == []


# --- who leads, who follows -----------------------------------------------------------------------


async def test_each_new_epoch_of_a_replica_is_told_once_with_what_it_had() -> None:
    here = Here()
    await here.create(isr=(ME, TWO))
    here.append(3)
    await here.change(isr=(ME,))
    await here.change(leader=TWO, isr=(ME, TWO))
    await here.change(leader=NO_LEADER, isr=())
    began = of_kind(here.told, LeaderBegan, FollowerBegan)
    assert began == [
        LeaderBegan(**JADE, log_end=0, high_watermark=0, isr=(ME, TWO)),
        FollowerBegan(
            topic="jade",
            partition=0,
            leader_epoch=EPOCH + 1,
            leader=TWO,
            log_end=3,
            last_epoch=EPOCH,
            high_watermark=3,
        ),
        FollowerBegan(
            topic="jade",
            partition=0,
            leader_epoch=EPOCH + 2,
            leader=-1,
            log_end=3,
            last_epoch=EPOCH,
            high_watermark=3,
        ),
    ]


async def test_a_replica_whose_disk_fails_is_told_of_once() -> None:
    here = Here()
    replica = await here.create()
    replica.go_offline("the disk is gone")
    replica.go_offline("and so on")
    assert of_kind(here.told, ReplicaOffline) == [
        ReplicaOffline(**JADE, why="the disk is gone", is_damaged=False)
    ]


# --- in sync --------------------------------------------------------------------------------------


def here_with(nursery: trio.Nursery, *script: object) -> Here:
    here = Here(FakeController(*(script or (granted,))))
    nursery.start_soon(here.isr_changes.run, here.replicas)
    return here


async def test_who_lags_is_told_with_how_long_and_how_far(nursery, autojump_clock) -> None:
    here = here_with(nursery)
    await here.create(isr=(ME, TWO, THREE))
    here.append(5)
    here.fetch_one(5)
    here.fetch_one(2, by=THREE)
    began = trio.current_time()
    while not here.controller.requests:
        await trio.sleep(1)
        here.fetch_one(5)
    (left,) = of_kind(here.told, IsrProposed)
    assert (left.broker, left.joins, left.isr) == (THREE, False, (ME, TWO, THREE))
    assert (left.its_end, left.log_end, left.high_watermark) == (2, 5, 2)
    assert LAG_S * 1000 < left.behind_ms <= (trio.current_time() - began) * 1000 + 1


async def test_who_caught_up_is_told_when_it_is_asked_for_first(nursery, autojump_clock) -> None:
    """Not each time that the controller does not answer."""
    here = here_with(nursery, unanswered, unanswered, granted)
    await here.create(isr=(ME, TWO))
    here.append(3)
    here.fetch_one(3, by=THREE)
    await trio.sleep(5)
    assert len(here.controller.requests) == 3
    (join,) = of_kind(here.told, IsrProposed)
    assert (join.broker, join.joins, join.behind_ms, join.its_end) == (THREE, True, 0, 3)


async def test_what_the_controller_does_not_grant_is_told(nursery, autojump_clock) -> None:
    here = here_with(nursery, saying(ErrorCode.INELIGIBLE_REPLICA), granted)
    await here.create(isr=(ME, TWO))
    here.append(3)
    here.fetch_one(3, by=THREE)
    await trio.sleep(5)
    (refused,) = of_kind(here.told, IsrRefused)
    assert (refused.isr, refused.error) == ((ME, TWO, THREE), "INELIGIBLE_REPLICA")


# --- positions ------------------------------------------------------------------------------------


async def test_positions_are_told_once_a_second_and_only_if_they_moved(
    nursery, autojump_clock
) -> None:
    here, told = Here(), []
    await here.create(partitions=2, isr=(ME,), replicas=(ME,))

    def tell(what: Event) -> None:
        told.append((trio.current_time(), what))

    began = trio.current_time()
    nursery.start_soon(Positions(here.replicas, tell).run)
    await trio.sleep(3.5 * EVERY_S)
    here.append(2)
    await trio.sleep(0.2 * EVERY_S)
    here.append(1)
    await trio.sleep(5 * EVERY_S)
    assert [(round(at - began, 3), len(what.replicas)) for at, what in told] == [
        (1.0, 2),
        (4.0, 1),
    ]
    assert told[-1][1].replicas[0] == Offsets("jade", 0, EPOCH, 0, 3, 3, 0)


@pytest.mark.parametrize("how", ["by request", "by retention"])
async def test_what_is_deleted_moves_a_position(how: str) -> None:
    here, told = Here(), []
    replica = await here.create(isr=(ME,), replicas=(ME,), retention_ms="1000")
    here.append(3)
    positions = Positions(here.replicas, told.append)
    await positions.look_once()
    if how == "by request":
        replica.delete_records(-1)
    else:
        clock = FakeClock(NOW_MS + 3_600_000)
        where = (here.replicas, here.pending_deletes)
        chores = Housekeeping(*where, config=here.config, disk=here.disk, clock=clock)
        assert chores.apply_retention(replica) == 1
    await positions.look_once()
    assert [event.replicas[0].log_start for event in told] == [0, 3]


async def test_a_replica_that_serves_nobody_has_no_position() -> None:
    here, told = Here(), []
    replica = await here.create(partitions=2)
    positions = Positions(here.replicas, told.append)
    replica.go_offline("the disk is gone")
    await positions.look_once()
    (moved,) = told
    assert [each.partition for each in moved.replicas] == [1]


async def test_of_more_than_a_look_may_tell_everybody_has_a_turn() -> None:
    """Although all of them move all the time."""
    here, told = Here(), []
    count = 2 * IN_ONE_LOOK + 10
    await here.create(partitions=count, replicas=(ME,))
    positions, looks = Positions(here.replicas, told.append), []
    for _ in range(4):
        for number in range(count):
            here.append(partition=number)
        await positions.look_once()
        looks.append([each.partition for event in told for each in event.replicas])
        assert all(len(event.replicas) <= IN_ONE for event in told)
        told.clear()
    assert [len(look) for look in looks] == [IN_ONE_LOOK] * 4
    assert len({*looks[0], *looks[1], *looks[2]}) == count
    assert {*looks[3]}.isdisjoint(looks[2])


async def test_what_a_look_may_not_tell_the_next_one_tells_although_it_moves_no_more() -> None:
    here, told = Here(), []
    await here.create(partitions=IN_ONE_LOOK + 10, replicas=(ME,))
    positions = Positions(here.replicas, told.append)
    looks = []
    for _ in range(3):
        await positions.look_once()
        looks.append(sum(len(event.replicas) for event in told))
        told.clear()
    assert looks == [IN_ONE_LOOK, 10, 0]


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_repair_is_told_with_what_was_kept(is_readable: bool) -> None:
    here = Frail()
    await here.follow_two()
    here.damage(3)
    here.meet(3)
    (offline,) = of_kind(here.told, ReplicaOffline)
    assert offline.is_damaged
    if not is_readable:
        here.disk.fail("read", DIRECTORY)
    await here.repair.look_once()
    began, ended = of_kind(here.told, RepairBegan, RepairEnded)
    assert began.why == offline.why
    assert ended.log_end == (3 if is_readable else -1)
