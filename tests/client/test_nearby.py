"""Reading from the nearest replica (KIP-392): who is chosen, how a consumer hears of it, and what
it does with that.

Goal: a consumer that says where it stands reads from a replica in sync there if one holds what it
asks for, and whatever goes wrong with that costs nothing but the way to the leader. Method: the
leader is driven by hand; a real broker's replicas on the simulated disk are asked by hand; the
consumer talks to `FakeBroker`s in memory, on trio's autojump clock.
"""

import random

import pytest
import trio
from brokers import batch
from clients import take, values_of
from fake_broker import (
    CLOSE_IN_MID_ANSWER,
    GARBAGE,
    IGNORE,
    LOSE_ANSWER,
    NO_FRAME,
    FakeBroker,
    Trick,
    in_memory,
    refuse,
)
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

from hightide import Consumer, ErrorCode
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


def test_the_leader_serves_its_own_rack_whoever_else_stands_there_and_those_where_nobody_does():
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


# --- what a consumer does with it -----------------------------------------------------------------

INFOS = {number: m.BrokerInfo(id=number, host="127.0.0.1", port=number) for number in (1, 2, 3)}
AGE_S = 60
"""How old metadata gets."""


class RackBroker(FakeBroker):
    """Sends a consumer that names a rack to another broker, if it leads and `names` one; what it
    does not lead it serves only to who names a rack."""

    names = NOWHERE

    async def _fetch(self, request, attachments, trick):
        results = [self._judge(request, part) for part in request.partitions]
        if trick.refusal or all(r.error is None and r.preferred_read_replica < 0 for r in results):
            return await super()._fetch(request, attachments, trick)
        return m.FetchResponse(partitions=results)

    def _judge(self, request, part):
        leads = self.leaders.get((part.topic, part.partition), self.id) == self.id
        return m.FetchResult(
            topic=part.topic,
            partition=part.partition,
            error=None if leads or request.rack else "NOT_LEADER_OR_FOLLOWER",
            high_watermark=self.logs[(part.topic, part.partition)].end,
            log_start_offset=0,
            preferred_read_replica=self.names if leads and request.rack else NOWHERE,
        )


def numbered(start, end):
    return [b"%04d" % number for number in range(start, end)]


def store(start, end, *brokers):
    """Batches of ten records, at each of these brokers."""
    for broker in brokers:
        for first in range(start, end, 10):
            broker.append(batch(*numbered(first, first + 10)))


def two_brokers():
    """The leader of `t`, which names the other one, a follower; both hold a hundred records."""
    leaders = {("t", 0): 1, ("t", 1): 2}
    far, near = (
        RackBroker({"t": 1}, id=number, port=number, others=[INFOS[3 - number]], leaders=leaders)
        for number in (1, 2)
    )
    far.names = 2
    store(0, 100, far, near)
    return far, near


def consumer_of(broker, network, **options):
    plain = {
        "topics": ["t"],
        "auto_offset_reset": "earliest",
        "network": network,
        "random": random.Random(5),
        "request_timeout_ms": 5_000,
        "max_partition_fetch_bytes": 300,
        "metadata_max_age_ms": AGE_S * 1000,
        "client_rack": "r2",
    }
    return Consumer(broker.address, **(plain | options))


async def read(consumer, count):
    """The next records; an hour without any is too long."""
    with trio.fail_after(3600):
        return await take(consumer, count)


def fetches(broker):
    return [request for request in broker.requests if isinstance(request, m.FetchRequest)]


def racks(broker):
    """The racks that this broker's fetches have named, in their order."""
    return [request.rack for request in fetches(broker)]


async def test_a_consumer_reads_from_the_broker_that_its_leader_names(autojump_clock):
    far, near = two_brokers()
    async with in_memory(far, near) as network, consumer_of(far, network) as consumer:
        records = await read(consumer, 100)
        await trio.sleep(10)
        store(100, 110, near)
        records += await read(consumer, 10)
    assert values_of(records) == numbered(0, 110)
    assert racks(far) == ["r2"], "the leader is asked once"
    assert set(racks(near)) == {"r2"}, "a follower serves only who names its rack"


async def test_a_consumer_without_a_rack_reads_from_the_leader(autojump_clock):
    far, near = two_brokers()
    async with (
        in_memory(far, near) as network,
        consumer_of(far, network, client_rack="") as consumer,
    ):
        records = await read(consumer, 100)
    assert values_of(records) == numbered(0, 100)
    assert (set(racks(far)), fetches(near)) == ({""}, [])


REFUSALS = [
    "OFFSET_OUT_OF_RANGE",
    "NOT_LEADER_OR_FOLLOWER",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "KAFKA_STORAGE_ERROR",
    "OFFSET_NOT_AVAILABLE",
    "UNKNOWN_SERVER_ERROR",
    "INVALID_REQUEST",
]
BREAKS = {
    "closes in mid-answer": CLOSE_IN_MID_ANSWER,
    "loses the answer": LOSE_ANSWER,
    "answers no message": GARBAGE,
    "answers no frame": NO_FRAME,
    "is not ready": Trick(envelope=ErrorCode.BROKER_NOT_AVAILABLE),
    "never answers": IGNORE,
}
FAULTS = {**{code: refuse(code) for code in REFUSALS}, **BREAKS}


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_what_a_follower_does_not_serve_the_leader_does_and_nobody_starts_over(
    fault, reset, autojump_clock
):
    far, near = two_brokers()
    near.will(m.FetchRequest, Trick(), fault)
    async with (
        in_memory(far, near) as network,
        consumer_of(far, network, auto_offset_reset=reset) as consumer,
    ):
        consumer.seek("t", 0, 33)
        records = await read(consumer, 67)
        store(100, 110, far)
        records += await read(consumer, 10)
    assert [record.offset for record in records] == list(range(33, 110))
    assert racks(far)[0] == "r2"
    assert set(racks(far)[1:]) == {""}, "it is asked for records, not for a better place"
    assert len(fetches(near)) == 2
    asked = [f.partitions[0].fetch_offset for f in (fetches(near)[1], fetches(far)[1])]
    assert asked[0] == asked[1] > 33, "the leader is asked for the same"


async def test_a_follower_that_refuses_the_whole_fetch_is_left_for_the_leader(autojump_clock):
    far, near = two_brokers()
    near.will(m.FetchRequest, Trick(envelope=ErrorCode.UNSUPPORTED_VERSION))
    async with in_memory(far, near) as network, consumer_of(far, network) as consumer:
        assert values_of(await read(consumer, 100)) == numbered(0, 100)


async def test_a_follower_that_dies_is_left_for_the_leader(autojump_clock):
    far, near = two_brokers()
    async with in_memory(far, near) as network, consumer_of(far, network) as consumer:
        records = await read(consumer, 100)
        near.is_down = True
        await near.break_connections()
        store(100, 110, far)
        records += await read(consumer, 10)
    assert values_of(records) == numbered(0, 110)
    assert racks(far)[:2] == ["r2", ""]
    assert far.count(m.MetadataRequest) == 1, "that says nothing about who leads"


async def test_a_broker_that_is_not_in_the_metadata_is_not_looked_for(autojump_clock):
    far, near = two_brokers()
    far.names = 3
    told = []
    async with (
        in_memory(far, near) as network,
        consumer_of(far, network, on_retry=told.append) as consumer,
    ):
        records = await read(consumer, 100)
    assert values_of(records) == numbered(0, 100)
    assert racks(far)[0] == "r2"
    assert set(racks(far)[1:]) == {""}
    assert (told, fetches(near)) == ([], [])


@pytest.mark.parametrize("fault", [*FAULTS.values(), None], ids=[*FAULTS, "is down"])
async def test_new_metadata_lets_a_failed_follower_be_tried_again(fault, autojump_clock):
    far, near = two_brokers()
    if fault is None:
        near.is_down = True
    else:
        near.will(m.FetchRequest, fault)
    async with in_memory(far, near) as network, consumer_of(far, network) as consumer:
        records = await read(consumer, 100)
        near.is_down = False
        await trio.sleep(AGE_S / 2)
        before = len(fetches(near))
        assert set(racks(far)[1:]) == {""}, "until then only the leader is asked"
        await trio.sleep(AGE_S)
        assert far.count(m.MetadataRequest) + near.count(m.MetadataRequest) == 2
        store(100, 110, near)
        records += await read(consumer, 10)
    assert values_of(records) == numbered(0, 110)
    assert racks(far).count("r2") == 2
    assert len(fetches(near)) > before


async def test_new_metadata_lets_the_leader_decide_again(autojump_clock):
    far, near = two_brokers()
    async with in_memory(far, near) as network, consumer_of(far, network) as consumer:
        records = await read(consumer, 100)
        far.names = NOWHERE
        await trio.sleep(AGE_S * 1.5)
        before = len(fetches(near))
        store(100, 110, far)
        records += await read(consumer, 10)
        await trio.sleep(AGE_S / 4)
    assert values_of(records) == numbered(0, 110)
    assert set(racks(far)) == {"r2"}
    assert len(fetches(near)) == before > 0


async def test_a_refusal_that_new_metadata_overtook_is_still_a_followers(autojump_clock):
    """The fetch waits at a follower, whose log is cut after the metadata was refreshed."""
    far, near = two_brokers()
    async with (
        in_memory(far, near) as network,
        consumer_of(far, network, fetch_max_wait_ms=AGE_S * 2000) as consumer,
    ):
        records = await read(consumer, 100)
        await trio.sleep(AGE_S * 1.5)
        far.names = NOWHERE
        near.logs[("t", 0)].end = 80
        store(80, 90, near)
        await trio.sleep(1)
        store(100, 110, far)
        records += await read(consumer, 10)
    assert [record.offset for record in records] == list(range(110))


async def test_one_partition_whose_follower_failed_leaves_the_others_theirs(autojump_clock):
    """Broker 2 follows in partition 0 and leads partition 1, for which it names nobody who is
    there."""
    far, near = two_brokers()
    near.names = 3
    for broker in (far, near):
        broker.topics["t"] = 2
        for first in range(0, 100, 10):
            broker.append(batch(*numbered(first, first + 10)), partition=1)
    async with in_memory(far, near) as network, consumer_of(far, network) as consumer:
        await read(consumer, 200)
    served_by = [(f.rack, [p.partition for p in f.partitions]) for f in fetches(near)]
    assert [each for each in served_by if each[0] == "" and 0 in each[1]] == []
    assert set(racks(far)) == {"r2"}, "and nobody had to fall back on the leader"
