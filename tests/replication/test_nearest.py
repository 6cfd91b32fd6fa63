"""Reading from the nearest replica (KIP-392): who is chosen, and how a consumer hears of it.

Goal: a consumer that says where it stands is sent to a replica in sync there if one holds what it
asks for; `client/test_nearby.py` has what it does with that. Method: the leader is driven by hand;
a real broker's replicas on the simulated disk are asked by hand.
"""

import pytest
from leaderkit import (
    EPOCH,
    ME,
    THREE,
    TWO,
    Here,
    broker_epoch,
    part,
    question,
    remotes_of,
    served,
    settled,
)
from replicakit import write

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import RegisterBroker, UnfenceBroker
from hightide_broker.core.replication.leader import Leader
from hightide_broker.runtime.base.call import Call, Reply

NOWHERE = -1

# --- who is chosen --------------------------------------------------------------------------------

RACKS = {1: "east", 2: "west", 3: "west", 4: "west", 5: "north"}


def leader(ends, *, starts=None, isr=(1, 2, 3, 4, 5), active=(1, 2, 3, 4, 5)):
    """Broker 1 leads ten records; the others have fetched up to `ends`, from logs that begin at
    `starts`."""
    found = Leader(
        now=0.0,
        broker=1,
        epoch=4,
        replicas=(1, 2, 3, 4, 5),
        isr=isr,
        partition_epoch=7,
        min_isr=1,
        synced_counts=False,
        epoch_start=0,
        log_end=10,
        synced_end=10,
        high_watermark=0,
        active={broker: broker_epoch(broker) for broker in active},
    )
    for broker, end in ends.items():
        start = (starts or {}).get(broker, 0)
        found.on_fetch(broker, end, 0.0, log_start=start, broker_epoch=broker_epoch(broker))
    return found


@pytest.mark.parametrize(
    ("ends", "facts", "chosen"),
    [
        ({2: 8}, {}, 2),
        ({2: 5}, {}, 2),
        ({2: 4}, {}, 1),
        ({}, {}, 1),
        ({5: 10}, {}, 1),
        ({2: 8, 3: 9, 4: 7}, {}, 3),
        ({2: 8, 3: 9, 4: 9}, {}, 3),
        ({4: 8, 3: 8, 2: 8}, {}, 2),
        ({2: 8, 3: 9}, {"isr": (1, 2, 4, 5)}, 2),
        ({2: 8}, {"isr": (1, 3, 4, 5)}, 1),
        ({2: 8, 3: 9}, {"active": (1, 2, 4, 5)}, 2),
        ({2: 8}, {"active": (1, 3, 4, 5)}, 1),
        ({2: 8, 3: 9}, {"starts": {3: 6}}, 2),
        ({2: 8, 3: 9}, {"starts": {3: 5}}, 3),
        ({2: 8}, {"starts": {2: 6}}, 1),
    ],
)
def test_of_the_replicas_in_a_rack_one_in_sync_that_holds_the_offset_is_chosen(ends, facts, chosen):
    assert leader(ends, **facts).nearest(5, "west", RACKS.get) == chosen


def test_the_leader_serves_its_own_rack_who_else_stands_there_and_those_where_nobody_does():
    some = leader(dict.fromkeys((2, 3, 4, 5), 10))
    assert some.nearest(5, "east", dict.fromkeys(RACKS, "east").get) == 1
    assert [some.nearest(5, rack, RACKS.get) for rack in ("east", "south", "north")] == [1, 1, 5]


# --- how a consumer hears of it -------------------------------------------------------------------


def placed(*racks):
    """Brokers 1, 2 and 3 where they are said to be; broker 1 is here."""
    here = Here()
    for broker, rack in zip((ME, TWO, THREE), racks or ("r1", "r2", "r2"), strict=True):
        facts = {"broker": broker, "broker_epoch": broker_epoch(broker)}
        stands = RegisterBroker(incarnation="i", host="nowhere", port=1, rack=rack, **facts)
        here.replay(stands, UnfenceBroker(**facts))
    return here


async def leading(*racks, **facts):
    """Broker 1 leads three batches of `jade`, which the others have; its log begins at 1."""
    here = placed(*racks)
    replica = await here.create(**facts)
    here.append(3)
    for broker in (TWO, THREE):
        here.fetch_one(3, by=broker)
    replica.log.advance_log_start(1)
    return here, replica


def at_once(here, *parts, rack="r2", **facts):
    """What a consumer hears that would wait for nine seconds, and for a lot of bytes."""
    ask = question(*parts, by=-1, rack=rack, **{"min_bytes": 1 << 20, **facts})
    answer = here.records.fetch(Call(ask))
    assert isinstance(answer, Reply), "it does not wait"
    return served(answer)


@pytest.mark.parametrize("offset", [1, 2, 3])
async def test_a_consumer_is_sent_to_its_rack_at_once_and_gets_no_records(offset):
    here, replica = await leading()
    before = remotes_of(replica)
    found = at_once(here, part(offset))["jade", 0]
    assert found.result.preferred_read_replica == TWO
    assert (found.error, found.offsets, found.result.records) == (None, [], -1)
    assert (found.result.high_watermark, found.result.log_start_offset) == (3, 1)
    assert remotes_of(replica) == before, "a consumer acknowledges nothing"


@pytest.mark.parametrize("rack", ["", "r1", "r9"])
async def test_nobody_is_sent_anywhere_without_a_replica_in_the_rack_but_the_leader(rack):
    here, _ = await leading()
    found = here.fetch_one(1, by=-1, rack=rack)
    assert (found.result.preferred_read_replica, found.offsets) == (NOWHERE, [1, 2])
    ask = question(part(3), by=-1, rack=rack)
    assert not isinstance(here.records.fetch(Call(ask)), Reply), "at the end it waits as ever"


async def test_a_consumer_that_names_no_rack_is_not_sent_to_a_broker_that_names_none():
    here, _ = await leading("r1", "", "")
    found = here.fetch_one(1, by=-1)
    assert (found.result.preferred_read_replica, found.offsets) == (NOWHERE, [1, 2])


@pytest.mark.parametrize("by", [TWO, THREE])
async def test_a_follower_is_sent_nowhere_whatever_rack_it_names(by):
    here, replica = await leading()
    here.append()
    found = here.fetch_one(3, by=by, rack="r2")
    assert (found.result.preferred_read_replica, found.offsets) == (NOWHERE, [3])
    here.fetch_one(4, by=by, rack="r2")
    assert replica.leader.remotes[by].log_end == 4, "and acknowledges"


async def test_brokers_that_lag_or_are_fenced_are_left_out_when_they_are():
    here, _ = await leading()
    here.append()
    here.fetch_one(4, by=THREE)
    assert at_once(here, part(3))["jade", 0].result.preferred_read_replica == THREE
    await here.fence(THREE)
    assert at_once(here, part(3))["jade", 0].result.preferred_read_replica == TWO
    await here.change(isr=(ME, THREE))
    found = here.fetch_one(1, by=-1, rack="r2")
    # The last one is committed, too: nobody waits for a member that was removed.
    assert (found.result.preferred_read_replica, found.offsets) == (NOWHERE, [1, 2, 3])


async def test_a_log_that_differs_is_told_rather_than_a_better_place():
    here = placed()
    replica = await here.create(leader=TWO, epoch=7)
    write(replica.log, (3, 2), (EPOCH, 3))
    await here.change(leader=ME)
    here.fetch_one(5, current_leader_epoch=8, last_fetched_epoch=EPOCH)
    agrees = part(3, current_leader_epoch=8, last_fetched_epoch=EPOCH)
    assert at_once(here, agrees)["jade", 0].result.preferred_read_replica == TWO
    differs = part(3, current_leader_epoch=8, last_fetched_epoch=4)
    found = at_once(here, differs)["jade", 0]
    assert found.result.diverging_epoch == m.EpochEnd(epoch=3, end_offset=2)
    assert (found.error, found.result.preferred_read_replica) == (None, NOWHERE)


async def test_a_refusal_comes_before_a_better_place():
    here, _ = await leading()
    found = at_once(here, part(1, current_leader_epoch=EPOCH - 1))["jade", 0]
    assert (found.error, found.result.preferred_read_replica) == ("FENCED_LEADER_EPOCH", NOWHERE)
    beyond = at_once(here, part(9))["jade", 0]
    assert (beyond.error, beyond.result.preferred_read_replica) == ("OFFSET_OUT_OF_RANGE", NOWHERE)


async def test_other_partitions_of_the_fetch_are_answered_with_what_there_is():
    here, _ = await leading()
    await here.create("onyx", replicas=(ME,))
    here.append(2, topic="onyx")
    answer = at_once(here, part(0, topic="onyx"), part(1))
    assert answer["onyx", 0].offsets == [0, 1]
    assert answer["jade", 0].result.preferred_read_replica == TWO


async def test_a_consumer_that_waits_at_the_leader_is_sent_away_when_it_is_looked_at_again(
    mock_clock, nursery
):
    here, _ = await leading(isr=(ME,))
    parked = await here.park(nursery, question(part(3), by=-1, rack="r2"))
    await here.change(isr=(ME, THREE))
    here.append()
    for broker in (TWO, THREE):
        here.fetch_one(4, by=broker)
    await settled()
    assert (parked.only.result.preferred_read_replica, parked.only.offsets) == (THREE, [])


async def test_a_follower_serves_its_rack_itself():
    here = placed()
    replica = await here.create(leader=TWO)
    write(replica.log, (EPOCH, 1), (EPOCH, 1))
    replica.committed.advance(1)
    found = here.fetch_one(0, by=-1, rack="r2")
    assert (found.result.preferred_read_replica, found.offsets) == (NOWHERE, [0])
