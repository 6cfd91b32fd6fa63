"""Goal: `hightide groups` and `consume -g` say and do what they promise, and nothing unasked.

Method: commands as processes of their own against a cluster of this process.
"""

import json
import os
import signal
import subprocess
from contextlib import closing

import pytest
from commands import COMMAND, PATIENCE_S, environment
from commands import hightide as command
from secure_run import blocking_cluster, config_of, direct, reaching

import hightide
from hightide.spark.client import BlockingClient
from hightide.spark.marks import Mark, TopicMark, group_of
from hightide_cli.failures import CONFLICT, NOT_FOUND, USAGE

pytestmark = [pytest.mark.live, pytest.mark.slow]
RECORDS = 100


@pytest.fixture(scope="module")
def cluster():
    with blocking_cluster(1) as c:
        with hightide.blocking.Admin(**reaching(c.bootstrap)) as admin:
            for topic in ("orders", "bills"):
                admin.create_topic(topic, partitions=2)
        with hightide.blocking.Producer(**reaching(c.bootstrap)) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"%d" % number, partition=number % 2, timestamp=number)
        yield c


@pytest.fixture
def run(cluster):
    def run(*words, code=0):
        to = cluster.bootstrap
        return command(*words, "-b", to, code=code, config=config_of(to))

    return run


@pytest.fixture
def group(request, run):
    """A group that has read 60 of the 100 records."""
    name = request.node.name[:80]
    run("consume", "orders", "-g", name, "--from", "start", "-c", 60)
    return name


def rows(ended):
    return json.loads(ended.out)


def committed(run, group):
    found = rows(run("groups", "lag", group, "-o", "json"))
    return {row["partition"]: row["committed"] for row in found}


def test_members_of_a_group_go_on_where_it_is(run, group):
    assert sum(committed(run, group).values()) == 60
    rest = run("consume", "orders", "-g", group, "--from", "start", "-c", 40).lines
    assert len({*rest}) == 40
    lag = rows(run("groups", "lag", group, "-o", "json"))
    assert [row["lag"] for row in lag] == [0, 0]


def test_a_member_may_stop_once_all_that_it_was_given_is_read(run, group):
    """What comes while it reads is read, too: it is committed with the rest."""
    rest = run("consume", "orders", "-g", group, "-e")
    assert len({*rest.lines}) == 40
    assert sum(committed(run, group).values()) == RECORDS
    assert run("consume", "orders", "-g", group, "-e").out == b""
    new = run("consume", "orders", "-g", f"{group}-new", "-e", "--from", "start", "-f", "%p:%o\\n")
    assert {*new.lines} == {b"%d:%d" % (n % 2, n // 2) for n in range(RECORDS)}


def test_what_a_spark_sink_keeps_is_no_lag(run, cluster, group):
    sink = "of-a-query"
    mark = Mark(next_batch=3, topics={"orders": TopicMark("", (5, 7))})
    with closing(BlockingClient(*direct(cluster.bootstrap))) as client:
        mark.write(client, sink, ["orders"], timeout_s=PATIENCE_S)
    kept = group_of(sink)
    told = {row["group"]: row["lag"] for row in rows(run("groups", "lag", "-o", "json"))}
    assert kept not in told
    assert told[group] is not None
    named = rows(run("groups", "lag", kept, "-o", "json"))
    assert [(row["committed"], row["lag"]) for row in named] == [(5, None), (7, None)]
    described = rows(run("groups", "describe", kept, "-o", "json"))
    assert [row["lag"] for row in described["offsets"]] == [None, None]


def test_watching_shows_a_change_and_ends_well(run, cluster, group):
    words = ["groups", "lag", group, "--watch", "0.1", "-o", "ndjson"]
    command, known = [*COMMAND, *words], environment(cluster.bootstrap)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=known) as watching:
        before = json.loads(watching.stdout.readline())
        assert before["committed"] > 0
        run("groups", "seek", group, "--to-start", "--yes")
        assert any(json.loads(line)["committed"] == 0 for line in watching.stdout)
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    assert watching.returncode == 0


def test_describe_has_the_stable_json_and_every_cause(run, group):
    (row,) = [rows(run("groups", "describe", group, "-o", "json"))]
    assert {"group", "state", "generation", "protocol", "members", "offsets", "rebalances"} <= {
        *row
    }
    assert (row["group"], row["state"], row["members"]) == (group, "Empty", [])
    assert [*row["offsets"][0]] == [
        *("topic", "partition", "committed", "log_end_offset", "lag", "member_id")
    ]
    joined, left = row["rebalances"]
    assert [*joined] == ["at", "generation", "cause"]
    assert joined["cause"].endswith("joined")
    assert "left: the consumer was closed" in left["cause"]
    text = run("groups", "describe", group).out.decode()
    assert "state: Empty" in text
    assert "CAUSE" in text


def test_list_names_groups_with_their_states(run, group):
    (row,) = [each for each in rows(run("groups", "list", "-o", "json")) if each["group"] == group]
    assert (row["state"], row["members"]) == ("Empty", 0)
    assert group.encode() in run("groups", "list", "-o", "quiet").lines


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--to-start"], [0, 0]),
        (["--to-end"], [50, 50]),
        (["--to-offset", "7"], [7, 7]),
        (["--to-offset", "700"], [50, 50]),
        (["--to-time", "1970-01-01T00:00:00.020Z"], [10, 10]),
        (["--to-time", "2013-06-01"], [50, 50]),
        (["--shift", "-1000"], [0, 0]),
    ],
    ids=lambda each: each[0] if isinstance(each[0], str) else None,
)
def test_seek_shows_what_would_change_and_changes_it_only_with_yes(run, group, how, expected):
    before = committed(run, group)
    shown = run("groups", "seek", group, *how, "-o", "json")
    assert [row["new"] for row in rows(shown)] == expected
    assert {row["partition"]: row["committed"] for row in rows(shown)} == before
    assert "nothing was changed" in shown.err
    is_limited = how in (["--shift", "-1000"], ["--to-offset", "700"])
    assert shown.err.count("lies outside of the log") == 2 * is_limited
    assert {row["limited"] for row in rows(shown)} == {is_limited}
    assert committed(run, group) == before
    done = run("groups", "seek", group, *how, "--yes", "-o", "json")
    assert "nothing was changed" not in done.err
    assert [*committed(run, group).values()] == expected


def test_seek_takes_single_partitions_shifts_and_files(run, group, tmp_path):
    before = committed(run, group)
    saved = tmp_path / "offsets"
    saved.write_bytes(run("groups", "lag", group, "-o", "ndjson").out)
    run("groups", "seek", group, "--shift", "-3", "--topic", "orders:1", "--yes")
    assert committed(run, group) == {0: before[0], 1: before[1] - 3}
    run("groups", "seek", group, "--to-start", "--topic", "bills", "--yes")
    found = rows(run("groups", "lag", group, "-o", "json"))
    assert [row["committed"] for row in found if row["topic"] == "bills"] == [0, 0]
    run("groups", "seek", group, "--from-file", saved, "--yes")
    found = rows(run("groups", "lag", group, "-o", "json"))
    assert {r["partition"]: r["committed"] for r in found if r["topic"] == "orders"} == before


def test_a_file_of_offsets_may_be_a_pipe_and_whoever_waits_for_it_hears_ctrl_c(cluster, tmp_path):
    saved = tmp_path / "saved"
    os.mkfifo(saved)
    words = [*COMMAND, "groups", "seek", "g", "--from-file", str(saved), "--yes"]
    with (
        subprocess.Popen(words, stderr=subprocess.PIPE, env=environment(cluster.bootstrap)) as it,
        saved.open("w"),  # once it is read
    ):
        it.send_signal(signal.SIGINT)
        said = it.stderr.read()
    assert (it.returncode, b"Traceback" in said) == (130, False)


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["groups", "describe", "nobody"], NOT_FOUND, "nobody"),
        (["groups", "delete", "nobody", "--yes"], NOT_FOUND, "nobody"),
        (["groups", "delete", "nobody"], USAGE, "--yes"),
        (["groups", "seek", "nobody", "--to-start"], USAGE, "--topic"),
        (["groups", "seek", "nobody", "--to-start", "--to-end"], USAGE, "one of"),
        (
            ["groups", "seek", "nobody", "--to-start", "--topic", "orders:9"],
            NOT_FOUND,
            "no orders:9",
        ),
        (["groups", "seek", "nobody", "--to-start", "--topic", "x:y"], USAGE, "x:y"),
        (["consume", "orders", "-g", "g", "--from", "7"], USAGE, "groups seek"),
        (["consume", "orders", "-g", "g", "-p", "0"], USAGE, "-p"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else None,
)
def test_what_makes_no_sense_is_refused_with_a_sentence(run, words, code, named):
    ended = run(*words, code=code)
    assert named in ended.err
    assert ended.out == b""


def test_of_several_groups_those_are_deleted_that_can_be(run, group):
    run("groups", "seek", group, "--topic", "orders:0", "--to-start", "--yes")
    ended = run("groups", "delete", "nobody", group, "--yes", "-o", "json", code=NOT_FOUND)
    assert rows(ended) == [
        {"group": "nobody", "deleted": False},
        {"group": group, "deleted": True},
    ]
    assert ended.err.startswith("nobody: GROUP_ID_NOT_FOUND")
    run("groups", "describe", group, code=NOT_FOUND)


def test_a_group_is_deleted_only_without_members(cluster, run, group):
    with hightide.blocking.Consumer(
        **reaching(cluster.bootstrap), group_id=group, topics=["orders"]
    ) as consumer:
        while not consumer.assignment():
            consumer.poll(timeout_ms=50)
        assert "1 member" in run("groups", "delete", group, "--yes", code=CONFLICT).err
        (member,) = rows(run("groups", "describe", group, "-o", "json"))["members"]
        assert member["assignment"] == [{"topic": "orders", "partitions": [0, 1]}]
        for more in ([], ["--yes"]):
            told = run("groups", "seek", group, "--to-start", *more, code=CONFLICT).err
            assert "1 member" in told
            assert "stop them first" in told
    run("groups", "delete", group, "--yes")
    run("groups", "describe", group, code=NOT_FOUND)
