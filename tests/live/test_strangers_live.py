"""What strangers cost a broker that is a process of its own: memory, and the time of its users.

Goal: who has not proven who it is cannot make a broker large, or keep others from being served.
Method: a broker under TLS where users log in, one where they do so in clear text, crowds of real
sockets; the system tells what a process holds. Of time nothing is asserted: `-s` prints what was
measured.
"""

import json
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import guessers as guessing
import pytest
import trio
from commands import COMMAND, StartedCluster, environment, hightide
from crowds import STATUS, Crowd, Held, many_files
from patience import PATIENCE_S, wait_until, wait_until_true
from tries import some

from hightide import Admin, AuthenticationFailed, Producer, read_client_config
from hightide.net.outbox import send_all
from hightide.net.tcp import TcpNetwork
from hightide.net.tls import Tls, TlsFiles
from hightide.net.tls_stream import TlsNetwork
from hightide_broker.runtime.server.login import FAILED

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell what is held"),
]

ANNOUNCED = 64 << 20
SENT = 2 << 20
"""Of what was announced, as long as the broker does not close."""
AGAIN = 20
"""Of those who announce, so many come again until the users are done."""
GROWTH_MAX = 200 << 20
SILENT = 500
SILENT_BYTES_MAX = 64 << 10
WRONG = 100
"""At a time."""
PASSWORD = "open sesame"
RECORDS = 20


@pytest.fixture(autouse=True)
def files():
    with many_files():
        yield


class Broker:
    """A process, how strangers get as far as its login, and how its users come."""

    def __init__(self, pid, port, network, options):
        self.held = Held(pid)
        self.port = port
        self.network = network
        self.options = {"bootstrap_servers": f"127.0.0.1:{port}", **options}

    def producer(self):
        return Producer(acks="all", **self.options)

    async def prepare(self):
        async with Admin(**self.options) as admin:
            if "t" not in {each.topic for each in await admin.list_topics()}:
                await admin.create_topic("t")
        async with self.producer() as producer:
            await (await producer.send("t", b"warm"))


@pytest.fixture(scope="module")
def under_tls(tmp_path_factory):
    """Users log in under TLS."""
    data = tmp_path_factory.mktemp("tls") / "data"
    made = StartedCluster(data, "--port", "0", "--secure")
    try:
        (row,) = made.ps()
        options = read_client_config(data / "client.toml")
        del options["bootstrap_servers"]
        network = TlsNetwork(Tls(TlsFiles(authorities=options["ssl_ca_location"])))
        yield Broker(row["pid"], row["port"], network, options)
    finally:
        made.end()


@pytest.fixture(scope="module")
def in_clear_text(tmp_path_factory):
    """Users log in, and nothing is encrypted."""
    place = tmp_path_factory.mktemp("clear")
    (place / "password").write_text(PASSWORD)
    facts = {
        "log.dirs": place / "data",
        "listen.port": 0,
        "internal.listen.port": 0,
        "security.protocol": "SASL_PLAINTEXT",
    }
    words = [word for name, value in facts.items() for word in ("--set", f"{name}={value}")]
    user = ("--user", f"admin={place / 'password'}")
    hightide("storage", "format", *words, "--cluster-id", "clear", *user)
    ready = place / "ready.json"
    with (place / "log").open("w") as log:
        started = subprocess.Popen(
            [*COMMAND, "server", "start", *map(str, words), "--ready-file", ready],
            stderr=log,
            env=environment(),
        )
    try:
        wait_until(ready.exists, "it serves", progress=started.poll)
        options = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_username": "admin",
            "sasl_password": PASSWORD,
        }
        port = json.loads(ready.read_text())["port"]
        yield Broker(started.pid, port, TcpNetwork(), options)
    finally:
        started.kill()
        started.wait(PATIENCE_S)


def told(what, **figures):
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
    print(f"\n{what}: {shown}", end="")


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"


def ms(seconds):
    return f"{seconds * 1000:.1f} ms"


# -- silent peers ----------------------------------------------------------------------------------


async def first_acks(broker, rounds=9):
    """How long new producers wait until their first record is acknowledged."""
    found = []
    for _ in range(rounds):
        since = time.perf_counter()
        async with broker.producer() as producer:
            await (await producer.send("t", b"first"))
            found.append(time.perf_counter() - since)
    return found


async def test_silent_peers_cost_little_memory_and_no_users_time(under_tls):
    """They say nothing, not even TLS; no more of them stay than a door holds. The first test here:
    what others left behind would be taken again."""
    await under_tls.prepare()
    alone = await first_acks(under_tls)
    before = under_tls.held.now
    async with Crowd() as crowd:
        await crowd.come(TcpNetwork(), under_tls.port, SILENT)
        beside = await first_acks(under_tls)
        growth, left = under_tls.held.most - before, crowd.left
        told(
            f"{SILENT} silent peers",
            still_there=left,
            first_ack_alone=ms(statistics.median(alone)),
            first_ack_beside_them=ms(statistics.median(beside)),
            grown_by=mib(growth),
            for_each=f"{growth / max(left, 1) / 1024:.1f} KiB",
        )
        assert growth <= SILENT * SILENT_BYTES_MAX
        await wait_until_true(
            lambda: crowd.left == 0, "all of them are closed", progress=lambda: crowd.left
        )
    await under_tls.prepare()


# -- wrong passwords -------------------------------------------------------------------------------


def p99(found):
    return statistics.quantiles(found, n=100)[98]


async def latencies(producer, count=300):
    found = []
    for _ in range(count):
        since = time.perf_counter()
        await (await producer.send("t", b"x" * 100))
        found.append(time.perf_counter() - since)
    return found


@contextmanager
def guessers(broker, *words):
    """A process that guesses passwords; what it heard, how often, once the block is over."""
    heard = {}
    command = [
        sys.executable,
        guessing.__file__,
        str(broker.port),
        broker.options["ssl_ca_location"],
    ]
    with subprocess.Popen(
        [*command, str(WRONG), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            yield heard
            heard.update(json.loads(process.communicate(timeout=PATIENCE_S)[0]))
        finally:
            process.kill()


@pytest.mark.parametrize(
    "words", some([["once"], []], 1), ids=lambda words: " ".join(words) or "again and again"
)
async def test_wrong_passwords_hear_one_sentence_while_a_user_produces(under_tls, words):
    """Their own process does not share the user's time, but the broker's."""
    await under_tls.prepare()
    async with under_tls.producer() as producer:
        alone = await latencies(producer)
        with guessers(under_tls, *words) as heard:
            beside = await latencies(producer)
    told(
        f"{WRONG} wrong passwords at a time, {words}",
        refused=sum(heard.values()),
        p50_alone=ms(statistics.median(alone)),
        p50_beside_them=ms(statistics.median(beside)),
        p99_alone=ms(p99(alone)),
        p99_beside_them=ms(p99(beside)),
    )
    assert list(heard) == [FAILED]
    assert heard[FAILED] >= WRONG
    await under_tls.prepare()


# -- frames that are announced ---------------------------------------------------------------------


class Announcers:
    """Those who announce a large frame, and send of it what they can; some come again and again."""

    def __init__(self, broker):
        self._broker = broker
        self.begun = 0
        self.closed = 0
        """By the broker, before they had sent all they had."""
        self.is_over = False

    async def run(self, count):
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(self._one, number < AGAIN)

    async def _one(self, again):
        while True:
            self.begun += 1
            with suppress(OSError, AuthenticationFailed):
                await self._come()
            self.closed += 1
            if self.is_over or not again:
                return

    async def _come(self):
        """Returns, or raises `OSError`, when the broker has ended it."""
        broker = self._broker
        stream = await broker.network.connect("127.0.0.1", broker.port)
        try:
            await send_all(stream, [ANNOUNCED.to_bytes(4), bytes(SENT)])
            while await stream.receive_into(memoryview(bytearray(4096))):
                pass
        finally:
            await stream.aclose()


@pytest.mark.parametrize(("door", "count"), some([("in_clear_text", 1000), ("under_tls", 400)], 1))
async def test_large_frames_of_nobody_make_no_large_broker(door, count, request):
    """CVE-2022-34917. A user who is in, and one who comes, are served while they come and go."""
    broker = request.getfixturevalue(door)
    await broker.prepare()
    before, crowd = broker.held.now, Announcers(broker)
    async with broker.producer() as calm, trio.open_nursery() as nursery:
        await (await calm.send("t", b"calm"))
        nursery.start_soon(crowd.run, count)
        while crowd.begun < count:
            await trio.sleep(0)
        for number in range(RECORDS):
            await (await calm.send("t", b"%d" % number))
        async with broker.producer() as new:
            await (await new.send("t", b"new"))
        closed_meanwhile, crowd.is_over = crowd.closed, True
    assert crowd.closed == crowd.begun >= count
    growth = broker.held.most - before
    told(
        f"{ANNOUNCED >> 20} MiB announced by {count} at a time, {door}",
        came=crowd.begun,
        closed_before_the_users_were_done=closed_meanwhile,
        grown_at_most_by=mib(growth),
    )
    assert growth <= GROWTH_MAX
    await broker.prepare()
