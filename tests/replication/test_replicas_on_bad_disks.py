"""What a broker makes of a disk that fails in one place: the rest goes on.

Goal: a replica that cannot be made, a directory that nobody may look into, a checkpoint that cannot
be written cost what they are, not the node. Method: broker 1 with real replicas on the real disk,
whose worker threads are threads, with faults in between.
"""

from __future__ import annotations

import os

import pytest
import trio
from brokers import DATA
from faulty_broker import Frail
from leaderkit import ME, THREE, TWO

from hightide_broker.core.cluster.changes import CreatePartition, CreateTopic, RemoveTopic
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.disk import RealDisk


class Spoiled(RealDisk):
    """A disk that refuses a call for paths with this in them."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: dict[str, str] = {}

    def _spoil(self, operation, path):
        if operation in self.bad and self.bad[operation] in path:
            raise DiskError(path, operation, "Input/output error")

    def exists(self, path):
        self._spoil("exists", path)
        return super().exists(path)

    def list(self, path):
        self._spoil("list", path)
        return super().list(path)

    def rename(self, old, new):
        self._spoil("rename", old)
        super().rename(old, new)

    def replace(self, path, data, *, unless=None):
        self._spoil("replace", path)
        super().replace(path, data, unless=unless)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Frail(Spoiled(), clean=False)


def topic(name):
    """It is made, with one partition that this broker leads."""
    return (
        CreateTopic(topic=name, topic_id=f"id-of-{name}"),
        CreatePartition(
            topic_id=f"id-of-{name}",
            partition=0,
            replicas=(ME, TWO, THREE),
            isr=(ME,),
            leader=ME,
            leader_epoch=0,
        ),
    )


async def test_a_replica_that_is_offline_as_soon_as_it_is_made_ends_nothing_else(here, nursery):
    """It is made in a thread, which may not wake those who wait for troubles."""
    nursery.start_soon(here.replicas.news.wait_for, 1)
    await trio.testing.wait_all_tasks_blocked()
    here.disk.bad["list"] = "jade-0"
    await here.apply(*topic("jade"))
    assert "list of" in here.replica.offline
    nursery.cancel_scope.cancel()


async def test_a_directory_that_nobody_may_look_into_is_left_alone(here):
    await here.apply(*topic("jade"))
    os.makedirs(f"{DATA}/backup-2024")
    here.replica.log.close()
    after = Frail(here.disk, clean=False)
    after.image = here.image
    here.disk.bad["exists"] = "backup-2024"
    await after.applier.load(after.image)
    assert os.listdir(DATA).count("backup-2024") == 1
    assert not after.replica.offline


@pytest.mark.parametrize(
    ("bad", "gone"),
    [
        ({"replace": "-checkpoint"}, ["jade-0", "onyx-0"]),
        ({"rename": "jade-0"}, ["onyx-0"]),
    ],
    ids=["a checkpoint", "a directory"],
)
async def test_a_deletion_that_fails_in_one_place_goes_on(here, bad, gone):
    await here.apply(*topic("jade"))
    await here.apply(*topic("onyx"))
    await here.replicas.checkpoint_high_watermarks()
    here.append(1, topic="onyx")
    await here.replicas.checkpoint_high_watermarks()
    here.disk.bad = bad
    await here.apply(RemoveTopic(topic_id="id-of-jade"), RemoveTopic(topic_id="id-of-onyx"))
    pending = sorted(name for name in os.listdir(DATA) if name.endswith("-delete"))
    assert [name.partition(".")[0] for name in pending] == gone
    assert len(here.replicas) == 0
