"""A coordinator that reads its groups while compaction swaps the segments it reads.

Goal: what was kept is known once it is loaded, and a replica that nothing is wrong with stays
online: with one replica an offline one would come back never. Method: one replica of the groups'
topic, its offsets written by one coordinator and read by the next, and a swap after each number of
steps; on the simulated disk and on the real one.
"""

from __future__ import annotations

import pytest
import trio
from brokers import FakeClock
from cleankit import rewrite
from logkit import TOPIC_ID, create

from hightide_broker.core.cluster.image import PartitionState
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.groups.parts import Limits
from hightide_broker.core.groups.records import OffsetKey, OffsetValue
from hightide_broker.ports import Disk
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.runtime.groups.coordinator import Coordinator
from hightide_broker.runtime.groups.counts import GroupCounts
from hightide_broker.runtime.replication.log_loader import log_config
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation.disk import SimDisk

ME = 1
PARTITIONS, ROUNDS = 5, 16
"""How many places are committed, and how often."""
CONFIG = {"flush": "replicated", "cleanup.policy": "compact", "segment.bytes": "1500"}


@pytest.fixture(params=["simulated", "real"])
def disk(request) -> Disk:
    return SimDisk() if request.param == "simulated" else RealDisk()


def new_replica(disk: Disk, directory: str) -> Replica:
    config = TopicConfig.of(CONFIG, {})
    log = create(disk, config=log_config(config), directory=directory)
    return Replica(
        OFFSETS_TOPIC,
        TOPIC_ID,
        0,
        config=config,
        log=log,
        high_watermark=0,
        inflated_max=1 << 20,
    )


def lead(replica: Replica) -> Coordinator:
    """This broker leads in the next epoch; its coordinator, which has not begun."""
    epoch = replica.leader_epoch + 1
    replica.become_leader(PartitionState((ME,), (ME,), ME, epoch, 0), broker=ME)
    return Coordinator(
        replica,
        limits=Limits(),
        clock=FakeClock(),
        mark_dirty=lambda replica: None,
        commit_timeout_s=5.0,
        counts=GroupCounts(),
    )


async def commit(coordinator: Coordinator) -> dict[tuple[str, int], int]:
    """Each place again and again; where each one is at last."""
    at = {}
    for number in range(ROUNDS):
        for partition in range(PARTITIONS):
            at["t", partition] = offset = 100 * number + partition
            value = OffsetValue(offset=offset, topic_id=TOPIC_ID)
            await coordinator.commit_offsets("g", [(OffsetKey("g", "t", partition), value)])
    return at


def compact(disk: Disk, replica: Replica) -> None:
    """One pass of compaction, all at once."""
    cleaned = rewrite(disk, replica.log)
    assert len(cleaned) > 3
    for segment in cleaned:
        replica.log.replace_segment(segment.base, segment.path)


@pytest.mark.parametrize("steps", [0, 5, 17, 40])
async def test_a_coordinator_that_loads_while_segments_are_swapped_knows_all(
    disk, tmp_path, steps, nursery
):
    replica = new_replica(disk, f"{tmp_path}/data/{OFFSETS_TOPIC}-0")
    first = lead(replica)
    nursery.start_soon(first.run)
    await first.loaded.wait()
    expected = await commit(first)
    second = lead(replica)
    nursery.start_soon(second.run)
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    compact(disk, replica)
    await second.loaded.wait()
    assert (replica.offline, second.ended) == ("", None)
    kept = second.offsets["g"].all({"t": TOPIC_ID})
    assert {place: value.offset for place, value in kept.items()} == expected
