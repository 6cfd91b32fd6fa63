"""Goal: `hightide bench` on a cluster of three prints the fields it always prints, with numbers
that can be true, and leaves neither files nor processes behind.

Method: each measurement runs as a process of its own, as small as it can be made, in a directory
that nobody else uses; what is left in it, and which of its nodes live, is looked at afterwards.
"""

import json
from pathlib import Path

import pytest
from commands import hightide
from secure_run import WORDS

from hightide_cli.failures import USAGE

pytestmark = [pytest.mark.live, pytest.mark.slow]

RATE_FIELDS = [
    *("bench", "records", "record_size", "acks", "flush", "seconds", "records_per_s", "mb_per_s"),
    *("floor_socket_mb_per_s", "floor_disk_mb_per_s", "ratio_to_socket", "ratio_to_disk"),
    *("broker_memory_mb", "brokers_user_s", "brokers_system_s"),
]
E2E_FIELDS = [
    *("bench", "records", "acks", "flush", "p50_ms", "p95_ms", "p99_ms"),
    *("ack_p50_ms", "ack_p95_ms", "ack_p99_ms"),
    *("floor_socket_p50_ms", "ratio_to_socket"),
    *("passes_per_ack_leader", "passes_per_ack_follower"),
]
MAY_BE_SECURE = (
    *("produce", "consume", "e2e"),
    *("client", "connections", "failover", "groups", "growth"),
)
LEADER_PASSES_MAX = 6.0
FOLLOWER_PASSES_MAX = 4.0
FAILOVER_FIELDS = [
    *("bench", "rounds", "stop", "flush", "partitions"),
    *("gap_p50_ms", "gap_p99_ms", "gap_max_ms"),
    *("acknowledged", "lost"),
]


def commands_below(directory):
    """The living processes whose command line names something below a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(directory).encode() in command:
            found.append(command)
    return found


@pytest.fixture
def bench(tmp_path):
    """Run one measurement; its JSON, once it is certain that nothing of it is left."""

    def run(*words):
        data = tmp_path / "data"
        data.mkdir()
        (data / "kept").write_text("somebody else's")
        how = WORDS if words[0] in MAY_BE_SECURE and "--secure" not in words else ()
        ended = hightide("bench", *words, *how, "-o", "json", "--data", data)
        assert [path.name for path in data.iterdir()] == ["kept"]
        assert commands_below(data) == []
        return json.loads(ended.out)

    return run


def test_living_nodes_would_be_found_by_their_command(tmp_path):
    """What `bench` is judged by finds a node that does run."""
    data = tmp_path / "data"
    hightide("up", "--detach", "--data", data, "--port", "0", *WORDS)
    try:
        assert len(commands_below(data)) == 1
    finally:
        hightide("down", "--data", data, "--kill")
    assert commands_below(data) == []


@pytest.mark.parametrize("flush", ["replicated", "synced"])
def test_produce_says_how_fast_it_was_and_what_this_machine_could_do(bench, flush):
    words = ["--brokers", "3", "--acks", "all", "--flush", flush, "-n", "2000"]
    told = bench("produce", *words, "--record-size", "50")
    assert list(told) == RATE_FIELDS
    named = {name: told[name] for name in RATE_FIELDS[:5]}
    assert named == {
        "bench": "produce",
        "records": 2000,
        "record_size": 50,
        "acks": "all",
        "flush": flush,
    }
    rate, wire, disk = (told[name] for name in ("records_per_s", *RATE_FIELDS[8:10]))
    assert min(told["seconds"], rate, wire, disk) > 0
    mb_per_s = rate * 50 / 1e6
    assert told["mb_per_s"] == pytest.approx(mb_per_s, abs=0.06)
    assert told["ratio_to_socket"] == pytest.approx(mb_per_s / wire, rel=0.05, abs=0.0001)
    assert told["ratio_to_disk"] == pytest.approx(mb_per_s / disk, rel=0.05, abs=0.0001)
    assert 1 < told["broker_memory_mb"] < 2000
    assert min(told["brokers_user_s"], told["brokers_system_s"]) >= 0


def test_e2e_has_percentiles_in_their_order_and_above_the_floor(bench):
    told = bench("e2e", "--brokers", "3", "-n", "20", "--acks", "all")
    assert list(told) == E2E_FIELDS
    assert [told[name] for name in E2E_FIELDS[:4]] == ["e2e", 20, "all", "replicated"]
    assert min(told["floor_socket_p50_ms"], told["p50_ms"]) > 0
    assert told["p50_ms"] <= told["p95_ms"] <= told["p99_ms"]
    assert 0 < told["ack_p50_ms"] <= told["ack_p95_ms"] <= told["ack_p99_ms"]
    assert told["ratio_to_socket"] == round(told["p50_ms"] / told["floor_socket_p50_ms"], 1)


@pytest.mark.parametrize("words", [(), ("--flush", "synced"), ("--secure",)])
def test_an_acknowledged_record_costs_few_turns_of_the_event_loops(bench, words):
    """A count, and no time, under TLS as well: a follower is woken by records and by a watermark,
    the leader by the record and by what two followers ask, each by the end of its sync. More would
    be hops from task to task."""
    told = bench("e2e", "--brokers", "3", "-n", "400", "--acks", "all", *words)
    assert 1 <= told["passes_per_ack_leader"] <= LEADER_PASSES_MAX
    assert 1 <= told["passes_per_ack_follower"] <= FOLLOWER_PASSES_MAX


@pytest.mark.parametrize(("words", "stop"), [([], "kill -9"), (["--clean"], "clean")])
def test_failover_loses_nothing_that_was_acknowledged(bench, words, stop):
    told = bench("failover", "--rounds", "1", "--partitions", "20", *words)
    assert list(told) == FAILOVER_FIELDS
    assert [told[name] for name in FAILOVER_FIELDS[:5]] == ["failover", 1, stop, "synced", 20]
    assert 0 < told["gap_p50_ms"] == told["gap_p99_ms"] == told["gap_max_ms"]
    assert told["acknowledged"] > 0
    assert told["lost"] == 0


def test_backlog_has_the_same_trips_alone_and_beside_a_reader_and_their_ratios(bench):
    told = bench("backlog", "--backlog-mb", "3", "--rounds", "1")
    assert (told["bench"], told["backlog_mb"], told["rounds"]) == ("backlog", 3, 1)
    for share in ("p50", "p99"):
        beside, alone = told[f"beside_{share}_ms"], told[f"alone_{share}_ms"]
        assert min(beside, alone) > 0
        assert told[f"ratio_{share}"] == round(beside / alone, 2)
    assert told["beside_p50_ms"] <= told["beside_p99_ms"]
    assert told["read_mb_per_s"] > 0


def test_growth_has_a_line_for_each_number_of_partitions(bench):
    few, more = bench("growth", "--partitions", "12,3", "--idle", "0.5")
    for told, partitions in ((few, 3), (more, 12)):
        assert list(told) == [
            *("bench", "partitions", "create_ms_each", "idle_core_percent", "memory_mb"),
            *("stop_s", "start_s", "all_in_sync_s"),
        ]
        assert (told["bench"], told["partitions"]) == ("growth", partitions)
        assert min(told["create_ms_each"], told["stop_s"], told["start_s"]) > 0
        assert told["start_s"] <= told["all_in_sync_s"]
        assert 0 <= told["idle_core_percent"] <= 100


def test_connections_have_a_line_for_each_number_and_what_is_left(bench):
    few, more = bench("connections", "--counts", "40,5")
    for told, number in ((few, 5), (more, 40)):
        assert list(told) == [
            *("bench", "connections", "open_ms_each", "memory_mb_before", "memory_mb"),
            *("memory_mb_after", "kb_each"),
        ]
        assert (told["bench"], told["connections"]) == ("connections", number)
        grown = told["memory_mb"] - told["memory_mb_before"]
        assert told["kb_each"] == round(grown * 1024 / number, 1)
        assert min(told["memory_mb_before"], told["memory_mb_after"], told["open_ms_each"]) > 0


def test_segments_have_a_line_for_each_number(bench):
    few, more = bench("segments", "--segments", "20,4")
    for told, number in ((few, 4), (more, 20)):
        assert list(told) == [
            *("bench", "segments", "write_ms_each", "start_s", "start_killed_s"),
            *("lookup_p50_ms", "memory_mb"),
        ]
        assert (told["bench"], told["segments"]) == ("segments", number)
        timed = "write_ms_each", "start_s", "start_killed_s", "lookup_p50_ms"
        assert min(told[name] for name in timed) > 0


CLIENT_RATES = [
    "blocking_send",
    "blocking_send_keyed",
    "send",
    "send_many_buffered",
    "send_many",
    "consume",
    "poll_arrow",
]
CLIENT_FLOORS = {
    "blocking_send": "append",
    "send": "append",
    "send_many": "join",
    "consume": "objects",
    "poll_arrow": "join",
}


def test_client_measures_every_way_in_and_out_beside_the_barest_python(bench):
    told = bench("client", "-n", "3000", "--record-size", "40")
    assert list(told) == [
        *("bench", "records", "record_size"),
        *(f"{name}_per_s" for name in CLIENT_RATES),
        *(f"floor_{name}_per_s" for name in ("append", "join", "objects")),
        *(f"ratio_{name}_to_{floor}" for name, floor in CLIENT_FLOORS.items()),
    ]
    for name, floor in CLIENT_FLOORS.items():
        rate = told["send_many_buffered_per_s" if name == "send_many" else f"{name}_per_s"]
        ratio = rate / told[f"floor_{floor}_per_s"]
        assert told[f"ratio_{name}_to_{floor}"] == pytest.approx(ratio, rel=0.01, abs=0.0001)


def test_groups_commit_in_time_and_a_cluster_is_there_soon(bench):
    told = bench("groups", "--groups", "20", "--partitions", "3", "--seconds", "2")
    assert list(told) == [
        *("bench", "cluster_ready_ms", "first_group_record_ms"),
        *("rebalance_ms", "rebalance_beyond_heartbeat_ms", "groups", "partitions"),
        *("commits_per_s", "offsets_per_s", "late_commits", "commit_p50_ms", "commit_p99_ms"),
        *("broker_cores", "broker_memory_mb"),
    ]
    assert [told[name] for name in ("groups", "partitions")] == [20, 3]
    assert told["offsets_per_s"] == pytest.approx(told["commits_per_s"] * 3, rel=0.02)
    assert 0 < told["commit_p50_ms"] <= told["commit_p99_ms"]
    assert min(told["cluster_ready_ms"], told["first_group_record_ms"], told["rebalance_ms"]) > 0
    assert 0 <= told["broker_cores"] < 2


@pytest.mark.parametrize(
    ("words", "figure"),
    [
        (["client", "-n", "500", "--brokers", "1"], "blocking_send_per_s"),
        (["connections", "--counts", "5"], "open_ms_each"),
        (["failover", "--rounds", "1"], "gap_max_ms"),
        (["groups", "--groups", "3", "--partitions", "1", "--seconds", "1"], "commits_per_s"),
        (["growth", "--partitions", "3", "--idle", "0.1"], "all_in_sync_s"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else None,
)
def test_what_is_measured_in_clear_text_is_measured_under_tls_too(bench, words, figure):
    told = bench(*words, "--secure")
    (told,) = told if isinstance(told, list) else [told]
    assert told["bench"] == words[0]
    assert told[figure] > 0


@pytest.mark.parametrize(
    "words",
    [
        ["failover", "--rounds", "0"],
        ["failover", "--partitions", "0"],
        ["growth", "--partitions", "0"],
        ["growth", "--partitions", "ten"],
        ["connections", "--counts", "-1"],
        ["client", "--brokers", "0"],
        ["groups", "--groups", "0"],
        ["failover", "--flush", "never"],
        ["produce", "--brokers", "0"],
        ["e2e", "--acks", "2"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(words):
    ended = hightide("bench", *words, code=USAGE)
    assert ended.out == b""
    assert "Invalid value" in ended.err
