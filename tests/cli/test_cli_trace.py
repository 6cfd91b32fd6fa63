"""Goal: `hightide trace` tells what happened, from wherever it is kept, and no more than is wanted.

Method: one broker process for the whole file, and at last its directory alone; a simulated world's
trace in a file. Commands run in this process; what is to be interrupted is a process of its own.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import os
import re
import signal
import subprocess

import pytest
from commands import COMMAND, PATIENCE_S, StartedCluster, environment, hightide
from patience import wait_until
from secure_run import open_only, variables
from test_cli import command, nobody  # noqa: F401
from three_nodes import until

pytestmark = [pytest.mark.live, pytest.mark.slow]

UP = ("--topic", "orders", "--topic", "others")
UNREACHABLE, NOT_FOUND = 3, 4
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  "


@pytest.fixture
def trace(command, cluster):
    """What `trace` finds, as rows; asked of the broker unless the words name another source."""

    def run(*words):
        told = {"HIGHTIDE_BOOTSTRAP": cluster.address, **variables(cluster.address)}
        ended = command("trace", *words, "-o", "ndjson", **told)
        assert (ended.code, ended.err) == (0, "")
        return [json.loads(line) for line in ended.out.splitlines()]

    return run


def sentences(rows):
    return [row["sentence"] for row in rows]


def test_a_broker_tells_what_its_directory_says(trace, cluster):
    asked = trace()
    assert trace("--data", str(cluster.data))[: len(asked)] == asked
    assert trace("--file", str(cluster.data / "broker-1" / "trace"))[: len(asked)] == asked
    (file, *_) = (cluster.data / "broker-1" / "trace").glob("events-*")
    assert trace("--file", str(file))[0] == asked[0]
    assert asked[0]["what"]["event"] == "node_started"
    assert [row["number"] for row in asked] == sorted({row["number"] for row in asked})
    assert "topic orders is created" in sentences(asked)


def test_no_more_is_told_than_is_wanted(trace):
    everything = trace()
    rows = trace("--topic", "others")
    assert {row["what"].get("topic", "others") for row in rows} == {"others"}
    assert "topic others is created" in sentences(rows)
    assert any("is the leader" in text for text in sentences(rows)), "what all topics rest on"
    assert trace("--node", "1")[: len(everything)] == everything
    assert trace("--since", "2200-01-01") == []
    assert trace("--since", "9d")[: len(everything)] == everything
    middle = everything[-1]["ms"]
    assert {row["ms"] >= middle for row in trace("--since", str(middle))} == {True}


@pytest.mark.parametrize("how", [[], ["replay"]], ids=["told", "replayed"])
def test_who_does_not_occur_is_named(command, cluster, how):
    data = ["--data", str(cluster.data)]
    ended = command("trace", *how, *data, "--topic", "order", "--node", "9")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == (
        "no event is about topic 'order', did you mean orders?\n"
        "no event is told by node 9, but by 1\n"
    )
    assert command("trace", *how, *data, "--node", "2").out == ""
    assert command("trace", *how, *data, "--topic", "orders", "--node", "1").err == ""


@pytest.mark.parametrize("output", ["table", "quiet", "json"])
def test_what_happened_is_told_in_sentences_or_as_json(trace, command, cluster, output):
    wanted = sentences(trace("--topic", "orders"))
    ended = command("trace", "--data", str(cluster.data), "--topic", "orders", "-o", output)
    assert ended.code == 0
    if output == "json":
        assert sentences(json.loads(ended.out))[: len(wanted)] == wanted
        return
    pattern = TIME if output == "table" else ""
    for line, text in zip(ended.out.splitlines(), wanted, strict=False):
        assert re.fullmatch(pattern + re.escape(text), line)


def test_positions_are_told_on_demand(trace, cluster):
    cluster.run("produce", "orders", stdin=b"x\ny\n")

    def moved():
        rows = trace("--positions", "--topic", "orders")
        return [row for row in rows if "orders-0 2 of 2" in row["sentence"]]

    assert until(moved, what="the positions are told")
    assert not any("watermarks_moved" in row["what"]["event"] for row in trace())


def test_of_positions_and_lanes_those_of_other_topics_are_left_out(command, cluster):
    cluster.run("produce", "orders", stdin=b"z\n")
    cluster.run("produce", "others", stdin=b"z\n")

    def told():
        """What is told of everything, and of one topic, where both moved."""
        words = ("--data", str(cluster.data), "--topic", "others")
        replayed = command("trace", "replay", *words).out
        positions = command("trace", "--positions", "-o", "quiet", *words).out
        return replayed, positions

    replayed, positions = until(
        lambda: (said := told()) and all("others-0" in each for each in said) and said,
        what="the positions are told",
    )
    assert "committed others-0" in positions
    assert "orders-0" not in replayed + positions


def test_follow_goes_on_until_ctrl_c(cluster):
    with subprocess.Popen(
        [*COMMAND, "trace", "-f", "-o", "quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(cluster.address),
    ) as follower:
        try:
            assert b"starts as" in follower.stdout.readline()
            cluster.run("topics", "create", "later")
            while b"topic later is created" not in (line := follower.stdout.readline()):
                assert line, "it ended by itself"
            follower.send_signal(signal.SIGINT)
            _, err = follower.communicate(timeout=PATIENCE_S)
        finally:
            follower.kill()
    assert (follower.returncode, err.strip()) == (130, b"")


def test_nobody_at_the_address_is_told(command, nobody):
    ended = command("trace", "-b", nobody, "--timeout", "0.3")
    assert (ended.code, ended.out) == (UNREACHABLE, "")
    assert nobody in ended.err


def test_a_directory_that_is_named_and_is_none_is_not_passed_over(command, cluster, tmp_path):
    told = {"HIGHTIDE_BOOTSTRAP": cluster.address}
    ended = command("trace", "--data", str(tmp_path / "typo"), **told)
    assert (ended.code, ended.out) == (NOT_FOUND, "")
    assert "typo" in ended.err


def test_a_simulated_world_is_told_and_replayed_like_any_other(command, tmp_path):
    file, garbage = tmp_path / "trace.jsonl", b'garbage\n{"ms":1}\n\0\0'
    ended = command("sim", "replay", "1", "--world", "replicated", "-J", "--trace", str(file))
    assert ended.code == 0
    with file.open("ab") as more:
        more.write(garbage)
    told = command("trace", "--file", str(file), "-o", "quiet").out.splitlines()
    assert sum(" cut topic-" in line for line in told) == json.loads(ended.out)["cuts"] > 0
    (topic, *_) = re.findall(r"topic (topic-\S+) is created", "\n".join(told))
    replayed = command("trace", "replay", "--file", str(file), "--topic", topic).out.splitlines()
    at = max(number for number, line in enumerate(replayed) if f" cut {topic}-" in line)
    node, after = re.search(r"broker (\d+) cut \S+ from \d+ to (\d+)", replayed[at]).groups()
    lanes = replayed[at + 1 : at + 6]
    assert re.fullmatch(rf"    {topic}-\d: .* leads in epoch \d+, ISR .*", lanes[0])
    (lane,) = [line for line in lanes if re.match(rf"    +\*? *broker {node} ", line)]
    assert lane.endswith(f" of {after}")
    assert "_offsets" not in "\n".join(replayed)


def test_a_dead_cluster_tells_how_it_ended(command, cluster, nobody):
    hightide("down", "--data", cluster.data)
    told = {"HIGHTIDE_BOOTSTRAP": nobody}
    ended = command("trace", "--data", str(cluster.data), "-o", "quiet", **told)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "node 1 stopped"
    replayed = command("trace", "replay", "--data", str(cluster.data), "--topic", "orders").out
    assert re.search(r"orders-0: .* leads in epoch 0, ISR 1\n.*broker 1  ISR", replayed)
    assert "node 1 stopped" in replayed


@open_only("a secure one has its own test here")
def test_controllers_that_are_nodes_of_their_own_are_asked_too(command, tmp_path):
    made = StartedCluster(tmp_path / "data", "--roles", "split", "--port", "0")
    told = {"HIGHTIDE_BOOTSTRAP": made.address, **variables(made.address)}
    try:
        ended = command("trace", "-o", "ndjson", **told)
        rows = [json.loads(line) for line in ended.out.splitlines()]
        started = [row["node"] for row in rows if row["what"]["event"] == "node_started"]
        assert (sorted(started), ended.err) == ([1, 101, 102, 103], "")
        (dead,) = [row["pid"] for row in made.ps() if row["node"] == 103]
        os.kill(dead, signal.SIGKILL)
        wait_until(
            lambda: "without what controller 103 told: " in command("trace", **told).err,
            "the dead controller is missed",
        )
    finally:
        made.end()


def test_controllers_that_let_in_no_clients_are_named(command, tmp_path):
    made = StartedCluster(tmp_path / "data", "--roles", "split", "--port", "0", "--secure")
    try:
        ended = command("trace", "--config", str(made.data / "client.toml"), "-o", "quiet")
        missed = re.findall(r"(?m)^without what controller (\d+) told: .* certificate", ended.err)
        assert (ended.code, sorted(missed)) == (0, ["101", "102", "103"])
        assert "node 1 starts as broker" in ended.out
        assert ended.err.count("on its machine: hightide trace --file DIRECTORY/trace") == 3
    finally:
        made.end()
