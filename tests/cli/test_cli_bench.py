"""Goal: `hightide bench` on a cluster of three prints the fields it always prints, with numbers
that can be true, and leaves neither files nor processes behind.

Method: each measurement runs as a process of its own, as small as it can be made, in a directory
that nobody else uses; what is left in it, and which of its nodes live, is looked at afterwards.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json

import pytest
from benchkit import bench, commands_below  # noqa: F401
from commands import hightide
from tries import few

from hightide.produce.options import ProducerOptions
from hightide_cli.bench.bench import produce
from hightide_cli.failures import USAGE
from hightide_cli.own_cluster import OwnCluster

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
LEADER_PASSES_MAX = 6.0
FOLLOWER_PASSES_MAX = 4.0


def test_living_nodes_would_be_found_by_their_command(tmp_path):
    """What `bench` is judged by finds a node that does run."""
    with OwnCluster(brokers=1, directory=tmp_path) as cluster:
        assert len(commands_below(cluster.data)) == 1
    assert commands_below(tmp_path) == []


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


def test_batches_are_measured_as_large_as_a_producer_makes_them():
    (size,) = (each.default for each in produce.params if each.name == "batch_size")
    assert size == ProducerOptions.batch_size


def test_e2e_has_percentiles_in_their_order_and_above_the_floor(bench):
    told = bench("e2e", "--brokers", "3", "-n", "20", "--acks", "all")
    assert list(told) == E2E_FIELDS
    assert [told[name] for name in E2E_FIELDS[:4]] == ["e2e", 20, "all", "replicated"]
    assert min(told["floor_socket_p50_ms"], told["p50_ms"]) > 0
    assert told["p50_ms"] <= told["p95_ms"] <= told["p99_ms"]
    assert 0 < told["ack_p50_ms"] <= told["ack_p95_ms"] <= told["ack_p99_ms"]
    assert told["ratio_to_socket"] == round(told["p50_ms"] / told["floor_socket_p50_ms"], 1)


@pytest.mark.parametrize("words", few([("--flush", "synced"), (), ("--secure",)], 1))
def test_an_acknowledged_record_costs_few_turns_of_the_event_loops(bench, words):
    """A count, and no time, under TLS as well: a follower is woken by records and by a watermark,
    the leader by the record and by what two followers ask, each by the end of its sync. More would
    be hops from task to task."""
    told = bench("e2e", "--brokers", "3", "-n", "100", "--acks", "all", *words)
    # One pass may serve two records, where it comes late.
    assert 0 < told["passes_per_ack_leader"] <= LEADER_PASSES_MAX
    assert 0 < told["passes_per_ack_follower"] <= FOLLOWER_PASSES_MAX


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


def test_logins_are_measured_beside_connections_alone_and_under_tls(bench):
    told = bench("logins", "-n", "3")
    assert list(told) == [
        *("bench", "logins", "tcp_p50_ms", "tls_p50_ms", "login_p50_ms"),
        *("login_beyond_tls_ms", "login_beyond_tcp_ms"),
    ]
    for less in ("tcp", "tls"):
        assert told[f"{less}_p50_ms"] > 0
        beyond = told["login_p50_ms"] - told[f"{less}_p50_ms"]
        assert told[f"login_beyond_{less}_ms"] == pytest.approx(beyond, abs=0.0011)


def test_rules_have_a_line_for_each_number():
    few, more = json.loads(hightide("bench", "rules", "--rules", "300,5", "-o", "json").out)
    for told, number in ((few, 5), (more, 300)):
        assert list(told) == ["bench", "rules", "first_us", "known_us"]
        assert (told["bench"], told["rules"]) == ("rules", number)
        assert 0 < told["known_us"] < told["first_us"]


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


@pytest.mark.parametrize(
    "words",
    [
        ["failover", "--rounds", "0"],
        ["failover", "--partitions", "0"],
        ["growth", "--partitions", "0"],
        ["growth", "--partitions", "ten"],
        ["connections", "--counts", "-1"],
        ["client", "--brokers", "0"],
        ["console", "--viewers", "0"],
        ["rules", "--rules", "many"],
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
