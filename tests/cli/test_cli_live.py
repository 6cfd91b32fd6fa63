"""Goal: every command against a real broker does what the design says, as a shell sees it.

Method: one broker process for the whole file, started with `up --detach`; each test runs commands
as processes of their own on topics of its own and reads what they print and how they end.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest
from commands import COMMAND, PATIENCE_S, StartedCluster, environment, hightide, topic  # noqa: F401

pytestmark = pytest.mark.live


# Records of 1970 are to stay, however long these tests take.
UP = ("--topic", "orders:3", "--topic", "plain", "--set", "log.retention.ms=-1")


# -- up, ps, logs ----------------------------------------------------------------------------------


def test_up_prints_the_address_and_tells_the_rest_on_stderr(cluster):
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", cluster.up.out.decode())
    assert "hightide down --data" in cluster.up.err
    found = json.loads(cluster.run("topics", "list", "-o", "json").out)
    assert {"topic": "orders", "partitions": 3, "replication_factor": 1}.items() <= next(
        row.items() for row in found if row["topic"] == "orders"
    )


def test_ps_lists_a_living_broker(cluster):
    (row,) = cluster.ps()
    os.kill(row["pid"], 0)
    columns = ["node", "pid", "host", "port", "internal", "metrics", "roles", "alive", "data"]
    assert list(row) == columns
    assert row["node"] == 1
    assert row["alive"] is True
    assert f"{row['host']}:{row['port']}" == cluster.address
    assert Path(row["data"]) == cluster.data / "broker-1"
    assert hightide("ps", "--data", cluster.data, "-o", "quiet").out == b"1\n"


def test_metrics_prints_what_prometheus_reads_and_the_port_says_that_it_is_ready(cluster):
    (row,) = cluster.ps()
    page = hightide("metrics", "--data", cluster.data).out.decode()
    assert 'hightide_node_state{state="running"} 1\n' in page
    assert "hightide_partition_offset" not in page
    detail = hightide("metrics", "--data", cluster.data, "--detail").out.decode()
    assert 'hightide_partition_offset{topic="orders",partition="0",kind="end"} 0\n' in detail
    with urlopen(f"http://{row['metrics']}/readyz") as answer:
        assert answer.read() == b"ready\n"
    ended = hightide("metrics", "--data", cluster.data, "--node", "9", code=4)
    assert "node 9 of" in ended.err


def test_doctor_beside_a_living_broker_knows_whose_the_port_is(cluster):
    port = cluster.ps()[0]["port"]
    words = ("--data", cluster.data, "--port", port, "-o", "json")
    found = json.loads(hightide("doctor", *words, code=None).out)
    (row,) = [row for row in found if row["check"] == "port"]
    assert (row["status"], row["found"]) == (
        "ok",
        f"{port} is served by broker 1 of {cluster.data}",
    )


def test_a_second_up_finds_what_runs_and_makes_what_is_missing(cluster):
    before = cluster.ps()
    words = ["--detach", "--data", cluster.data, "--port", "0", "--topic", "added-later:2"]
    ended = hightide("up", *words, "--set", "log.segment.bytes=1MiB")
    assert ended.out == cluster.up.out
    assert f"process {before[0]['pid']} serves {cluster.address}" in ended.err
    assert "--set is for nodes that start" in ended.err
    assert cluster.ps() == before
    assert len(cluster.describe("added-later")["partitions"]) == 2


@pytest.mark.parametrize("name", ["bad/name", "..", "t:0", "__cluster_metadata", "x" * 250])
def test_a_topic_that_cannot_be_is_told_before_a_node_starts(tmp_path, name):
    ended = hightide("up", "--detach", "--data", tmp_path / "new", "--topic", name, code=2)
    assert "--topic" in ended.err
    assert not (tmp_path / "new").exists()


def test_up_on_a_port_in_use_ends_with_the_brokers_log(cluster, tmp_path):
    port = cluster.address.rpartition(":")[2]
    ended = hightide("up", "--detach", "--data", tmp_path / "d", "--port", port, code=1)
    assert ended.out == b""
    assert "did not start" in ended.err
    assert "in use" in ended.err
    assert "--port takes others" in ended.err
    rows = json.loads(hightide("ps", "--data", tmp_path / "d", "-o", "json").out)
    assert not any(row["alive"] for row in rows)


def test_logs_prints_the_end_of_what_the_broker_said(cluster):
    assert b"serves on " + cluster.address.encode() in hightide("logs", "--data", cluster.data).out
    assert len(hightide("logs", "--data", cluster.data, "-n", "1").lines) == 1
    assert hightide("logs", "--data", cluster.data, "-n", "0").out == b""
    hightide("logs", "--data", cluster.data, "--node", "9", code=4)


# -- topics and configs ----------------------------------------------------------------------------


def test_a_topic_is_created_listed_and_deleted(cluster):
    ended = cluster.run("topics", "create", "fleeting", "-p", "2", "-r", "1", "-o", "json")
    (made,) = json.loads(ended.out)
    assert len(made.pop("topic_id")) == 22
    assert made == {"topic": "fleeting", "partitions": 2, "replication_factor": 1}
    names = cluster.run("topics", "list", "-o", "quiet").lines
    assert b"fleeting" in names
    assert not [name for name in names if name.startswith(b"__")]
    rows = cluster.run("topics", "list", "-o", "ndjson").rows
    assert [row["topic"].encode() for row in rows] == names
    assert b"fleeting" in cluster.run("topics", "list").out

    ended = cluster.run("topics", "delete", "fleeting", code=2)
    assert "--yes" in ended.err
    assert cluster.describe("fleeting")["topic"] == "fleeting"
    cluster.run("topics", "delete", "fleeting", "--yes")
    cluster.run("topics", "describe", "fleeting", code=4)
    cluster.run("topics", "delete", "fleeting", "--yes", code=4)
    cluster.run("topics", "delete", "fleeting", "--yes", "--if-exists")


def test_a_topic_that_exists_is_a_conflict_unless_that_is_fine(cluster):
    before = cluster.describe("plain")["topic_id"]
    assert "plain" in cluster.run("topics", "create", "plain", code=5).err
    cluster.run("topics", "create", "plain", "--if-not-exists")
    assert cluster.describe("plain")["topic_id"] == before


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["topics", "create", "a/b"], 1, "'a/b'"),
        (["topics", "create", "new", "-r", "3"], 1, "replication factor 3"),
        (["topics", "create", "new", "--config", "retention.m=1"], 2, "did you mean retention.ms"),
        (["topics", "create", "new", "--config", "flush=never"], 2, "never"),
        (["topics", "alter", "orders", "-p", "2"], 1, "2"),
        (["topics", "alter", "nowhere", "-p", "2"], 4, "nowhere"),
        (["topics", "offsets", "nowhere"], 4, "nowhere"),
        (["produce", "nowhere"], 4, "nowhere"),
        (["produce", "orders", "-p", "3"], 2, "orders"),
        (["consume", "nowhere", "-e"], 4, "nowhere"),
        (["consume", "orders", "-p", "3", "-e"], 2, "orders"),
        (["configs", "describe", "topic", "nowhere"], 4, "nowhere"),
        (["configs", "describe", "broker", "9", "--timeout", "1"], 4, "broker 9"),
        (["configs", "alter", "topic", "orders", "--set", "flsh=synced"], 2, "did you mean flush"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else None,
)
def test_what_the_cluster_refuses_has_its_exit_code(cluster, words, code, named):
    ended = cluster.run(*words, stdin=b"one\n", code=code)
    assert ended.out == b""
    assert named in ended.err
    assert b"new" not in cluster.run("topics", "list", "-o", "quiet").lines


def test_describe_has_the_stable_json_and_kafkas_two_lines(cluster, topic):
    cluster.run("topics", "alter", topic, "--config", "retention.ms=60000")
    cluster.run("produce", topic, stdin=b"a\nb\nc\n")
    row = cluster.describe(topic)
    assert list(row) == ["topic", "topic_id", "configs", "min_insync_replicas", "partitions"]
    assert row["configs"] == {"retention.ms": "60000"}
    (partition,) = row["partitions"]
    assert partition == {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 0,
        "replicas": [1],
        "isr": [1],
        "elr": [],
        "last_known_elr": [],
        "last_leader": -1,
        "high_watermark": 3,
        "log_end_offset": 3,
    }
    head, line = cluster.run("topics", "describe", topic).out.decode().splitlines()
    assert head == (
        f"Topic: {topic}\tTopicId: {row['topic_id']}\tPartitionCount: 1\tReplicationFactor: 1\t"
        f"Configs: retention.ms=60000"
    )
    assert line.startswith(f"\tTopic: {topic}\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1")
    every = cluster.run("topics", "describe").out.decode()
    assert head in every
    assert "Topic: orders\t" in every


def test_alter_adds_partitions_and_sets_and_unsets_keys(cluster, topic):
    cluster.run("topics", "alter", topic, "-p", "3", "--config", "flush=replicated")
    row = cluster.describe(topic)
    assert [one["partition"] for one in row["partitions"]] == [0, 1, 2]
    assert row["configs"] == {"flush": "replicated"}
    cluster.run("topics", "alter", topic, "--unset", "flush")
    assert cluster.describe(topic)["configs"] == {}
    assert len(cluster.describe(topic)["partitions"]) == 3


def test_times_and_sizes_may_have_units_and_are_told_as_they_are_kept(cluster):
    ended = cluster.run("topics", "create", "sized", "--config", "retention.ms=7d")
    assert 'created topic sized with 1 partition: {"retention.ms": "604800000"}' in ended.err
    ended = cluster.run("topics", "alter", "sized", "--config", "segment.bytes=64MB")
    assert '{"segment.bytes": "64000000"}' in ended.err
    pairs = ("--set", "retention.bytes=-1", "--set", "segment.ms=2 h", "--set", "flush=synced")
    ended = cluster.run("configs", "alter", "topic", "sized", *pairs)
    assert '{"retention.bytes": "-1", "segment.ms": "7200000", "flush": "synced"}' in ended.err
    configs = cluster.describe("sized")["configs"]
    assert (configs["retention.ms"], configs["segment.bytes"]) == ("604800000", "64000000")
    cluster.run("topics", "delete", "sized", "--yes")


def test_configs_shows_what_is_set_and_everything_on_demand(cluster, topic):
    words = ["configs", "describe", "topic", topic]
    assert json.loads(cluster.run(*words, "-o", "json").out) == []
    cluster.run("configs", "alter", "topic", topic, "--set", "retention.ms=5000")
    (row,) = json.loads(cluster.run(*words, "-o", "json").out)
    assert (row["name"], row["value"], row["default"]) == ("retention.ms", "5000", False)
    every = json.loads(cluster.run(*words, "--all", "-o", "json").out)
    assert {"retention.ms", "flush", "cleanup.policy"} <= {one["name"] for one in every}
    assert all(one["doc"] for one in every)
    cluster.run("configs", "alter", "topic", topic, "--unset", "retention.ms")
    assert cluster.run(*words, "-o", "quiet").out == b""
    broker = json.loads(cluster.run("configs", "describe", "broker", "1", "-o", "json").out)
    assert {"log.dirs", "listen.port"} <= {one["name"] for one in broker}


def test_offsets_says_first_and_next_or_the_offset_at_a_time(cluster, topic):
    lines = b'{"value":"a","timestamp":1000}\n{"value":"b","timestamp":3000}\n'
    cluster.run("produce", topic, "-J", stdin=lines)
    words = ["topics", "offsets", topic, "-o", "json"]
    at = {"topic": topic, "partition": 0}
    assert json.loads(cluster.run(*words).out) == [at | {"earliest": 0, "latest": 2}]
    found = json.loads(cluster.run(*words, "--at", "1970-01-01T00:00:02").out)
    assert found == [at | {"offset": 1, "timestamp": 3000}]
    assert json.loads(cluster.run(*words, "--at", "1000").out) == [
        at | {"offset": 0, "timestamp": 1000}
    ]


# -- produce and consume ---------------------------------------------------------------------------


def key_value_headers(rows):
    return [(row["key"], row["value"], row["headers"]) for row in rows]


@pytest.mark.parametrize(
    ("words", "stdin", "stored"),
    [
        ([], b"a\nb\r\n\nlast", [(None, v, []) for v in ("a", "b", "", "last")]),
        ([], b"\xff\n", [(None, {"b64": "/w=="}, [])]),
        (["-K", ","], b"k,v,w\n,x\ny,\n", [("k", "v,w", []), ("", "x", []), ("y", "", [])]),
        (["-K", ",", "-Z"], b"k,\nk,v\n", [("k", None, []), ("k", "v", [])]),
        (["-Z"], b"\nv\n", [(None, None, []), (None, "v", [])]),
        (["-k", "key"], b"v\n", [("key", "v", [])]),
        (["-H", "a=1", "-H", "a=2=3"], b"v\n", [(None, "v", [["a", "1"], ["a", "2=3"]])]),
        (["--acks", "1"], b"v\n", [(None, "v", [])]),
        (["--acks", "0"], b"v\n", [(None, "v", [])]),
        (["-J"], b'{"key":null,"value":{"b64":"/w=="}}\n', [(None, {"b64": "/w=="}, [])]),
    ],
    ids=range(10),
)
def test_produce_makes_of_a_line_what_its_flags_say(cluster, topic, words, stdin, stored):
    begin = cluster.describe(topic)["partitions"][0]["log_end_offset"]
    ended = cluster.run("produce", topic, *words, "-o", "json", stdin=stdin)
    (summary,) = ended.rows
    assert list(summary) == ["records", "acks", "seconds"]
    acks = words[1] if "--acks" in words else "all"
    assert (summary["records"], summary["acks"]) == (len(stored), acks)
    rows = cluster.run("consume", topic, "-J", "--from", begin, "-c", len(stored)).rows
    assert key_value_headers(rows) == stored
    assert [row["offset"] for row in rows] == [begin + n for n in range(len(stored))]


def test_produce_reads_files_in_their_order(cluster, topic, tmp_path):
    (tmp_path / "one").write_bytes(b"1\n2\n")
    (tmp_path / "two").write_bytes(b"3")
    ended = cluster.run("produce", topic, tmp_path / "two", tmp_path / "one", stdin=b"never\n")
    assert ended.out == b""
    assert "3 records" in ended.err
    assert [row["value"] for row in cluster.read(topic)] == ["3", "1", "2"]


def test_settings_of_the_client_go_by_kafkas_names(cluster, topic):
    words = ["-X", "linger.ms=1", "-X", "compression.type=zstd", "-X", "client.id=mine"]
    cluster.run("produce", topic, *words, stdin=b"a\nb\n")
    assert b"zstd" in hightide("log", "dump", cluster.partition(topic)).out
    few = cluster.run("consume", topic, "-J", "-o", "beginning", "-e", "-X", "max.poll.records=1")
    assert [row["value"] for row in few.rows] == ["a", "b"]
    assert cluster.run("consume", topic, "-J", "-o", "earliest", "-e").lines == few.lines


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("linger=1", "has no option 'linger', did you mean linger.ms?"),
        ("linger.ms=soon", "linger.ms is 'soon', expected a number"),
        ("linger.ms", "-X 'linger.ms', expected NAME=VALUE"),
        ("compression.type=gzip", "compression_type is 'gzip'"),
    ],
)
def test_a_setting_that_cannot_be_is_told_before_anything_is_sent(cluster, topic, setting, told):
    ended = cluster.run("produce", topic, "-X", setting, stdin=b"v\n", code=2)
    assert told in ended.err
    assert cluster.read(topic) == []


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "describe", "order"],
        ["topics", "delete", "ordrs", "--yes"],
        ["consume", "Orders", "--timeout", "1"],
        ["produce", "ordres", "--timeout", "1"],
    ],
    ids=lambda words: words[0] + words[-1],
)
def test_a_topic_that_is_not_there_comes_with_the_one_that_was_meant(cluster, words):
    assert cluster.run(*words, stdin=b"v\n", code=4).err.endswith(", did you mean orders?\n")


def test_so_does_a_group(cluster):
    cluster.run("consume", "orders", "-g", "billing", "-o", "start", "-e")
    ended = cluster.run("groups", "describe", "biling", code=4)
    assert ended.err.endswith(", did you mean billing?\n")
    assert "mean billing" in cluster.run("groups", "describe", "bil'ing", code=4).err
    assert "mean" not in cluster.run("groups", "describe", "xyz", code=4).err


def test_no_topic_is_proposed_where_none_is_alike(cluster):
    assert "mean" not in cluster.run("topics", "describe", "zzzzz", code=4).err
    assert "mean" not in cluster.run("topics", "describe", "__consumer", code=4).err


def test_a_line_without_its_separator_is_a_usage_error_that_shows_it(cluster, topic):
    ended = cluster.run("produce", topic, "-K", ";", stdin=b"k;v\nkeyless\n", code=2)
    told = "line 2: no key separator ';' in b'keyless'; what came before it is stored: 1 record"
    assert told in ended.err
    assert [row["value"] for row in cluster.read(topic)] == ["v"]


def test_a_line_of_another_topic_is_told_of_once_and_a_bad_one_by_its_place(
    cluster, topic, tmp_path
):
    (tmp_path / "good").write_bytes(b'{"value":"1","topic":"a"}\n{"value":"2","topic":"a"}\n')
    (tmp_path / "bad").write_bytes(b'{"value":"3"}\n{"valu":"4"}\n{"value":"5"}\n')
    ended = cluster.run("produce", topic, "-J", tmp_path / "good", tmp_path / "bad", code=2)
    assert ended.err.count(f"is a record of a; it is written to {topic}") == 1
    assert f"{tmp_path / 'bad'} line 2: unknown key 'valu', did you mean value?" in ended.err
    assert "stored: 3 records" in ended.err
    assert [row["value"] for row in cluster.read(topic)] == ["1", "2", "3"]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch_is_stored_so_and_read_back(cluster, topic, codec):
    begin = cluster.describe(topic)["partitions"][0]["log_end_offset"]
    lines = b"".join(b"the same line again\n" for _ in range(500))
    cluster.run("produce", topic, "-z", codec, stdin=lines)
    assert cluster.run("consume", topic, "--from", begin, "-e").out == lines
    stored = hightide("log", "dump", cluster.partition(topic), "-J").rows
    batches = [row for row in stored if row["base_offset"] >= begin]
    assert {row["codec"] for row in batches} == {codec}
    assert sum(row["size"] for row in batches) < len(lines) / 4


def test_a_key_always_goes_to_the_same_partition_and_p_chooses_one(cluster):
    cluster.run("topics", "create", "spread", "-p", "3")
    keyed = b"".join(b"k%d,%d\n" % (n % 7, n) for n in range(70))
    cluster.run("produce", "spread", "-K", ",", stdin=keyed)
    rows = cluster.read("spread")
    assert sorted(int(row["value"]) for row in rows) == list(range(70))
    homes = {(row["key"], row["partition"]) for row in rows}
    assert len(homes) == 7
    assert len({partition for _, partition in homes}) > 1
    cluster.run("produce", "spread", "-p", "2", stdin=b"here\n")
    assert cluster.read("spread", "-p", "2")[-1]["value"] == "here"
    assert {row["partition"] for row in cluster.read("spread", "-p", "0,2")} <= {0, 2}


def test_consume_begins_where_from_says(cluster, topic):
    lines = b"".join(b'{"value":"%d","timestamp":%d}\n' % (n, n * 1000) for n in range(10))
    cluster.run("produce", topic, "-J", stdin=lines)

    def values(*words):
        return [int(line) for line in cluster.run("consume", topic, *words).lines]

    assert values("--from", "start", "-e") == list(range(10))
    assert values("--from", "end", "-e") == []
    assert values("-e") == []
    assert values("--from", "7", "-e") == [7, 8, 9]
    assert values("--from", "10", "-e") == []
    assert values("--from", "-2", "-e") == [8, 9]
    assert values("--from", "-99", "-e") == list(range(10))
    assert values("--from", "@5000", "-e") == [5, 6, 7, 8, 9]
    assert values("--from", "@1970-01-01T00:00:07.500Z", "-e") == [8, 9]
    assert values("--from", "@2100-01-01", "-e") == []
    assert values("--from", "start", "-c", "3") == [0, 1, 2]
    assert values("--from", "start", "-c", "30", "-e") == list(range(10))


def test_consume_prints_the_fields_of_a_format(cluster, topic):
    line = b'{"key":"k","value":"val","timestamp":1234,"headers":[["h","x"]]}\n'
    cluster.run("produce", topic, "-J", stdin=line)
    words = ["consume", topic, "--from", "start", "-e", "-f"]
    ended = cluster.run(*words, r"%t %p %o %k=%v %K/%S %T %h %e 100%%\n")
    assert ended.out == f"{topic} 0 0 k=val 1/3 1234 h=x 0 100%\n".encode()


def test_consume_reads_several_topics(cluster, topic):
    cluster.run("topics", "create", "another")
    cluster.run("produce", topic, stdin=b"1\n")
    cluster.run("produce", "another", stdin=b"2\n")
    ended = cluster.run("consume", topic, "another", "--from", "start", "-e", "-J")
    assert {(row["topic"], row["value"]) for row in ended.rows} == {(topic, "1"), ("another", "2")}


def test_consume_goes_on_with_what_comes_later_and_stops_at_ctrl_c(cluster, topic):
    cluster.run("produce", topic, stdin=b"before\n")
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "--from", "start"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(cluster.address),
    ) as reader:
        try:
            assert reader.stdout.readline() == b"before\n"
            cluster.run("produce", topic, stdin=b"after\n")
            assert reader.stdout.readline() == b"after\n"
            reader.send_signal(signal.SIGINT)
            out, err = reader.communicate(timeout=PATIENCE_S)
        finally:
            reader.kill()
    assert (reader.returncode, out, err.strip()) == (130, b"", b"")


def test_consume_piped_into_produce_loses_nothing(cluster, topic):
    cluster.run("topics", "create", "copied")
    rows = [
        {"key": None, "value": None, "headers": []},
        {"key": "", "value": "", "headers": [["", ""], ["n", None], ["n", {"b64": "/w=="}]]},
        {"key": {"b64": "/wD+"}, "value": "two\nlines\r\n", "headers": [["größe", "ü\u2028"]]},
        {"key": "k", "value": '{"b64": "/w=="}', "headers": []},
        {"key": "\x00", "value": {"b64": "gIGC"}, "headers": []},
    ]
    rows = [row | {"timestamp": 1000 * (9 - n)} for n, row in enumerate(rows)]
    cluster.run("produce", topic, "-J", stdin="\n".join(map(json.dumps, rows)).encode())
    piped = cluster.run("consume", topic, "-J", "--from", "start", "-e").out
    cluster.run("produce", "copied", "-J", stdin=piped)

    def told(name):
        return [{field: row[field] for field in rows[0]} for row in cluster.read(name)]

    assert told(topic) == rows
    assert told("copied") == rows


def test_keep_partition_copies_records_to_the_partitions_they_were_in(cluster):
    for name in ("source", "target"):
        cluster.run("topics", "create", name, "-p", "3")
    for number in (2, 0, 2):
        cluster.run("produce", "source", "-p", number, "-k", "same", stdin=b"v%d\n" % number)
    piped = cluster.run("consume", "source", "-J", "--from", "start", "-e").out
    cluster.run("produce", "target", "-J", "--keep-partition", stdin=piped)
    found = sorted((row["partition"], row["value"]) for row in cluster.read("target"))
    assert found == [(0, "v0"), (2, "v2"), (2, "v2")]


@pytest.mark.parametrize("what", ["consume", "dump"])
def test_a_reader_that_leaves_early_is_no_error(cluster, what):
    cluster.run("topics", "create", "long", "--if-not-exists")
    cluster.run("produce", "long", stdin=b"0123456789 and much more\n" * 20_000)
    words = {
        "consume": ["consume", "long", "--from", "start", "-e"],
        "dump": ["log", "dump", str(cluster.partition("long")), "--records"],
    }[what]
    with subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(cluster.address),
    ) as writer:
        assert writer.stdout.readline()
        writer.stdout.close()
        err = writer.stderr.read()
        code = writer.wait(PATIENCE_S)
    assert (code, err) == (0, b"")
