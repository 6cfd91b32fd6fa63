"""Which nodes a cluster on one machine has: decided once, written down, read back for ever.

Goal: the number of brokers decides the number of controllers, the controllers can be found by every
node, and what is on disk is never taken for another cluster. Method: plans in empty directories;
`up` itself where the rule is its own. No node is started.
"""

import json
import random
import re
import socket
import sys

import pytest

from hightide_broker.config import make_config
from hightide_broker.formatting import format_node
from hightide_broker.runtime.base.disk import RealDisk
from hightide_cli.main import main
from hightide_cli.processes import (
    DEFAULT_PORT,
    NodeProcess,
    Plan,
    make_plan,
    nodes_of,
    read_plan,
)

BOTH, BROKER, CONTROLLER = ("broker", "controller"), ("broker",), ("controller",)


@pytest.fixture
def plan(tmp_path):
    def make(brokers, *, split=False, port=9000, name="data"):
        return make_plan(tmp_path / name, brokers=brokers, split=split, port=port)

    return make


def roles_of(plan):
    return {process.node: process.roles for process in plan.processes}


def ports_of(plan):
    return [port for _, port in plan.nodes]


# Who is what.


@pytest.mark.parametrize(
    ("brokers", "controllers"), [(1, [1]), (2, [1]), (3, [1, 2, 3]), (5, [1, 2, 3])]
)
def test_three_brokers_have_three_controllers_and_fewer_have_one(plan, brokers, controllers):
    assert roles_of(plan(brokers)) == {
        node: BOTH if node in controllers else BROKER for node in range(1, brokers + 1)
    }


@pytest.mark.parametrize("brokers", [1, 2, 3, 5])
def test_split_has_three_controllers_of_their_own_whatever_the_brokers(plan, brokers):
    assert roles_of(plan(brokers, split=True)) == {
        **dict.fromkeys(range(1, brokers + 1), BROKER),
        **dict.fromkeys([101, 102, 103], CONTROLLER),
    }


def test_a_node_is_named_after_what_it_is_and_has_its_files_below_the_data(tmp_path):
    process = NodeProcess(tmp_path, 101, CONTROLLER)
    assert process.directory == tmp_path / "controller-101"
    assert process.log_file == tmp_path / "logs" / "controller-101.log"
    assert process.ready_file == tmp_path / "run" / "controller-101.json"
    assert [NodeProcess(tmp_path, 2, roles).name for roles in (BOTH, BROKER)] == ["broker-2"] * 2


# Ports.


@pytest.mark.parametrize("split", [False, True])
def test_ports_are_in_a_row_from_the_first(plan, split):
    count = 6 if split else 3
    assert ports_of(plan(3, split=split, port=9000)) == list(range(9000, 9000 + count))
    unsaid = ports_of(plan(3, split=split, port=None, name="unsaid"))
    assert unsaid == list(range(DEFAULT_PORT, DEFAULT_PORT + count))


def test_port_0_is_free_ports_that_differ_and_can_be_listened_on(plan):
    ports = ports_of(plan(5, split=True, port=0))
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_node_on_its_own_may_choose_its_port_when_it_starts(plan):
    assert ports_of(plan(1, port=0)) == [0]


# How the controllers are found.


@pytest.mark.parametrize(
    ("brokers", "split", "voters"),
    [
        (1, False, ""),
        (2, False, "1@127.0.0.1:9000"),
        (3, False, "1@127.0.0.1:9000,2@127.0.0.1:9001,3@127.0.0.1:9002"),
        (5, False, "1@127.0.0.1:9000,2@127.0.0.1:9001,3@127.0.0.1:9002"),
        (1, True, "101@127.0.0.1:9001,102@127.0.0.1:9002,103@127.0.0.1:9003"),
        (3, True, "101@127.0.0.1:9003,102@127.0.0.1:9004,103@127.0.0.1:9005"),
    ],
)
def test_the_voters_are_the_controllers_and_their_ports(plan, brokers, split, voters):
    assert plan(brokers, split=split).voters == voters


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("brokers", [1, 2, 3, 5])
def test_every_node_of_a_plan_has_a_configuration_that_holds(plan, brokers, split):
    made = plan(brokers, split=split)
    for process, port in made.nodes:
        config = make_config(
            {
                "node.id": str(process.node),
                "process.roles": ",".join(process.roles),
                "listen.port": str(port),
                "controller.quorum.voters": made.voters,
                "cluster.id": made.cluster_id,
            }
        )
        if "controller" in process.roles:
            assert config.voters[process.node] == ("127.0.0.1", port)
        assert list(config.voters) == [
            each.node for each in made.processes if "controller" in each.roles
        ]


# On disk.


def test_there_is_no_cluster_where_none_was_planned(tmp_path):
    assert read_plan(tmp_path / "nowhere") is None
    assert nodes_of(tmp_path) == []


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("brokers", [1, 2, 3, 5])
def test_a_plan_is_read_back_as_it_was_made(plan, tmp_path, brokers, split):
    made = plan(brokers, split=split)
    assert read_plan(tmp_path / "data") == made
    assert nodes_of(tmp_path / "data") == made.processes
    assert isinstance(made, Plan)


def test_the_file_names_the_cluster_and_each_node_with_roles_and_port(plan, tmp_path):
    made = plan(2)
    assert json.loads((tmp_path / "data" / "cluster.json").read_text()) == {
        "cluster_id": made.cluster_id,
        "nodes": [
            {"node": 1, "roles": ["broker", "controller"], "port": 9000},
            {"node": 2, "roles": ["broker"], "port": 9001},
        ],
    }
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", made.cluster_id)


def test_two_clusters_never_have_the_same_id(plan):
    assert len({plan(1, name=f"data-{n}").cluster_id for n in range(20)}) == 20


def test_a_directory_that_has_a_cluster_already_keeps_its_id(plan, tmp_path):
    directory = tmp_path / "data" / "broker-1"
    config = make_config({"log.dirs": str(directory), "cluster.id": "from-before"})
    format_node(config, RealDisk(), random.Random(0))
    assert plan(1).cluster_id == "from-before"
    assert read_plan(tmp_path / "data").cluster_id == "from-before"


def test_a_node_that_never_ran_has_no_process_and_no_facts(plan):
    process = plan(3).processes[1]
    assert (process.pid(), process.facts()) == (None, {})
    assert process.describe() == {
        "node": 2,
        "pid": None,
        "host": None,
        "port": None,
        "internal": None,
        "metrics": None,
        "roles": ["broker", "controller"],
        "alive": False,
        "data": str(process.directory),
    }


def test_the_facts_of_a_process_that_is_gone_do_not_make_it_alive(plan):
    process = plan(1).processes[0]
    for path in (process.ready_file, process.directory / ".lock"):
        path.parent.mkdir()
    process.ready_file.write_text('{"pid": 1, "host": "127.0.0.1", "port": 9000}')
    (process.directory / ".lock").write_text("1\n")
    assert process.pid() is None
    assert process.describe()["alive"] is False
    assert process.describe()["port"] == 9000


# `up` on what is there.


@pytest.fixture
def up(monkeypatch, capsys, tmp_path):
    """Run `hightide up` on the planned data; its exit code and what it said."""

    def run(*words):
        words = ["hightide", "up", "--detach", "--data", str(tmp_path / "data"), *words]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("split", "words", "named"),
    [
        (False, ["-n", "2"], "a cluster of 3 brokers, combined"),
        (False, ["-n", "4"], "a cluster of 3 brokers, combined"),
        (False, ["--roles", "split"], "a cluster of 3 brokers, combined"),
        (False, ["-n", "3", "--port", "9001"], "on ports from 9000"),
        (True, ["-n", "6"], "a cluster of 3 brokers, split"),
        (True, ["--roles", "combined"], "a cluster of 3 brokers, split"),
        (True, ["-n", "3", "--roles", "split", "--port", "1"], "on ports from 9000"),
    ],
)
def test_up_does_not_change_which_nodes_there_are(plan, up, tmp_path, split, words, named):
    plan(3, split=split)
    before = (tmp_path / "data" / "cluster.json").read_bytes()
    code, said = up(*words)
    assert code == 2
    assert " ".join(named.split()) in " ".join(said.split())
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cluster.json"]
    assert (tmp_path / "data" / "cluster.json").read_bytes() == before
