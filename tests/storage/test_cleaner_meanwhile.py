"""Compaction beside everything else: what happens to a log while a worker thread rewrites it, and
what a copy of a compacted log learns of its leaders.

Goal: a pass never touches what is not its log any more, and takes nothing that others need to find
where their logs differ.
"""

import pytest
import trio
from brokers import NOW_MS, GatedDisk, batch, client_of, new_node, quiet
from cleankit import clean, records_of
from logkit import create, lead, reopen, sync
from logkit import make_batch as stored_batch

from hightide.protocol import messages as m
from hightide.protocol.records import parse_header
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import LEADER_EPOCHS
from hightide_broker.storage.cleaner import (
    Unwanted,
    clean_segments,
    learn_newest,
    plan_cleaning,
)
from hightide_broker.storage.segment import LogConfig

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0",
}


@pytest.fixture
def disk():
    return SimDisk()


@pytest.fixture
def log(disk):
    return create(disk, config=LogConfig(segment_bytes=300, index_interval_bytes=100))


def pairs(text):
    """`a1 b2` is a=1, b=2."""
    return [(word[:1].encode(), word[1:].encode() * 40) for word in text.split()]


def fill(log, *pairs, epoch=0):
    for key, value in pairs:
        lead(log, batch(value, keys=[key]), epoch=epoch)


def ends_of(log, *epochs):
    """Where each epoch ends, as anybody who asks is told."""
    return [log.epochs.end_offset_for(epoch, log.log_end)[1] for epoch in epochs]


async def produce_pairs(client, text):
    for key, value in pairs(text):
        sent = await client.send(batch(value * 10, keys=[key]))
        assert sent.error is None, sent


async def offsets(client):
    return [record.offset for record in await client.read_all()]


class SlowThreads(SimDisk):
    """A worker thread begins late, or is heard of late."""

    gate = None

    def __init__(self, *, before=False):
        super().__init__()
        self._before = before

    async def in_thread(self, function):
        if self.gate is None:
            return await super().in_thread(function)
        if self._before:
            await self.gate.wait()
        try:
            return function()
        finally:
            await self.gate.wait()


async def begin_pass(disk, node, nursery):
    """A pass of compaction that goes on, or is heard of, once the disk's gate is open."""
    disk.gate = trio.Event()
    nursery.start_soon(node._housekeeping.look_once)
    await quiet()


@pytest.mark.parametrize("meanwhile", ["produce", "delete records", "delete topic"])
async def test_a_pass_copes_with_what_happens_meanwhile(meanwhile):
    disk = SlowThreads()
    async with new_node(disk) as node, client_of(node) as client, trio.open_nursery() as nursery:
        await client.create(configs={**COMPACTED, "cleanup.policy": "compact,delete"})
        await produce_pairs(client, "a1 a2 b1 b2 c1 c2 d1 d2")
        await begin_pass(disk, node, nursery)
        if meanwhile == "produce":
            await produce_pairs(client, "a3 e1")
        elif meanwhile == "delete records":
            await client.delete_records(6)
        else:
            nursery.start_soon(client.call, m.DeleteTopicsRequest(topics=["t"]))
            await quiet()
            files = [path for path in disk.list(node.replicas.directory) if path.startswith("t-0")]
            assert files == ["t-0"]  # its directory is not moved beneath the thread
        disk.gate.set()
        await quiet()
        if meanwhile == "produce":
            assert await offsets(client) == [1, 3, 5, 6, 7, 8, 9]
        elif meanwhile == "delete records":
            assert [r.offset for r in await client.read_all(6)] == [6, 7]
        assert (await client.create("new")).error is None


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_pass_over_a_log_that_is_cut_meanwhile_is_given_up(before):
    """The cut takes files away that the thread is about to open."""
    disk = SlowThreads(before=before)
    async with new_node(disk) as node, client_of(node) as client, trio.open_nursery() as nursery:
        await client.create(configs=COMPACTED)
        await produce_pairs(client, "a1 a2 b1 b2 c1 c2 d1 d2")
        await begin_pass(disk, node, nursery)
        replica = node.replicas.get("t", 0)
        replica.log.truncate_fully(3)
        disk.gate.set()
        await quiet()
        assert (replica.offline, replica.log.log_end) == ("", 3)


async def test_what_comes_where_a_log_was_cut_after_a_pass_does_not_count_as_clean():
    """The cut comes between the last segment's change and the note of how far it is clean."""
    disk = GatedDisk()
    async with new_node(disk) as node, client_of(node) as client, trio.open_nursery() as nursery:
        await client.create(configs=COMPACTED)
        await produce_pairs(client, "a1 a2 b1 b2 c1 c2 d1 d2")
        disk.shut()
        nursery.start_soon(node._housekeeping.look_once)
        await quiet()
        replica = node.replicas.get("t", 0)
        assert [header.base_offset for header in replica.log.headers(0)] == [1, 3, 5, 6, 7]
        replica.log.truncate_to(3)
        node.replicas.checkpoints.lower_offsets(replica.tp, 3)
        disk.gate.set()
        await quiet()
        assert node.replicas.checkpoints.cleaner_offsets.get(("t", 0), 0) <= 3


async def test_a_pass_over_a_deleted_topic_leaves_nothing_in_the_new_ones_directory():
    disk = SlowThreads()
    async with new_node(disk) as node, client_of(node) as client, trio.open_nursery() as nursery:
        await client.create(configs=COMPACTED)
        await produce_pairs(client, "a1 a2 b1 b2 c1 c2 d1 d2")
        await begin_pass(disk, node, nursery)
        nursery.start_soon(client.call, m.DeleteTopicsRequest(topics=["t"]))
        await quiet()
        disk.gate.set()
        await quiet()
        assert (await client.create()).error is None
        await produce_pairs(client, "z1")
        assert [name for name in disk.list(f"{node.replicas.directory}/t-0") if ".log" in name] == [
            f"{0:020d}.log"
        ]
        assert await offsets(client) == [0]


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_a_pass_that_is_not_wanted_any_more_ends_and_changes_nothing(disk, log, wanted):
    fill(log, *pairs("a1 a2 b1 b2 c1 c2"))
    before = records_of(log)
    plan = plan_cleaning(
        log, dirty_from=0, high_watermark=log.log_end, dirty_ratio=0.0, newest_ms=2**62
    )
    asked = iter([True] * wanted)
    with pytest.raises(Unwanted):
        learn_newest(log, plan, is_wanted=lambda: next(asked, False))
    newest, _ = learn_newest(log, plan)
    asked = iter([True] * wanted)
    with pytest.raises(Unwanted):
        clean_segments(
            disk,
            log,
            plan,
            newest,
            now_ms=NOW_MS,
            delete_retention_ms=1000,
            last_batches=set(),
            is_wanted=lambda: next(asked, False),
        )
    assert records_of(log) == before


@pytest.mark.parametrize("segment_bytes", [300, 2_000])
def test_the_batch_with_which_an_epoch_ends_stays_even_if_empty(disk, segment_bytes):
    log = create(disk, config=LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100))
    for epoch, text in ((1, "a1 b1 a2"), (2, "a3 a4 a5"), (5, "b2 a6"), (6, "z1")):
        fill(log, *pairs(text), epoch=epoch)
    log.roll()
    fill(log, *pairs("y1"), epoch=6)
    known = ends_of(log, 1, 2, 5, 6)
    for _ in range(2):
        clean(disk, log)
        held = {h.base_offset: h.record_count for h in log.headers(0)}
        assert (held[2], held[5]) == (0, 0)
        assert segment_bytes == 300 or not {0, 1, 3, 4} & {*held}
        # Who copies the log knows where each epoch ends, although most of it is not there.
        copy = create(SimDisk())
        for header, data in log.batches():
            copy.append_as_follower(data, header, now_ms=NOW_MS)
        assert ends_of(copy, 1, 2, 5, 6) == known == [3, 6, 8, 10]


@pytest.mark.parametrize("recovery_point", [0, 2, 9, 12])
def test_where_an_epoch_may_have_ended_in_a_gap_it_ended_at_its_start(disk, recovery_point):
    """As a log has it that was compacted before the first batches of epochs stayed."""
    log = create(disk)
    for base, epoch in ((0, 1), (1, 1), (9, 4), (10, 4), (12, 6)):
        data = stored_batch(base_offset=base, epoch=epoch)
        log.append_as_follower(data, parse_header(data), now_ms=NOW_MS)
    assert ends_of(log, 1, 4, 6) == [2, 11, 13]
    sync(disk, log)
    disk.remove(f"{log.directory}/{LEADER_EPOCHS}")
    again = reopen(disk, recovery_point=recovery_point)
    assert ends_of(again, 1, 4, 6) == [2, 11, 13]
