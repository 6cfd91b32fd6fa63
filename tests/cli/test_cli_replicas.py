"""Goal: an operator sees which replicas are whole, in sync, different or gone, by exit code and by
JSON, and can take single nodes of a cluster down and bring them back.

Method: one cluster of three processes for the whole file. A test that takes nodes down finds all of
them up and in sync, and so does the next one. Bytes are changed in the log of a broker that is
stopped meanwhile.
"""

import json
from types import SimpleNamespace

import pytest
import trio
from commands import hightide
from secure_run import reaching
from three_nodes import STOP_IN_ORDER, Nodes, until

from hightide import Admin, Producer
from hightide.protocol.records import HEADER_BYTES, encode_batch, iter_batches
from hightide_cli.failures import CORRUPT, NOT_FOUND, UNREACHABLE, USAGE
from hightide_cli.partitions import _describe

pytestmark = [pytest.mark.live, pytest.mark.slow]

NODES = {1, 2, 3}
RECORDS = 5
TOPICS = {
    # name: partitions, replicas, min.insync.replicas
    "safe": (1, 3, 2),
    "strict": (1, 3, 3),
    "single": (3, 1, 1),
    "flipped": (1, 3, 1),
    "forged": (1, 3, 1),
}
DESCRIBED = [
    *("broker", "leads", "in_sync", "leader_epoch", "log_start_offset", "high_watermark"),
    *("log_end_offset", "error"),
]
COMPARED = ["broker", "log_start_offset", "high_watermark", "batches", "error"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Nodes(tmp_path_factory.mktemp("replicas") / "data", "-n", "3", stop=STOP_IN_ORDER)
    try:
        trio.run(fill, made.address)
        yield made
    finally:
        made.end()


async def fill(address):
    """The topics, and in three of them batches of one record."""
    to = reaching(address)
    async with Admin(**to) as admin, Producer(**to, acks="all", linger_ms=0) as producer:
        for name, (partitions, replicas, min_isr) in TOPICS.items():
            await admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replicas,
                configs={"min.insync.replicas": str(min_isr)},
            )
        for name in ("safe", "flipped", "forged"):
            for number in range(RECORDS):
                await (await producer.send(name, b"record %d" % number))


@pytest.fixture
def three(cluster):
    """The cluster, all of it up and in sync."""
    bring_back(cluster)
    return cluster


def bring_back(cluster):
    if cluster.pids().keys() != NODES:
        cluster.up_again()
    until_in_sync(cluster)


def until_in_sync(cluster):
    def is_in_sync():
        _, parts = trio.run(look, cluster.address)
        return all(len(part.isr) == len(part.replicas) and part.leader >= 0 for part in parts)

    until(is_in_sync, what="all replicas are in sync")


async def look(address):
    """Who serves, and all partitions, as a broker knows it."""
    async with Admin(**reaching(address)) as admin:
        brokers = (await admin.describe_cluster()).brokers
        topics = await admin.list_topics()
    return {b.id for b in brokers if not b.fenced}, [
        p for topic in topics for p in topic.partitions
    ]


def stop(cluster, node):
    """`down --node`, until all others know of it; what it said."""
    ended = hightide("down", "--data", cluster.data, "--node", node)
    addresses = {
        row["node"]: f"{row['host']}:{row['port']}" for row in cluster.ps() if row["alive"]
    }
    assert node not in addresses
    for address in addresses.values():
        until(
            lambda at=address: trio.run(look, at)[0] == addresses.keys(),
            what=f"{address} knows who serves",
        )
    return ended


def flagged(cluster, *words):
    """{topic: its partitions} that `topics describe` finds with a condition."""
    ended = cluster.run("topics", "describe", *words, "-o", "json", "--timeout", "10")
    return {
        row["topic"]: {part["partition"] for part in row["partitions"]}
        for row in json.loads(ended.out)
    }


def replicas(cluster, topic):
    """{broker: its row} of a topic's first partition, by `partitions describe`."""
    rows = json.loads(cluster.run("partitions", "describe", f"{topic}:0", "-o", "json").out)
    assert all(list(row) == DESCRIBED for row in rows)
    return {row["broker"]: row for row in rows}


def diff(cluster, topic, code=None):
    """How `partitions diff` ended, and {broker: its row}."""
    ended = cluster.run("partitions", "diff", f"{topic}:0", "-o", "json", code=code)
    rows = json.loads(ended.out)
    assert all(list(row) == COMPARED for row in rows)
    return ended, {row["broker"]: row for row in rows}


def homes(cluster):
    """{broker: the partition of `single` that it alone has}."""
    partitions = cluster.describe("single")["partitions"]
    return {part["replicas"][0]: part["partition"] for part in partitions}


# -- replicas side by side -------------------------------------------------------------------------


def test_describe_has_a_row_for_each_replica_in_the_order_of_the_assignment(three):
    (partition,) = three.describe("safe")["partitions"]
    until(lambda: marks(three, "safe") == {RECORDS}, what="every follower knows the watermark")
    found = replicas(three, "safe")
    assert list(found) == partition["replicas"]
    for broker, row in found.items():
        assert row == {
            "broker": broker,
            "leads": broker == partition["leader"],
            "in_sync": True,
            "leader_epoch": partition["leader_epoch"],
            "log_start_offset": 0,
            "high_watermark": RECORDS,
            "log_end_offset": RECORDS,
            "error": None,
        }


def marks(cluster, topic):
    return {row["high_watermark"] for row in replicas(cluster, topic).values()}


def test_replicas_that_agree_are_told_to_agree(three):
    until(lambda: marks(three, "safe") == {RECORDS}, what="every follower knows the watermark")
    ended, found = diff(three, "safe", code=0)
    assert "3 replicas agree" in ended.err
    assert found.keys() == NODES
    same = {"log_start_offset": 0, "high_watermark": RECORDS, "batches": RECORDS, "error": None}
    assert all(row == {"broker": broker, **same} for broker, row in found.items())


@pytest.mark.parametrize("command", ["describe", "diff"])
@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        ("safe:1", NOT_FOUND, "there is no safe:1: safe has safe:0"),
        ("single:3", NOT_FOUND, "there is no single:3: single has single:0 to single:2"),
        ("safe", USAGE, "expected TOPIC:PARTITION"),
        ("safe:-1", USAGE, "safe"),
        ("nowhere:0", NOT_FOUND, "nowhere"),
    ],
)
def test_a_partition_that_is_not_there_is_named(cluster, command, part, code, said):
    ended = cluster.run("partitions", command, part, code=code)
    assert ended.out == b""
    assert said in ended.err


class Listed:
    """An admin that knows a partition whose leader, broker 2, says this of its replica."""

    def __init__(self, replicas):
        part = SimpleNamespace(
            partition=0, leader=2, isr=[2], replicas=[1, 2], message="", leader_epoch=4
        )
        self._topic = SimpleNamespace(partitions=[part])
        self._replicas = replicas

    async def describe_topic(self, topic):
        return self._topic

    async def describe_log_dirs(self, topics):
        return [SimpleNamespace(broker=broker, replicas=[r]) for broker, r in self._replicas]


def told(error):
    known = {"leader_epoch": 4, "log_start_offset": 0, "high_watermark": 1, "log_end_offset": 1}
    return SimpleNamespace(partition=0, error=error, **known)


@pytest.mark.parametrize(
    ("replicas", "trouble"),
    [
        ([(1, told("")), (2, told(""))], ""),
        ([(2, told(""))], ""),
        ([(1, told("")), (2, told("disk failed"))], "cannot be read: disk failed"),
        ([(1, told(""))], "broker 2 leads it and cannot be read: no answer"),
    ],
)
def test_a_leader_that_cannot_be_read_is_a_trouble_and_a_follower_is_not(replicas, trouble):
    rows, said = trio.run(_describe, Listed(replicas), "t", 0)
    assert [row["broker"] for row in rows] == [1, 2]
    assert said.endswith(trouble)
    assert bool(said) == bool(trouble)


# -- bytes that differ -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tampered(cluster):
    """A broker that follows in two topics, whose third batches were changed while it was down."""
    bring_back(cluster)
    leading = {cluster.describe(name)["partitions"][0]["leader"] for name in ("flipped", "forged")}
    node = min(NODES - leading)
    for name in ("flipped", "forged"):
        until(lambda name=name: marks(cluster, name) == {RECORDS}, what="the watermark is known")
    stop(cluster, node)
    change_third_batch(cluster, node, "flipped", keep_checksum=True)
    change_third_batch(cluster, node, "forged", keep_checksum=False)
    bring_back(cluster)
    return node


def change_third_batch(cluster, node, topic, *, keep_checksum):
    """Another byte in its record; with the checksum that it had, or one that fits."""
    (path,) = (cluster.data / f"broker-{node}" / f"{topic}-0").glob("*.log")
    stored = path.read_bytes()
    batches = list(iter_batches(stored))
    assert len(batches) == RECORDS
    header, third = batches[2]
    start = sum(each.size for each, _ in batches[:2])
    changed = bytearray(third)
    changed[-1] ^= 1
    if not keep_checksum:
        changed = encode_batch(
            changed[HEADER_BYTES:],
            record_count=header.record_count,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    path.write_bytes(stored[:start] + changed + stored[start + len(changed) :])


def test_a_batch_that_is_another_one_is_named_with_both_brokers(cluster, tampered):
    ended, found = diff(cluster, "forged", code=CORRUPT)
    (difference,) = ended.err.splitlines()
    first = next(iter(found))
    assert f"broker {tampered} has" in difference
    assert f"broker {first} " in difference
    assert difference.count("offsets 2 to 2 of epoch") == 2
    assert {row["batches"] for row in found.values()} == {RECORDS}
    assert {row["error"] for row in found.values()} == {None}


def test_a_byte_that_its_checksum_does_not_fit_is_found_and_repaired_by_the_leader(
    cluster, tampered
):
    assert "is cut where it is damaged" not in cluster.log(tampered)
    ended, found = diff(cluster, "flipped", code=CORRUPT)
    assert "agree" not in ended.err
    assert "KAFKA_STORAGE_ERROR" in found[tampered]["error"]
    assert [row["batches"] for row in found.values() if not row["error"]] == [RECORDS] * 2

    until(lambda: diff(cluster, "flipped")[0].code == 0, what="the replica is repaired")
    assert "flipped-0 is cut where it is damaged" in cluster.log(tampered)
    until_in_sync(cluster)
    rows = cluster.run("consume", "flipped", "--from", "start", "-e").lines
    assert rows == [b"record %d" % number for number in range(RECORDS)]


# -- nodes that are down ---------------------------------------------------------------------------


def test_down_of_a_node_that_is_not_there_is_refused_and_stops_nothing(three):
    pids = three.pids()
    ended = hightide("down", "--data", three.data, "--node", "9", code=NOT_FOUND)
    assert (ended.out, ended.err) == (
        b"",
        f"there is no node 9 in {three.data}; --data names another directory\n",
    )
    assert three.pids() == pids


def test_with_all_up_only_who_needs_every_replica_is_at_its_limit(three):
    at_limit = {"strict": {0}, "single": {0, 1, 2}}
    assert flagged(three, "--under-replicated") == {}
    assert flagged(three, "--at-min-isr") == at_limit
    assert flagged(three, "--under-min-isr") == {}
    assert flagged(three, "--unavailable") == {}
    assert flagged(three, "--unavailable", "--at-min-isr") == at_limit, "any of them"
    assert flagged(three).keys() == TOPICS.keys()


def test_with_one_down_the_rest_goes_on_and_up_starts_only_that_one(three):
    gone = min(NODES - {three.active()})
    pids, home = three.pids(), homes(three)
    said = stop(three, gone)
    assert said.err == f"broker-{gone} (process {pids[gone]}) stopped\n"
    assert three.pids() == {node: pid for node, pid in pids.items() if node != gone}

    alone = {home[gone]}
    short = {name: {0} for name in TOPICS} | {"single": alone}
    assert flagged(three, "--under-replicated") == short
    assert flagged(three, "--at-min-isr") == {"safe": {0}, "single": {0, 1, 2} - alone}
    assert flagged(three, "--under-min-isr") == {"strict": {0}, "single": alone}
    assert flagged(three, "--unavailable") == {"single": alone}
    row = replicas(three, "safe")[gone]
    assert row == dict.fromkeys(DESCRIBED) | {
        "broker": gone,
        "leads": False,
        "in_sync": False,
        "error": "no answer",
    }
    ended, found = diff(three, "safe", code=UNREACHABLE)
    assert "agree" not in ended.err
    assert "refused" in found[gone]["error"]
    assert [row["batches"] for row in found.values() if not row["error"]] == [RECORDS] * 2

    assert stop(three, gone).err == f"broker-{gone} does not run\n"
    again = three.up_again()
    assert again.out == three.up.out
    for node in NODES - {gone}:
        assert f"already running: process {pids[node]} serves" in again.err
    now = three.pids()
    assert now.keys() == NODES
    assert {node for node in NODES if now[node] != pids[node]} == {gone}
    until_in_sync(three)
    assert flagged(three, "--unavailable") == {}


def test_with_two_down_the_last_one_tells_what_it_knows_and_all_comes_back(three):
    left = three.active()
    home = homes(three)
    for node in NODES - {left}:
        stop(three, node)
    assert three.pids().keys() == {left}
    lost = {home[node] for node in NODES - {left}}
    everywhere = {name: {0} for name in TOPICS} | {"single": lost}
    assert flagged(three, "--under-replicated") == everywhere
    at_limit = {"single": {home[left]}, "flipped": {0}, "forged": {0}}
    assert flagged(three, "--at-min-isr") == at_limit
    assert flagged(three, "--under-min-isr") == {"safe": {0}, "strict": {0}, "single": lost}
    assert flagged(three, "--unavailable") == {"single": lost}

    bring_back(three)
    assert flagged(three, "--unavailable") == {}
    assert flagged(three, "--under-min-isr") == {}
    assert diff(three, "safe", code=0)[1].keys() == NODES


def test_up_of_a_whole_cluster_starts_nothing(three):
    pids = three.pids()
    ended = three.up_again()
    assert ended.out == three.up.out
    assert ended.err.count("already running: process") == 3
    assert all(f"process {pid} serves" in ended.err for pid in pids.values())
    assert three.pids() == pids
