"""A whole broker that crashes: what was promised is there when it comes back.

Goal: promises 1 and 5 of the design for one node. Method: a node cancelled at any moment, then a
disk that loses what chance says of everything that was not synced, for many seeds; and the worst
case of each story once more on purpose, with a disk whose syncs wait.
"""

import random

import pytest
import trio
from brokers import (
    DATA,
    FakeClock,
    GatedDisk,
    LoseAll,
    batch,
    broker,
    client_of,
    crashing_broker,
    new_node,
    quiet,
    settings,
)
from patience import PATIENCE_S
from tries import tries

from hightide.net.tcp import listen
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.errors import HightideError
from hightide_broker.opening import open_node
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.simulation.disk_syncs import Sync

SMALL_SEGMENTS = {"segment.bytes": "1024"}


class History:
    """What clients were told, and what must therefore be there."""

    def __init__(self):
        self.acknowledged = {}
        self.sent = set()

    async def write(self, client, name, rng, partition):
        """Independent batches with acks=all, several at a time, until the broker is gone."""
        number = 0
        while True:
            answers = []
            for _ in range(rng.randrange(1, 4)):
                values = [b"%s-%d-%d" % (name, number, i) for i in range(rng.randrange(1, 4))]
                number += 1
                self.sent.update(values)
                filler = b"." * rng.randrange(200)
                data = batch(*(value + filler for value in values))
                answers.append((values, await client.begin(data, partition=partition)))
            for values, answer in answers:
                body, _ = await answer.wait(PATIENCE_S)
                (result,) = body.partitions
                assert result.error is None, result
                for offset, value in enumerate(values, result.base_offset):
                    self.acknowledged[(partition, offset)] = value

    async def check(self, client):
        for partition in range(2):
            found = await client.read_all(partition=partition)
            values = [record.value.rstrip(b".") for record in found]
            assert [record.offset for record in found] == list(range(len(found)))
            assert len(set(values)) == len(values)
            assert set(values) <= self.sent
            for (where, offset), value in self.acknowledged.items():
                if where == partition:
                    assert offset < len(values), f"{value} at {offset} is gone"
                    assert values[offset] == value


@pytest.mark.slow
async def test_what_was_acknowledged_survives_any_crash_once_and_in_order():
    acknowledged = 0
    for seed in range(tries(40)):
        rng = random.Random(seed)
        disk, history = SimDisk(), History()
        async with crashing_broker(disk) as client:
            await client.create(partitions=2, configs=SMALL_SEGMENTS)
        disk.crash(rng)
        for life in range(3):
            try:
                async with crashing_broker(disk) as client, trio.open_nursery() as nursery:
                    await history.check(client)
                    for partition in range(2):
                        name = b"%d-%d" % (life, partition)
                        nursery.start_soon(history.write, client, name, rng, partition)
                    for _ in range(rng.randrange(200)):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
            except* HightideError:
                pass
            disk.crash(rng)
        async with broker(disk) as client:
            await history.check(client)
        acknowledged += len(history.acknowledged)
    assert acknowledged > tries(500)


@pytest.mark.slow
async def test_a_retried_idempotent_batch_is_stored_once_whatever_crashes():
    stored = 0
    for seed in range(tries(40)):
        rng = random.Random(1000 + seed)
        disk, sequence = SimDisk(), 0
        for _ in range(4):
            async with crashing_broker(disk) as client:
                await client.create(configs=SMALL_SEGMENTS)
                for _ in range(rng.randrange(8)):
                    data = batch(b"%d" % sequence * 100, producer=(5, 0, sequence))
                    sent = await client.send(data)
                    assert (sent.error, sent.base_offset) == (None, sequence), f"seed {seed}"
                    sequence += 1
                # The last one's answer is never heard; it is sent again in the next life.
                data = batch(b"%d" % sequence * 100, producer=(5, 0, sequence))
                await client.begin(data, acks=rng.choice([1, -1]))
                for _ in range(rng.randrange(30)):
                    await trio.lowlevel.checkpoint()
            disk.crash(rng)
        async with broker(disk) as client:
            data = batch(b"%d" % sequence * 100, producer=(5, 0, sequence))
            assert (await client.send(data)).base_offset == sequence, f"seed {seed}"
            values = await client.values()
            assert values == [b"%d" % n * 100 for n in range(sequence + 1)], f"seed {seed}"
        stored += sequence
    assert stored > tries(200)


@pytest.mark.parametrize("how", ["running", "restart", "crash"])
async def test_a_duplicate_gets_the_original_offset(how):
    disk = SimDisk()
    running = crashing_broker if how == "crash" else broker
    async with running(disk) as client:
        await client.create()
        await client.produce(b"before")
        for sequence in (0, 2, 4):
            data = batch(b"x", b"y", producer=(3, 0, sequence))
            assert (await client.send(data)).base_offset == sequence + 1
        if how == "running":
            assert (await client.send(batch(b"x", b"y", producer=(3, 0, 0)))).base_offset == 1
    if how == "crash":
        disk.crash(LoseAll())
    async with broker(disk) as client:
        for acks in (1, -1):
            data = batch(b"x", b"y", producer=(3, 0, 4))
            assert (await client.send(data, acks=acks)).base_offset == 5
        gap = await client.send(batch(b"z", producer=(3, 0, 8)))
        assert gap.error == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert (await client.offset(m.LATEST)).offset == 7
        assert (await client.send(batch(b"z", producer=(3, 1, 0)))).base_offset == 7
        assert (await client.send(batch(b"z", producer=(3, 0, 6)))).error == (
            "INVALID_PRODUCER_EPOCH"
        )


async def test_a_batch_that_rolled_a_segment_and_was_lost_in_a_crash_is_no_duplicate():
    disk = GatedDisk()
    async with crashing_broker(disk) as client:
        await client.create(configs=SMALL_SEGMENTS)
        assert (await client.send(batch(b"a" * 900, producer=(3, 0, 0)))).error is None
        disk.shut()
        sent = await client.send(batch(b"b" * 900, producer=(3, 0, 1)), acks=1)
        assert sent.base_offset == 1
    disk.crash(LoseAll())
    disk.gate.set()
    async with broker(disk) as client:
        assert await client.values() == [b"a" * 900]
        retry = await client.begin(batch(b"b" * 900, producer=(3, 0, 1)))
        await client.produce(b"another")
        body, _ = await retry.wait(PATIENCE_S)
        assert body.partitions[0].error is None
        assert b"b" * 900 in await client.values()


async def test_a_crash_after_a_clean_start_is_no_clean_stop():
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        await client.produce(b"a")
    async with crashing_broker(disk) as client:
        await client.produce(b"b")
    disk.crash(LoseAll())
    assert not disk.exists(f"{DATA}/.clean_shutdown")
    async with broker(disk) as client:
        assert await client.values() == [b"a", b"b"]


class TwoSyncs(GatedDisk):
    """What a stop syncs ends later than what was under way."""

    async def while_syncing(self, files):
        if any("/t-0/" in file.path for file in files):
            await super().while_syncing(files)

    async def sync(self, files, directories=()):
        begun, is_ours = Sync(self, files, directories), any("/t-0/" in f.path for f in files)
        if is_ours:
            await self.gate.wait()
            await trio.sleep(0.02)
        begun.end()


async def test_a_stop_during_which_a_sync_failed_is_no_clean_one():
    """The one behind it finds pages that are called clean, and says that all is well."""
    disk = TwoSyncs()
    async with new_node(disk) as node:
        async with client_of(node) as client:
            await client.create()
            await quiet()
            disk.shut()
            await client.produce(b"v" * 20000, acks=1)
            await quiet()
        node.stop()
        for _ in range(20):
            await quiet()
        disk.fail_once("sync", "/t-0/")
        disk.gate.set()
    assert not disk.exists(f"{DATA}/.clean_shutdown")


async def test_metadata_and_producer_ids_survive_restarts_and_crashes():
    disk, ids = SimDisk(), []
    for round_ in range(6):
        running = crashing_broker if round_ % 2 else broker
        async with running(disk) as client:
            ids += [(await client.call(p.InitProducerIdRequest())).producer_id for _ in range(3)]
            created = await client.create(f"t{round_}", configs={"retention.ms": f"{round_ + 1}"})
            assert created.error is None
            listed = await client.call(m.MetadataRequest())
            assert [t.topic for t in listed.topics] == [f"t{n}" for n in range(round_ + 1)]
            for number in range(round_ + 1):
                resource = m.ConfigResource(kind="topic", name=f"t{number}")
                reply = await client.call(m.DescribeConfigsRequest(resources=[resource]))
                found = {e.name: e.value for e in reply.resources[0].entries}["retention.ms"]
                assert found == f"{number + 1}"
        if round_ % 2:
            disk.crash(random.Random(round_))
    assert len(set(ids)) == len(ids) == 18


@pytest.mark.slow
async def test_timestamps_are_found_after_a_clean_stop_and_a_loss_of_power():
    times = [1000 + 10 * number for number in range(60)]
    parts = [m.ListOffsetsPartition(topic="t", partition=0, timestamp=time) for time in times]
    for seed in range(tries(100)):
        disk, config = SimDisk(), settings({"log.index.interval.bytes": "100"})
        async with broker(disk, config) as client:
            await client.create(configs=SMALL_SEGMENTS)
            for time in times:
                await client.send(batch(b"v" * 30, times=[time]), acks=1)
        disk.crash(random.Random(seed))
        async with broker(disk, config) as client:
            assert (await client.offset(m.LATEST)).offset == 60, f"seed {seed}"
            reply = await client.call(m.ListOffsetsRequest(partitions=parts))
            assert [found.timestamp for found in reply.partitions] == times, f"seed {seed}"


async def test_a_node_that_is_cancelled_gives_its_port_back():
    sockets = []

    async def remember(host, port):
        sockets.append(await listen(host, port))
        return sockets[-1]

    with trio.CancelScope() as scope:
        async with open_node(
            settings(),
            disk=SimDisk(),
            clock=FakeClock(),
            random=random.Random(1),
            listen=remember,
        ):
            scope.cancel()
    (listener,) = sockets
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            assert listener.port
    finally:
        await listener.aclose()
