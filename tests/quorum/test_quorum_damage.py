"""A leader of the quorum that cannot read what it has makes room for one that can.

Goal: whoever needs a part of the log, or a snapshot, that is damaged on the leader's disk gets it
from another leader; a controller on its own goes on for those that need nothing of it. The answer
is one that says so, on a connection that stays. Method: small simulated worlds, where one bit turns
on the leader's disk while a follower is down; the follower is played by hand first, then it starts.
"""

import logging

import pytest
import trio
from logkit import place_of
from small_worlds import in_world, others, outcome, until, until_led

from hightide.net.connection import open_connection
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, ErrorCode
from hightide_broker.core.cluster.changes import FenceBroker
from hightide_broker.core.cluster.features import KNOWN_LEVELS
from hightide_broker.core.quorum.leader import METADATA_TOPIC
from hightide_broker.core.quorum.roles import Role
from hightide_broker.runtime.base.call import Call
from hightide_broker.simulation.world import CLUSTER_ID, PORT
from hightide_broker.storage.directory import METADATA_DIRECTORY
from hightide_broker.storage.snapshots import snapshot_path

BITS = {"of a record": 70, "of a batch's length": 10, "of its CRC": 18, "of its magic byte": 16}
SNAPSHOTS_SOON = {
    "metadata_log_max_record_bytes_between_snapshots": "2KiB",
    "metadata_max_retention_bytes": "1KiB",
    "metadata_log_segment_bytes": "8MiB",
}


@pytest.fixture(autouse=True)
def _nothing_is_a_bug(caplog):
    """What is told as an error, here, is what was found on the disk, without a traceback."""
    caplog.set_level(logging.INFO)
    yield
    errors = [each for each in caplog.get_records("call") if each.levelno >= logging.ERROR]
    assert {(each.name, each.event) for each in errors} == {
        ("hightide.quorum", "driver.metadata_unreadable")
    }
    assert not [each for each in errors if each.exc_info]


async def decide(leader, number):
    """A broker that nobody knew registers, by what is asked of the leader itself."""
    request = c.RegisterBrokerRequest(
        broker=200 + number % 5,
        incarnation=f"run-{number}",
        cluster_id=CLUSTER_ID,
        host="nowhere",
        port=1,
        features=dict(KNOWN_LEVELS),
    )
    await leader.node.channel.ask(request)


async def until_behind(world, *, decisions=6):
    """A leader, and a follower that is down and lacks so many decisions; the others have them."""
    leader = await until_led(world)
    await trio.sleep(2)
    behind = next(each for each in world.machines if each is not leader)
    await until(lambda: behind.node.metadata.log_end == leader.node.metadata.log_end)
    end = leader.node.metadata.log_end
    await behind.crash(power=False)
    for number in range(decisions):
        await decide(leader, number)
    await trio.sleep(1)
    return leader, behind, end


def damage_log(machine, offset, at):
    """A bit of the batch with that offset turns."""
    ((path, data),) = machine.disk.files(METADATA_DIRECTORY, ".log").items()
    machine.disk.corrupt(path, place_of(data, offset) + at)


def damage_snapshot(machine):
    """A bit of its latest snapshot turns."""
    directory = f"{machine.directory}/{METADATA_DIRECTORY}"
    path = snapshot_path(directory, machine.node.metadata.latest_snapshot)
    machine.disk.corrupt(path, len(machine.disk.read_file(path)) // 2)


def fetch(leader, follower, offset, *, wait_ms=0):
    """What a follower whose log ends there asks its leader."""
    epoch = leader.node.quorum.core.epoch
    part = m.FetchPartition(
        topic=METADATA_TOPIC,
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=epoch,
    )
    return m.FetchRequest(
        max_wait_ms=wait_ms, replica_id=follower.id, cluster_id=CLUSTER_ID, partitions=[part]
    )


def fetch_snapshot(leader, follower):
    end_offset, epoch = leader.node.metadata.latest_snapshot
    return c.FetchSnapshotRequest(
        cluster_id=CLUSTER_ID,
        replica_id=follower.id,
        current_leader_epoch=leader.node.quorum.core.epoch,
        snapshot=m.EpochEnd(epoch=epoch, end_offset=end_offset),
        position=0,
        max_bytes=1 << 20,
    )


async def asked_twice(world, leader, follower, request):
    """What the leader answers its follower on one connection, which it does not close."""
    host = world.network.host(follower.name)
    async with open_connection(host, leader.name, PORT) as connection:
        answers = [await outcome(lambda: connection.call(request, timeout_s=5)) for _ in range(2)]
    return [each[0] if isinstance(each, tuple) else each for each in answers]


def codes(answers):
    """The code of each answer."""
    parts = (each.partitions[0] if isinstance(each, m.FetchResponse) else each for each in answers)
    return [part.error for part in parts]


async def until_another_leads_and_is_followed(world, leader, behind):
    successor = await until(lambda: world.leader() if world.leader() is not leader else None)
    behind.start_again()
    await until(
        lambda: behind.node and behind.node.metadata.log_end == successor.node.metadata.log_end
    )
    assert behind.node.quorum.leader == successor.id
    return successor


# A log.


@pytest.mark.parametrize("at", BITS.values(), ids=BITS)
def test_a_leader_with_a_damaged_log_hands_over_to_one_that_can_be_followed(at):
    async def body(world):
        leader, behind, end = await until_behind(world)
        damage_log(leader, end, at)
        answers = await asked_twice(world, leader, behind, fetch(leader, behind, end))
        assert codes(answers) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        await until_another_leads_and_is_followed(world, leader, behind)

    in_world(body)


def test_who_cannot_read_its_log_votes_for_another():
    async def body(world):
        leader, behind, end = await until_behind(world)
        damage_log(leader, end + 1, BITS["of a record"])
        behind.start_again()
        successor = await until_another_leads_and_is_followed(world, leader, behind)
        await until(lambda: leader.node.metadata.log_end == successor.node.metadata.log_end)
        await successor.crash(power=False)
        assert await until(world.leader) in (leader, behind)

    in_world(body)


def test_what_could_not_be_read_once_disables_nobody():
    """Once on each of three disks, and all of them are well again: somebody leads."""

    async def body(world):
        for _ in range(3):
            leader = await until_led(world)
            await trio.sleep(2)
            leader.disk.fail_once("read", METADATA_DIRECTORY)
            follower = others(world, leader)[0]
            asked = Call(fetch(leader, follower, leader.node.metadata.log_start))
            answer = leader.node.quorum.begin(asked)
            leader.disk.heal()
            assert codes([answer.body]) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await until_led(world)

    in_world(body)


def test_who_waited_for_news_is_told_as_well_that_they_cannot_be_read():
    """The bit turns before the fetches that wait are woken by what was appended."""

    async def body(world):
        leader = await until_led(world)
        await trio.sleep(2)
        driver, end = leader.node.quorum, leader.node.metadata.log_end
        waits = driver.begin(Call(fetch(leader, others(world, leader)[0], end, wait_ms=5000)))
        for _ in range(2):  # the last batch is in memory
            driver.append([FenceBroker(broker=1, broker_epoch=1)], driver.core.epoch)
        damage_log(leader, end, BITS["of a record"])
        assert codes([(await waits()).body]) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert driver.core.role is Role.RESIGNED

    in_world(body)


def test_a_disk_that_cannot_be_read_is_no_leaders():
    async def body(world):
        leader, behind, end = await until_behind(world)
        leader.disk.fail_once("read", METADATA_DIRECTORY)
        answers = await asked_twice(world, leader, behind, fetch(leader, behind, end))
        assert codes(answers) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        await until_another_leads_and_is_followed(world, leader, behind)

    in_world(body)


# A snapshot.


def test_a_leader_with_a_damaged_snapshot_hands_over_to_one_that_has_a_whole_one():
    async def body(world):
        leader, behind, end = await until_behind(world, decisions=60)
        assert leader.node.metadata.log_start > end
        damage_snapshot(leader)
        answers = await asked_twice(world, leader, behind, fetch_snapshot(leader, behind))
        assert codes(answers) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        await until_another_leads_and_is_followed(world, leader, behind)

    in_world(body, **SNAPSHOTS_SOON)


# A controller on its own.


def all_are_refused(answers):
    """By name, each."""
    found = [each.code for each in answers if isinstance(each, ApiError)]
    return found == [ErrorCode.KAFKA_STORAGE_ERROR] * len(answers) and all(
        METADATA_DIRECTORY in str(each) and "is damaged" in str(each) for each in answers
    )


def epoch_led_by(machine):
    """-1: it does not lead."""
    core = machine.node.quorum.core
    return core.epoch if core.is_leader else -1


@pytest.mark.parametrize("at", BITS.values(), ids=BITS)
def test_a_controller_on_its_own_refuses_what_it_cannot_read(at):
    async def body(world):
        leader, behind, end = await until_behind(world)
        damage_log(leader, end, at)
        before = repr(leader.node.quorum.core)
        assert all_are_refused(await asked_twice(world, leader, behind, fetch(leader, behind, end)))
        assert repr(leader.node.quorum.core) == before

    in_world(body, controllers=1, observers=1)


def test_a_controller_on_its_own_leads_on_with_a_damaged_log():
    async def body(world):
        leader, behind, end = await until_behind(world)
        epoch = epoch_led_by(leader)
        damage_log(leader, end, BITS["of a record"])
        behind.start_again()
        await trio.sleep(5)
        await decide(leader, 7)
        assert epoch_led_by(leader) == epoch
        assert behind.node.metadata.log_end == end

    in_world(body, controllers=1, observers=1)


def test_a_controller_on_its_own_leads_on_with_a_damaged_snapshot():
    async def body(world):
        leader, behind, _ = await until_behind(world, decisions=60)
        epoch = epoch_led_by(leader)
        damage_snapshot(leader)
        request = fetch_snapshot(leader, behind)
        assert all_are_refused(await asked_twice(world, leader, behind, request))
        await decide(leader, 7)
        assert epoch_led_by(leader) == epoch

    in_world(body, controllers=1, observers=1, **SNAPSHOTS_SOON)
