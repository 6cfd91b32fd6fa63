"""Reading from the nearest replica (KIP-392): what a consumer does that is sent to one.

Goal: whatever goes wrong with the replica that a leader names costs nothing but the way to the
leader; `replication/test_nearest.py` has who is chosen. Method: the consumer talks to `FakeBroker`s
in memory, on trio's autojump clock.
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
from tries import few

from hightide import Consumer, ErrorCode
from hightide.protocol import messages as m

NOWHERE = -1
INFOS = {number: m.BrokerInfo(id=number, host="127.0.0.1", port=number) for number in (1, 2, 3)}
AGE_S = 60
"""How old metadata gets."""


class RackBroker(FakeBroker):
    """Sends a consumer that names a rack to another broker, if it leads and `names` one; what it
    does not lead it serves only to who names a rack."""

    names = NOWHERE

    async def _fetch(self, request, attachments, trick):
        results = [self._checker(request, part) for part in request.partitions]
        if trick.refusal or all(r.error is None and r.preferred_read_replica < 0 for r in results):
            return await super()._fetch(request, attachments, trick)
        return m.FetchResponse(partitions=results)

    def _checker(self, request, part):
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
WAYS_TO_FAIL = [pytest.param(None, id="is down")]
WAYS_TO_FAIL += [pytest.param(fault, id=str(name)) for name, fault in FAULTS.items()]


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


@pytest.mark.parametrize("fault", few(WAYS_TO_FAIL, 5))
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
