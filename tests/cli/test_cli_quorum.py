"""Goal: brokers, the quorum, elections, snapshots and simulations are shown as the design says.

Method: one node that snapshots its metadata after every change, started with `up --detach`; each
test runs commands as processes of their own. Damage is done to copies.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import click
import pytest
from commands import hightide

from hightide.admin.descriptions import QuorumReplica
from hightide_cli.failures import CONFLICT, CORRUPT, NOT_FOUND, UNREACHABLE, USAGE
from hightide_cli.quorum import _address_of

live = pytest.mark.live
BROKER = ["id", "host", "port", "rack", "roles", "fenced", "epoch"]
SNAPSHOT_ALWAYS = "metadata.log.max.record.bytes.between.snapshots=1"


def spoken(each):
    """A command line as a test's name."""
    return " ".join(each) if isinstance(each, list) else None


UP = ("--set", SNAPSHOT_ALWAYS, "--set", "broker.rack=r1", "--topic", "orders:3")


# -- usage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["partitions", "elect"], "give partitions or --all"),
        (["partitions", "elect", "--all", "orders:0"], "give partitions or --all"),
        (["partitions", "elect", "--all", "--preferred", "--unclean", "--yes"], "or --unclean"),
        (["partitions", "elect", "--preferred"], "give partitions or --all"),
        (["partitions", "elect", "orders"], "'orders', expected TOPIC:PARTITION"),
        (["partitions", "elect", "orders:"], "'orders:'"),
        (["partitions", "elect", ":0"], "':0'"),
        (["partitions", "elect", "orders:one"], "'orders:one'"),
        (["partitions", "elect", "orders:-1"], "'orders:-1'"),
        (["partitions", "elect", "orders:0", "orders:1.5"], "'orders:1.5'"),
        (["partitions", "elect", "orders:0", "--unclean"], "add --yes"),
        (["partitions", "elect", "--all", "--unclean"], "add --yes"),
        (["brokers", "describe"], "BROKER"),
        (["brokers", "describe", "one"], "'one'"),
        (["brokers", "list", "-o", "xml"], "'xml'"),
        (["quorum", "status", "-b", "127.0.0.1:port"], "127.0.0.1:port"),
        (["sim", "run", "--seeds", "1-5"], "'1-5', expected A..B"),
        (["sim", "run", "--seeds", ""], "''"),
        (["sim", "run", "--seeds", "..5"], "'..5'"),
        (["sim", "run", "--seeds", "5.."], "'5..'"),
        (["sim", "run", "--seeds", "a..b"], "'a..b'"),
        (["sim", "run", "--seeds", "1..2..3"], "'1..2..3'"),
        (["sim", "run", "--seeds", "5..4"], "'5..4' is empty"),
        (["sim", "run", "--jobs", "0"], "0"),
        (["sim", "replay"], "SEED"),
        (["sim", "replay", "one"], "'one'"),
        (["sim", "replay", "--", "-1"], "-1"),
        (["up", "--roles", "both"], "'both'"),
    ],
    ids=spoken,
)
def test_a_usage_error_is_told_before_anything_is_done(words, named):
    ended = hightide(*words, address="127.0.0.1:1", code=USAGE, patience_s=20)
    assert ended.out == b""
    assert named in " ".join(ended.err.split())


def test_who_is_not_told_where_a_voter_listens_has_to_say_it_to_replace_it():
    told = QuorumReplica(1, "", "h", 9, 0, 0, 0, 0)
    assert _address_of({1: told}, 1) == ("h", 9)
    for voting, said in (
        ({}, "node 1 is no voter: say where it listens, 1@HOST:PORT"),
        ({1: replace(told, host="", port=-1)}, "may ALTER the cluster: say it, 1@HOST:PORT"),
    ):
        with pytest.raises(click.UsageError, match=said):
            _address_of(voting, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["brokers", "list"],
        ["brokers", "describe", "1"],
        ["quorum", "status"],
        ["partitions", "elect", "--all"],
    ],
    ids=spoken,
)
def test_nobody_at_the_address_is_exit_3(words):
    ended = hightide(*words, "-b", "127.0.0.1:1", "--timeout", "0.2", code=UNREACHABLE)
    assert ended.out == b""
    assert "127.0.0.1:1" in ended.err


# -- brokers and the quorum ------------------------------------------------------------------------


@live
def test_brokers_list_has_the_stable_json(cluster):
    (row,) = json.loads(cluster.run("brokers", "list", "-o", "json").out)
    assert list(row) == BROKER
    host, _, port = cluster.address.partition(":")
    assert isinstance(row.pop("epoch"), int)
    assert row == {
        "id": 1,
        "host": host,
        "port": int(port),
        "rack": "r1",
        "roles": ["broker", "controller"],
        "fenced": False,
    }
    head, line = cluster.run("brokers", "list").out.decode().splitlines()
    assert head.split() == [name.upper() for name in BROKER]
    assert line.split()[:5] == ["1", host, port, "r1", "broker,controller"]
    assert cluster.run("brokers", "list", "-o", "quiet").out == b"1\n"


@live
def test_brokers_describe_counts_the_replicas_and_their_bytes(cluster):
    cluster.run("topics", "create", "sized", "-p", "2")
    before = json.loads(cluster.run("brokers", "describe", "1", "-o", "json").out)
    about = ["replicas", "offline", "waiting_for_room", "size_bytes", "free_bytes"]
    assert list(before) == [*BROKER, *about]
    topics = json.loads(cluster.run("topics", "list", "-o", "json").out)
    assert before["replicas"] == sum(row["partitions"] for row in topics)
    assert before["offline"] == before["waiting_for_room"] == []
    assert before["free_bytes"] > 0
    cluster.run("produce", "sized", "-p", "1", stdin=b"some bytes\n")
    after = json.loads(cluster.run("brokers", "describe", "1", "-o", "json").out)
    (segment,) = cluster.partition("sized", 1).glob("*.log")
    assert after["size_bytes"] - before["size_bytes"] == segment.stat().st_size > 0
    assert after["replicas"] == before["replicas"]
    assert "rack: r1\n" in cluster.run("brokers", "describe", "1").out.decode()


@live
def test_a_broker_that_is_not_registered_is_not_found(cluster):
    ended = cluster.run("brokers", "describe", "7", code=NOT_FOUND)
    assert ended.out == b""
    assert "broker 7 is not registered, only [1]" in ended.err


@live
def test_the_quorum_of_one_leads_itself(cluster):
    status = json.loads(cluster.run("quorum", "status", "-o", "json").out)
    (voter,) = status["voters"]
    assert (status["leader"], voter["id"], voter["lag"], voter["last_fetch_ms_ago"]) == (1, 1, 0, 0)
    assert status["observers"] == []
    assert voter["log_end_offset"] == status["high_watermark"] > 0
    assert status["epoch"] > 0


# -- elections -------------------------------------------------------------------------------------


@live
def test_an_election_that_is_not_needed_is_told_and_fine(cluster):
    words = ["partitions", "elect", "orders:0", "orders:2"]
    for mode in ([], ["--preferred"], ["--unclean", "--yes"]):
        before = cluster.describe("orders")
        rows = json.loads(cluster.run(*words, *mode, "-o", "json").out)
        assert [list(row) for row in rows] == [
            ["topic", "partition", "leader", "error", "message"]
        ] * 2
        assert [(row["topic"], row["partition"]) for row in rows] == [("orders", 0), ("orders", 2)]
        assert {row["error"] for row in rows} == {"ELECTION_NOT_NEEDED"}
        assert all("orders-" in row["message"] for row in rows)
        assert cluster.describe("orders") == before


@live
def test_elect_all_holds_no_election_where_none_is_needed(cluster):
    assert json.loads(cluster.run("partitions", "elect", "--all", "-o", "json").out) == []
    words = ["partitions", "elect", "--all", "--unclean", "--yes"]
    assert json.loads(cluster.run(*words, "-o", "json").out) == []


@live
@pytest.mark.parametrize("missing", ["orders:3", "nowhere:0"])
def test_a_partition_that_is_not_there_is_exit_4_and_the_rest_is_told(cluster, missing):
    ended = cluster.run(*("partitions", "elect", "orders:0", missing, "-o", "json"), code=NOT_FOUND)
    found = {(row["topic"], row["partition"]): row["error"] for row in json.loads(ended.out)}
    topic, _, number = missing.partition(":")
    assert found == {
        ("orders", 0): "ELECTION_NOT_NEEDED",
        (topic, int(number)): "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert f"{missing}: UNKNOWN_TOPIC_OR_PARTITION" in ended.err


@live
def test_a_broker_that_runs_is_a_conflict_for_a_second_server(cluster):
    (row,) = cluster.ps()
    where = ["--set", f"log.dirs={row['data']}", "--set", "listen.port=0"]
    assert f"process {row['pid']}" in hightide("server", "start", *where, code=CONFLICT).err


# -- snapshots -------------------------------------------------------------------------------------


@pytest.fixture
def snapshot(cluster, tmp_path):
    """A copy of the newest metadata snapshot."""
    found = (cluster.data / "broker-1" / "__cluster_metadata-0").glob("*.checkpoint")
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    return Path(shutil.copy(max(found), directory))


@live
def test_a_snapshot_is_dumped_as_changes_between_two_marks(cluster, snapshot):
    rows = hightide("log", "dump", snapshot, "-J", "--records").rows
    assert all(row["valid"] for row in rows)
    assert [row["is_control"] for row in rows] == [True, *[False] * (len(rows) - 2), True]
    records = [record for row in rows for record in row["records"]]
    assert [record["offset"] for record in records] == list(range(len(records)))
    first, *changes, last = [record["value"] for record in records]
    assert (first["type"], last["type"]) == ("snapshot_header", "snapshot_footer")
    kinds = {change["type"] for change in changes}
    assert "register_broker" in kinds
    orders = [change for change in changes if "orders" in json.dumps(change)]
    assert orders
    assert sum(row["size"] for row in rows) == snapshot.stat().st_size
    plain = hightide("log", "dump", snapshot, "-J").rows
    assert plain == [{k: v for k, v in row.items() if k != "records"} for row in rows]


@live
def test_a_snapshot_is_dumped_as_text_that_says_what_it_is(snapshot):
    head, what, *lines = hightide("log", "dump", snapshot, "--records").out.decode().splitlines()
    assert head == f"Dumping {snapshot}"
    end = int(snapshot.name[:20])
    assert end > 0
    assert what == f"Snapshot of everything below offset: {end}"
    batches = [line for line in lines if line.startswith("baseOffset: ")]
    assert len(batches) >= 3
    assert all(line.endswith("isvalid: true") for line in batches)
    assert "isControl: true" in batches[0]
    assert "snapshot_header" in lines[1]
    assert any('"type": "register_broker"' in line for line in lines)


@live
def test_a_directory_is_dumped_and_verified_with_its_snapshots(cluster):
    where = cluster.data / "broker-1" / "__cluster_metadata-0"
    snapshots = sorted(where.glob("*.checkpoint"))
    assert snapshots
    told = hightide("log", "dump", where).out.decode()
    for path in [*snapshots, *where.glob("*.log")]:
        assert f"Dumping {path}\n" in told
    count = len(snapshots) + len(list(where.glob("*.log")))
    assert hightide("log", "verify", where).err == f"{count} files checked, 0 damaged places\n"


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return bytes(data)


@live
@pytest.mark.parametrize("where", [0.0, 0.3, 0.5, 0.9, 1.0], ids=lambda each: f"{each:.0%}")
def test_verify_finds_a_flipped_bit_in_a_snapshot(snapshot, where):
    assert "1 file checked, 0 damaged" in hightide("log", "verify", snapshot).err
    damaged = flip(snapshot, int((snapshot.stat().st_size - 1) * where))
    ended = hightide("log", "verify", snapshot, code=CORRUPT)
    (line,) = ended.out.decode().splitlines()
    assert line.startswith(f"{snapshot} ")
    assert "1 file checked, 1 damaged place\n" in ended.err
    assert snapshot.read_bytes() == damaged


@live
@pytest.mark.parametrize("size", [0, 1, 50, -1, -60], ids=lambda each: f"[:{each}]")
def test_verify_finds_a_snapshot_that_was_cut_off(snapshot, size):
    snapshot.write_bytes(snapshot.read_bytes()[:size])
    ended = hightide("log", "verify", snapshot, code=CORRUPT)
    assert str(snapshot) in ended.out.decode()
    assert "1 damaged" in ended.err


@live
def test_dump_shows_a_snapshot_up_to_its_damage_and_where_that_is(snapshot):
    first, second, *_ = hightide("log", "dump", snapshot, "-J").rows
    flip(snapshot, second["position"] + second["size"] - 1)
    rows = hightide("log", "dump", snapshot, "-J", "--records", code=CORRUPT).rows
    assert [row["valid"] for row in rows] == [True, False]
    assert rows[0]["records"][0]["value"]["type"] == "snapshot_header"
    assert rows[0]["crc"] == first["crc"]
    assert rows[1]["position"] == second["position"]
    assert rows[1]["error"]
    text = hightide("log", "dump", snapshot, code=CORRUPT).out.decode().splitlines()[-1]
    assert re.fullmatch(rf"position: {second['position']} isvalid: false error: .+", text)
