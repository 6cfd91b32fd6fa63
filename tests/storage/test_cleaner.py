"""Compaction: of each key the newest record stays where it is, and nothing else is lost.

Goal: what a consumer folds by key is the same before and after, whatever is interrupted. Method: a
log on the simulated disk is cleaned and compared record by record with what it held, by examples
and by Hypothesis, with crashes at every step of the swap; then the same through a node.
"""

import random
from typing import NamedTuple

import pytest
from brokers import NOW_MS, FakeClock, GatedDisk, LoseAll, batch, broker, client_of, new_node
from hypothesis import given, settings
from hypothesis import strategies as st
from logkit import create, lead, newest_record, reopen, sync
from tries import tries

from hightide.protocol import messages as m
from hightide.protocol.columns import AS_THEY_ARE, to_records
from hightide.protocol.conversion import to_rows
from hightide.protocol.records import iter_batches, parse_header
from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import CLEANER_OFFSETS
from hightide_broker.storage.cleaner import (
    clean_segments,
    last_producer_batches,
    learn_newest,
    plan_cleaning,
)
from hightide_broker.storage.segment import LogConfig

TINY = LogConfig(segment_bytes=300, index_interval_bytes=100)
RETENTION_MS = 1000
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(RETENTION_MS),
}


class Kept(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple


def records_of(log):
    """Every record a reader gets who follows `next_offset` from the log's start."""
    found, offset = [], log.log_start
    while (part := log.read(offset, max_bytes=1)) is not None:
        for header, data in iter_batches(part.read()):
            found += [
                Kept(r.offset, r.key, r.value, r.timestamp, r.headers)
                for r in to_records(data, header, "t", 0)
            ]
        assert part.next_offset > offset
        offset = part.next_offset
    return found


def fold(records):
    state = {}
    for record in records:
        state[record.key] = record.value
    return {key: value for key, value in state.items() if None not in (key, value)}


def clean(disk, log, *, dirty_from=0, high_watermark=None, now_ms=NOW_MS, newest_ms=2**62):
    """One whole pass; where the next one begins."""
    mark = log.log_end if high_watermark is None else high_watermark
    facts = {"high_watermark": mark, "newest_ms": newest_ms}
    plan = plan_cleaning(log, dirty_from=dirty_from, dirty_ratio=0.0, **facts)
    if plan is None:
        return dirty_from
    newest, plan = learn_newest(log, plan)
    for segment in clean_segments(
        disk,
        log,
        plan,
        newest,
        now_ms=now_ms,
        delete_retention_ms=RETENTION_MS,
        last_batches=last_producer_batches(log, plan.until),
    ):
        log.replace_segment(segment.base, segment.path)
    log.check_invariants()
    return plan.until


def fill(log, *pairs, **over):
    for key, value in pairs:
        lead(log, batch(value, keys=[key], **over))


def pairs(text):
    """`a1 b2 a-` is a=1, b=2, a deleted."""
    return [
        (word[:1].encode(), None if word[1:] == "-" else word[1:].encode() * 40)
        for word in text.split()
    ]


# --- a log --------------------------------------------------------------------------------------


@pytest.fixture
def disk():
    return SimDisk()


@pytest.fixture
def log(disk):
    return create(disk, config=TINY)


def test_the_newest_record_of_each_key_stays_with_its_offset(disk, log):
    fill(log, *pairs("a1 b1 a2 c1 a3 b2 a4 d1 a5 a6"))
    before = records_of(log)
    until = clean(disk, log)
    active = log.segments[-1].base_offset
    assert until == active == 8
    assert records_of(log) == [before[offset] for offset in (3, 5, 6, 7, 8, 9)]
    assert log.log_end == 10


def test_the_active_segment_and_what_is_not_committed_stay_as_they_are(disk, log):
    fill(log, *pairs("a1 a2 a3 a4 a5 a6 a7"))
    before = records_of(log)
    clean(disk, log, high_watermark=3)
    assert log.segments[1].base_offset == 2
    assert records_of(log) == before[1:]


def test_records_younger_than_the_lag_are_not_compacted(disk, log):
    for number in range(8):
        fill(log, *pairs(f"a{number}"), times=[NOW_MS + number])
    before = records_of(log)
    clean(disk, log, newest_ms=NOW_MS + 3)
    assert records_of(log) == before[3:]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_headers_timestamps_and_compression_survive(disk, log, codec):
    lead(
        log,
        batch(
            b"old",
            b"new" * 40,
            None,
            b"x",
            keys=[b"a", b"a", b"b", b"c"],
            times=[NOW_MS, NOW_MS - 70, NOW_MS + 9, NOW_MS - 2**40],
            headers={0: (("gone", b"1"),), 1: (("h", b"v"), ("h", None)), 2: (("i", b""),)},
            codec=codec,
        ),
    )
    fill(log, *pairs("d1 e1 f1"))
    before = records_of(log)
    clean(disk, log)
    assert records_of(log) == before[1:]
    ((header, _),) = list(iter_batches(log.read(0, max_bytes=1).read()))
    assert (header.codec, header.record_count, header.last_offset) == (codec, 3, 3)


@pytest.mark.parametrize("form", ["columns", "rows"])
def test_a_headers_name_that_is_no_text_stays_as_it_is(disk, log, form):
    """And so in rows that columns are converted to."""
    name = b"\xffname"
    escaped = {n: ((name.decode("utf-8", AS_THEY_ARE), b"v"),) for n in range(2)}
    made = batch(b"old", b"new" * 40, keys=[b"a", b"a"], headers=escaped)
    in_rows = to_rows(made, parse_header(made))
    lead(log, made if form == "columns" else bytearray(in_rows))
    fill(log, *pairs("d1 e1 f1"))
    clean(disk, log)
    ((header, data),) = list(iter_batches(log.read(0, max_bytes=1).read()))
    assert (header.has_rows, header.record_count) == (form == "rows", 1)
    for each in (data, in_rows):
        assert name in bytes(each)
    assert [record.headers[0][0] for record in to_records(data, header, "t", 0)] == ["\ufffdname"]


def test_a_tombstone_stays_for_its_time_and_then_goes(disk, log):
    fill(log, *pairs("a1 b1 a- c1 d1"))
    clean(disk, log)
    tombstone = Kept(2, b"a", None, NOW_MS, ())
    assert tombstone in records_of(log)
    clean(disk, log, now_ms=NOW_MS + RETENTION_MS - 1)
    assert tombstone in records_of(log)
    clean(disk, log, now_ms=NOW_MS + RETENTION_MS)
    assert [r.offset for r in records_of(log)] == [1, 3, 4]


def test_a_tombstone_that_a_later_record_replaces_goes_at_once(disk, log):
    fill(log, *pairs("a1 a- a2 b1 c1"))
    clean(disk, log)
    assert [r.offset for r in records_of(log)] == [2, 3, 4]


def test_records_without_a_key_from_before_compaction_go(disk, log):
    for key in (None, b"a", None):
        fill(log, (key, b"v" * 40))
    fill(log, *pairs("b1 c1"))
    clean(disk, log)
    assert [r.offset for r in records_of(log)] == [1, 3, 4]


def test_reading_from_any_offset_gives_the_next_record_that_is_left(disk, log):
    fill(log, *pairs(" ".join(f"{key}{n}" for n in range(8) for key in "aabb") + " z1 z2"))
    clean(disk, log)
    kept = [r.offset for r in records_of(log)]
    assert len(kept) < 8
    for offset in range(log.log_end):
        expected = next(each for each in kept if each >= offset)
        found, at = [], offset
        while not found:
            part = log.read(at, max_bytes=1)
            for header, data in iter_batches(part.read()):
                found += [r.offset for r in to_records(data, header, "t", 0) if r.offset >= offset]
            at = part.next_offset
        assert found[0] == expected


def test_a_pass_without_new_segments_or_with_too_few_new_bytes_does_not_happen(disk, log):
    fill(log, *pairs("a1 b1 c1 d1 e1 f1 g1"))
    facts = {"high_watermark": log.log_end, "newest_ms": 2**62}
    closed = log.segments[-1].base_offset
    assert plan_cleaning(log, dirty_from=closed, dirty_ratio=0.0, **facts) is None
    assert plan_cleaning(log, dirty_from=closed - 1, dirty_ratio=0.9, **facts) is None
    assert plan_cleaning(log, dirty_from=closed - 1, dirty_ratio=0.1, **facts).until == closed
    assert plan_cleaning(log, dirty_from=0, dirty_ratio=1.0, **facts).until == closed


@pytest.mark.parametrize("producer", [(-1, -1, -1), (7, 0, 0)])
@pytest.mark.parametrize("together", [True, False])
def test_the_largest_timestamp_is_of_a_record_that_is_left(disk, log, together, producer):
    rows = [(b"b", b"1" * 60, NOW_MS), (b"a", b"1", NOW_MS + 500)]
    for part in [rows] if together else [rows[:1], rows[1:]]:
        keys, values, times = zip(*part, strict=True)
        lead(log, batch(*values, keys=keys, times=times, producer=producer))
    fill(log, *pairs("a2 c1 d1"))
    assert newest_record(log).timestamp == NOW_MS + 500
    clean(disk, log)
    assert {r.timestamp for r in records_of(log)} == {NOW_MS}
    found = newest_record(log)
    assert found is not None
    assert found.timestamp == NOW_MS


BATCHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"c", b"", None]),
            st.sampled_from([None, b"", b"v", b"w" * 30, b"x" * 90]),
            st.integers(-50, 50),
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=15,
)


@pytest.mark.slow
@given(st.lists(BATCHES, min_size=1, max_size=3), st.data())
@settings(max_examples=tries(150), deadline=None)
def test_the_fold_by_key_is_the_same_after_any_number_of_passes(rounds, data):
    disk = SimDisk()
    log = create(disk, config=TINY)
    until, now_ms, history = 0, NOW_MS, []
    for batches in rounds:
        for number, rows in enumerate(batches):
            keys, values, shifts = zip(*rows, strict=True)
            times = [NOW_MS + shift for shift in shifts]
            producer = (number % 2, 0, log.log_end) if number % 3 else (-1, -1, -1)
            lead(log, batch(*values, keys=keys, times=times, producer=producer))
        before = records_of(log)
        history += [record for record in before if record not in history]
        bases = [segment.base_offset for segment in log.segments]
        mark = data.draw(st.sampled_from([*bases, log.log_end]))
        until = clean(disk, log, dirty_from=until, high_watermark=mark, now_ms=now_ms)
        after = records_of(log)
        keyed = {record for record in before if record.key is not None}
        assert set(after) <= set(before)
        assert [r.offset for r in after] == sorted(r.offset for r in after)
        assert fold(after) == fold(before) == fold(history)
        assert {r for r in keyed if r.offset >= until} <= set(after)
        cleaned = [record.key for record in after if record.offset < until]
        assert len(cleaned) == len(set(cleaned))
        assert None not in cleaned
        now_ms += data.draw(st.sampled_from([0, RETENTION_MS]))
        sync(disk, log)
        assert records_of(reopen(disk, config=TINY)) == after


# --- a crash in the middle ----------------------------------------------------------------------


class DiskThatStops(SimDisk):
    """Fails for good at its nth change of a name or sync, as the end of a process does."""

    def __init__(self):
        super().__init__()
        self.steps_left = 1 << 30

    def _step(self, path):
        self.steps_left -= 1
        if self.steps_left < 0:
            raise DiskError(path, "step", "the process is gone")

    def rename(self, old, new):
        self._step(old)
        super().rename(old, new)

    def remove(self, path):
        self._step(path)
        super().remove(path)

    def sync_now(self, files, directories=()):
        self._step("")
        super().sync_now(files, directories)


@pytest.mark.slow
def test_a_crash_at_any_step_of_a_pass_leaves_each_segment_old_or_new():
    outcomes = set()
    for steps in range(200):
        for seed in range(8):
            disk = DiskThatStops()
            log = create(disk, config=TINY)
            fill(log, *pairs("a1 b1 a2 a3 c1 b2 b3 a4 b4 d1 d2"))
            sync(disk, log)
            before, whole = records_of(log), False
            disk.steps_left = steps
            try:
                clean(disk, log)
                whole = True
            except DiskError:
                pass
            disk.steps_left = 1 << 30
            disk.crash(LoseAll() if seed == 0 else random.Random(seed))
            found = records_of(reopen(disk, config=TINY, recovery_point=log.synced_end))
            assert set(found) <= set(before), f"step {steps}"
            assert fold(found) == fold(before), f"step {steps}"
            outcomes.add(len(found))
        if whole:
            break
    assert whole
    assert min(outcomes) < len(before)
    assert len(outcomes) > 2


# --- through a node -----------------------------------------------------------------------------


async def produce_pairs(client, text, *, topic="t", times=(NOW_MS,)):
    for key, value in pairs(text):
        wide = None if value is None else value * 10
        sent = await client.send(batch(wide, keys=[key], times=times), topic=topic)
        assert sent.error is None, sent


async def offsets(client):
    return [record.offset for record in await client.read_all()]


async def test_a_node_compacts_goes_on_and_survives_restart_and_crash():
    disk, clock = SimDisk(), FakeClock()
    async with new_node(disk, clock=clock) as node, client_of(node) as client:
        await client.create(configs=COMPACTED)
        await produce_pairs(client, "a1 b1 a2 a- b2 c1 b3 d1 e1")
        before = await client.read_all()
        replica = node.replicas.get("t", 0)
        assert await node._housekeeping.compact(replica)
        kept = await client.read_all()
        assert [r.offset for r in kept] == [3, 5, 6, 7, 8]
        assert set(kept) <= set(before)
        assert not await node._housekeeping.compact(replica)
        clock.ms += RETENTION_MS
        await produce_pairs(client, "f1 g1 h1")
        await node._housekeeping.look_once()
        assert await offsets(client) == [5, 6, 7, 8, 9, 10, 11]
    disk.crash(LoseAll())
    async with broker(disk, clock=clock) as client:
        assert await offsets(client) == [5, 6, 7, 8, 9, 10, 11]
        for offset in range(12):
            found = await client.read_all(offset)
            assert [r.offset for r in found] == list(range(max(offset, 5), 12))


async def test_a_producers_last_batch_is_known_when_its_records_are_compacted_away():
    disk = SimDisk()
    async with new_node(disk) as node, client_of(node) as client:
        await client.create(configs=COMPACTED)
        mine = batch(b"v" * 400, keys=[b"a"], producer=(3, 0, 0))
        assert (await client.send(bytes(mine))).base_offset == 0
        await produce_pairs(client, "a2 a3 b1")
        assert await node._housekeeping.compact(node.replicas.get("t", 0))
        assert 0 not in await offsets(client)
    for name in disk.list("data/broker-1/t-0"):
        if name.endswith(".snapshot"):
            disk.remove(f"data/broker-1/t-0/{name}")
    async with broker(disk) as client:
        assert (await client.send(bytes(mine))).base_offset == 0
        assert 0 not in await offsets(client)


async def test_what_is_not_committed_is_not_compacted():
    disk = GatedDisk()
    async with new_node(disk) as node, client_of(node) as client:
        await client.create(configs=COMPACTED)
        disk.shut()
        for number in range(6):
            await client.send(batch(b"%d" % number * 400, keys=[b"a"]), acks=1)
        assert not await node._housekeeping.compact(node.replicas.get("t", 0))
        disk.gate.set()
        await client.send(batch(b"last", keys=[b"b"]))
        assert await offsets(client) == list(range(7))


async def test_records_with_the_brokers_timestamps_keep_them():
    clock = FakeClock(5_000)
    async with new_node(SimDisk(), clock=clock) as node, client_of(node) as client:
        await client.create(configs={**COMPACTED, "message.timestamp.type": "LogAppendTime"})
        wide = b"v" * 400
        await client.send(batch(wide, None, wide, keys=[b"a", b"b", b"c"], times=[1, 2, 3]))
        clock.ms = 6_000
        for key in (b"a", b"d", b"e"):
            await client.send(batch(wide, keys=[key], times=[4]))
        before = await client.read_all()
        assert await node._housekeeping.compact(node.replicas.get("t", 0))
        assert await client.read_all() == before[1:]


async def test_a_new_topic_does_not_inherit_how_far_the_old_one_was_cleaned():
    disk = SimDisk()
    async with new_node(disk) as node, client_of(node) as client:
        await client.create(configs=COMPACTED)
        await produce_pairs(client, "a1 b1 c1 d1 e1 f1")
        await node._housekeeping.compact(node.replicas.get("t", 0))
        await client.call(m.DeleteTopicsRequest(topics=["t"]))
        await client.create(configs=COMPACTED)
        await produce_pairs(client, "a1 a2 a3 a4 b1 c1 d1 e1")
        await node._housekeeping.compact(node.replicas.get("t", 0))
        assert await offsets(client) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("configs", "time", "value"),
    [
        ({"message.timestamp.type": "LogAppendTime"}, -(2**63), b"v"),
        ({"message.timestamp.type": "LogAppendTime"}, 2**63 - 1, b"v"),
        ({"delete.retention.ms": str(2**63 - 1)}, NOW_MS, None),
        ({}, 0, None),
    ],
    ids=["before all time", "behind all time", "tombstones for ever", "1970"],
)
async def test_nothing_a_client_may_write_or_set_stops_the_chores(configs, time, value):
    async with new_node(SimDisk()) as node, client_of(node) as client:
        await client.create(configs={**COMPACTED, **configs})
        await client.create("other", configs=COMPACTED)
        await client.send(batch(b"1", value, keys=[b"a", b"b"], times=[time, time]))
        await produce_pairs(client, "a2 c1 d1 e1")
        await produce_pairs(client, "b1 b2 c1 d1 e1", topic="other")
        await node._housekeeping.look_once()
        assert len(await client.read_all(topic="other")) == 4
        assert await offsets(client) == [1, 2, 3, 4, 5]


async def test_a_cleaner_checkpoint_that_is_ahead_of_the_log_is_not_believed():
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create(configs=COMPACTED)
        await produce_pairs(client, "a1 a2 a3 b1 c1")
    disk.replace(f"data/broker-1/{CLEANER_OFFSETS}", b"0\n1\nt 0 900\n")
    async with new_node(disk) as node, client_of(node) as client:
        # Nor once the log has grown past it: what comes there was not compacted.
        assert ("t", 0) not in node.replicas.checkpoints.cleaner_offsets
        assert b"t 0" not in disk.read_file(f"data/broker-1/{CLEANER_OFFSETS}")
        assert await node._housekeeping.compact(node.replicas.get("t", 0))
        assert await offsets(client) == [2, 3, 4]
