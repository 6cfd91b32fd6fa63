"""A damaged replica: cut where it is damaged, fetched again, and led by somebody else meanwhile.

Goal: a replica whose bytes are wrong is repaired once nobody relies on it, and only then; whatever
goes wrong meanwhile, it is whole or offline, and says why. The controller hears of it by heartbeat
and gives its roles away where somebody else can take them. Method: broker 1 with real replicas on
a simulated disk whose worker threads wait for a gate; answers of its leader made by hand.
"""

from __future__ import annotations

import pytest
import trio
from brokers import DATA
from controller_cluster import NONE
from faulty_broker import ALL, DIRECTORY, OURS, RECORDS, SIZE, Frail
from leaderkit import EPOCH, ME, THREE, TWO, settled
from logkit import contents, follow, make_batch, path_of, sync
from replicakit import spans_of

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.config import make_config
from hightide_broker.core.cluster.changes import RemoveTopic
from hightide_broker.core.replication.follower import Follower
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.cluster.broker_lifecycle import BrokerLifecycle
from hightide_broker.runtime.replication.repair import EVERY_S


async def damaged(record=3, **facts):
    """A broker whose replica met damage in this record."""
    here = Frail()
    await here.follow_two(**facts)
    here.damage(record)
    here.meet(record)
    return here


# --- repairing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [0, 3, RECORDS - 1])
async def test_a_damaged_replica_is_cut_at_the_damage_and_made_whole_by_its_leader(record):
    here = await damaged(record)
    await here.repair.look_once()
    replica = here.replica
    assert here.replicas.offline() == []
    assert not replica.is_damaged
    assert (replica.log.log_start, replica.log.log_end) == (0, record)
    assert spans_of(contents(replica.log)) == ALL[:record]
    here.catch_up()
    assert here.is_whole
    assert replica.high_watermark == RECORDS


@pytest.mark.parametrize("is_full", [False, True], ids=["a-disk-that-fails", "a-full-disk"])
async def test_damage_on_a_disk_that_takes_no_index_is_an_error_of_its_partition(is_full):
    """Whether the index led to the wrong place cannot be found out: not a bug that ends the
    connection of all partitions."""
    here = Frail()
    replica = await here.follow_two(index_interval_bytes=str(SIZE))
    here.damage(3)
    if is_full:
        here.disk.capacity = 0
    else:
        here.disk.fail("write", ".index")
    with pytest.raises(Refused) as refused:
        replica.read(3, limit=replica.log.log_end, max_bytes=1, at_least_one=True)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert bool(replica.offline) != is_full, "one that has no room is there when it has"


async def test_housekeeping_mends_soon_after_nobody_relies_on_the_replica(nursery, autojump_clock):
    here = await damaged(isr=(ME, TWO, THREE))
    nursery.start_soon(here.repair.run)
    await trio.sleep(10 * EVERY_S)
    assert here.replicas.offline() == [OURS]
    await here.change(isr=(TWO, THREE))
    await trio.sleep(1.1 * EVERY_S)
    here.catch_up()
    assert here.is_whole


RELIED_ON = {
    "it leads": {"leader": ME, "isr": (ME, TWO, THREE)},
    "it leads alone": {"leader": ME, "isr": (ME,)},
    "it is in sync": {"isr": (ME, TWO)},
    "it is eligible": {"isr": (TWO,), "elr": (ME,)},
    "it led last": {"leader": NONE, "isr": (), "last_leader": ME},
    "nobody leads": {"leader": NONE, "isr": (), "elr": (THREE,)},
}


@pytest.mark.parametrize("facts", RELIED_ON.values(), ids=RELIED_ON)
async def test_a_replica_that_somebody_relies_on_is_not_cut(facts):
    here = await damaged()
    await here.change(**facts)
    stored = here.stored
    await here.repair.look_once()
    assert here.stored == stored
    assert here.replica.is_damaged
    assert here.replicas.offline() == [OURS]
    await here.change(isr=(TWO, THREE), elr=(), last_leader=NONE, leader=TWO)
    await here.repair.look_once()
    assert here.replica.log.log_end == 3


async def test_a_replica_found_damaged_when_it_is_opened_is_repaired_like_any_other():
    before = Frail()
    await before.follow_two()
    before.damage(2)
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert here.replica.is_damaged
    assert here.replicas.offline() == [OURS]
    await here.repair.look_once()
    assert here.replica.log.log_end == 2
    here.catch_up()
    assert here.is_whole


async def test_a_header_that_rotted_below_the_recovery_point_does_not_end_the_broker():
    # Seeds 7916 and 9152 of the replicated world: only the producers' sequences are read then.
    before = Frail()
    log = (await before.follow_two(records=0, index_interval_bytes=str(SIZE))).log
    for number in range(RECORDS):
        times = [1000 + number]
        follow(log, make_batch(1, base_offset=number, epoch=EPOCH, timestamps=times))
    sync(before.disk, log)
    await before.replicas.close()
    before.disk.corrupt(path_of(0, directory=DIRECTORY), SIZE + 7)
    for snapshot in log.producer_snapshots.offsets():
        before.disk.remove(f"{DIRECTORY}/{snapshot:020}.snapshot")
    here = before.again(clean=True)
    await here.applier.load(here.image)
    assert here.replica.is_damaged
    assert here.replicas.offline() == [OURS]
    assert "offset 0 where 1 or more is expected" in here.replica.offline
    await here.repair.look_once()
    here.catch_up()
    assert here.is_whole


async def test_a_directory_that_names_no_topic_is_set_aside_and_all_is_fetched_again():
    before = Frail()
    await before.follow_two()
    stored = before.stored
    before.disk.replace(f"{DIRECTORY}/partition.metadata", b"no such thing")
    here = before.again(clean=True)
    await here.applier.load(here.image)
    assert here.replica.is_damaged
    await here.repair.look_once()
    assert here.replica.log.log_end == 0
    aside = path_of(0, directory=f"{DIRECTORY}.damaged-stray")
    assert here.disk.read_file(aside) == stored
    here.catch_up()
    assert here.is_whole


async def test_a_cut_is_preceded_by_a_lower_offsets():
    here = Frail()
    replica = await here.follow_two()
    sync(here.disk, replica.log)
    await here.replicas.checkpoint_recovery_points()
    here.damage(3)
    here.meet(3)
    await here.replicas.checkpoint_recovery_points()
    points = here.replicas.checkpoints
    assert points.recovery_points == {("jade", 0): RECORDS}, "it is kept while it is offline"
    await here.repair.look_once()
    assert points.recovery_points == {("jade", 0): 0}
    assert (here.replica.log.synced_end, here.replica.log.log_end) == (0, 3)


# --- what happens meanwhile -----------------------------------------------------------------------


async def repairing(here, nursery):
    """The replica is about to be repaired; the worker thread waits for the gate."""
    here.disk.gate = trio.Event()
    nursery.start_soon(here.repair.look_once)
    await settled()


async def done(here):
    here.disk.gate.set()
    await settled()


async def test_a_topic_deleted_while_its_replica_is_repaired_stays_deleted(nursery):
    here = await damaged()
    await repairing(here, nursery)
    nursery.start_soon(here.apply, RemoveTopic(topic_id="id-of-jade"))
    await settled()
    assert here.disk.exists(DIRECTORY), "somebody is at work in it"
    await done(here)
    assert len(here.replicas) == 0
    await here.pending_deletes.carry_out()
    assert [name for name in here.disk.list(DATA) if "jade" in name] == []
    assert here.replicas.offline() == []
    with pytest.raises(Refused):
        _ = here.replica
    await here.repair.look_once()
    assert len(here.replicas) == 0


async def test_a_change_of_leader_meanwhile_is_carried_out_by_the_repaired_replica(nursery):
    here = await damaged()
    await repairing(here, nursery)
    await here.change(leader=THREE)
    await done(here)
    assert here.replica.follower == Follower(leader=THREE, epoch=EPOCH + 1)
    assert (here.replica.leader_epoch, here.replica.log.log_end) == (EPOCH + 1, 3)


async def test_damage_that_comes_while_it_is_repaired_is_cut_away_too(nursery):
    here = await damaged(4)
    await repairing(here, nursery)
    assert here.replicas.offline() == [OURS], "until it is repaired"
    here.damage(1)
    await done(here)
    assert here.replica.log.log_end == 1
    here.catch_up()
    assert here.is_whole


async def test_a_repaired_replica_may_be_damaged_and_repaired_again():
    here = await damaged(4)
    for record in (2, 5):
        await here.repair.look_once()
        here.catch_up()
        assert here.is_whole
        here.damage(record)
        here.meet(record)
    await here.repair.look_once()
    assert here.replica.log.log_end == 5


@pytest.mark.parametrize("operation", ["truncate", "sync", "read"])
async def test_a_disk_that_fails_while_it_is_repaired_leaves_it_offline_with_the_reason(operation):
    here = await damaged()
    here.disk.fail(operation, "jade-0", "the disk is gone")
    await here.repair.look_once()
    assert "the disk is gone" in here.replica.offline
    assert here.replicas.offline() == [OURS]
    here.disk.heal()
    await here.repair.look_once()
    assert here.replicas.offline() == [OURS], "a disk that failed is not trusted again"


async def test_a_full_disk_leaves_it_damaged_until_there_is_room():
    here = await damaged()
    here.disk.capacity = here.disk.used_bytes()
    await here.repair.look_once()
    assert here.replicas.offline() == [OURS]
    assert here.replica.is_damaged
    here.disk.capacity = 1 << 40
    assert here.replica.is_damaged, "not opened again as if it were whole"
    await here.repair.look_once()
    here.catch_up()
    assert here.is_whole


async def test_a_recovery_point_that_cannot_be_lowered_ends_nothing(nursery, autojump_clock):
    here = await damaged()
    await here.replicas.checkpoint_recovery_points()
    here.replicas.checkpoints.recovery_points[("jade", 0)] = 3
    here.disk.fail("replace", "recovery-point")
    nursery.start_soon(here.repair.run)
    await trio.sleep(2 * EVERY_S)
    assert here.replicas.offline() == [OURS]
    here.disk.heal()
    await trio.sleep(2 * EVERY_S)
    assert here.replicas.offline() == []


async def test_what_a_failing_disk_left_half_repaired_is_repaired_by_the_next_process():
    before = await damaged()
    before.disk.fail("truncate", "jade-0")
    await before.repair.look_once()
    before.disk.heal()
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert here.replica.is_damaged
    await here.repair.look_once()
    here.catch_up()
    assert here.is_whole


async def test_one_replica_that_cannot_be_repaired_holds_no_other_up():
    here = await damaged()
    other = await here.create("onyx", leader=TWO, isr=(TWO, THREE))
    other.go_offline("for a test", damaged=True)
    here.disk.fail("truncate", "jade-0")
    await here.repair.look_once()
    assert here.replicas.offline() == [OURS]
    assert not here.replicas.get("onyx", 0).offline


# --- what the heartbeat says ----------------------------------------------------------------------


class Listener:
    """The way to a controller that remembers what every heartbeat said of offline replicas."""

    def __init__(self) -> None:
        self.told = []

    async def ask(self, request, *, timeout_s=None):
        self.told.append(request.offline)
        await trio.sleep(0.001)
        return c.BrokerHeartbeatResponse(caught_up=True, fenced=False, should_shut_down=False), 0


async def test_every_heartbeat_names_the_replicas_that_are_offline_then(nursery, autojump_clock):
    here = Frail()
    await here.follow_two()
    listener = Listener()
    config = make_config({"node.id": "1", "broker.heartbeat.interval.ms": "1s"})
    lifecycle = BrokerLifecycle(
        listener, Watermark(0), broker=ME, config=config, replicas=here.replicas
    )
    nursery.start_soon(lifecycle.run)
    await trio.sleep(2.5)
    here.damage(3)
    here.meet(3)
    await trio.sleep(1.7)
    await here.repair.look_once()
    await trio.sleep(2)
    assert listener.told == [[]] * 3 + [[OURS]] * 2 + [[]] * 2, "it is told at once, too"


async def test_a_replica_that_waits_for_room_is_not_reported():
    here = Frail()
    here.disk.capacity = 0
    await here.create(leader=TWO, isr=(TWO, THREE), partitions=2)
    assert here.replicas.offline() == []
    here.disk.capacity = 1 << 40
    await here.repair.look_once()
    assert here.replica.follower is not None
