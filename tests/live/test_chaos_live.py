"""Goal: promises 1, 2, 5 and 7 hold for three real brokers whom everything happens to, for a while.

Method: a producer, two consumers and a group of three whose members come and go work without a
pause while brokers, coordinators among them, are killed, put to sleep, cut off and reset, as a seed
decides, and lose their directories; `CHAOS_SEED=7` repeats one as far as real time allows, and
`CHAOS_S=1800` goes on for so long; with `CHAOS_DISK=256m` (as root) each broker has a file system
of that size, which is full now and then. Then all is healed, and what clients were told is compared
with what they read and with the files. The story of a run that failed is in its output; its data
and logs stay where that says.
"""

import os
import random
import shutil
from collections import Counter
from functools import partial

import pytest
import trio
from chaos import (
    NODES,
    PARTITIONS,
    TOPIC,
    Faults,
    Reader,
    Writer,
    open_brokers,
    read_replica,
    until,
    until_in_sync,
)
from chaos_disks import small_disks
from chaos_groups import Group
from commands import hightide
from secure_run import reaching

from hightide import Admin, Producer
from hightide.protocol.messages import LATEST

pytestmark = [pytest.mark.live, pytest.mark.slow]

CHAOS_S = float(os.environ.get("CHAOS_S") or 15)
CHAOS_DISK = os.environ.get("CHAOS_DISK", "")


async def test_whatever_happens_to_brokers_nothing_is_lost_doubled_or_out_of_order(tmp_path):
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"CHAOS_SEED={seed}, data and logs in {tmp_path}")
    with small_disks([tmp_path / f"broker-{n}" for n in NODES], CHAOS_DISK):
        await live_through(tmp_path, seed)
    shutil.rmtree(tmp_path)


async def live_through(data, seed):
    """A cluster's life from its start to its orderly stop, and what is left of it."""
    async with open_brokers(data) as brokers:
        faults = Faults(brokers, seed, fills=bool(CHAOS_DISK))
        group = Group(brokers.address, seed)
        writer, readers, ends = await clients_under(faults, group, brokers.address)
        for number in range(PARTITIONS):
            words = ["partitions", "diff", f"{TOPIC}:{number}"]
            command = partial(hightide, *words, address=brokers.address)
            assert "3 replicas agree" in (await trio.to_thread.run_sync(command)).err
        print("connections", {n: each.accepted for n, each in brokers.ways.items()})
        assert await brokers.stop() == dict.fromkeys(NODES, 0)
    assert not [n for n in NODES if "Traceback" in brokers.nodes[n].log_file.read_text()]
    for number, end in ends.items():
        stored = [read_replica(data / f"broker-{n}/{TOPIC}-{number}", below=end) for n in NODES]
        assert all(replica.batches == stored[0].batches for replica in stored)
        values = stored[0].values
        check_promises(writer, number, values, end)
        assert [reader.values[number] for reader in readers] == [values] * len(readers)


async def clients_under(faults, group, address):
    """A producer, two consumers and a group at work; them, and where the partitions end
    afterwards."""
    readers = [Reader("the first consumer"), Reader("the second consumer")]
    retried = []
    async with Admin(**reaching(address)) as admin, trio.open_nursery() as reading:
        await admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            replication_factor=len(NODES),
            configs={"min.insync.replicas": "2", "segment.bytes": "65536"},
        )
        for reader in readers:
            reading.start_soon(reader.run, address)
        reading.start_soon(group.run)
        # Small batches, so that several are on their way; little memory, so that the producer waits
        # for brokers instead of running ahead; and answers that it does not wait long for.
        async with Producer(
            **reaching(address),
            batch_size=1024,
            linger_ms=2,
            buffer_memory=64 << 10,
            request_timeout_ms=2000,
            on_retry=retried.append,
        ) as producer:
            writer = Writer(producer)
            async with trio.open_nursery() as writing:
                writing.start_soon(writer.run)
                await faults.run(CHAOS_S)
                print("leader epochs", await until_in_sync(admin))
                writer.stopped = True
        # Leaving the producer's block means that every record has its outcome.
        places = [(TOPIC, number) for number in range(PARTITIONS)]
        found = await admin.offsets(places, LATEST)
        ends = {number: found[(TOPIC, number)].offset for number in range(PARTITIONS)}
        for reader in readers:
            await until(partial(reader.has_read, ends), what=f"all of {ends} is read")
        await until(
            partial(group.has_read, ends),
            what=f"the group has read all of {ends}",
            progress=lambda: sum(map(len, group.notes.seen.values())),
        )
        reading.cancel_scope.cancel()
    notes = group.notes
    print(f"{notes.rebalances} rebalances and {notes.commits} commits of the group")
    assert min(notes.rebalances, notes.commits) > 0
    print(f"{len(retried)} retries; what consumers were told: {[r.told for r in readers]}")
    return writer, readers, ends


def check_promises(writer, number, values, end):
    """Every record of a partition is stored once, in order, and where the producer was told."""
    sent = [(value, delivery.result()) for where, value, delivery in writer.sent if where == number]
    where = f"partition {number}"
    assert not [value for value, count in Counter(values).items() if count > 1], f"twice in {where}"
    assert not {value for value, _ in sent} - {*values}, f"lost from {where}"
    assert values == [value for value, _ in sent], f"{where} is not in the order of sending"
    assert len(values) == end
    # -1: stored, and the broker no longer knew where.
    told = [delivered.offset for _, delivered in sent]
    assert not [at for at, offset in enumerate(told) if offset not in (at, -1)], f"not in {where}"
    print(f"{where}: {end} records, of {told.count(-1)} of them nobody told where")
