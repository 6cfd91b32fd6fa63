"""Where no majority of the controllers is there, commands show what is known and say what that is.

Method: three nodes as processes, of which two are killed.
"""

import json
import signal
from urllib.request import urlopen

import pytest
from three_nodes import Nodes, until

from hightide_cli.failures import UNHEALTHY, UNREACHABLE
from hightide_cli.leaderless import leaderless

pytestmark = [pytest.mark.live, pytest.mark.slow]

BROKER, NODE = leaderless("the broker that was asked"), leaderless("the node that was asked")
SHOWN = {
    ("topics", "list"): "orders",
    ("topics", "describe"): "PartitionCount: 1",
    ("topics", "describe", "orders"): "PartitionCount: 1",
    ("brokers", "list"): "broker,controller",
    ("brokers", "describe", "1"): "free_bytes",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Of three; and what its commands say while all is well."""
    made = Nodes(tmp_path_factory.mktemp("three") / "data", "-n", "3", "--topic", "orders:1:3")
    try:
        made.said = {words: made.run(*words) for words in SHOWN}
        made.status = made.run("quorum", "status")
        made.quorum = examined(made, code=0)
        for node in (2, 3):
            made.send(node, signal.SIGKILL)
        until(lambda: made.run("brokers", "list").err, what="nobody leads")
        yield made
    finally:
        made.end()


def examined(cluster, code):
    """What doctor finds of the quorum."""
    words = ("doctor", "--data", cluster.data, "--port", "0", "-o", "json")
    rows = json.loads(cluster.run(*words, code=code).out)
    return next(row for row in rows if row["check"] == "quorum")


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_what_is_known_is_shown_and_that_it_may_be_old(cluster, words):
    ended = cluster.run(*words)
    assert SHOWN[words] in ended.out.decode()
    assert BROKER in ended.err
    before = cluster.said[words]
    assert SHOWN[words] in before.out.decode()
    assert "controller is active" not in before.err


def test_the_quorum_is_told_by_the_node_that_is_left(cluster):
    ended = cluster.run("quorum", "status", "-o", "json", code=UNHEALTHY)
    told = json.loads(ended.out)
    assert told["leader"] == -1
    assert told["epoch"] >= 1
    ends = {voter["id"]: voter["log_end_offset"] for voter in told["voters"]}
    assert ends[1] >= told["high_watermark"] > 0
    assert (ends[2], ends[3]) == (-1, -1)
    assert NODE in ended.err
    assert "controller is active" not in cluster.status.err


def test_what_happened_is_told_by_the_node_that_is_left(cluster):
    ended = cluster.run("trace")
    assert "node 1 starts as" in ended.out.decode()
    assert "controllers that are no brokers" not in ended.err


def test_the_node_that_is_left_stays_alive_and_ready(cluster):
    rows = json.loads(cluster.run("ps", "--data", cluster.data, "-o", "json").out)
    (address,) = [row["metrics"] for row in rows if row["node"] == 1]
    for path, words in {"healthz": "alive", "readyz?verbose": "ready"}.items():
        with urlopen(f"http://{address}/{path}") as answer:
            said = answer.read().decode()
        assert said.startswith(words)
    assert "no active controller is heard" in said


def test_what_is_to_be_decided_by_a_leader_is_refused_as_before(cluster):
    ended = cluster.run("quorum", "replace", "2", "--timeout", "4", code=UNREACHABLE)
    assert "needs a majority" in ended.err


def test_doctor_finds_it(cluster):
    assert cluster.quorum["status"] == "ok"
    assert cluster.quorum["found"].endswith("leads, of voters [1, 2, 3]")
    found = examined(cluster, code=UNHEALTHY)
    assert (found["status"], found["found"]) == ("fail", NODE)
    assert "hightide up" in found["advice"]
