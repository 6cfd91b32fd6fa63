"""Goal: promises 1, 5 and 7 hold for a real broker that is killed, and for files damaged since.

Method: `kill -9` by process id while an idempotent producer writes with acks=all, `up` again on the
same directory and port, and then every acknowledgement is compared with what a consumer reads.
Damage is done to the files of a dead broker; what it says about it is read as an operator would.
"""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from commands import StartedCluster, hightide
from patience import PATIENCE_S, wait_until_true
from secure_run import reaching

from hightide import Consumer, Producer
from hightide.protocol.messages import LATEST

pytestmark = pytest.mark.live

KILLS = 3
PARTITIONS = 2
ACKS_BETWEEN = 300


class Killed(StartedCluster):
    """A cluster of one broker that may die and comes back at the same address."""

    def pid(self):
        """The process that holds the directory; None if it is free."""
        return self.ps()[0]["pid"]

    def kill(self):
        """`kill -9`; returns when the kernel has let go of the directory."""
        os.kill(self.pid(), signal.SIGKILL)
        hightide("down", "--data", self.data)
        assert self.pid() is None

    def up_again(self):
        ended = hightide("up", "--detach", "--data", self.data)
        assert ended.out.decode().strip() == self.address

    def segment(self, topic) -> Path:
        """The only segment file of a topic's only partition."""
        (found,) = self.partition(topic).glob("*.log")
        return found

    def log(self):
        """What the broker said since it was first started."""
        return (self.data / "logs" / "broker-1.log").read_text()


@pytest.fixture
def start(tmp_path):
    """Start a cluster in an empty directory; it is dead when the test ends."""
    started = []

    def begin(*words):
        started.append(Killed(tmp_path / "data", "--port", "0", *words))
        return started[-1]

    yield begin
    for cluster in started:
        with suppress(ProcessLookupError):
            cluster.end()


async def until(true):
    """Wait for a condition."""
    await wait_until_true(true, "as many are acknowledged", every_s=0.002)


class Writer:
    """Sends numbered records to all partitions in turn until told to stop."""

    def __init__(self, producer):
        self.producer = producer
        self.sent = []
        self.stopped = trio.Event()
        self._acked = 0

    async def run(self):
        number = 0
        while not self.stopped.is_set():
            partition = number % PARTITIONS
            delivery = await self.producer.send("t", b"%d" % number, partition=partition)
            self.sent.append((partition, b"%d" % number, delivery))
            number += 1
            await trio.sleep(0)

    def acked(self):
        """How many records, from the first on, have their acknowledgement."""
        while self._acked < len(self.sent) and self.sent[self._acked][2].is_done:
            self._acked += 1
        return self._acked


async def read_all(address):
    """Every record of the topic, from the start to its end."""
    found = []
    async with Consumer(
        **reaching(address), topics=["t"], auto_offset_reset="earliest"
    ) as consumer:
        left = sum(at.offset for at in (await consumer.offsets(LATEST)).values())
        with trio.fail_after(PATIENCE_S):
            while len(found) < left:
                found += await consumer.poll(timeout_ms=100)
    return found


@pytest.mark.parametrize("flush", ["synced", "replicated"])
async def test_an_acknowledged_record_survives_every_kill_and_is_there_once(start, flush):
    cluster = start("--topic", f"t:{PARTITIONS}", "--set", f"flush={flush}")
    retried = []
    # Little memory, so that the producer waits for a dead broker instead of running ahead of it.
    async with Producer(
        **reaching(cluster.address),
        batch_size=2048,
        linger_ms=1,
        buffer_memory=64 << 10,
        on_retry=retried.append,
    ) as producer:
        writer = Writer(producer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            for _ in range(KILLS):
                goal = writer.acked() + ACKS_BETWEEN
                await until(lambda goal=goal: writer.acked() >= goal)
                pid = await trio.to_thread.run_sync(cluster.pid)
                await until(lambda: writer.acked() < len(writer.sent))
                os.kill(pid, signal.SIGKILL)
                await trio.to_thread.run_sync(hightide, "down", "--data", cluster.data)
                assert cluster.pid() is None
                await trio.to_thread.run_sync(cluster.up_again)
            goal = len(writer.sent) + ACKS_BETWEEN
            await until(lambda: writer.acked() >= goal)
            writer.stopped.set()
    assert len(retried) >= KILLS
    # Leaving the producer's block means that every record has its outcome.
    placed = {}
    for partition, value, delivery in writer.sent:
        where = delivery.result()
        assert where.partition == partition
        assert placed.setdefault((partition, where.offset), value) == value
    assert len(placed) == len(writer.sent)

    found = {(r.partition, r.offset): r.value for r in await read_all(cluster.address)}
    assert found == placed
    for partition in range(PARTITIONS):
        values = [found[at] for at in sorted(found) if at[0] == partition]
        assert values == [value for where, value, _ in writer.sent if where == partition]
    assert cluster.log().count("serves on") == KILLS + 1
    assert "recovered, scanned" in cluster.log()
    assert "0 damaged" in hightide("log", "verify", cluster.data).err


def fill(cluster, topic):
    """Three batches of three records each."""
    for start in (0, 3, 6):
        lines = b"".join(b"record %d\n" % (start + n) for n in range(3))
        cluster.run("produce", topic, stdin=lines)
    return [b"record %d" % n for n in range(9)]


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_damage_in_the_middle_takes_one_partition_offline_and_says_so(start):
    cluster = start("--topic", "broken", "--topic", "sound")
    values = fill(cluster, "sound")
    fill(cluster, "broken")
    cluster.kill()
    segment = cluster.segment("broken")
    second = hightide("log", "dump", segment, "-J").rows[1]
    flip(segment, second["position"] + second["size"] - 1)
    damaged = segment.read_bytes()
    cluster.up_again()

    place = f"{segment} is damaged at byte {second['position']}"
    (partition,) = cluster.describe("broken")["partitions"]
    assert place in partition["error"]
    line = cluster.run("topics", "describe", "broken").out.decode().splitlines()[1]
    assert "Offline: " in line
    assert "hightide log verify" in line
    assert f"broken-0 is offline: {place}" in cluster.log()
    assert "ERROR" in next(line for line in cluster.log().splitlines() if place in line)

    assert cluster.run("consume", "sound", "--from", "start", "-e").lines == values
    cluster.run("produce", "sound", stdin=b"more\n")
    assert len(cluster.read("sound")) == len(values) + 1
    refused = cluster.run("produce", "broken", "--timeout", "1", stdin=b"no\n", code=3)
    assert place in refused.err
    assert segment.read_bytes() == damaged


@pytest.mark.parametrize("until_when", [["-e"], ["-c", "1"]], ids=" ".join)
@pytest.mark.parametrize("found", ["at start", "by the reader"])
def test_reading_a_damaged_partition_is_an_error_that_says_why(start, found, until_when):
    cluster = start("--topic", "broken")
    fill(cluster, "broken")
    if found == "at start":
        cluster.kill()
    else:
        # After a clean stop nothing is scanned, so that the damage is met when it is read.
        hightide("down", "--data", cluster.data)
    flip(cluster.segment("broken"), 70)
    cluster.up_again()
    words = ["consume", "broken", "--from", "start", *until_when, "--timeout", "1"]
    # Hanging is what this test is about, so its patience is shorter than elsewhere.
    ended = hightide(*words, address=cluster.address, code=None, patience_s=10)
    assert ended.code in {1, 3, 7}
    assert ended.out == b""
    assert f"{cluster.segment('broken')} is damaged at byte 0" in ended.err


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 4096, b"garbage" * 99, None], ids=["zeros", "text", "half a batch"]
)
def test_a_torn_tail_is_cut_and_said(start, garbage):
    cluster = start("--topic", "t")
    values = fill(cluster, "t")
    cluster.kill()
    segment = cluster.segment("t")
    whole = segment.read_bytes()
    garbage = whole[: len(whole) // 3 - 5] if garbage is None else garbage
    segment.write_bytes(whole + garbage)
    cluster.up_again()

    said = f"cut {len(garbage)} bytes from byte {len(whole)} of {segment}"
    assert said in cluster.log()
    assert cluster.run("consume", "t", "--from", "start", "-e").lines == values
    assert segment.read_bytes() == whole
    cluster.run("produce", "t", stdin=b"next\n")
    assert cluster.read("t")[-1]["offset"] == len(values)


def test_a_second_broker_on_the_directory_is_refused_and_names_the_first(start):
    cluster = start("--topic", "t")
    values = fill(cluster, "t")
    directory = cluster.data / "broker-1"
    ended = hightide(
        *("server", "start", "--set", f"log.dirs={directory}", "--set", "listen.port=0"), code=5
    )
    assert f"process {cluster.pid()} " in ended.err
    assert str(directory) in ended.err
    assert cluster.run("consume", "t", "--from", "start", "-e").lines == values


def test_keys_the_broker_does_not_know_stop_it_before_it_touches_anything(tmp_path):
    where = tmp_path / "data"
    ended = hightide("up", "--detach", "--data", where, "--set", "log.dir=x", code=2)
    assert "did you mean log.dirs" in ended.err
    words = ["server", "start", "--set", f"log.dirs={where}", "--set", "listen.port=0"]
    ended = hightide(*words, "--set", "flush=later", code=2)
    assert "'later'" in ended.err
    (tmp_path / "broker.toml").write_text("[listen]\nports = 1\n")
    ended = hightide(*words, "-c", tmp_path / "broker.toml", code=2)
    assert "listen.ports" in ended.err
    assert not where.exists()


def test_a_clean_stop_is_trusted_and_scans_nothing(start):
    cluster = start("--topic", "t")
    values = fill(cluster, "t")
    hightide("down", "--data", cluster.data)
    info = hightide(
        *("storage", "info", "--set", f"log.dirs={cluster.data / 'broker-1'}", "-o", "json")
    )
    assert json.loads(info.out)["clean_shutdown"] is True
    cluster.up_again()
    assert "recovered" not in cluster.log()
    assert cluster.run("consume", "t", "--from", "start", "-e").lines == values
