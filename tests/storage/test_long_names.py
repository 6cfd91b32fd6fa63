"""Directories that are set aside or deleted, and whose new name is too long or taken.

Goal: a topic of any allowed name can be deleted, and its directories go, in this life or in the
next one; what belongs to no topic is set aside whatever is there already, nothing of it is lost,
and the broker starts. Method: broker 1 with real replicas on the real disk, which takes no name of
more than 255 bytes and puts no directory in the place of a full one; at the end, a whole node.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from brokers import DATA, broker, settings
from faulty_broker import Frail
from leaderkit import ME, THREE, TWO

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import CreatePartition, CreateTopic, RemoveTopic
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.storage.checkpoint import PARTITION_METADATA

OLD_ID, NEW_ID = "b2xkLXRvcGljLWlkLTAwMQ", "bmV3LXRvcGljLWlkLTAwMg"
NAME_MAX = 249
"""Characters of a topic's name."""
LENGTHS = pytest.mark.parametrize("length", [4, 223, 224, 225, 240, 247, 248, NAME_MAX])


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Everything is below the directory that a test works in."""
    monkeypatch.chdir(tmp_path)


def named(length):
    """A topic's name of so many characters."""
    return ("jade" * 63)[:length]


class Life(Frail):
    """A process of broker 1 on the real disk."""

    def __init__(self) -> None:
        super().__init__(RealDisk(), clean=False)

    async def add(self, topic, topic_id=OLD_ID, *, records=3, leader=ME):
        """A topic, and records in its one partition."""
        replicas = (ME,) if leader == ME else (ME, TWO, THREE)
        isr = (ME,) if leader == ME else (TWO, THREE)
        await self.apply(
            CreateTopic(topic=topic, topic_id=topic_id),
            CreatePartition(
                topic_id=topic_id,
                partition=0,
                replicas=replicas,
                isr=isr,
                leader=leader,
                leader_epoch=0,
            ),
        )
        if leader == ME:
            self.append(records, topic=topic)
        return self.replicas.get(topic, 0)

    async def delete(self, topic_id=OLD_ID):
        await self.apply(RemoveTopic(topic_id=topic_id))

    async def next(self, *changes):
        """The next process, for which so much has changed while it was away."""
        life = Life()
        life.image = self.image
        life.replay(*changes)
        await life.applier.load(life.image)
        return life

    def is_well(self, topic):
        """Whether its replica serves, and is empty."""
        replica = self.replicas.get(topic, 0)
        return (replica.offline, replica.log.log_end) == ("", 0)


def directories():
    return sorted(path.name for path in Path(DATA).iterdir() if path.is_dir())


def records():
    """The bytes of every log that has any, wherever it lies."""
    found = (path.read_bytes() for path in Path(DATA).rglob("*.log"))
    return sorted(data for data in found if data)


# --- deleting -------------------------------------------------------------------------------------


@LENGTHS
async def test_the_directories_of_a_deleted_topic_go(length):
    life = Life()
    await life.add(named(length))
    await life.delete()
    await life.pending_deletes.carry_out()
    assert directories() == []


@LENGTHS
async def test_a_process_that_ended_before_they_went_leaves_them_to_the_next_one(length):
    before = Life()
    await before.add(named(length))
    await before.delete()
    life = await before.next()
    await life.pending_deletes.carry_out()
    assert directories() == []


@LENGTHS
async def test_a_topic_of_a_name_that_was_just_deleted_is_made_again_as_often_as_one_likes(length):
    life, name = Life(), named(length)
    for number in range(3):
        await life.add(name, f"{OLD_ID[:-1]}{number}")
        await life.delete(f"{OLD_ID[:-1]}{number}")
    await life.add(name, NEW_ID, records=0)
    assert life.is_well(name)
    await life.pending_deletes.carry_out()
    assert directories() == [f"{name}-0"]
    assert (await life.next()).is_well(name)


@LENGTHS
async def test_two_topics_whose_names_differ_only_at_their_end_are_not_taken_for_each_other(length):
    life, name = Life(), named(length)
    one, other = f"{name[:-1]}1", f"{name[:-1]}2"
    await life.add(one)
    await life.add(other, NEW_ID)
    await life.delete(OLD_ID)
    await life.pending_deletes.carry_out()
    assert directories() == [f"{other}-0"]
    assert len(records()) == 1


# --- setting aside --------------------------------------------------------------------------------


@LENGTHS
async def test_what_was_deleted_while_a_broker_was_away_is_set_aside_and_the_broker_starts(length):
    before = Life()
    await before.add(named(length))
    held = records()
    life = await before.next(RemoveTopic(topic_id=OLD_ID))
    assert (len(life.replicas), records()) == (0, held)
    assert f"{named(length)}-0" not in directories()
    set_aside = directories()
    await life.pending_deletes.carry_out()
    await (await life.next()).pending_deletes.carry_out()
    assert (directories(), records()) == (set_aside, held), "it stays as it was set aside"


@LENGTHS
async def test_a_name_that_is_set_aside_already_is_set_aside_again_and_both_are_kept(length):
    life, name = Life(), named(length)
    held = []
    for number in range(3):
        topic_id = f"{OLD_ID[:-1]}{number}"
        await life.add(name, topic_id, records=1 + number)
        life = await life.next(RemoveTopic(topic_id=topic_id))
        assert len(records()) == len(held) + 1
        assert not [data for data in held if data not in records()]
        held = records()
    await life.add(name, NEW_ID, records=0)
    assert life.is_well(name)
    assert records() == held


@LENGTHS
async def test_a_topic_that_was_made_again_while_a_broker_was_away_is_empty_and_serves(length):
    before, name = Life(), named(length)
    await before.add(name)
    held = records()
    new = {"topic_id": NEW_ID, "partition": 0, "leader": ME, "leader_epoch": 0}
    life = await before.next(
        RemoveTopic(topic_id=OLD_ID),
        CreateTopic(topic=name, topic_id=NEW_ID),
        CreatePartition(replicas=(ME,), isr=(ME,), **new),
    )
    assert life.is_well(name)
    assert records() == held


async def test_a_topic_is_made_again_though_the_name_for_its_old_directory_is_taken():
    before = Life()
    await before.add("jade")
    taken = Path(DATA) / f"jade-0.{OLD_ID}-stray"
    taken.mkdir()
    (taken / "00000000000000000000.log").write_bytes(b"of somebody")
    held = records()
    new = {"topic_id": NEW_ID, "partition": 0, "leader": ME, "leader_epoch": 0}
    life = await before.next(
        RemoveTopic(topic_id=OLD_ID),
        CreateTopic(topic="jade", topic_id=NEW_ID),
        CreatePartition(replicas=(ME,), isr=(ME,), **new),
    )
    assert life.is_well("jade")
    assert records() == held


@LENGTHS
async def test_a_directory_that_names_no_topic_is_set_aside_and_its_replica_repaired(length):
    before, name = Life(), named(length)
    await before.add(name, leader=TWO)
    (Path(DATA) / f"{name}-0" / PARTITION_METADATA).write_bytes(b"no such thing")
    life = await before.next()
    assert life.replicas.get(name, 0).is_damaged
    await life.repair.look_once()
    assert life.is_well(name)


# --- a whole node ---------------------------------------------------------------------------------


async def test_a_node_starts_whatever_names_are_set_aside_in_its_directory():
    config = settings(data=DATA)
    async with broker(RealDisk(), config) as client:
        await client.create("onyx")
        await client.produce(b"kept", topic="onyx")
    names = ["jade-0", "jade-0-stray", f"{named(NAME_MAX)}-0"]
    for name in names:
        os.mkdir(f"{DATA}/{name}")
        Path(DATA, name, PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {OLD_ID}\n")
        Path(DATA, name, "00000000000000000000.log").write_bytes(name.encode())
    held = records()
    for _ in range(2):
        async with broker(RealDisk(), config) as client:
            assert await client.values(topic="onyx") == [b"kept"]
        assert [name for name in names if name.encode() not in records()] == []
    assert len(records()) == len(held)


async def test_a_topic_of_the_longest_name_is_deleted_on_a_whole_node():
    name, config = named(NAME_MAX), settings(data=DATA)
    async with broker(RealDisk(), config) as client:
        for value in (b"one", b"two"):
            assert (await client.create(name)).error is None
            await client.produce(value, topic=name)
            assert await client.values(topic=name) == [value]
            await client.call(m.DeleteTopicsRequest(topics=[name]))
    async with broker(RealDisk(), config) as client:
        assert (await client.create(name)).error is None
        assert await client.values(topic=name) == []
