"""Goal: several nodes are one cluster and lose nothing they promised when some or all of them die.

Method: real processes on free ports, started with `up -n 3`; nodes are killed, put to sleep and
woken by process id, and every fact is read with the command line, as an operator would. What takes
time is waited for with far more patience than it needs.
"""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from commands import PATIENCE_S, hightide
from three_nodes import Nodes, until

from hightide_cli.failures import CORRUPT, OK, UNHEALTHY, USAGE

pytestmark = [pytest.mark.live, pytest.mark.slow]

NODES = (1, 2, 3)
BOTH = ["broker", "controller"]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A cluster that nobody harms."""
    made = Nodes(tmp_path_factory.mktemp("three") / "data", "-n", "3")
    yield made
    made.end()


@pytest.fixture
def start(tmp_path):
    """Start a cluster in an empty directory; it is dead when the test ends."""
    started = []

    def begin(*words):
        started.append(Nodes(tmp_path / "data", *words))
        return started[-1]

    yield begin
    for cluster in started:
        cluster.end()


def fill(cluster, topic, count=30):
    """Records in every partition of a topic of three, all of them acknowledged."""
    lines = [f"{topic} {number}" for number in range(count)]
    keyed = "".join(f"key {number},{line}\n" for number, line in enumerate(lines))
    cluster.run("produce", topic, "-K", ",", "--acks", "all", stdin=keyed.encode())
    assert {row["partition"] for row in cluster.read(topic)} == {0, 1, 2}
    return sorted(lines)


def values(cluster, topic, *words):
    return sorted(row["value"] for row in cluster.read(topic, *words))


# -- one cluster -----------------------------------------------------------------------------------


def test_up_prints_the_addresses_of_brokers_that_serve(three):
    assert re.fullmatch(r"(127\.0\.0\.1:\d+,){2}127\.0\.0\.1:\d+\n", three.up.out.decode())
    assert len(set(three.addresses)) == 3
    found = {json.dumps(brokers_through(address)) for address in three.addresses}
    assert len(found) == 1
    brokers = json.loads(found.pop())
    assert [(row["id"], row["fenced"], row["roles"]) for row in brokers] == [
        (node, False, BOTH) for node in NODES
    ]
    assert [f"{row['host']}:{row['port']}" for row in brokers] == three.addresses


def brokers_through(address):
    return json.loads(hightide("brokers", "list", "-o", "json", address=address).out)


def test_ps_lists_three_living_nodes_that_are_both(three):
    rows = three.ps()
    assert [row["node"] for row in rows] == list(NODES)
    assert all(row["roles"] == BOTH and row["alive"] for row in rows)
    assert [f"{row['host']}:{row['port']}" for row in rows] == three.addresses
    assert [Path(row["data"]).name for row in rows] == [f"broker-{node}" for node in NODES]
    pids = {row["pid"] for row in rows}
    assert len(pids) == 3
    for pid in pids:
        os.kill(pid, 0)


@pytest.mark.parametrize("through", NODES)
def test_what_one_broker_made_can_be_used_through_every_other_one_at_once(three, through):
    first, second, third = three.addresses[through - 1 :] + three.addresses[: through - 1]
    topic = f"made-through-{through}"
    hightide("topics", "create", topic, "-p", "3", address=first)
    words = ["produce", topic]
    for number, address in enumerate((second, third, first)):
        hightide(*words, "-p", number, stdin=b"%d\n" % number, address=address)
    for address in three.addresses:
        until(lambda at=address: topic in three.topics(at), what=f"{address} lists {topic}")
        ended = hightide("consume", topic, "--from", "start", "-e", "-J", address=address)
        assert {(row["partition"], row["value"]) for row in ended.rows} == {
            (number, str(number)) for number in range(3)
        }


def test_the_partitions_of_a_topic_are_led_by_different_brokers(three):
    three.create("spread", "-p", "3")
    partitions = three.describe("spread")["partitions"]
    assert sorted(row["leader"] for row in partitions) == list(NODES)


def test_quorum_status_is_the_same_through_every_broker(three):
    fields = ["cluster_id", "leader", "epoch", "high_watermark", "voters", "observers"]
    replica = [
        "id",
        "directory",
        "log_end_offset",
        "lag",
        "last_fetch_ms_ago",
        "last_caught_up_ms_ago",
    ]
    found = [three.quorum(address) for address in three.addresses]
    for status in found:
        assert list(status) == fields
        assert [voter["id"] for voter in status["voters"]] == list(NODES)
        assert all(list(voter) == replica for voter in status["voters"])
        assert all(0 <= voter["last_fetch_ms_ago"] < 60_000 for voter in status["voters"])
        assert all(voter["lag"] >= 0 for voter in status["voters"])
        assert status["observers"] == []
        assert status["high_watermark"] > 0
    assert len({(s["cluster_id"], s["leader"], s["epoch"]) for s in found}) == 1
    assert found[0]["leader"] in NODES
    assert f"cluster {found[0]['cluster_id']} is up" in three.up.err
    marks = [status["high_watermark"] for status in found]
    assert marks == sorted(marks)


def test_quorum_status_is_a_table_of_voters_or_only_the_leader(three):
    leader = three.active()
    assert three.run("quorum", "status", "-o", "quiet").out == b"%d\n" % leader
    lines = three.run("quorum", "status").out.decode().splitlines()
    assert lines[1] == f"leader: {leader}"
    assert [line.split()[:2] for line in lines[-3:]] == [[str(node), "voter"] for node in NODES]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], OK, "already running: process"),
        (["-n", "3"], OK, "already running: process"),
        (["-n", "2"], USAGE, "3 brokers, combined"),
        (["--roles", "split"], USAGE, "3 brokers, combined"),
    ],
    ids=["up", "up -n 3", "up -n 2", "up --roles split"],
)
def test_up_on_a_cluster_that_runs_tells_its_address_and_harms_nothing(three, words, code, said):
    three.create("unharmed", "-p", "3")
    before, plan = three.ps(), (three.data / "cluster.json").read_bytes()
    ended = hightide("up", "--detach", "--data", three.data, *words, code=code)
    assert ended.out == (three.up.out if code == OK else b"")
    assert said in " ".join(ended.err.split())
    assert three.ps() == before
    assert (three.data / "cluster.json").read_bytes() == plan
    three.run("produce", "unharmed", stdin=b"still here\n")
    assert "still here" in values(three, "unharmed")


# -- deaths ----------------------------------------------------------------------------------------


def test_a_dead_controller_is_replaced_and_everything_is_there_after_down_and_up(start):
    cluster = start("-n", "3", "--topic", "before:3:1")
    lines = fill(cluster, "before")
    dead = cluster.active()
    epoch = cluster.quorum()["epoch"]
    cluster.kill(dead)
    cluster.create("without-one", "-p", "1")
    alive = cluster.address_of(min(set(NODES) - {dead}))
    status = until(lambda: cluster.quorum(alive, code=UNHEALTHY), what="an unhealthy quorum")
    assert status["leader"] in set(NODES) - {dead}
    assert status["epoch"] > epoch
    assert [v["id"] for v in status["voters"] if v["last_fetch_ms_ago"] < 0] == [dead]
    ended = hightide("quorum", "status", address=alive, code=UNHEALTHY)
    assert f"voters [{dead}]" in ended.err
    assert cluster.pids().keys() == set(NODES) - {dead}

    ended = cluster.down()
    assert f"broker-{dead} does not run" in ended.err
    assert cluster.pids() == {}
    again = cluster.up_again()
    assert again.out == cluster.up.out
    assert cluster.topics() == {"before", "without-one"}
    assert cluster.quorum()["cluster_id"] == status["cluster_id"]
    assert cluster.quorum()["epoch"] > status["epoch"]
    assert values(cluster, "before") == lines


def test_what_was_acknowledged_survives_the_kill_of_every_node(start):
    cluster = start("-n", "3", "--topic", "first:3:1")
    hightide("topics", "create", "second", "-p", "3", address=cluster.addresses[2])
    lines = {topic: fill(cluster, topic) for topic in ("first", "second")}
    ids = {topic: cluster.describe(topic)["topic_id"] for topic in lines}
    hightide("topics", "create", "last", address=cluster.addresses[0])
    for pid in cluster.pids().values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not cluster.pids(), what="every node is gone")

    assert cluster.up_again().out == cluster.up.out
    assert cluster.topics() == {*lines, "last"}
    for topic, expected in lines.items():
        assert values(cluster, topic) == expected
        assert cluster.describe(topic)["topic_id"] == ids[topic]
    cluster.run("produce", "last", stdin=b"goes on\n")
    assert values(cluster, "last") == ["goes on"]
    assert "0 damaged" in hightide("log", "verify", cluster.data).err


def is_running(pid):
    """Whether a process is there, and not only its exit code for anybody who asks for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_down_leaves_no_process_and_directories_that_were_left_clean(start):
    cluster = start("-n", "3", "--topic", "t:3:1")
    lines = fill(cluster, "t")
    pids = cluster.pids()
    ended = cluster.down()
    assert ended.out == b""
    for node, pid in pids.items():
        assert f"broker-{node} (process {pid}) stopped" in ended.err
        until(lambda pid=pid: not is_running(pid), what=f"process {pid} is gone")
        where = f"log.dirs={cluster.data / f'broker-{node}'}"
        info = hightide("storage", "info", "--set", where, "-o", "json")
        assert json.loads(info.out)["clean_shutdown"] is True
    assert not any(row["alive"] for row in cluster.ps())
    assert cluster.down().err.count("does not run") == 3
    cluster.up_again()
    assert values(cluster, "t") == lines
    assert all("recovered" not in cluster.log(node) for node in NODES)


def test_a_controller_that_sleeps_is_replaced_and_steps_down_when_it_wakes(start):
    cluster = start("-n", "3")
    asleep = cluster.active()
    epoch = cluster.quorum()["epoch"]
    others = {node: cluster.address_of(node) for node in set(NODES) - {asleep}}
    pid = cluster.pids()[asleep]
    cluster.send(asleep, signal.SIGSTOP)
    try:
        cluster.create("meanwhile", address=",".join(others.values()))
        (address, *_) = others.values()
        status = until(lambda: cluster.quorum(address, code=UNHEALTHY), what="another leader")
        assert status["leader"] in others
        assert status["epoch"] > epoch
    finally:
        os.kill(pid, signal.SIGCONT)
    mine = cluster.address_of(asleep)
    found = until(lambda: cluster.quorum(mine), what="a quorum of three")
    assert found["leader"] in others
    assert found["epoch"] >= status["epoch"]
    until(lambda: "meanwhile" in cluster.topics(mine), what="it follows")
    assert f"no longer active in epoch {epoch}" in cluster.log(asleep)
    assert f"active controller of epoch {found['epoch']} " not in cluster.log(asleep)
    assert cluster.pids()[asleep] == pid
    hightide("topics", "create", "through-the-old-one", address=mine)
    assert "through-the-old-one" in cluster.topics(address)


def test_a_node_whose_vote_was_lost_does_not_start_and_the_others_go_on(start):
    cluster = start("-n", "3", "--topic", "t:3:1")
    lost = min(set(NODES) - {cluster.active()})
    cluster.kill(lost)
    (state,) = cluster.data.glob(f"broker-{lost}/*/quorum-state")
    state.unlink()
    logs = {path: path.read_bytes() for path in state.parent.glob("*.log")}
    assert logs
    started = cluster.start_one(lost)
    assert started.wait(PATIENCE_S) == CORRUPT
    said = cluster.log(lost).splitlines()[-1]
    assert f"{state.resolve()} is lost" in said
    assert "must not vote" in said
    assert "Traceback" not in cluster.log(lost)
    assert {path: path.read_bytes() for path in state.parent.glob("*.log")} == logs
    assert cluster.pids().keys() == set(NODES) - {lost}
    cluster.create("by-two")
    assert cluster.pids().keys() == set(NODES) - {lost}

    cluster.down()
    refused = cluster.up_again(code=CORRUPT)
    assert f"broker-{lost} did not start (exit code 7)" in refused.err
    assert "is lost" in refused.err
    assert refused.out == b""
    assert not state.exists()
    until(lambda: not cluster.pids(), what="nothing that it started is left")


# -- controllers of their own ----------------------------------------------------------------------


def test_split_roles_have_controllers_of_their_own_that_clients_need_not_know(start):
    cluster = start("-n", "2", "--roles", "split", "--topic", "t:3:1")
    rows = {row["node"]: row for row in cluster.ps()}
    assert [(node, *row["roles"]) for node, row in rows.items()] == [
        *((node, "broker") for node in (1, 2)),
        *((node, "controller") for node in (101, 102, 103)),
    ]
    assert all(row["alive"] for row in rows.values())
    assert len(cluster.addresses) == 2
    assert [cluster.address_of(node) for node in (1, 2)] == cluster.addresses
    status = cluster.quorum()
    assert [voter["id"] for voter in status["voters"]] == [101, 102, 103]
    assert [observer["id"] for observer in status["observers"]] == [1, 2]
    assert status["leader"] in {101, 102, 103}
    brokers = brokers_through(cluster.addresses[1])
    assert [(row["id"], row["roles"]) for row in brokers] == [(1, ["broker"]), (2, ["broker"])]
    lines = fill(cluster, "t")
    spare = min({101, 102, 103} - {status["leader"]})
    controller = cluster.address_of(spare)
    hightide("produce", "t", "-k", "by", stdin=b"a controller\n", address=controller)
    lines = sorted([*lines, "a controller"])
    words = ["consume", "t", "-g", "by", "--from", "start", "-c", str(len(lines))]
    found = hightide(*words, address=controller).out.decode().splitlines()
    assert sorted(found) == lines, "it knows who the brokers are"

    cluster.kill(status["leader"])
    assert values(cluster, "t") == lines
    cluster.create("after", "-p", "2")
    cluster.run("produce", "after", stdin=b"x\n")
    assert values(cluster, "after") == ["x"]
    until(lambda: cluster.quorum(code=UNHEALTHY), what="a quorum of two")
    cluster.down()
    assert cluster.up_again().out == cluster.up.out
    assert cluster.topics() == {"t", "after"}
    assert values(cluster, "t") == lines
