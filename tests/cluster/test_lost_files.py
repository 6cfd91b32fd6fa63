"""Small files that were lost, writes that may not have reached the disk, and nodes that moved.

Goal: what is missing is never taken for something that never was, and what another process wrote
and could not sync is not relied on before it is written again. Method: nodes' parts on the
simulated disk; a file is removed, or left in the page cache, between two processes.
"""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing
from brokers import DATA, FakeClock, LoseAll, new_node, quiet, settings
from faulty_broker import ALL, DIRECTORY, OURS, RECORDS, Frail
from leaderkit import EPOCH, ME, THREE, TWO
from logkit import contents, create, fill, path_of, reopen, sync
from replicakit import spans_of, write

from hightide.net.tcp import TcpNetwork
from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import (
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RemoveTopic,
    SetVoters,
    encode_change,
)
from hightide_broker.core.quorum.ready import SnapshotId
from hightide_broker.core.quorum.roles import QuorumConfig, Voter
from hightide_broker.opening import open_node
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.quorum.metadata_log import MetadataFailed, MetadataLog
from hightide_broker.runtime.quorum.peers import NodeAddresses, NotSent, Peers
from hightide_broker.runtime.replication.checkpoints import OffsetFile
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.simulation.network import SimNetwork
from hightide_broker.simulation.world import CLUSTER_ID
from hightide_broker.storage.checkpoint import PARTITION_METADATA, read_offsets
from hightide_broker.storage.directory import read_meta
from hightide_broker.storage.quorum_state import QUORUM_STATE, QuorumState, read_quorum_state
from hightide_broker.storage.runs import RUNS, begin_run, confirm_run, make_runs
from hightide_broker.storage.segment import LogConfig
from hightide_broker.storage.snapshots import SnapshotWriter, encode_snapshot

JADE = ("jade", 0)
HERE = f"{DATA}/__cluster_metadata-0"
CHANGE = FenceBroker(broker=1, broker_epoch=1)


# --- which topic a directory is of ----------------------------------------------------------------


async def nameless(**facts):
    """The next process of a broker whose directory of jade does not say any more what it is of."""
    before = Frail()
    replica = await before.create(**facts)
    write(replica.log, *[(EPOCH, 1)] * RECORDS)
    before.disk.remove(f"{DIRECTORY}/{PARTITION_METADATA}")
    here = before.again(clean=True)
    stored = here.stored
    await here.applier.load(here.image)
    return here, stored


@pytest.mark.parametrize("isr", [(ME, TWO, THREE), (TWO, THREE)])
async def test_records_of_nobody_knows_what_are_not_written_over(isr):
    """Not even where nothing was kept track of, and nobody relies on them."""
    here, stored = await nameless(leader=TWO, isr=isr)
    assert here.replicas.offline() == [OURS]
    assert "does not say which topic it is of" in here.replica.offline
    assert (here.replica.is_damaged, here.stored) == (True, stored)


async def test_records_of_nobody_knows_what_are_set_aside_where_nobody_relies_on_them():
    here, stored = await nameless(leader=TWO, isr=(TWO, THREE))
    await here.repair.look_once()
    here.catch_up()
    assert here.is_whole
    (aside,) = (name for name in here.disk.list(DATA) if name.endswith("-stray"))
    assert here.disk.read_file(path_of(0, directory=f"{DATA}/{aside}")) == stored


async def test_a_directory_without_a_name_and_without_records_is_used():
    """A crash may have come between the two when it was made."""
    here = Frail()
    here.disk.make_dirs(DIRECTORY)
    here.disk.open(path_of(0, directory=DIRECTORY), create=True)
    await here.create(leader=TWO)
    assert here.replicas.offline() == []


# --- the only replica -----------------------------------------------------------------------------


async def alone():
    """Broker 1 had the only replica of jade, and kept track of its records."""
    before = Frail()
    replica = await before.create(replicas=(ME,))
    write(replica.log, *[(EPOCH, 1)] * RECORDS)
    replica.committed.advance(RECORDS)
    await before.replicas.checkpoint_high_watermarks()
    return before


async def test_the_only_replica_that_is_gone_is_not_made_again():
    before = await alone()
    before.disk.remove_tree(DIRECTORY)
    here = before.again(clean=True)
    await here.applier.load(here.image)
    assert here.replicas.offline() == [OURS]
    assert "is gone" in here.replica.offline


async def test_the_only_replica_of_a_topic_that_was_made_again_meanwhile_begins_again():
    here = (await alone()).again(clean=True)
    stored = here.stored
    facts = {"replicas": (ME,), "isr": (ME,), "leader": ME, "leader_epoch": 0}
    here.replay(
        RemoveTopic(topic_id="id-of-jade"),
        CreateTopic(topic="jade", topic_id="another"),
        CreatePartition(topic_id="another", partition=0, **facts),
    )
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert (here.replica.topic_id, here.replica.log.log_end) == ("another", 0)
    (aside,) = (name for name in here.disk.list(DATA) if name.endswith("-stray"))
    assert here.disk.read_file(path_of(0, directory=f"{DATA}/{aside}")) == stored


# --- the metadata of a node -----------------------------------------------------------------------


def metadata_of(disk):
    return MetadataLog(disk, HERE, config=LogConfig(segment_bytes=1 << 20), clock=FakeClock())


@pytest.mark.parametrize("left", ["log", "snapshot"])
def test_metadata_that_lost_its_name_is_not_taken_for_none(left):
    disk = SimDisk()
    log = metadata_of(disk)
    if left == "log":
        log.append([CHANGE], 1)
    else:
        writer = SnapshotWriter(disk, HERE, SnapshotId(1, 1))
        for data in encode_snapshot([encode_change(CHANGE)], epoch=1, now_ms=1):
            writer.append(data)
        writer.finish()
    before = disk.files("", "")
    disk.remove(f"{HERE}/{PARTITION_METADATA}")
    with pytest.raises(MetadataFailed, match="must not vote as if it knew nothing"):
        metadata_of(disk)
    del before[f"{HERE}/{PARTITION_METADATA}"]
    assert disk.files("", "") == before


def test_metadata_that_was_never_written_is_made():
    disk = SimDisk()
    metadata_of(disk)
    disk.remove(f"{HERE}/{PARTITION_METADATA}")
    assert metadata_of(disk).log_end == 0


async def test_a_vote_that_is_only_in_the_page_cache_is_written_before_it_counts():
    """The process before could not sync it, and stopped."""
    disk, state = SimDisk(), QuorumState(-1, 4, 3)
    log = metadata_of(disk)
    disk.open(f"{HERE}/{QUORUM_STATE}", create=True).append(state.format())
    driver = QuorumDriver(
        QuorumConfig(node=2, voters=(1, 2, 3)),
        log,
        disk=disk,
        directory=HERE,
        peers=Peers(TcpNetwork(), NodeAddresses(), node=2),
        addresses=NodeAddresses(),
        syncer=Syncer(disk, Agenda()),
        random=random.Random(1),
        request_timeout_s=1.0,
    )
    assert (driver.core.epoch, driver.core.voted) == (4, 3)
    disk.crash(LoseAll())
    assert read_quorum_state(disk, HERE) == state


# --- the processes that served from a directory ---------------------------------------------------


def test_a_directory_from_before_the_list_says_that_it_knows_nothing_until_it_is_registered():
    disk = SimDisk()
    disk.make_dirs(DATA)
    assert begin_run(disk, DATA, "one") is None
    assert begin_run(disk, DATA, "two") is None, "one was never registered"
    confirm_run(disk, DATA, "two")
    assert begin_run(disk, DATA, "three") == ["two"]
    assert begin_run(disk, DATA, "four") == ["two", "three"]


def test_a_list_that_is_damaged_names_nobody_who_was_registered_and_is_not_taken_for_an_old_one():
    disk = SimDisk()
    disk.make_dirs(DATA)
    make_runs(disk, DATA)
    confirm_run(disk, DATA, "one")
    for damage in (b"", b"\n", b"\xff\x00"):
        disk.replace(f"{DATA}/{RUNS}", damage)
        runs = begin_run(disk, DATA, "two")
        assert runs
        assert not {"-", "?", "one"} & {*runs}


# --- what is written, and what is said of it ------------------------------------------------------


async def test_a_checkpoint_that_was_overtaken_is_kept_only_if_what_overtook_it_is():
    disk = SimDisk()
    file = OffsetFile(disk, "offsets")
    older, newer = file.give({JADE: 1}), file.give({JADE: 2})
    assert not await file.bring(older), "nothing is written yet"
    disk.fail_once("replace", "offsets")
    assert not await file.bring(newer)
    assert not await file.bring(older)
    assert await file.bring(newer)
    assert await file.bring(older)
    assert read_offsets(disk, "offsets") == {JADE: 2}


def test_a_snapshot_of_the_producers_that_was_dropped_is_gone_with_the_next_sync():
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    log.producer_snapshots.write(3, b"producers")
    sync(disk, log)
    log.producer_snapshots.remove_durably([3])
    sync(disk, log)
    disk.crash(LoseAll())
    assert reopen(disk).producer_snapshots.offsets() == []


async def test_what_is_repaired_is_written_again_whatever_the_system_believes():
    """The sync before failed: the system calls pages clean that are in the page cache only."""
    here = Frail()
    replica = await here.follow_two()
    here.disk.fail_once("sync", DIRECTORY)
    with pytest.raises(DiskError):
        sync(here.disk, replica.log)
    here.damage(4)
    here.meet(4)
    await here.repair.look_once()
    repaired = here.replica.log
    assert spans_of(contents(repaired)) == ALL[:4]
    sync(here.disk, repaired)
    assert repaired.synced_end == 4
    here.disk.crash(LoseAll())
    after = here.again(clean=False)
    await after.applier.load(after.image)
    assert spans_of(contents(after.replica.log)) == ALL[:4]


# --- a node that moved ----------------------------------------------------------------------------


class Moved(TcpNetwork):
    """Nobody listens at the host `old` any more."""

    async def connect(self, host, port):
        if host == "old":
            raise ConnectionRefusedError("nobody is there")
        return await super().connect(host, port)


def addresses(configured, recorded):
    """What a node knows of others by its configuration and by records."""
    known = NodeAddresses(configured)
    known.learn(recorded)
    return known


@pytest.mark.parametrize("recorded", [{2: ("old", 1)}, {}])
async def test_a_node_that_moved_is_found_where_it_is_configured(recorded):
    async with new_node(SimDisk()) as node, trio.open_nursery() as nursery:
        configured = {2: ("127.0.0.1", node.port)}
        moved, lost = (
            Peers(Moved(), addresses(known, recorded), node=1) for known in (configured, {})
        )
        for peers in (moved, lost):
            nursery.start_soon(peers.run)
        await quiet()
        answer, _ = await moved.call(2, m.MetadataRequest(), timeout_s=5)
        assert answer.brokers
        with pytest.raises(NotSent):
            await lost.call(2, m.MetadataRequest(), timeout_s=5)
        nursery.cancel_scope.cancel()


class Nobody:
    """Nobody listens anywhere, and what is sent to the host `silent` is lost."""

    def __init__(self):
        self.asked = set()

    async def connect(self, host, port):
        self.asked.add((host, port))
        if host == "silent":
            await trio.sleep_forever()
        raise ConnectionRefusedError("nobody is there")


async def test_an_old_address_that_does_not_answer_takes_only_its_share_of_the_time(autojump_clock):
    network = Nobody()
    peers = Peers(network, addresses({2: ("new", 2)}, {2: ("silent", 1)}), node=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peers.run)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotSent):
            await peers.call(2, m.MetadataRequest(), timeout_s=5)
        nursery.cancel_scope.cancel()
    assert network.asked == {("silent", 1), ("new", 2)}


async def lives(disk, network):
    """Node 1 seeks the vote of node 2, which is configured to be at the host `new`."""
    host = SimNetwork(random.Random(1)).host("one")
    facts = {"cluster.id": CLUSTER_ID, "listen.host": "one", "listen.port": "1"}
    voters = {"controller.quorum.voters": "1@one:1,2@new:2"}
    async with open_node(
        settings({**facts, **voters}),
        disk=disk,
        clock=FakeClock(),
        random=random.Random(1),
        listen=host.listen,
        network=network,
        wait=False,
    ):
        await trio.sleep(10)


async def test_a_node_looks_for_voters_where_they_are_recorded_and_where_configured(
    autojump_clock,
):
    disk, network = SimDisk(), Nobody()
    await lives(disk, network)
    assert network.asked == {("new", 2)}
    log, mine = metadata_of(disk), read_meta(disk, DATA).directory_id
    voters = [Voter(id=1, directory=mine, host="one", port=1)]
    voters += [Voter(id=2, directory="another", host="old", port=2)]
    log.append([SetVoters(voters=tuple(voters))], 1)
    network.asked.clear()
    await lives(disk, network)
    assert network.asked == {("new", 2), ("old", 2)}
