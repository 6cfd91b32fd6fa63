"""What a leader knows of producers outlives settings, records, restarts and losses of power.

Goal: a repetition of a stored batch is known for one, whatever happened since, and what was cut is
known no more. Method: real brokers on the simulated disk, asked before and after; a follower whose
log is cut, and whose power is gone before its directory was synced.
"""

from __future__ import annotations

import pytest
from brokers import FakeClock, LoseAll, batch, broker, client_of, crashing_node, new_node, settings
from logkit import NOW_MS, TOPIC_ID, make_batch, reopen
from mutants import planted
from replicakit import Place, sequenced, state

from hightide.protocol import messages as m
from hightide.protocol.records import parse_header
from hightide_broker.ports import DiskError
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.producer_snapshots import ProducerSnapshots

ME = 77
DAYS_MS = 40 * 24 * 3600 * 1000
FIRST = (ME, 0, 0)


@pytest.mark.parametrize(
    "altered",
    [
        {"max.message.bytes": "100"},
        {"segment.bytes": "1024"},
        {"cleanup.policy": "compact"},
        {"message.timestamp.before.max.ms": "0"},
    ],
    ids=lambda altered: next(iter(altered)),
)
async def test_what_is_stored_is_known_whatever_a_setting_says_by_now(altered):
    """A producer that is refused cuts the batch in two, and sends both under other numbers."""
    values, clock = [b"%d" % number * 100 for number in range(30)], FakeClock()
    async with new_node(SimDisk(), settings(), clock) as node, client_of(node) as client:
        await client.create()
        sent = await client.send(batch(*values, producer=FIRST))
        assert (await client.alter(altered)).error is None
        clock.ms += 1000
        again = await client.send(batch(*values, producer=FIRST))
        assert (again.error, again.base_offset) == (None, sent.base_offset)
        assert (await client.send(batch(*values, producer=(ME, 0, 30)))).error is not None
        assert await client.values() == values


@pytest.mark.parametrize("how", ["deleted", "old"])
async def test_a_repetition_is_known_though_the_record_is_gone_and_the_broker_was_killed(how):
    disk, clock = SimDisk(), FakeClock()
    config = settings({"producer.id.expiration.ms": str(2 * DAYS_MS)})
    async with crashing_node(disk, config, clock) as node, client_of(node) as client:
        await client.create()
        assert (await client.send(batch(b"a", b"b", producer=FIRST))).base_offset == 0
        if how == "deleted":
            await client.delete_records(-1)
        else:
            clock.ms += DAYS_MS
            await node._housekeeping.look_once()
        await client.send(batch(b"c"))
        await node.replicas.checkpoint_recovery_points()
        assert [record.offset for record in await client.read_all(2)] == [2]
    disk.kill()
    async with broker(disk, config, clock) as client:
        assert (await client.send(batch(b"a", b"b", producer=FIRST))).base_offset == 0
        assert (await client.send(batch(b"d", producer=(ME, 0, 2)))).base_offset == 3


def test_what_was_cut_is_not_known_again_after_a_loss_of_power() -> None:
    place = Place(segment_bytes=700, flush="synced")
    place.answer(make_batch(base_offset=0, epoch=5), sequenced(1, 0), sequenced(2, 1))
    place.answer(*[make_batch(base_offset=number, epoch=5) for number in range(3, 12)])
    assert [offset for offset in place.log.producer_snapshots.offsets() if offset > 2]
    place.disk.sync_now([], [place.log.directory])
    place.replica.become_follower(state(1, 6))
    place.answer(diverging=(5, 2))
    # As long as it was, so that the old snapshot would fit.
    place.answer(make_batch(12, base_offset=2, epoch=6))
    job = place.log.begin_sync()
    assert job is not None
    place.disk.sync_now(job.files, [])
    place.disk.crash(LoseAll())
    log = reopen(place.disk, recovery_point=2, clean=False, config=place.log.config)
    replica = Replica(
        "jade",
        TOPIC_ID,
        0,
        config=place.replica.config,
        log=log,
        high_watermark=2,
        inflated_max=1 << 20,
    )
    replica.rebuild_producers(now_ms=NOW_MS)
    assert log.log_end == 14
    assert replica.producers.check(parse_header(sequenced(0, 1))) is None
    known = replica.producers.check(parse_header(sequenced(0, 0)))
    assert known is not None
    assert known.base_offset == 1


def test_what_is_known_lies_where_a_segment_begins_also_before_a_gap() -> None:
    """The leader's log has gaps, as compaction leaves them."""
    place = Place(segment_bytes=200)
    place.answer(*[sequenced(5 * number, number) for number in range(8)])
    assert len(place.log.producer_snapshots.offsets()) > 1
    assert place.log.producer_snapshots.offsets() == place.log.segment_bases()[1:]


def snapshots_missing(place: Place) -> None:
    """None was written, and of the first segment nothing is left."""
    for base in place.log.producer_snapshots.offsets():
        place.log.producer_snapshots.remove(base)
    place.replica.rebuild_producers(now_ms=NOW_MS)
    place.log.delete_segments(1)
    place.replica.rebuild_producers(now_ms=NOW_MS)


def test_a_segment_without_a_snapshot_gets_one_before_those_in_front_of_it_go() -> None:
    place = Place(segment_bytes=200)
    place.answer(*[sequenced(number, number) for number in range(8)])
    assert place.log.segment_bases()[1] > 0
    snapshots_missing(place)
    assert place.log.producer_snapshots.offsets() == place.log.segment_bases()
    assert place.replica.producers.check(parse_header(sequenced(7, 7))) is not None


async def test_a_roll_whose_batch_finds_no_room_leaves_a_snapshot() -> None:
    disk, clock = SimDisk(), FakeClock()
    disk.make_dirs("data")
    async with crashing_node(disk, settings(), clock) as node, client_of(node) as client:
        assert (await client.create(configs={"segment.bytes": "1024"})).error is None
        await client.send(batch(b"a" * 400, producer=FIRST))
        (replica,) = [each for each in node.replicas if each.tp.topic == "t"]
        rolled = replica.log.roll

        def roll():
            base = rolled()
            disk.capacity = disk.used_bytes()
            return base

        with planted(replica.log, "roll", roll):
            while (await client.send(batch(b"b" * 400))).error is None:
                pass
        disk.capacity = 1 << 40
        assert (await client.send(batch(b"b" * 400))).error is None
        assert replica.log.segment_bases()[1:] == replica.log.producer_snapshots.offsets()


def no_room(snapshots: ProducerSnapshots, offset: int, data: bytes) -> None:
    raise DiskError(f"{offset}.snapshot", "replace", "No space left on device", full=True)


async def test_the_last_records_stay_while_there_is_no_room_to_keep_their_producers() -> None:
    disk, clock = SimDisk(), FakeClock()
    async with crashing_node(disk, settings(), clock) as node, client_of(node) as client:
        await client.create(configs={"retention.ms": "1000"})
        await client.send(batch(b"a", producer=FIRST))
        clock.ms += DAYS_MS
        with planted(ProducerSnapshots, "write", no_room):
            await node._housekeeping.look_once()
        assert await client.values() == [b"a"]
        await client.send(batch(b"b", producer=(ME, 0, 1), times=[clock.ms]))
        clock.ms += DAYS_MS
        await node._housekeeping.look_once()
        assert (await client.offset(m.EARLIEST)).offset == 2


@pytest.mark.parametrize("dies", [False, True])
async def test_who_is_known_is_kept_before_its_segment_goes(dies: bool) -> None:
    disk, clock = SimDisk(), FakeClock()
    config = settings({"producer.id.expiration.ms": str(20 * DAYS_MS)})
    async with crashing_node(disk, config, clock) as node, client_of(node) as client:
        await client.create(configs={"retention.ms": "1000"})
        assert (await client.send(batch(b"a", producer=FIRST))).base_offset == 0
        (replica,) = [each for each in node.replicas if each.topic == "t"]
        clock.ms += DAYS_MS
        if dies:
            replica.log.roll()
        else:
            with planted(ProducerSnapshots, "write", no_room):
                await node._housekeeping.look_once()
        assert replica.log.segment_bases() == [0, 1]
        assert replica.log.producer_snapshots.offsets() == []
        if not dies:
            await node._housekeeping.look_once()
    disk.kill()
    async with crashing_node(disk, config, clock) as node, client_of(node) as client:
        await node._housekeeping.look_once()
        assert (await client.offset(m.EARLIEST)).offset == 1
        await node.replicas.checkpoint_recovery_points()
    disk.kill()
    async with broker(disk, config, clock) as client:
        assert (await client.send(batch(b"a", producer=FIRST))).base_offset == 0


def test_a_log_that_begins_again_knows_no_producers() -> None:
    place = Place(segment_bytes=200)
    place.answer(*[sequenced(number, number) for number in range(4)])
    place.log.truncate_fully(place.log.segment_bases()[-1])
    place.replica.rebuild_producers(now_ms=NOW_MS)
    assert len(place.replica.producers) == 0
