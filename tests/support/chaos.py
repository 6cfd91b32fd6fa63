"""What the chaos test is made of: brokers behind forwarders, bad luck from a seed, and clients that
take notes.

No test lives here. A broker is reached, by clients and by the other brokers, only through a
forwarder in this process, which can hold back whatever it carries, reset it, or let nobody in. Each
start of a broker gets a port of its own that only its forwarder knows.
"""

import random
import shutil
import signal
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import trio
from chaos_disks import BALLAST, fill
from chaos_network import HOST, Ways
from commands import hightide
from patience import PATIENCE_S, Patience, wait_until_true
from secure_run import IS_ON, reaching, remember

from hightide import Admin, Consumer
from hightide.net.ports import system_random
from hightide.protocol.columns import to_records
from hightide.protocol.errors import ApiError, HightideError
from hightide.protocol.records import check_crc, iter_batches
from hightide_broker.runtime.cluster.controller import random_id
from hightide_broker.secure_local import make_secrets
from hightide_cli.processes import (
    NodeProcess,
    Plan,
    format_nodes,
    start_node,
    stop_nodes,
    tail,
)
from hightide_cli.secure_cluster import CERTIFICATES, keys_of, write_client_file

NODES = (1, 2, 3)
TOPIC = "t"
PARTITIONS = 2
POLL_S = 0.02

SHORT_TIMEOUTS = (
    "replica.lag.time.max.ms=1s",
    "replica.socket.timeout.ms=2s",
    "broker.heartbeat.interval.ms=500",
    "broker.session.timeout.ms=2s",
    "controller.quorum.election.timeout.ms=500",
    "controller.quorum.fetch.timeout.ms=1s",
    "controller.quorum.request.timeout.ms=1s",
    "leader.imbalance.check.interval.seconds=2",
    "replica.high.watermark.checkpoint.interval.ms=500",
    "shutdown.timeout.ms=1s",
    "group.initial.rebalance.delay.ms=300",
    "offsets.topic.num.partitions=3",
    "offsets.commit.timeout.ms=2s",
    "min.insync.replicas=2",
)
"""Each one of them runs out within the longest fault; and leaders go home soon, to be hit again."""


async def until(true, *, what, progress=lambda: None):
    """Wait for something that is true; what it was, when it is."""
    return await wait_until_true(true, what, progress=progress, every_s=POLL_S)


# -- the brokers -----------------------------------------------------------------------------------


class Brokers:
    """Three brokers that are controllers, too, each behind its forwarder."""

    def __init__(self, data, nursery):
        self.nodes = {node: NodeProcess(data, node) for node in NODES}
        self.ways = {node: Ways(nursery, split=IS_ON) for node in NODES}
        self.address = ",".join(f"{HOST}:{each.clients.port}" for each in self.ways.values())
        ports = tuple((self.nodes[n], each.clients.port) for n, each in self.ways.items())
        internal = tuple(each.nodes.port for each in self.ways.values() if IS_ON)
        self._plan = Plan(random_id(system_random()), ports, internal)
        if IS_ON:
            make_secrets(data / CERTIFICATES, NODES)
            write_client_file(data, self.address)
            remember(data, *self.address.split(","))
        format_nodes(self._plan, self._plan.processes)
        self._processes = {}

    def start(self, node):
        """Start a process, and let connections in."""
        ways = self.ways[node]
        ways.lead_to_new_ports()
        ways.admit()
        self._processes[node] = start_node(
            self.nodes[node],
            port=ways.clients.target,
            cluster_id=self._plan.cluster_id,
            voters=self._plan.voters,
            assignments=[
                f"advertised.port={ways.clients.port}",
                *self._security(node),
                *SHORT_TIMEOUTS,
            ],
        )

    def _security(self, node):
        if not IS_ON:
            return []
        process, way = self.nodes[node], self.ways[node].nodes
        keys = keys_of(process.data, node, way.target)
        return [*keys, f"internal.advertised.port={way.port}"]

    def check(self):
        """No process has ended by itself."""
        for node, process in self._processes.items():
            code, last = process.poll(), tail(self.nodes[node].log_file, 20)
            assert code is None, "\n".join([f"broker {node} ended with {code}:", *last])

    async def serve(self, *nodes):
        """Wait until brokers serve."""

        def served():
            self.check()
            return all(self.nodes[n].facts().get("pid") == self._processes[n].pid for n in nodes)

        await until(served, what=f"brokers {nodes} serve")

    def send(self, node, number):
        """Send a signal to a broker's process."""
        self._processes[node].send_signal(number)

    async def kill(self, node):
        """`kill -9`; returns when the process is gone."""
        process = self._processes.pop(node)
        process.kill()
        await trio.to_thread.run_sync(process.wait)

    def empty(self, node):
        """The directory of a node that does not run is another one, for the cluster that exists."""
        for path in self.nodes[node].directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        format_nodes(self._plan, [self.nodes[node]], joining=True)

    async def stop(self):
        """Stop all in order; {node: exit code}."""
        left = await trio.to_thread.run_sync(stop_nodes, list(self.nodes.values()))
        assert not left, f"{left} do not stop"
        stopped, self._processes = self._processes, {}
        return {n: await trio.to_thread.run_sync(each.wait) for n, each in stopped.items()}

    def end(self):
        """Nothing of it is left alive, asleep or not."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(PATIENCE_S)
        for ways in self.ways.values():
            ways.close()


@asynccontextmanager
async def open_brokers(data):
    """Brokers that serve, for the block."""
    async with trio.open_nursery() as nursery:
        brokers = Brokers(data, nursery)
        try:
            for node in NODES:
                brokers.start(node)
            await brokers.serve(*NODES)
            yield brokers
        finally:
            brokers.end()
            nursery.cancel_scope.cancel()


# -- bad luck --------------------------------------------------------------------------------------

KINDS = ("kill", "kill unseen", "sleep", "cut", "reset")
"""Unseen: the forwarder still lets everybody in, and they find nobody there."""
FULL_KINDS = ("fill", "kill while full")
"""Where disks are small."""
LOSES_SHARE = 0.1
"""How often a broker that is hit by itself is killed and loses its directory."""
BOTH_SHARE = 0.2
"""How often two brokers are hit at a time."""


class Hit(NamedTuple):
    """What is done to one broker."""

    kind: str
    node: int
    after_s: float
    for_s: float

    def __str__(self):
        return f"{self.kind} {self.node}" + f" for {self.for_s:.1f} s" * (self.kind != "reset")


class Faults:
    """Hits brokers as a seed decides, one after the other or two at a time."""

    def __init__(self, brokers, seed, *, fills=False):
        self._brokers = brokers
        self._random = random.Random(seed)
        self._kinds = KINDS + FULL_KINDS * fills

    async def run(self, seconds):
        """Hit brokers for a time; at the end everything is healed, and all processes serve."""
        ends = trio.current_time() + seconds
        while trio.current_time() < ends:
            hits, rest_s = self._draw()
            print(time.strftime("%H:%M:%S"), " and ".join(map(str, hits)))
            async with trio.open_nursery() as nursery:
                for hit in hits:
                    nursery.start_soon(self._hit, hit)
            await trio.sleep(rest_s)
        print(time.strftime("%H:%M:%S"), "healed")

    def _draw(self):
        """The next hits, and the rest after them. All that is drawn is drawn here, in order."""
        draw = self._random
        nodes = draw.sample(NODES, 2 if draw.random() < BOTH_SHARE else 1)
        hits = []
        if len(nodes) == 1 and draw.random() < LOSES_SHARE:
            return [Hit("lose", nodes[0], 0, draw.uniform(0.5, 3))], draw.uniform(0, 0.7)
        for place, node in enumerate(nodes):
            after_s = place * draw.uniform(0, 0.5)
            hits.append(Hit(draw.choice(self._kinds), node, after_s, draw.uniform(0.5, 3)))
        return hits, draw.uniform(0, 0.7)

    async def _hit(self, hit):
        brokers, node = self._brokers, hit.node
        ways = brokers.ways[node]
        await trio.sleep(hit.after_s)
        match hit.kind:
            case "kill" | "kill unseen":
                await self._kill(hit)
            case "sleep":
                brokers.send(node, signal.SIGSTOP)
                await trio.sleep(hit.for_s)
                brokers.send(node, signal.SIGCONT)
            case "cut":
                ways.cut()
                await trio.sleep(hit.for_s)
                ways.heal()
            case "reset":
                ways.reset()
            case "fill" | "kill while full":
                await self._fill(hit)
            case "lose":
                await self._lose(node, hit.for_s)
        brokers.check()

    async def _kill(self, hit):
        brokers, node = self._brokers, hit.node
        ways = brokers.ways[node]
        await brokers.kill(node)
        ways.lead_nowhere()
        ways.refuse()
        if hit.kind == "kill unseen":
            ways.admit()
        await trio.sleep(hit.for_s / 2)
        ways.refuse()
        brokers.start(node)
        await brokers.serve(node)

    async def _fill(self, hit):
        """A broker's disk is full for a while, and it may have to start on it."""
        directory = self._brokers.nodes[hit.node].directory
        await trio.to_thread.run_sync(fill, directory)
        if hit.kind == "kill while full":
            await trio.sleep(hit.for_s / 2)
            await self._kill(hit)
        await trio.sleep(hit.for_s / 2)
        (directory / BALLAST).unlink()

    async def _lose(self, node, for_s):
        """A broker's disk is gone, and an empty one is let in. Nothing else happens until all are
        in sync: what counts is on two disks, so that one may go."""
        brokers = self._brokers
        await brokers.kill(node)
        brokers.ways[node].refuse()
        brokers.empty(node)
        await trio.sleep(for_s)
        brokers.start(node)
        await brokers.serve(node)
        words = ["quorum", "replace", str(node), "--timeout", str(PATIENCE_S)]
        replace = partial(hightide, *words, address=brokers.address)
        await trio.to_thread.run_sync(replace)
        async with Admin(**reaching(brokers.address)) as admin:
            await until_in_sync(admin, everything=True)


# -- clients ---------------------------------------------------------------------------------------


class Writer:
    """Sends numbered records to the partitions in turn, in bursts, until told to stop."""

    def __init__(self, producer):
        self.sent = []
        """(partition, number, delivery) of every record, in the order of its sending."""
        self.stopped = False
        self._producer = producer

    async def run(self):
        while not self.stopped:
            burst = 1 + len(self.sent) % 23
            for _ in range(burst):
                number = len(self.sent)
                where = number // 7 % PARTITIONS
                delivery = await self._producer.send(TOPIC, b"%d" % number, partition=where)
                self.sent.append((where, number, delivery))
            await trio.sleep(0.004)


class Reader:
    """Reads both partitions from their starts; a record that is not the next one is an error."""

    def __init__(self, name):
        self.values = {number: [] for number in range(PARTITIONS)}
        self.told = []
        """Errors that may pass, which it was told nevertheless."""
        self._name = name

    async def run(self, address):
        partitions = [(TOPIC, number) for number in self.values]
        async with Consumer(
            **reaching(address),
            partitions=partitions,
            auto_offset_reset="none",
            request_timeout_ms=2000,
        ) as consumer:
            for number in self.values:
                consumer.seek(TOPIC, number, 0)
            while True:
                await self._poll(consumer)

    async def _poll(self, consumer):
        try:
            records = await consumer.poll(timeout_ms=500)
        except ApiError as error:
            if not error.retriable:
                raise
            self.told.append(error)
            return
        for record in records:
            seen = self.values[record.partition]
            where = f"{self._name} read offset {record.offset} of partition {record.partition}"
            assert record.offset == len(seen), f"{where} as number {len(seen)}"
            seen.append(int(record.value))

    def has_read(self, ends):
        """Whether everything below these offsets was read."""
        return all(len(self.values[number]) >= end for number, end in ends.items())


async def until_in_sync(admin, *, everything=False):
    """Wait until every replica of every partition is in sync, those of internal topics as well if
    they are asked for; the partitions' leader epochs."""
    found = []
    patience = Patience("all are in sync", lambda: str(found))
    while True:
        with suppress(HightideError):
            topics = await admin.list_topics()
            found = [
                part
                for topic in topics
                if topic.topic == TOPIC or everything
                for part in topic.partitions
            ]
            if found and all(len(part.isr) == len(NODES) and part.leader > 0 for part in found):
                return [part.leader_epoch for part in found]
        patience.check()
        await trio.sleep(POLL_S)


# -- what is on the disks --------------------------------------------------------------------------


class Stored(NamedTuple):
    """One replica, as its files have it."""

    batches: list[bytes]
    values: list[int]
    """By offset."""


def read_replica(directory, *, below):
    """The batches of a replica below a watermark, each of them checked; no byte is left over."""
    batches, values = [], []
    for path in sorted(directory.glob("*.log")):
        data, size = path.read_bytes(), 0
        for header, batch in iter_batches(data):
            check_crc(batch, header)
            size += header.size
            if header.base_offset >= below:
                continue
            assert header.base_offset == len(values), f"{path} goes on at {header.base_offset}"
            batches.append(bytes(batch))
            values += [int(r.value) for r in to_records(batch, header, TOPIC, 0)]
        assert size == len(data), f"{path} has {len(data) - size} bytes behind its batches"
    return Stored(batches, values)
