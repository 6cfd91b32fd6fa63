"""A client that is turned away says so, whenever that happens, and goes on when it is let in again.

Method: fake brokers in memory, and a network that turns clients away while the test wants it.
"""

import msgspec
import pytest
import trio
from fake_broker import FakeBroker, Trick, in_memory

from hightide import (
    Admin,
    ApiError,
    AuthenticationFailed,
    BrokerUnreachable,
    Consumer,
    DeliveryTimeout,
    ErrorCode,
    Producer,
)
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p


class Guarded:
    """A network whose brokers turn everybody away while they are `shut`; implements `Network`."""

    def __init__(self, network):
        self._network = network
        self.shut = False

    async def connect(self, host, port):
        if self.shut:
            await trio.lowlevel.checkpoint()
            raise AuthenticationFailed("its certificate is not believed")
        return await self._network.connect(host, port)


async def test_who_reads_is_told_once_for_each_poll_and_goes_on_when_let_in(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as plain:
        network = Guarded(plain)
        options = {"network": network, "auto_offset_reset": "earliest", "topics": ["t"]}
        async with Consumer(broker.address, **options) as consumer:
            assert await consumer.poll(timeout_ms=10) == []
            network.shut = True
            await broker.break_connections()
            for _ in range(2):
                with pytest.raises(AuthenticationFailed, match="not believed"):
                    await consumer.poll(timeout_ms=600_000)
            network.shut = False
            async with Producer(broker.address, network=network) as producer:
                await (await producer.send("t", b"x"))
            found = []
            while not found:
                try:
                    found = await consumer.poll(timeout_ms=600_000)
                except AuthenticationFailed:
                    continue  # from before
            assert [record.value for record in found] == [b"x"]


class OneDead:
    """One broker turns everybody away, the other is not there."""

    async def connect(self, host, port):
        await trio.lowlevel.checkpoint()
        if host == "guarded":
            raise AuthenticationFailed("its certificate is not believed")
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize("addresses", ["guarded:1,dead:2", "dead:2,guarded:1"])
async def test_a_dead_address_does_not_hide_that_another_turned_the_client_away(
    addresses, autojump_clock
):
    began = trio.current_time()
    with pytest.raises(AuthenticationFailed, match="not believed"):
        async with Admin(addresses, network=OneDead()) as admin:
            await admin.list_topics()
    assert trio.current_time() == began, "the same attempt would end the same way"
    with pytest.raises(BrokerUnreachable, match="refused"):
        async with Admin("dead:2", network=OneDead()) as admin:
            await admin.list_topics()


async def test_a_producer_that_gets_no_id_gives_its_records_up_at_once(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(p.InitProducerIdRequest, Trick(envelope=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    async with (
        in_memory(broker) as network,
        Producer(broker.address, acks="all", network=network) as producer,
    ):
        for _ in range(2):
            began = trio.current_time()
            delivery = await producer.send("t", b"x")
            with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
                await delivery
            assert trio.current_time() - began < 5
        broker.always(p.InitProducerIdRequest, None)
        await (await producer.send("t", b"y"))
    assert broker.values() == [b"y"]


async def test_records_for_a_topic_that_may_not_be_known_any_more_fail_at_once(autojump_clock):
    broker = FakeBroker({"t": 1, "u": 1})
    async with (
        in_memory(broker) as network,
        Producer(broker.address, acks="all", network=network) as producer,
    ):
        for topic in ("t", "u"):
            await (await producer.send(topic, b"first"))
        answer = broker._metadata(m.MetadataRequest(topics=["t", "u"]))
        denied = m.TopicMetadata(topic="t", error="TOPIC_AUTHORIZATION_FAILED", message="no")
        known = [each for each in answer.topics if each.topic == "u"]
        body = msgspec.structs.replace(answer, topics=[denied, *known])
        broker.always(m.MetadataRequest, Trick(body=body))
        producer._cluster.lost_leader("t", 0)
        began = trio.current_time()
        delivery = await producer.send("t", b"second")
        other = await producer.send("u", b"second")
        with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED: no"):
            await delivery
        await other
        assert trio.current_time() - began < 5


async def test_a_record_that_waited_for_a_producers_id_says_why_there_was_none(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(p.InitProducerIdRequest, Trick(envelope=ErrorCode.BROKER_NOT_AVAILABLE))
    async with in_memory(broker) as network:
        options = {
            "network": network,
            "delivery_timeout_ms": 2_000,
            "request_timeout_ms": 500,
            "acks": "all",
        }
        async with Producer(broker.address, **options) as producer:
            delivery = await producer.send("t", b"x")
            with pytest.raises(DeliveryTimeout, match=r"the last attempt: .*BROKER_NOT_AVAILABLE"):
                await delivery
    assert broker.count(m.ProduceRequest) == 0
