"""Room that is set aside: what must be written is written, although data has filled the disk.

Goal: a node whose disk is full votes, leads, stops and starts; only what it is asked to store is
refused. Method: the simulated disk at its capacity, the real one told that it is full, and whole
nodes.
"""

import os
import random

import pytest
import trio
from brokers import broker, settings
from patience import PATIENCE_S
from small_worlds import in_world, until, until_led

from hightide_broker.ports import RESERVE_BYTES, DiskError
from hightide_broker.runtime.base import disk as real
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk


@pytest.fixture
def full():
    """A simulated disk with a reserve, and a file that fills the rest."""
    disk = SimDisk(capacity=RESERVE_BYTES + 100)
    disk.make_dirs("d")
    disk.keep_reserve("d/.reserve")
    disk.open("d/data", create=True).append(b"x" * 100)
    return disk


def is_refused(disk, size=1):
    try:
        disk.open("d/data").append(b"y" * size)
    except DiskError as error:
        return error.full
    return False


def test_what_is_set_aside_is_for_those_who_say_so(full):
    assert is_refused(full)
    with full.reserve():
        assert not is_refused(full)
    assert is_refused(full)
    full.replace("d/small", b"small")
    assert full.read_file("d/small") == b"small"


def test_what_is_set_aside_comes_to_an_end_and_is_set_aside_again(full):
    with full.reserve():
        assert not is_refused(full, RESERVE_BYTES)
        assert is_refused(full)
    full.capacity += RESERVE_BYTES + 10
    with full.reserve():
        """It is looked after whenever it may be used."""
    assert not is_refused(full, 10)
    assert is_refused(full)


def test_the_reserve_of_another_directory_of_that_name_is_not_touched(tmp_path, monkeypatch):
    disk, here = RealDisk(), tmp_path / "here"
    here.mkdir()
    disk.keep_reserve(f"{here}/.reserve")
    here.rename(tmp_path / "away")
    here.mkdir()
    (here / ".reserve").write_bytes(b"of another")
    monkeypatch.setattr(real, "_free_bytes", lambda _: 0)
    with disk.reserve():
        assert (tmp_path / "away/.reserve").stat().st_size == 0
    assert (here / ".reserve").read_bytes() == b"of another"


def test_without_a_reserve_a_full_disk_is_full():
    disk = SimDisk(capacity=10)
    with pytest.raises(DiskError), disk.reserve():
        disk.replace("small", b"x" * 11)


@pytest.fixture
def room(monkeypatch):
    """What the real disk is told to have left, in bytes."""
    left = [1 << 40]
    monkeypatch.setattr(real, "_free_bytes", lambda path: left[0])
    return left


def test_the_real_reserve_is_a_file_that_is_emptied_while_there_is_no_other_room(tmp_path, room):
    disk, path = RealDisk(), tmp_path / ".reserve"
    disk.keep_reserve(str(path))
    assert path.stat().st_size == RESERVE_BYTES
    with disk.reserve():
        assert path.stat().st_size == RESERVE_BYTES, "there is other room"
    room[0] = 5000
    with disk.reserve():
        assert path.stat().st_size == 0
    assert path.stat().st_size == 5000, "what is left"
    room[0] = 1 << 40
    with disk.reserve():
        """It is looked after whenever it may be used."""
    assert path.stat().st_size == RESERVE_BYTES


def test_the_real_disk_replaces_a_file_although_there_is_no_room(tmp_path, room):
    disk, path = RealDisk(), f"{tmp_path}/small"
    disk.keep_reserve(f"{tmp_path}/.reserve")
    room[0] = 0
    os.symlink("/dev/full", f"{path}.tmp")
    disk.replace(path, b"small")
    assert disk.read_file(path) == b"small"
    assert disk.list(str(tmp_path)) == [".reserve", "small"]


@pytest.mark.parametrize("power", [False, True])
async def test_a_node_on_a_full_disk_stops_starts_and_serves_what_it_has(power, monkeypatch):
    monkeypatch.setattr("hightide_broker.runtime.replication.repair.EVERY_S", 0.01)
    # A trace is not synced: what a power cut takes of it is room for records.
    disk, config = SimDisk(), settings({"trace.max.bytes": "0"})
    async with broker(disk, config) as client:
        await client.create()
        await client.produce(b"before")
    disk.capacity = disk.used_bytes()
    for _ in range(10):
        if power:
            disk.crash(random.Random(0))
        async with broker(disk, config) as client:
            with trio.fail_after(PATIENCE_S):
                while (await client.fetch()).result.error is not None:
                    await trio.sleep(0.01)
            assert (await client.produce(b"more" * 100)).error == "KAFKA_STORAGE_ERROR"
            assert await client.values() == [b"before"]
    async with broker(disk, config) as client:
        disk.capacity = 1 << 40
        assert (await client.produce(b"after")).error is None
        assert await client.values() == [b"before", b"after"]


def test_on_full_disks_controllers_are_elected_and_nobody_ends():
    async def body(world):
        for _ in range(3):
            old = await until_led(world)
            for machine in world.machines:
                machine.disk.capacity = machine.disk.used_bytes()
            epoch = old.node.quorum.core.epoch
            await old.crash(power=False)
            await until(lambda old=old: world.leader() not in (None, old))
            new = world.leader()
            assert new.node.quorum.core.epoch > epoch
            old.start_again()
            await until(lambda: all(machine.node is not None for machine in world.machines))
            await until(lambda: len({m.node.quorum.core.epoch for m in world.machines}) == 1)

    in_world(body)
