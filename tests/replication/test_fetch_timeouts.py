"""Fetches that waited in vain for more bytes: they answer with what is there when they answer.

Goal: whatever retention, compaction or somebody who deletes records did to the log meanwhile, a
reader gets whole batches of now, or hears that its offset is gone. Method: broker 1's replicas with
a fetch made by hand; then a node on the real disk, where a file that was swapped or renamed is not
the one that was looked at, asked over its wire. The clock moves only when a test moves it.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import trio
from brokers import DATA, batch, client_of, new_node, quiet, settings
from cleankit import records_in
from leaderkit import Here, part, question, settled
from patience import PATIENCE_S

from hightide.protocol import messages as m
from hightide.protocol.columns import Record
from hightide.protocol.records import check_crc, iter_batches
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk

MUCH = 1 << 20
"""Bytes that a fetch waits for, and that never come."""
WAIT_S = 4.0


async def parked(here: Here, nursery: trio.Nursery, offset: int):
    """A consumer that waits for more than the three committed batches."""
    replica = await here.create(replicas=(1,))
    here.append(3)
    ask = question(part(offset), by=-1, min_bytes=MUCH, wait_ms=int(1000 * WAIT_S))
    return replica, await here.park(nursery, ask)


async def test_records_deleted_meanwhile_are_not_told_when_the_time_is_up(mock_clock, nursery):
    here = Here()
    replica, waiting = await parked(here, nursery, 0)
    replica.delete_records(2)
    mock_clock.jump(WAIT_S + 0.1)
    await settled()
    assert (waiting.only.error, waiting.only.offsets) == ("OFFSET_OUT_OF_RANGE", [])
    assert waiting.only.result.log_start_offset == 2


async def test_a_reader_behind_what_was_deleted_gets_all_that_is_left(mock_clock, nursery):
    here = Here()
    replica, waiting = await parked(here, nursery, 2)
    replica.delete_records(1)
    mock_clock.jump(WAIT_S + 0.1)
    await settled()
    assert (waiting.only.error, waiting.only.offsets) == (None, [2])
    assert waiting.only.result.log_start_offset == 1


async def test_the_records_of_a_replica_that_went_offline_are_not_told_later(mock_clock, nursery):
    here = Here()
    replica, waiting = await parked(here, nursery, 0)
    replica.go_offline("its disk broke")
    await settled()
    assert (waiting.only.error, waiting.only.offsets) == ("KAFKA_STORAGE_ERROR", [])


# --- a node, over its wire ----------------------------------------------------------------------

COMPACTED = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "2048",
    "min.cleanable.dirty.ratio": "0",
    "file.delete.delay.ms": "0",
}


WIDE = 320
"""More than any batch here has bytes; a segment holds six."""


class Answer(NamedTuple):
    """What a fetch of one partition came to, every batch checked."""

    error: str | None
    log_start: int
    records: list[Record]


async def fetch(client, *, min_bytes: int = 1, wait_s: float = 0) -> Answer:
    """Two batches from offset 1 on, in the middle of a segment."""
    wanted = m.FetchPartition(topic="t", partition=0, fetch_offset=1, max_bytes=2 * WIDE)
    request = m.FetchRequest(
        max_wait_ms=int(1000 * wait_s), min_bytes=min_bytes, partitions=[wanted]
    )
    body, attachments = await client.connection.call(request, timeout_s=60)
    (result,) = body.partitions
    records = []
    for header, data in iter_batches(attachments[result.records] if result.records >= 0 else b""):
        check_crc(data, header)
        records += records_in(header, data)
    return Answer(result.error, result.log_start_offset, records)


async def compact(node, client) -> None:
    assert await node._housekeeping.compact(node.replicas.get("t", 0))


async def delete_by_size(node, client) -> None:
    await client.alter({"retention.bytes": "2048"})
    assert node._housekeeping.apply_retention(node.replicas.get("t", 0)) > 0


async def delete_by_size_and_remove(node, client) -> None:
    await delete_by_size(node, client)
    await node._housekeeping._remove_files()


async def compact_and_delete(node, client) -> None:
    await compact(node, client)
    await delete_by_size(node, client)


@pytest.fixture(params=["simulated", "real"])
def disk(request):
    return SimDisk() if request.param == "simulated" else RealDisk()


@pytest.mark.parametrize(
    "meanwhile", [compact, delete_by_size, delete_by_size_and_remove, compact_and_delete]
)
async def test_a_fetch_that_timed_out_answers_as_one_that_comes_now(
    meanwhile, disk, tmp_path, mock_clock, nursery
):
    data = f"{tmp_path}/{DATA}"
    found: list[Answer] = []

    async def wait() -> None:
        found.append(await fetch(client, min_bytes=MUCH, wait_s=WAIT_S))

    async with new_node(disk, settings(data=data)) as node, client_of(node) as client:
        await client.create(configs=COMPACTED)
        for number, key in enumerate("abcdefghijklaxyzuvw"):
            await client.send(batch(b"v" * (200 + number), keys=[key.encode()]))
        nursery.start_soon(wait)
        await quiet()
        await meanwhile(node, client)
        assert found == []
        mock_clock.jump(WAIT_S + 0.1)
        with trio.fail_after(PATIENCE_S):
            while not found:
                await quiet()
                mock_clock.jump(0.01)
        assert found == [await fetch(client)]
