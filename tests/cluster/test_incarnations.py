"""A process that was frozen while another one took its node id, and goes on.

Goal: a broker speaks for the registration that it made itself, never for the one that its image
shows: it fetches under its own epoch, so that its log counts for nobody else's, leads no epoch that
was given to another process, and stops, saying why, as soon as it hears of another registration of
its id. Method: whole nodes on virtual time. Broker 2 is frozen and fenced, a process with its id on
an empty disk is let in, and the old one thaws long before its next heartbeat.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager

import pytest
import trio
from small_worlds import until

from hightide import Admin, Producer
from hightide.net.background import single
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.config import make_config
from hightide_broker.opening import open_node
from hightide_broker.ports import NodeMustStop
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.simulation.network import SimNetwork, Weather
from hightide_broker.simulation.scheduler import run_seeded
from hightide_broker.simulation.world import CLUSTER_ID, PORT, SimClock

CONTROLLER, TWO, THREE = 1, 2, 3
SOON_S = 2.0
"""Far less than a heartbeat's interval."""
CONFIG = {
    "cluster.id": CLUSTER_ID,
    "controller.quorum.voters": f"{CONTROLLER}@one:{PORT}",
    "listen.port": str(PORT),
    "broker.heartbeat.interval.ms": "60s",
    "broker.session.timeout.ms": "300s",
    "replica.fetch.backoff.ms": "200",
    "auto.leader.rebalance.enable": "false",
}


class Process:
    """A node's process on a host and a disk of its own; at its end, why it had to stop."""

    def __init__(self, network, node, host):
        roles = "controller" if node == CONTROLLER else "broker"
        facts = {"node.id": str(node), "process.roles": roles, "log.dirs": "data/node"}
        self.host, self.node, self.why = host, None, ""
        self.ended = trio.Event()
        self._config = make_config({**CONFIG, **facts, "listen.host": host})
        self._network = network

    async def run(self):
        host = self._network.host(self.host)
        try:
            async with open_node(
                self._config,
                disk=SimDisk(),
                clock=SimClock(),
                random=random.Random(self.host),
                listen=host.listen,
                network=host,
                wait=False,
            ) as self.node:
                await trio.sleep_forever()
        except* NodeMustStop as group:
            self.why = _only(group)
        finally:
            self.ended.set()

    async def serves(self):
        await until(lambda: self.node is not None)
        await self.node.serving.wait()

    @property
    def is_over(self):
        return self.ended.is_set()

    def replica(self, topic):
        """Its replica; None once it is over."""
        return None if self.is_over else self.node.replicas.get(topic, 0)


def _only(group):
    return str(single(group))


class Yard:
    """A controller, broker 3, and two processes that are broker 2."""

    def __init__(self, network):
        self.network = network
        self.one = Process(network, CONTROLLER, "one")
        self.old = Process(network, TWO, "two")
        self.new = Process(network, TWO, "two-again")
        self.three = Process(network, THREE, "three")

    @property
    def image(self):
        return self.one.node.image

    def state(self, topic):
        return self.image.topics[topic].partitions[0]

    def cut(self, one, other):
        for pair in ((one.host, other.host), (other.host, one.host)):
            self.network.cut(*pair)

    async def ask(self, request):
        """The controller decides."""
        answer, _ = await self.one.node.channel.ask(request)
        return answer

    async def produce(self, topic, count):
        network = self.network.host("client")
        facts = {"network": network, "random": random.Random(1), "clock": SimClock()}
        async with Producer(f"three:{PORT}", acks="all", **facts) as producer:
            for number in range(count):
                await (await producer.send(topic, b"%d" % number))

    async def replace(self, nursery, *, cut_off=False):
        """The old process is frozen and fenced; the new one serves; the old one thaws."""
        self.network.freeze(self.old.host)
        fence = c.BrokerHeartbeatRequest(
            broker=TWO,
            broker_epoch=self.image.brokers[TWO].epoch,
            metadata_offset=0,
            want_fence=True,
        )
        assert (await self.ask(fence)).fenced
        if cut_off:
            self.cut(self.new, self.three)
        nursery.start_soon(self.new.run)
        await self.new.serves()
        assert not self.old.is_over

    def thaw(self):
        self.network.thaw(self.old.host)


@asynccontextmanager
async def yard(nursery):
    """All but the new process serve; topic `t` is led by broker 3, `u` by broker 2."""
    at = Yard(SimNetwork(random.Random(1), Weather(latency_s=0.0005, jitter_s=0.0)))
    for process in (at.one, at.old, at.three):
        nursery.start_soon(process.run)
    for process in (at.one, at.old, at.three):
        await process.serves()
    network = at.network.host("client")
    async with Admin(f"three:{PORT}", network=network, random=random.Random(1)) as admin:
        await admin.create_topic("t", assignment=[[THREE, TWO]])
        await admin.create_topic("u", assignment=[[TWO, THREE]])
        await at.produce("t", 3)
        await at.produce("u", 3)
        await until(lambda: len(at.state("t").isr) == len(at.state("u").isr) == 2)
        yield at
    nursery.cancel_scope.cancel()


def in_yard(body):
    async def main():
        async with trio.open_nursery() as nursery, yard(nursery) as at:
            await body(at, nursery)

    run_seeded(1, main)


class Overhearing:
    """Who answers a node's requests, and what followers ask it."""

    def __init__(self, node):
        self._answering = node.server._terms.handlers
        self.fetches = []
        node.server._terms.handlers = self

    def begin(self, api, call):
        request = call.request
        if isinstance(request, m.FetchRequest) and request.replica_id >= 0:
            self.fetches.append(request)
        return self._answering.begin(api, call)


def test_who_hears_of_another_registration_of_its_id_stops_and_says_why():
    async def body(at, nursery):
        await at.replace(nursery)
        at.thaw()
        with trio.move_on_after(SOON_S):
            await at.old.ended.wait()
        assert at.old.is_over, "long before its next heartbeat"
        assert f"{TWO}" in at.old.why
        assert "registration" in at.old.why or "registered" in at.old.why
        await trio.sleep(SOON_S)
        assert not at.new.is_over
        assert not at.three.is_over
        await until(lambda: set(at.state("t").isr) == {TWO, THREE})

    in_yard(body)


def test_a_process_fetches_under_the_epoch_of_its_own_registration_only():
    async def body(at, nursery):
        own = at.image.brokers[TWO].epoch
        await at.replace(nursery, cut_off=True)
        assert at.image.brokers[TWO].epoch > own
        overhearing = Overhearing(at.three.node)
        at.thaw()
        await trio.sleep(SOON_S)
        assert {each.replica_epoch for each in overhearing.fetches} <= {own}

    in_yard(body)


def test_a_replaced_process_gets_nobody_into_the_isr():
    async def body(at, nursery):
        await at.replace(nursery, cut_off=True)
        await at.produce("t", 2)
        at.thaw()
        for _ in range(20):
            await trio.sleep(SOON_S / 20)
            assert at.state("t").isr == (THREE,), "the process that is registered has nothing"
            assert at.new.replica("t").log.log_end == 0

    in_yard(body)


@pytest.mark.parametrize("topic", ["u", "t"])
def test_a_replaced_process_leads_no_epoch_of_its_successor(topic):
    async def body(at, nursery):
        await at.replace(nursery)
        await until(lambda: set(at.state(topic).isr) == {TWO, THREE})
        if topic == "u":
            parts = [m.PartitionName(topic=topic, partition=0)]
            await at.ask(m.ElectLeadersRequest(partitions=parts))
        else:
            await at.ask(await _stop(at))
        await until(lambda: at.state(topic).leader == TWO)
        await until(lambda: at.new.replica(topic).leader is not None)
        epoch = at.new.replica(topic).leader_epoch
        at.thaw()
        for _ in range(200):
            await trio.sleep(SOON_S / 200)
            old = at.old.replica(topic)
            assert old is None or old.leader is None or old.leader_epoch < epoch

    in_yard(body)


async def _stop(at):
    """Broker 3 is fenced, too: the one that is left leads."""
    epoch = at.image.brokers[THREE].epoch
    return c.BrokerHeartbeatRequest(
        broker=THREE, broker_epoch=epoch, metadata_offset=0, want_fence=True
    )
