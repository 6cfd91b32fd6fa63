"""Goal: a cluster inside a test is a real one, can be harmed on demand, and leaves nothing behind.

Method: clusters of this process, used as a test of somebody else's would use them.
"""

import threading
from contextlib import suppress

import pytest
import trio
from patience import PATIENCE_S

import hightide
from hightide.blocking import Admin
from hightide.net.tcp import TcpNetwork
from hightide.protocol.errors import (
    AuthenticationFailed,
    HightideError,
    RemoteProtocolError,
    UsageError,
)
from hightide.testing import BlockingCluster, cluster

pytestmark = [pytest.mark.live, pytest.mark.slow]


async def make_topic(c, **options):
    async with hightide.Admin(c.bootstrap) as admin:
        await admin.create_topic(
            "t", replication_factor=3, configs={"min.insync.replicas": "2"}, **options
        )


async def send(c, *values, to=None):
    bootstrap = c.bootstrap if to is None else f"127.0.0.1:{c.ports[to]}"
    async with hightide.Producer(bootstrap, acks="all") as producer:
        for value in values:
            await (await producer.send("t", value))


async def read(c, count, **options):
    options.setdefault("auto_offset_reset", "earliest")
    found = []
    async with hightide.Consumer(c.bootstrap, topics=["t"], **options) as consumer:
        with trio.fail_after(PATIENCE_S):
            async for record in consumer:
                found.append(record.value)
                if len(found) == count:
                    return found


async def in_sync(c, *brokers, to=None):
    bootstrap = c.bootstrap if to is None else f"127.0.0.1:{c.ports[to]}"
    async with hightide.Admin(bootstrap) as admin:
        with trio.fail_after(PATIENCE_S):
            while {*(await admin.describe_topic("t")).partitions[0].isr} != {*brokers}:
                await trio.sleep(0.02)


async def test_what_was_acknowledged_survives_brokers_that_are_killed_and_stopped(tmp_path):
    async with cluster(brokers=3, directory=tmp_path) as c:
        await make_topic(c)
        await send(c, b"one")
        await c.kill(1)
        assert c.alive == [2, 3]
        await send(c, b"two")
        await c.start(1)
        await in_sync(c, 1, 2, 3)
        await c.stop(2)
        await send(c, b"three")
        assert await read(c, 3) == [b"one", b"two", b"three"]
        await c.kill(1)
        await c.kill(3)
        await c.start()
        assert c.alive == [1, 2, 3]
        assert await read(c, 3) == [b"one", b"two", b"three"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker-1", "broker-2", "broker-3"]


async def test_a_group_goes_on_with_another_coordinator():
    async with cluster(brokers=3, configs={"offsets.topic.num.partitions": "1"}) as c:
        await make_topic(c)
        await send(c, b"one", b"two")
        assert await read(c, 1, group_id="g") == [b"one"]
        async with hightide.Admin(c.bootstrap) as admin:
            await c.kill((await admin.describe_group("g")).coordinator)
            assert [each.committed for each in await admin.group_lag("g")] == [1]
        assert await read(c, 1, group_id="g") == [b"two"]


async def test_brokers_that_are_cut_off_leave_the_isr_and_return():
    configs = {"replica.lag.time.max.ms": "500", "replica.socket.timeout.ms": "500"}
    async with cluster(brokers=3, configs=configs) as c:
        await make_topic(c)
        async with hightide.Admin(c.bootstrap) as admin:
            leader = (await admin.describe_topic("t")).partitions[0].leader
            controller = (await admin.describe_cluster()).controller
        # Whom the controller cannot reach is fenced: that would be another story.
        lonely = next(broker for broker in c.alive if broker not in (leader, controller))
        c.cut(leader, lonely)
        await send(c, b"without it", to=leader)  # until then it has everything
        sent = [b"without it"]
        async with hightide.Admin(f"127.0.0.1:{c.ports[leader]}") as admin:
            with trio.fail_after(PATIENCE_S):
                while lonely in (found := (await admin.describe_topic("t")).partitions[0]).isr:
                    if found.leader not in (leader, lonely, -1):
                        leader = found.leader  # on a busy machine another one may lead by now
                        c.cut(leader, lonely)
                    await trio.sleep(0.2)
                    sent.append(b"without it, too")
                    await send(c, sent[-1], to=leader)
        c.heal()
        await in_sync(c, 1, 2, 3)
        assert (await read(c, len(sent)))[0] == b"without it"


async def test_a_cut_ends_a_connection_that_is_only_being_made(monkeypatch):
    async with cluster(brokers=2) as c:
        meet = TcpNetwork.connect

        async def meet_while_cut(network, host, port):
            stream = await meet(network, host, port)
            c.cut(1, 2)
            return stream

        with monkeypatch.context() as patch:
            patch.setattr(TcpNetwork, "connect", meet_while_cut)
            stream = await c.connect(1, TcpNetwork(), "127.0.0.1", c.ports[2])
        with trio.fail_after(PATIENCE_S):
            assert await stream.receive_into(memoryview(bytearray(1))) == 0
        await stream.aclose()


async def test_a_secure_cluster_is_one_to_those_who_have_its_certificate(tmp_path):
    async with cluster(brokers=3, directory=tmp_path, secure=True) as c:
        mine = {"bootstrap_servers": c.bootstrap, **c.client_options}
        async with hightide.Admin(**mine) as admin:
            await admin.create_topic("t", replication_factor=3)
        async with hightide.Producer(acks="all", **mine) as producer:
            await (await producer.send("t", b"one"))
        await c.kill(2)
        await c.start(2)
        c.cut(1, 3)
        c.heal()
        async with hightide.Consumer(
            topics=["t"], auto_offset_reset="earliest", **mine
        ) as consumer:
            assert (await anext(consumer)).value == b"one"
        strangers = ({}, {"security_protocol": "SSL"})
        for options in strangers:
            async with hightide.Admin(c.bootstrap, **options) as admin:
                with pytest.raises((AuthenticationFailed, RemoteProtocolError)):
                    await admin.list_topics()
    assert oct((tmp_path / "certs" / "admin.password").stat().st_mode & 0o777) == "0o600"


async def test_a_cluster_that_is_open_needs_no_options():
    async with cluster(brokers=1) as c:
        assert c.client_options == {}


async def test_what_makes_no_sense_is_refused():
    with pytest.raises(UsageError, match="brokers is 0"):
        async with cluster(brokers=0):
            pass
    async with cluster(brokers=1) as c:
        for harm in (c.kill, c.stop, c.start):
            with pytest.raises(UsageError, match=r"broker 2, expected one of \[1\]"):
                await harm(2)
        with pytest.raises(UsageError, match="broker 7"):
            c.cut(1, 7)
        await c.kill(1)
        await c.kill(1)


async def test_the_users_own_error_leaves_as_itself():
    with pytest.raises(ZeroDivisionError):
        async with cluster(brokers=1):
            _ = 1 / 0


def test_a_blocking_cluster_is_the_same_without_an_event_loop():
    threads = threading.active_count()
    with BlockingCluster(brokers=3) as c:
        with hightide.blocking.Admin(c.bootstrap) as admin:
            admin.create_topic("t", replication_factor=3)
        with hightide.blocking.Producer(c.bootstrap) as producer:
            assert producer.send("t", b"x").result().offset == 0
            c.kill(1)
            assert c.alive == [2, 3]
            assert producer.send("t", b"y").result().offset == 1
            producer.send("t", b"z")
            (many,) = producer.send_many("t", [b"1", b"2"]).result()
            assert (many.offset, many.length) == (3, 2)
        c.cut(2, 3)
        c.heal()
        c.start(1)
        c.stop(2)
        assert c.alive == [1, 3]
        bootstrap = c.bootstrap
    with (
        pytest.raises(HightideError),
        hightide.blocking.Admin(bootstrap, default_api_timeout_ms=300) as admin,
    ):
        admin.list_topics()
    assert threading.active_count() < threads + 50


async def test_a_quorum_that_nobody_leads_is_told_of_before_who_asks_gives_up():
    async with cluster(brokers=3) as c:
        await c.kill(2)
        await c.kill(3)
        alone = f"127.0.0.1:{c.ports[1]}"
        async with hightide.Admin(alone, default_api_timeout_ms=8000) as admin:
            with pytest.raises(hightide.ApiError, match=r"quorum of \(1, 2, 3\) needs a majority"):
                await describe_until_refused(admin)


async def describe_until_refused(admin):
    """The last of three has to find out first that it leads nobody."""
    with trio.fail_after(PATIENCE_S):
        while True:
            with suppress(hightide.RequestTimedOut):
                await admin.describe_quorum()


def test_the_fixture_comes_with_the_package(hightide_cluster):
    with hightide.blocking.Admin(hightide_cluster.bootstrap) as admin:
        assert len(admin.describe_cluster().brokers) == 3


def test_a_kafka_client_has_a_replicated_cluster_of_its_own():
    from confluent_kafka import Producer

    with BlockingCluster(brokers=3) as made, Admin(made.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=3)
        producer, told = Producer({"bootstrap.servers": made.bootstrap}), []
        producer.produce("t", b"v", on_delivery=lambda error, at: told.append((error, at)))
        assert producer.flush(60) == 0
        ((error, stored),) = told
        assert (error, stored.offset()) == (None, 0)
        (part,) = admin.describe_topic("t").partitions
        assert len(part.isr) == 3
