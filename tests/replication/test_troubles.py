"""What keeps a replica from serving is said in the broker's log, once.

Goal: somebody who reads the log of a broker learns of a full disk, of a replica that is offline or
damaged and of a partition that nobody leads, when it begins and when it ends; and is not flooded.
Method: broker 1 on a simulated disk, with metadata by hand.
"""

from __future__ import annotations

import logging

import pytest
from leaderkit import ME, THREE, TWO, Here

from hightide.protocol.errors import Refused
from hightide_broker.core.cluster.changes import ChangePartition, RemoveTopic, SetConfig
from hightide_broker.core.cluster.image import NO_LEADER
from hightide_broker.runtime.replication.troubles import NAMES_SHOWN


@pytest.fixture
def said(caplog):
    """The lines of the log that are no news of everyday life."""
    caplog.set_level(logging.INFO, logger="hightide.replicas")
    return lambda: [each.getMessage() for each in caplog.records]


async def test_a_full_disk_is_told_once_and_so_is_its_end(said):
    here = Here()
    replica = await here.create()
    here.append()
    here.disk.capacity = here.disk.used_bytes()
    for _ in range(3):
        with pytest.raises(Refused, match="full"):
            here.append()
    (line,) = said()
    assert line.startswith("jade-0 waits for room on the disk: ")
    assert "No space left" in line
    here.disk.capacity = 1 << 30
    here.append(2)
    assert said()[1:] == ["jade-0 has room on the disk again"]
    assert replica.log.log_end == 3


async def test_a_topic_that_is_deleted_leaves_no_trouble_to_its_successor(said):
    here = Here()
    await here.create()
    here.disk.capacity = here.disk.used_bytes()
    with pytest.raises(Refused, match="full"):
        here.append()
    here.disk.capacity = 1 << 30
    await here.apply(RemoveTopic(topic_id="id-of-jade"))
    await here.create()
    here.append()
    assert len(said()) == 1


async def test_a_replica_that_goes_offline_is_told_with_its_reason(said):
    here = Here()
    replica = await here.create()
    here.disk.fail("write", "jade-0")
    known = here.replicas.news.value
    for _ in range(2):
        with pytest.raises(Refused, match="offline"):
            here.append()
    assert said() == [f"jade-0 is offline: {replica.offline}"]
    assert "Input/output error" in replica.offline
    assert here.replicas.news.value == known + 1, "the controller hears of it at once"


@pytest.mark.parametrize("more", [0, 3])
async def test_partitions_that_nobody_leads_are_told_in_one_line(said, more):
    here = Here()
    count = NAMES_SHOWN + more
    await here.create(partitions=count, isr=(ME, TWO, THREE), leader=TWO)
    await here.apply(
        *(
            ChangePartition(topic_id="id-of-jade", partition=number, leader=NO_LEADER, isr=())
            for number in range(count)
        )
    )
    names = ", ".join(f"jade-{number}" for number in range(NAMES_SHOWN))
    assert said() == [f"nobody leads {names}" + (f" and {more} more" if more else "")]
    await here.change(leader=TWO, isr=(TWO,))
    assert said()[1:] == ["somebody leads jade-0 again"]
    await here.change(leader=THREE, isr=(THREE,))
    assert len(said()) == 2


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        ({"isr": (TWO, ME), "elr": (THREE,)}, True),
        ({"isr": (TWO, ME), "last_known_elr": (THREE,)}, True),
        ({"isr": (TWO,), "elr": (ME,)}, False),
        ({"isr": (TWO, ME)}, False),
    ],
    ids=["in sync, one is eligible", "in sync, one was", "not in sync", "nobody else"],
)
async def test_who_is_in_sync_where_others_may_yet_lead_is_heard_of_at_once(change, is_told):
    """Nothing commits there before that: it must not take a heartbeat's interval."""
    here = Here()
    await here.create(isr=(TWO, ME, THREE), leader=TWO)
    known = here.replicas.news.value
    await here.change(**change)
    assert (here.replicas.news.value > known) is is_told
    known = here.replicas.news.value
    await here.create("onyx")
    assert here.replicas.news.value == known, "that is no news a second time"


async def test_who_is_in_sync_is_heard_of_when_fewer_are_needed():
    here = Here()
    await here.create(isr=(TWO, ME, THREE), leader=TWO)
    await here.change(isr=(TWO, ME), elr=(THREE,))
    known = here.replicas.news.value
    await here.apply(SetConfig(kind="topic", name="jade", key="min.insync.replicas", value="1"))
    assert here.replicas.news.value > known
