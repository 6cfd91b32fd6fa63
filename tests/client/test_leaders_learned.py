"""A producer's batch goes to its leader as soon as anybody in the producer has heard who that is.

Goal: no batch waits for what another partition waits for, or for the next `send`. Method:
`FakeBroker`s in memory on trio's autojump clock.
"""

import random

import trio
from brokers import FakeClock
from fake_broker import FakeBroker, in_memory, refuse

from hightide import Producer
from hightide.protocol import messages as m

SOON_S = 1.0


def two_brokers(topics):
    first, second = FakeBroker(topics, id=1, port=1), FakeBroker(topics, id=2, port=2)
    for broker, other in ((first, second), (second, first)):
        broker.others.append(m.BrokerInfo(id=other.id, host=other.host, port=other.port))
    second.leaders = first.leaders  # both know who leads
    return first, second


def producer_of(broker, network):
    given = {"random": random.Random(3), "clock": FakeClock(), "linger_ms": 0}
    return Producer(broker.address, network=network, **given)


async def test_a_partition_with_a_leader_does_not_wait_for_one_without(autojump_clock):
    first, second = two_brokers({"lost": 1, "moved": 1})
    first.leaders.update({("lost", 0): 1, ("moved", 0): 1})
    async with in_memory(first, second) as network, producer_of(first, network) as producer:
        for topic in ("lost", "moved"):
            await (await producer.send(topic, b"first"))
        first.leaders.update({("lost", 0): -1, ("moved", 0): 2})
        first.always(m.ProduceRequest, refuse("NOT_LEADER_OR_FOLLOWER"))
        lost, moved = [await producer.send(topic, b"second") for topic in ("lost", "moved")]
        with trio.fail_after(SOON_S):
            await moved
        assert not lost.is_done
        first.always(m.ProduceRequest, None)
        first.leaders["lost", 0] = 1
        await lost
    assert (second.values("moved"), first.values("lost")) == ([b"second"], [b"first", b"second"])
