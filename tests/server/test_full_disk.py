"""A broker on a disk that fills up.

Goal: what does not fit is refused with its reason and costs nothing that was stored; once there is
room, all goes on. Method: real nodes on the simulated disk, whose room ends at every few bytes.
"""

from brokers import (
    FakeClock,
    LoseAll,
    batch,
    broker,
    client_of,
    crashing_broker,
    new_node,
    settings,
)

from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ApiError
from hightide_broker.ports import RESERVE_BYTES
from hightide_broker.simulation.disk import SimDisk

STORAGE = "KAFKA_STORAGE_ERROR"
DENSE = {"segment.bytes": "1024", "index.interval.bytes": "200"}
BY_HAND = settings({"trace.max.bytes": "0", "log.retention.check.interval.ms": "1000000"})
"""A node whose housekeeping the test does."""


async def test_a_full_disk_refuses_the_append_and_says_so_until_there_is_room():
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        await client.create("other")
        await client.produce(b"before")
        roomy, disk.capacity = disk.capacity, disk.used_bytes() + 10
        for acks in (1, -1):
            refused = await client.produce(b"x" * 100, acks=acks)
            assert (refused.error, refused.base_offset) == (STORAGE, -1)
            assert "full" in refused.message
        assert await client.values() == [b"before"]
        assert await client.values(topic="other") == []
        held = await client.log_dirs()
        assert held[("t", 0)].error == ""
        assert [tp for tp in held if held[tp].waits_for_room] == [("t", 0)]
        disk.capacity = roomy
        assert (await client.produce(b"after")).base_offset == 1
        assert not (await client.log_dirs())[("t", 0)].waits_for_room
        assert (await client.produce(b"served", topic="other")).error is None
    async with broker(disk) as client:
        assert await client.values() == [b"before", b"after"]


async def test_a_disk_that_is_full_when_a_segment_rolls_loses_nothing():
    for spare in range(0, 1300, 50):
        disk = SimDisk()
        async with crashing_broker(disk) as client:
            await client.create(configs=DENSE)
            sent = [b"%d" % number * 150 for number in range(3)]
            for number, value in enumerate(sent):
                await client.send(batch(value, producer=(4, 0, number)))
            disk.capacity = disk.used_bytes() + spare
            refused = None
            while refused is None:
                data = batch(b"%d" % len(sent) * 150, producer=(4, 0, len(sent)))
                result = await client.send(data)
                refused = result.error
                if refused is None:
                    sent.append(b"%d" % len(sent) * 150)
            assert (refused, "full" in result.message) == (STORAGE, True)
            disk.capacity = 1 << 30
            assert (await client.send(data)).base_offset == len(sent)
            sent.append(b"%d" % len(sent) * 150)
            assert await client.values() == sent, f"{spare} bytes to spare"
        disk.crash(LoseAll())
        async with broker(disk) as client:
            assert await client.values() == sent, f"{spare} bytes to spare"


async def refusal_of_create(client):
    try:
        assert (await client.create()).error is None
    except ApiError as error:
        return error
    return None


async def test_a_topic_that_was_created_on_a_nearly_full_disk_works_once_there_is_room(monkeypatch):
    monkeypatch.setattr("hightide_broker.runtime.replication.repair.EVERY_S", 0.01)
    refusals = 0
    for spare in range(0, 700, 10):
        disk = SimDisk()
        async with broker(disk) as client:
            disk.capacity = disk.used_bytes() - RESERVE_BYTES + spare
            refusal = await refusal_of_create(client)
            disk.capacity = 1 << 30
            if refusal is not None:
                assert (refusal.code, "full" in str(refusal)) == (STORAGE, True)
                assert (await client.create()).error is None
                refusals += 1
            await client.produce_at_last(b"x")
    assert refusals > 10


async def test_on_a_full_disk_nobody_adds_until_nothing_is_left_for_elections():
    """What is set aside is for the cluster itself; what is deleted there is let through."""
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create("mine")
        almost_half = RESERVE_BYTES // 2 - (20 << 10)
        roomy, disk.capacity = disk.capacity, disk.used_bytes() - almost_half
        refused, number = None, 0
        while refused is None:
            names = [f"client-{'x' * 80}-{number}-{each}" for each in range(50)]
            wishes = [
                k.QuotaSetting(key=k.PRODUCER_BYTE_RATE, client_id=name, value=1) for name in names
            ]
            number += 1
            try:
                await client.call(k.AlterClientQuotasRequest(quotas=wishes))
            except ApiError as error:
                refused = error
        assert refused.code == STORAGE
        assert "what is deleted there is" in str(refused)
        assert disk.room_left() >= RESERVE_BYTES // 2 - (64 << 10)
        await client.call(m.DeleteTopicsRequest(topics=["mine"]))
        disk.capacity = roomy
        await client.create("again")


async def fill(disk, client, room, *, sizes):
    """Leave so many bytes of room, and produce into it until not even the last size fits."""
    disk.capacity = disk.used_bytes() + room
    for size in sizes:
        while (await client.produce(b"x" * size)).error is None:
            pass


async def test_what_is_stored_is_read_after_a_kill_although_nothing_fits_any_more():
    """Indexes that were in memory are written when the log is opened: from what is kept aside."""
    disk = SimDisk()
    config = settings({"trace.max.bytes": "0"})
    async with crashing_broker(disk, config) as client:
        await client.create(configs={"index.interval.bytes": "200"})
        for number in range(20):
            await client.produce(b"%d" % number * 400)
        await fill(disk, client, 1000, sizes=(300, 1))
        stored = len(await client.values())
    disk.kill()
    async with broker(disk, config) as client:
        assert len(await client.values()) == stored > 20
        assert (await client.produce(b"x")).error == STORAGE


async def test_retention_frees_a_disk_that_is_full_of_what_is_too_old():
    """The active segment cannot be closed: those before it go first."""
    disk, clock = SimDisk(), FakeClock()
    minute_ms = 60_000
    async with new_node(disk, BY_HAND, clock) as node, client_of(node) as client:
        await client.create(configs=DENSE | {"retention.ms": str(minute_ms)})
        for number in range(20):
            await client.produce(b"%d" % number * 150)
        await fill(disk, client, 300, sizes=(150, 0))
        disk.capacity = disk.used_bytes()
        replica = node.replicas.get("t", 0)
        assert replica.log.segment_count > 3
        for _ in range(2):
            clock.ms += 10 * minute_ms
            await node._housekeeping.look_once()
        assert replica.log.segment_count == 1
        assert (await client.produce(b"y")).error is None


async def test_compaction_that_finds_no_room_leaves_all_there_was():
    disk, clock = SimDisk(), FakeClock()
    async with new_node(disk, BY_HAND, clock) as node, client_of(node) as client:
        dense = {"segment.bytes": "4096", "index.interval.bytes": "200"}
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        await client.create(configs=dense | compacted)
        await client.create("other")
        for number in range(300):
            key = b"k%d" % (number if number % 3 else 0)
            await client.send(batch(b"v%d" % number * 20, keys=[key]))
        replica = node.replicas.get("t", 0)
        size = replica.log.size_bytes
        disk.capacity = disk.used_bytes() + size // 7
        for _ in range(2):
            before = disk.used_bytes()
            await node._housekeeping.look_once()
            assert (replica.log.size_bytes, disk.used_bytes()) == (size, before)
            assert (await client.produce(b"y", topic="other")).error is None
        disk.capacity = disk.used_bytes() + 10 * size
        await node._housekeeping.look_once()
        assert replica.log.size_bytes < size
