"""Goal: `hightide bench` says what clusters cost and how they behave: leaders that die, partitions
and connections that nobody uses, groups, people who look; and what it measures in clear text under
TLS, too.

Method: as in `test_cli_bench.py`, which is about records.
"""

# ruff: noqa: F811 - fixtures are imported by name

import pytest
from benchkit import bench  # noqa: F401
from tries import LONG, few

pytestmark = [pytest.mark.live, pytest.mark.slow]

FAILOVER_FIELDS = [
    *("bench", "rounds", "stop", "flush", "partitions"),
    *("gap_p50_ms", "gap_p99_ms", "gap_max_ms"),
    *("acknowledged", "lost"),
]


@pytest.mark.parametrize(("words", "stop"), few([([], "kill -9"), (["--clean"], "clean")], 1))
def test_failover_loses_nothing_that_was_acknowledged(bench, words, stop):
    told = bench("failover", "--rounds", "1", "--partitions", "20", *words)
    assert list(told) == FAILOVER_FIELDS
    assert [told[name] for name in FAILOVER_FIELDS[:5]] == ["failover", 1, stop, "synced", 20]
    assert 0 < told["gap_p50_ms"] == told["gap_p99_ms"] == told["gap_max_ms"]
    assert told["acknowledged"] > 0
    assert told["lost"] == 0


@LONG
def test_backlog_has_the_same_trips_alone_and_beside_readers_and_a_busy_process(bench):
    told = bench("backlog", "--backlog-mb", "3", "--rounds", "1", "--quota-mb", "2")
    assert (told["bench"], told["backlog_mb"], told["rounds"]) == ("backlog", 3, 1)
    for share in ("p50", "p99"):
        beside, alone = told[f"beside_{share}_ms"], told[f"alone_{share}_ms"]
        busy, held = told[f"busy_{share}_ms"], told[f"held_{share}_ms"]
        assert min(beside, alone, busy, held) > 0
        assert told[f"ratio_{share}"] == round(beside / alone, 2)
        assert told[f"ratio_busy_{share}"] == round(beside / busy, 2)
        assert told[f"ratio_held_{share}"] == round(held / alone, 2)
    assert told["beside_p50_ms"] <= told["beside_p99_ms"]
    assert told["read_mb_per_s"] > told["held_mb_per_s"] > 0


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


def test_who_looks_at_the_console_sees_every_change(bench):
    words = ("--topics", "2", "--partitions", "2", "--seconds", "0.5", "--changes", "2")
    one, three = bench("console", "--viewers", "3,1", *words)
    for told, number in ((one, 1), (three, 3)):
        assert list(told) == [
            *("bench", "viewers", "start_s", "memory_mb", "brokers_core_percent"),
            *("console_core_percent", "shown_p50_ms", "shown_max_ms"),
        ]
        assert (told["bench"], told["viewers"]) == ("console", number)
        assert min(told["start_s"], told["memory_mb"]) > 0
        assert 0 <= told["shown_p50_ms"] <= told["shown_max_ms"]


@pytest.mark.parametrize(
    ("words", "figure"),
    few(
        [
            (["connections", "--counts", "5"], "open_ms_each"),
            (["client", "-n", "500", "--brokers", "1"], "blocking_send_per_s"),
            (["failover", "--rounds", "1"], "gap_max_ms"),
            (["groups", "--groups", "3", "--partitions", "1", "--seconds", "1"], "commits_per_s"),
            (["growth", "--partitions", "3", "--idle", "0.1"], "all_in_sync_s"),
        ],
        1,
    ),
    ids=lambda each: each[0] if isinstance(each, list) else None,
)
def test_what_is_measured_in_clear_text_is_measured_under_tls_too(bench, words, figure):
    told = bench(*words, "--secure")
    (told,) = told if isinstance(told, list) else [told]
    assert told["bench"] == words[0]
    assert told[figure] > 0
