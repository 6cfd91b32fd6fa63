"""A broker on a disk that fails, lies and rots; one that is full is in `test_full_disk.py`.

Goal: a fault costs what it touches and nothing else: a typed error for that partition, no wrong
bytes for anybody, everybody else served (promise 7 of the design). Method: real nodes on the
simulated disk with one fault at a time; damage to files is tried at every byte of a small log.
"""

from contextlib import suppress
from copy import deepcopy

import pytest
import trio
from brokers import (
    DATA,
    NOW_MS,
    GatedDisk,
    LoseAll,
    batch,
    broker,
    client_of,
    crashing_broker,
    new_node,
    quiet,
)
from brokers import settings as config_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from tries import some, tries

from hightide.protocol import messages as m
from hightide.protocol.errors import HightideError
from hightide.protocol.records import HEADER_BYTES
from hightide_broker.ports import DiskError, NodeMustStop
from hightide_broker.runtime.base.data_directory import LOOK_S
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.directory import META
from hightide_broker.storage.recovery import LogDamaged
from hightide_broker.storage.segment import file_name

STORAGE = "KAFKA_STORAGE_ERROR"
DENSE = {"segment.bytes": "1024", "index.interval.bytes": "200"}


async def assert_served(client, topic):
    """Another partition takes and gives records."""
    assert (await client.produce(b"served", topic=topic)).error is None
    assert (await client.values(topic=topic))[-1] == b"served"


# --- a disk that fails --------------------------------------------------------------------------


async def test_after_a_failed_sync_nothing_is_acknowledged_and_who_waits_is_told():
    disk = GatedDisk()
    async with broker(disk) as client:
        await client.create()
        await client.create("other")
        await client.produce(b"synced")
        disk.shut()
        waiting = await client.begin(batch(b"lost"))
        await quiet()
        disk.fail("sync", "t-0")
        disk.gate.set()
        body, _ = await waiting.wait(PATIENCE_S)
        assert body.partitions[0].error == STORAGE
        disk.heal()
        for acks in (1, -1):
            assert (await client.produce(b"more", acks=acks)).error == STORAGE
        assert (await client.fetch()).result.error == STORAGE
        assert (await client.offset(m.LATEST)).error == STORAGE
        assert "t-0" in (await client.log_dirs())[("t", 0)].error
        await assert_served(client, "other")
    assert not disk.exists(f"{DATA}/.clean_shutdown")
    disk.crash(LoseAll())
    async with broker(disk) as client:
        assert await client.values() == [b"synced"]
        assert (await client.produce(b"more")).base_offset == 1


async def test_a_fetch_that_waits_is_told_when_its_replica_goes_offline():
    disk = GatedDisk()
    async with broker(disk) as client, trio.open_nursery() as nursery:
        await client.create()
        found = []

        async def wait():
            found.append((await client.fetch(max_wait_ms=60_000)).result.error)

        nursery.start_soon(wait)
        await quiet()
        disk.fail("sync", "t-0")
        assert (await client.produce(b"x")).error == STORAGE
        with trio.fail_after(PATIENCE_S):
            while not found:
                await trio.lowlevel.checkpoint()
        assert found == [STORAGE]


@pytest.mark.parametrize("operation", ["read", "write"])
async def test_a_failed_read_or_write_takes_only_its_replica_offline(operation):
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        await client.create("other")
        await client.produce(b"x")
        disk.fail(operation, "t-0/")
        if operation == "read":
            assert (await client.fetch()).result.error == STORAGE
        assert (await client.produce(b"y")).error == STORAGE
        disk.heal()
        assert (await client.produce(b"y")).error == STORAGE
        await assert_served(client, "other")
    async with broker(disk) as client:
        assert await client.values() == [b"x"]


@pytest.mark.parametrize(
    ("operation", "part", "call"),
    [
        ("read", "t-0/", lambda client: client.offset(NOW_MS)),
        ("read", "t-0/", lambda client: client.offset(m.MAX_TIMESTAMP)),
        ("replace", "t-0/leader-epoch", lambda client: client.produce(b"first")),
    ],
    ids=["by timestamp", "largest timestamp", "the first of an epoch"],
)
async def test_a_failing_disk_is_a_typed_error_of_the_partition(operation, part, call):
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create("other")
        disk.fail(operation, part)
        await client.create()
        if operation == "read":
            await client.produce(b"x", b"y")
        assert (await call(client)).error == STORAGE
        disk.heal()
        await assert_served(client, "other")


async def test_a_node_whose_directory_was_removed_stops(mock_clock):
    disk = SimDisk()
    mock_clock.autojump_threshold = 0
    with pytest.RaisesGroup(
        pytest.RaisesExc(NodeMustStop, match="the data directory of this node was removed"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with new_node(disk):
            await trio.sleep(3 * LOOK_S)
            disk.remove(f"{DATA}/{META}")
            await trio.sleep_forever()


async def test_a_node_whose_metadata_log_cannot_be_synced_stops():
    disk = SimDisk()
    with pytest.RaisesGroup(NodeMustStop, flatten_subgroups=True, allow_unwrapped=True):
        async with new_node(disk) as node, client_of(node) as client:
            disk.fail("sync", "__cluster_metadata-0")
            with suppress(HightideError):
                await client.create()
            await trio.sleep_forever()
    disk.heal()
    async with broker(disk) as client:
        await client.create("after")
        await assert_served(client, "after")


class DiskThatCannotRemove(SimDisk):
    def remove(self, path):
        if path.endswith(".deleted"):
            raise DiskError(path, "remove", "Input/output error")
        super().remove(path)


async def test_a_file_that_cannot_be_removed_does_not_end_the_chores():
    async with new_node(DiskThatCannotRemove()) as node, client_of(node) as client:
        await client.create(configs={"segment.bytes": "1024", "file.delete.delay.ms": "0"})
        for _ in range(4):
            await client.produce(b"x" * 600)
        await client.delete_records(3)
        for _ in range(3):
            await node._housekeeping.look_once()
        await client.produce(b"y")
        assert [r.value for r in await client.read_all(3)] == [b"x" * 600, b"y"]


@pytest.mark.parametrize("name", ["replication-offset", "recovery-point-offset", "log-start"])
async def test_a_checkpoint_that_cannot_be_written_costs_nothing_but_time(name):
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create(configs=DENSE)
        for number in range(6):
            await client.produce(b"%d" % number * 400)
        disk.fail("replace", name)
    disk.heal()
    async with broker(disk) as client:
        assert [value[:1] for value in await client.values()] == [b"%d" % n for n in range(6)]


async def test_an_acknowledged_record_lies_in_directories_that_survive_a_loss_of_power():
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create(partitions=2)
        assert (await client.produce(b"x", partition=1)).error is None
        assert disk.durable_file(f"{DATA}/t-1/{file_name(0, 'log')}")
        assert disk.durable_file(f"{DATA}/t-1/partition.metadata")


# --- bytes that rot -----------------------------------------------------------------------------

LOG = f"{DATA}/t-0/{file_name(0, 'log')}"
VALUES = [b"value-%d" % number for number in range(5)]


async def read_as_far_as_served(client):
    """What consumers get who start at each offset, up to the first refusal; and that refusal."""
    records, refusal, offset = [], None, 0
    while offset < len(VALUES) and refusal is None:
        part = await client.fetch(offset, max_bytes=1)
        refusal = part.result.error
        if refusal is None:
            assert part.next_offset > offset, f"nothing at {offset}, and no error"
            records += part.records
            offset = part.next_offset
    return records, refusal


async def rot(position, bit):
    """A log of five batches, one bit of the third one flipped while the broker runs."""
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        await client.create("other")
        for value in VALUES:
            await client.produce(value)
        size = len(disk.read_file(LOG)) // len(VALUES)
        assert position < size
        disk.corrupt(LOG, 2 * size + position, bit)
        records, refusal = await read_as_far_as_served(client)
        assert [(r.offset, r.value) for r in records] == list(enumerate(VALUES))[: len(records)]
        if len(records) < len(VALUES):
            assert refusal == STORAGE
            assert (await client.fetch(3)).result.error == STORAGE
            assert (await client.produce(b"x")).error == STORAGE
        await assert_served(client, "other")
        return len(records)


BATCH_BYTES = len(batch(VALUES[0]))
COVERED = range(8, BATCH_BYTES)
"""Of the base offset nothing says whether it is right."""


@pytest.mark.slow
@example(12, 6)
@example(15, 3)
@given(st.sampled_from(COVERED), st.integers(0, 7))
@settings(max_examples=tries(150), deadline=None)
async def test_a_bit_that_flipped_in_a_stored_batch_is_never_served(position, bit):
    assert await rot(position, bit) == 2


@pytest.mark.slow
@given(st.integers(0, 7), st.integers(0, 7))
@settings(max_examples=tries(60), deadline=None)
async def test_a_bit_that_flipped_in_a_base_offset_moves_no_record_to_another_offset(at, bit):
    await rot(at, bit)


async def test_a_record_is_never_served_from_a_segment_that_lost_its_tail():
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        for value in VALUES:
            await client.produce(value)
        disk.open(LOG).truncate(len(disk.read_file(LOG)) - 10)
        records, refusal = await read_as_far_as_served(client)
        assert ([r.value for r in records], refusal) == (VALUES[:4], STORAGE)


async def test_damage_in_the_middle_of_a_log_takes_it_offline_at_the_next_start():
    disk = SimDisk()
    async with crashing_broker(disk) as client:
        await client.create()
        await client.create("other")
        for value in VALUES:
            await client.produce(value)
    disk.crash(LoseAll())
    disk.corrupt(LOG, HEADER_BYTES + 2)
    async with broker(disk) as client:
        refused = (await client.fetch()).result
        assert (refused.error, "damaged" in refused.message) == (STORAGE, True)
        assert "damaged" in (await client.log_dirs())[("t", 0)].error
        await assert_served(client, "other")


# --- indexes and small files --------------------------------------------------------------------

TIMES = [1000 + 10 * number for number in range(30)]


async def fill_and_stop(disk):
    async with broker(disk) as client:
        await client.create(configs=DENSE)
        for time in TIMES:
            await client.send(batch(b"v%d" % time, times=[time]), acks=1)


async def assert_whole(client, why):
    """Every offset and every timestamp leads where it must."""
    for offset, time in reversed(list(enumerate(TIMES))):
        records = (await client.fetch(offset, max_bytes=1)).records
        assert [(r.offset, r.timestamp) for r in records] == [(offset, time)], why
    parts = [m.ListOffsetsPartition(topic="t", partition=0, timestamp=time) for time in TIMES]
    reply = await client.call(m.ListOffsetsRequest(partitions=parts))
    assert [(r.offset, r.timestamp) for r in reply.partitions] == list(enumerate(TIMES)), why


def indexes_of(disk, suffix):
    return [
        f"{DATA}/t-0/{name}" for name in disk.list(f"{DATA}/t-0") if name.endswith(f".{suffix}")
    ]


def put(disk, path, data):
    disk.remove(path)
    if data is not None:
        disk.replace(path, data)


DAMAGE = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "ones": lambda data: b"\xff" * len(data),
    "cut in an entry": lambda data: data[:-3],
    "a byte more": lambda data: data + b"\0",
    "an entry less": lambda data: data[: -(8 if len(data) % 12 else 12)],
    "twice": lambda data: data + data,
    "backwards": lambda data: data[::-1],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
async def test_a_damaged_index_is_healed(suffix, damage):
    disk = SimDisk()
    await fill_and_stop(disk)
    paths = indexes_of(disk, suffix)
    assert len(paths) > 2
    for path in paths:
        data = disk.read_file(path)
        entry = 8 if suffix == "index" else 12
        put(disk, path, data[:-entry] if damage == "an entry less" else DAMAGE[damage](data))
    async with broker(disk) as client:
        await assert_whole(client, damage)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["running", "stopped"])
async def test_a_bit_that_flipped_in_an_offset_index_makes_no_consumer_skip_a_record(when):
    first = SimDisk()
    await fill_and_stop(first)
    path = indexes_of(first, "index")[1]
    size = len(first.read_file(path))
    assert size > 16
    for position in range(size):
        for bit in some([0, 3, 6], position):
            disk = deepcopy(first)
            if when == "stopped":
                disk.corrupt(path, position, bit)
            async with broker(disk) as client:
                if when == "running":
                    disk.corrupt(path, position, bit)
                for offset in reversed(range(len(TIMES))):
                    records = (await client.fetch(offset, max_bytes=1)).records
                    found = [r.offset for r in records]
                    assert found == [offset], f"bit {bit} of byte {position} of {size}"


@pytest.mark.parametrize("data", [b"", b"0\n", b"garbage", b"\xff\xfe", b"0\n1\nt 0 99999\n"])
@pytest.mark.parametrize("name", ["replication-offset", "log-start-offset", "cleaner-offset"])
async def test_a_damaged_checkpoint_of_the_directory_loses_no_record(name, data):
    disk = SimDisk()
    await fill_and_stop(disk)
    put(disk, f"{DATA}/{name}-checkpoint", data)
    if name == "log-start-offset" and b"99999" in data:
        return  # a lie in the right form cannot be told from the truth
    async with broker(disk) as client:
        await assert_whole(client, name)


@pytest.mark.parametrize("data", [b"garbage", b"0\n1\n5\n", b"1\n0\n", b"0\n2\n3 9\n1 0\n"])
async def test_a_damaged_epoch_checkpoint_is_rebuilt_from_the_batches(data):
    disk = SimDisk()
    await fill_and_stop(disk)
    path = f"{DATA}/t-0/leader-epoch-checkpoint"
    before = disk.read_file(path)
    put(disk, path, data)
    async with broker(disk) as client:
        await assert_whole(client, data)
    assert disk.read_file(path) == before


async def test_a_partition_of_another_topic_id_is_set_aside_and_made_again():
    """As of a topic that was deleted and made again while the broker was down."""
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        await client.create("other")
        await client.produce(b"of the old topic")
    put(disk, f"{DATA}/t-0/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    async with broker(disk) as client:
        assert (await client.produce(b"x")).error is None
        assert await client.values() == [b"x"]
        await assert_served(client, "other")
    assert disk.exists(f"{DATA}/t-0.AAAAAAAAAAAAAAAAAAAAAA-stray/partition.metadata")


@pytest.mark.parametrize("position", [5, 20, HEADER_BYTES + 3])
async def test_a_node_does_not_start_on_a_metadata_log_that_is_damaged_in_the_middle(position):
    disk = SimDisk()
    async with broker(disk, config_of()) as client:
        await client.create()
    disk.corrupt(f"{DATA}/__cluster_metadata-0/{file_name(0, 'log')}", position)
    with pytest.RaisesGroup(LogDamaged, flatten_subgroups=True, allow_unwrapped=True):
        async with new_node(disk):
            pass
