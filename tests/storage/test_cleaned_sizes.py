"""Compaction and the most that a reader takes: what it writes can be read, what it cannot read
stops nobody.

Goal: a batch just below `INFLATED_BYTES_MAX` grows when columns are added to it that it did not
need before, and is readable all the same; a stored batch that nobody can read costs its replica a
pass, never the node its life; a broker does not accept what no reader takes. Method: batches of
60 000 records filled up to the limit, cleaned by hand and by a node; batches with the right
checksum around columns that are none.
"""

from __future__ import annotations

import logging
from operator import attrgetter

import pytest
from brokers import NOW_MS, batch, client_of, new_node, settings
from cleankit import clean, folded, records_of
from logkit import create, lead
from tries import some

from hightide.protocol.codecs import INFLATED_BYTES_MAX
from hightide.protocol.columns import encode_columns, open_batch
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import HEADER_BYTES, encode_batch, parse_header
from hightide_broker.config import ConfigError
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.segment import LogConfig

COUNT = 60_000
SPARE_BYTES = 100_000
"""What is left below the limit: less than 4 bytes a record."""
DAY_MS = 24 * 3600 * 1000
ONE_BATCH = LogConfig(segment_bytes=1000)
"""Every batch here that matters is larger, and gets a segment of its own."""
offset_of = attrgetter("offset")


def filled(
    *,
    codec: str = "zstd",
    tombstone: int | None = None,
    time: int = NOW_MS,
    room: int = SPARE_BYTES,
) -> bytearray:
    """A batch of `COUNT` keys `0`, `1`, ..., so large inside that just `room` bytes are left."""
    keys = [b"%d" % number for number in range(COUNT)]
    sizes = sum(map(len, keys)) + 3 * 4 * COUNT + 64
    wide, rest = divmod(INFLATED_BYTES_MAX - room - sizes, COUNT - 2)
    values: list[bytes | None] = [bytes(wide)] * COUNT
    values[0], values[-1] = b"", bytes(rest)
    if tombstone is not None:
        values[tombstone] = None
    payload = encode_columns([time] * COUNT, keys, values, base_timestamp=time)
    assert len(payload) <= INFLATED_BYTES_MAX
    return encode_batch(
        payload, record_count=COUNT, base_timestamp=time, max_timestamp=time, codec=codec
    )


def unreadable(why: str) -> bytearray:
    """A batch with the right checksum that no reader takes."""
    payload = b"no columns" if why == "no columns" else bytes(INFLATED_BYTES_MAX + 1)
    made = encode_batch(
        payload, record_count=1, base_timestamp=NOW_MS, max_timestamp=NOW_MS, codec="lz4"
    )
    with pytest.raises(CorruptBatch):
        open_batch(made, parse_header(made))
    return made


def assert_same(found: dict, expected: dict) -> None:
    """Equal; what is not is named, but its megabytes are not printed."""
    wrong = [key for key in {**found, **expected} if found.get(key) != expected.get(key)]
    assert not wrong, f"{len(wrong)} of {len(expected)} keys differ, the first: {wrong[:5]}"


def test_the_batches_of_these_tests_are_just_below_the_limit():
    made = filled()
    header = parse_header(made)
    assert open_batch(made, header).record_count == COUNT
    with pytest.raises(CorruptBatch):
        open_batch(made, header, inflated_max=INFLATED_BYTES_MAX - 4 * COUNT)
    assert len(made) - HEADER_BYTES < 1 << 20, "a broker accepts it as it is set up"


# --- batches that grow --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("codec", some(["lz4", "zstd"], 1))
def test_a_batch_at_the_limit_can_be_read_after_one_of_its_records_was_replaced(codec):
    disk = SimDisk()
    log = create(disk, config=ONE_BATCH)
    lead(log, filled(codec=codec))
    for key in (b"7", b"end", b"end"):
        lead(log, batch(b"new" * 400, keys=[key]))
    before = records_of(log)
    clean(disk, log)
    after = records_of(log)
    assert_same(folded(after), folded(before))
    assert all(map(set(before).__contains__, after))
    assert [*map(offset_of, after)] == sorted({*map(offset_of, after)})


@pytest.mark.slow
@pytest.mark.parametrize("age_days", some([0, 40], 1), ids="{} days old".format)
def test_a_batch_at_the_limit_can_be_read_after_its_tombstone_was_dated(age_days):
    disk = SimDisk()
    log = create(disk, config=ONE_BATCH)
    lead(log, filled(tombstone=9, time=NOW_MS - age_days * DAY_MS))
    lead(log, batch(b"end" * 400, keys=[b"end"]))
    expected = folded(records_of(log))
    for now_ms in (NOW_MS, NOW_MS + 2000):
        clean(disk, log, retention_ms=1000, now_ms=now_ms)
        assert_same(folded(records_of(log)), expected)


COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0",
}


@pytest.mark.slow
async def test_acknowledged_records_stay_readable_for_clients_after_compaction():
    async with new_node(SimDisk()) as node, client_of(node) as client:
        await client.create(configs=COMPACTED)
        last = [batch(bytes(900_000), keys=[key]) for key in (b"end", b"last")]
        for data in (filled(), batch(b"new", keys=[b"7"]), *last):
            assert (await client.send(data)).error is None
        replica = node.replicas.get("t", 0)
        assert len(replica.log.segments) == 2
        expected = folded(await client.read_all())
        for _ in range(2):
            await node._housekeeping.look_once()
            assert replica.offline == ""
            assert_same(folded(await client.read_all()), expected)


# --- batches that cannot be read ----------------------------------------------------------------


async def produce(client, topic: str) -> None:
    """Records that fill a segment, most of them replaced."""
    for key in (b"a", b"a", b"b"):
        assert (await client.send(batch(bytes(400_000), keys=[key]), topic=topic)).error is None


@pytest.mark.parametrize("why", ["no columns", "too large inside"])
async def test_a_batch_that_nobody_can_read_stops_the_compaction_of_its_replica_alone(why, caplog):
    async with new_node(SimDisk()) as node, client_of(node) as client:
        for topic in ("t", "other"):
            await client.create(topic, configs=COMPACTED)
        data = unreadable(why)
        log = node.replicas.get("t", 0).log
        lead(log, data, epoch=log.epochs.latest_epoch)
        for topic in ("t", "other"):
            await produce(client, topic)
        for _ in range(2):
            with caplog.at_level(logging.ERROR):
                await node._housekeeping.look_once()
        assert [each for each in caplog.messages if "t-0" in each]
        found = await client.read_all(topic="other")
        assert [record.key for record in found] == [b"a", b"b"]
        assert (await client.create("new")).error is None


# --- what a broker accepts ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [str(INFLATED_BYTES_MAX + 1), "65MiB", "1GiB"])
def test_a_node_is_not_set_up_to_accept_what_no_reader_takes(size):
    with pytest.raises(ConfigError, match=r"message\.inflated\.max\.bytes") as caught:
        settings({"message.inflated.max.bytes": size})
    assert str(INFLATED_BYTES_MAX) in str(caught.value) or "64MiB" in str(caught.value)


@pytest.mark.parametrize("size", [str(INFLATED_BYTES_MAX), "64MiB", "1MiB", "1"])
def test_a_node_may_accept_all_that_readers_take_or_less(size):
    settings({"message.inflated.max.bytes": size})
