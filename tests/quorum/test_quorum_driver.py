"""The driver of the quorum around its state machine: connections, snapshots, starts and stops.

Goal: waiting requests do not hold up the quorum, a log and its snapshot always belong together, a
disk without room is waited for, and a node that hardly lived leaves everything as it found it.
Method: simulated worlds; a driver alone, whose only peer is a leader played by the test; a log on a
simulated disk whose process dies between two steps.
"""

import logging
import random

import pytest
import trio
from brokers import DATA, FakeClock, new_node, settings
from sim_machines import virtual
from small_worlds import epochs, in_world, isolate, others, until, until_led
from tracekit import of_kind

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import BrokerUnreachable
from hightide_broker.config import ConfigError
from hightide_broker.core.cluster.changes import AllocateProducerIds, FenceBroker, encode_change
from hightide_broker.core.quorum.quorum_events import tail_of
from hightide_broker.core.quorum.ready import SnapshotId
from hightide_broker.core.quorum.roles import QuorumConfig
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.quorum.metadata_log import MetadataLog
from hightide_broker.runtime.quorum.peers import NodeAddresses
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.directory import take_clean_marker
from hightide_broker.storage.quorum_state import (
    QuorumState,
    read_quorum_state,
    write_quorum_state,
)
from hightide_broker.storage.segment import LogConfig
from hightide_broker.storage.snapshots import SnapshotWriter, encode_snapshot
from hightide_broker.trace.events import QuorumTruncated

HERE = f"{DATA}/__cluster_metadata-0"
CONFIG = LogConfig(segment_bytes=1 << 20)


def open_log(disk, path=HERE):
    return MetadataLog(disk, path, config=CONFIG, clock=FakeClock())


def change(number):
    return FenceBroker(broker=number, broker_epoch=number)


# What waits for a commit does not hold up the fetches that commit it.


def test_hundreds_of_forwarded_requests_cause_no_election():
    async def body(world):
        leader = await until_led(world)
        follower, third = others(world, leader)
        await trio.sleep(2)
        await third.crash(power=False)
        await trio.sleep(1)
        before, done = epochs(world), []

        async def forward(number):
            made = m.NewTopic(topic=f"t-{number}", partitions=1)
            done.append(await follower.node.channel.ask(m.CreateTopicsRequest(topics=[made])))

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(forward, number)
        assert len(done) == 300
        assert (world.leader(), epochs(world)) == (leader, before)

    in_world(body, request_timeout_ms="30s")


# What is cut is told.


def test_a_leader_that_wrote_alone_cuts_what_it_wrote_and_tells_it():
    async def body(world):
        alone = await until_led(world)
        node = alone.node
        await trio.sleep(2)
        isolate(world, alone)
        committed = tail_of(node.metadata)
        assert committed.end == node.quorum.core.high_watermark
        node.quorum.append([change(1)], committed.epoch)
        told = []
        node.trace.tell = told.append
        await until(lambda: world.leader() not in (None, alone))
        world.network.heal()
        await until(lambda: node.metadata.last_epoch > committed.epoch)
        (cut,) = of_kind(told, QuorumTruncated)
        assert cut == QuorumTruncated(
            leader=world.leader().id,
            epoch=node.quorum.core.epoch,
            before=committed.end + 1,
            after=committed.end,
            epoch_before=committed.epoch,
            epoch_after=committed.epoch,
            high_watermark=committed.end,
        )

    in_world(body)


# A log and its snapshot.


def log_of(disk, *epochs, each=100):
    """A durable log with so many changes of each epoch."""
    log = open_log(disk)
    for epoch in epochs:
        log.append_leader_change(epoch, leader=1, voters=[1, 2, 3])
        for number in range(each - 1):
            log.append([change(number)], epoch)
    job = log.begin_sync()
    disk.sync_now(job.files, job.directories)
    log.finish_sync(job)
    return log


def leave_snapshot(disk, snapshot):
    """A leader's snapshot has got its name, and then the process dies."""
    writer = SnapshotWriter(disk, HERE, snapshot)
    for data in encode_snapshot([encode_change(change(1))], epoch=snapshot.epoch, now_ms=1):
        writer.append(data)
    writer.finish()
    disk.kill()


@pytest.mark.parametrize(
    "snapshot", [(150, 3), (150, 1), (200, 3), (100, 2), (101, 1), (1, 2), (900, 2)]
)
def test_a_log_that_differs_from_its_snapshot_begins_behind_it(snapshot):
    disk = SimDisk()
    log_of(disk, 1, 2)
    leave_snapshot(disk, SnapshotId(*snapshot))
    for _ in range(2):
        log = open_log(disk)
        assert (log.log_start, log.log_end, log.last_epoch) == (snapshot[0], *snapshot)
        assert log.latest_snapshot == log.earliest_snapshot == snapshot
        disk.crash(random.Random(1))


@pytest.mark.parametrize("snapshot", [(1, 1), (100, 1), (101, 2), (150, 2), (200, 2)])
def test_a_log_that_agrees_with_its_snapshot_is_kept(snapshot):
    disk = SimDisk()
    log_of(disk, 1, 2)
    leave_snapshot(disk, SnapshotId(*snapshot))
    log = open_log(disk)
    assert (log.log_start, log.log_end, log.last_epoch) == (0, 200, 2)
    assert log.latest_snapshot == snapshot


# A driver alone.


class Leader:
    """The leader of epoch 4, whose log begins behind a snapshot; it is node 3, and alone."""

    def __init__(self, *, pieces=5):
        self.id = SnapshotId(500, 3)
        values = [encode_change(change(number)) for number in range(500)]
        self.snapshot = b"".join(encode_snapshot(values, epoch=3, now_ms=1))
        self.positions = []
        """Of the snapshot, in the order in which they were asked for."""
        self.before_piece = lambda position: None
        self._size = -(-len(self.snapshot) // pieces)

    async def call(self, peer, request, *, timeout_s):
        await trio.sleep(0.01)
        if peer != 3:
            raise BrokerUnreachable("nobody is there")
        if isinstance(request, c.FetchSnapshotRequest):
            return self._piece(request)
        assert isinstance(request, m.FetchRequest)
        (part,) = request.partitions
        if part.fetch_offset >= self.id.end_offset:
            await trio.sleep_forever()
        result = m.FetchResult(
            topic=part.topic,
            partition=0,
            high_watermark=900,
            log_start_offset=500,
            snapshot=m.EpochEnd(epoch=self.id.epoch, end_offset=self.id.end_offset),
            current_leader=m.LeaderHint(leader=3, leader_epoch=4),
        )
        return m.FetchResponse(partitions=[result]), []

    def _piece(self, request):
        at = request.position
        self.positions.append(at)
        self.before_piece(at)
        told = {"epoch": 4, "leader": 3, "size": len(self.snapshot), "position": at, "data": 0}
        piece = memoryview(self.snapshot)[at : at + self._size]
        return c.FetchSnapshotResponse(**told), [piece]


def driver_of(disk, peers, *, state=None, node=2):
    """A driver that does not run yet, on a new log."""
    log = open_log(disk)
    write_quorum_state(disk, HERE, state or QuorumState(3, 4, -1))
    return QuorumDriver(
        QuorumConfig(node=node, voters=(1, 2, 3)),
        log,
        disk=disk,
        directory=HERE,
        peers=peers,
        addresses=NodeAddresses(),
        syncer=Syncer(disk, Agenda()),
        random=random.Random(1),
        request_timeout_s=1.0,
    )


def follow(disk, leader):
    """Follow a leader until its snapshot is installed; the log."""

    async def body():
        driver = driver_of(disk, leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.run)
            await until(lambda: driver.metadata.log_end == leader.id.end_offset)
            nursery.cancel_scope.cancel()
        return driver.metadata

    return virtual(body)


def test_a_snapshot_is_fetched_piece_by_piece():
    leader = Leader()
    log = follow(SimDisk(), leader)
    assert len(leader.positions) == 5
    assert leader.positions == sorted(leader.positions)
    assert log.load_snapshot(leader.id) == [change(number) for number in range(500)]


@pytest.mark.parametrize("number", range(5))
def test_a_snapshot_is_fetched_again_when_there_is_room_again(number):
    """The disk is full when a piece arrives, and has room when the fetch has begun again."""
    disk, leader = SimDisk(), Leader()

    def fill(position):
        if len(leader.positions) == number + 1:
            disk.capacity = disk.used_bytes()
        elif position == 0:
            disk.capacity = 1 << 40

    leader.before_piece = fill
    log = follow(disk, leader)
    tried, again = leader.positions[: number + 1], leader.positions[number + 1 :]
    assert (len(again), tried) == (5, again[: number + 1]), "from the start, and no piece twice"
    assert log.load_snapshot(leader.id) == [change(each) for each in range(500)]
    assert (log.log_start, log.last_epoch) == leader.id


@pytest.mark.parametrize("leader", [3, 2, -1])
def test_a_node_that_resigns_before_its_driver_runs_does_nothing(leader):
    async def body():
        disk, state = SimDisk(), QuorumState(leader, 4, -1)
        driver = driver_of(disk, Leader(), state=state)
        before = repr(driver.core)
        await driver.resign()
        assert repr(driver.core) == before
        assert read_quorum_state(disk, HERE) == state
        assert driver.metadata.log_end == 0

    virtual(body)


def test_a_node_that_is_stopped_as_it_starts_stops_in_order():
    async def body(world):
        follower = others(world, await until_led(world))[0]
        for _ in range(8):
            await follower.crash(power=False)
            follower.start_again()
            await follower.stop()
            assert not follower.is_up
        follower.start_again()
        await until(lambda: follower.node and follower.node.quorum.leader > 0)

    in_world(body)


def test_a_controller_that_stops_does_not_say_that_it_is_the_active_one(caplog):
    async def body(world):
        leader = await until_led(world)
        caplog.set_level(logging.INFO, logger="hightide.controller")
        await leader.stop()

    in_world(body)
    told = [each.getMessage() for each in caplog.records if "no longer active" in each.msg]
    assert told
    assert all(each.endswith("none is known") for each in told), told


# A node that never served.


def test_a_node_that_stops_before_it_served_keeps_its_mark_of_a_clean_stop():
    async def body(world):
        controller, broker = world.machines
        await until(lambda: broker.node and broker.node.serving.is_set())
        epoch = broker.node.broker_epoch
        await broker.stop()
        await controller.crash(power=False)
        for _ in range(2):
            broker.start_again()
            await trio.sleep(3)
            assert not broker.node.serving.is_set()
            await broker.stop()
        assert epoch >= 0
        assert take_clean_marker(broker.disk, broker.directory) == epoch

    in_world(body, controllers=1, observers=1)


def test_a_node_that_served_is_not_clean_after_a_crash():
    async def body(world):
        controller, broker = world.machines
        await until(lambda: broker.node and broker.node.serving.is_set())
        await broker.crash(power=False)
        await controller.crash(power=False)
        broker.start_again()
        await trio.sleep(3)
        await broker.stop()
        assert take_clean_marker(broker.disk, broker.directory) is None

    in_world(body, controllers=1, observers=1)


def test_a_node_that_stops_after_it_registered_again_has_no_mark_of_its_old_life():
    async def body(world):
        controller, broker = world.machines
        await until(lambda: broker.node and broker.node.serving.is_set())
        await broker.stop()
        broker.start_again()
        await until(lambda: broker.node and broker.node.broker_epoch >= 0, every_s=0.0001)
        known, epoch = broker.node.image.brokers, broker.node.broker_epoch
        await until(lambda: broker.id in known and known[broker.id].epoch == epoch, every_s=0.0001)
        await controller.crash(power=False)
        await trio.sleep(1)
        assert not broker.node.serving.is_set()
        await broker.stop()
        assert take_clean_marker(broker.disk, broker.directory) is None

    in_world(body, controllers=1, observers=1)


# Voters are fixed.


def voted_by(*voters):
    """A node whose log was written by one leader after another, with these voters."""
    disk = SimDisk()
    log = open_log(disk)
    for epoch, each in enumerate(voters, 1):
        log.append_leader_change(epoch, leader=1, voters=each)
        log.append([AllocateProducerIds(next_id=1000 * epoch)], epoch)
    job = log.begin_sync()
    disk.sync_now(job.files, job.directories)
    log.finish_sync(job)
    write_quorum_state(disk, HERE, QuorumState(-1, len(voters), -1))
    disk.kill()
    return disk


@pytest.mark.parametrize("voters", [[[1, 2, 3]], [[2]], [[1], [1, 2, 3]]])
async def test_a_node_does_not_start_with_other_voters_than_the_last_leader_had(voters):
    disk = voted_by(*voters)
    before = disk.read_file(f"{HERE}/quorum-state")
    with pytest.raises(ConfigError, match="not by configuration"):
        async with new_node(disk, settings()):
            pass
    assert disk.read_file(f"{HERE}/quorum-state") == before


@pytest.mark.parametrize("voters", [[[1]], [[1, 2, 3], [1]]])
async def test_a_node_starts_with_the_voters_that_the_last_leader_had(voters):
    async with new_node(voted_by(*voters), settings()) as node:
        assert node.controller_id == 1
