"""`cluster.json`: written so that a loss of power leaves it, and told of when it is damaged.

Goal: a cluster that was planned is still known after a loss of power; a file that cannot be read is
never taken for a cluster without nodes; and `up` begins with the nodes that there were, or says
what to do, and makes no directory that may have been lost. Method: every sync of the process is
watched; then commands on three nodes whose directories are locked, as if their processes ran, so
that none is started.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys

import click
import pytest
from powerkit import Power

from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.storage.directory import Meta, format_directory
from hightide_cli.failures import USAGE
from hightide_cli.main import main
from hightide_cli.processes import make_plan, read_plan

NEW = {"brokers": 3, "split": False, "port": 9000, "formats": True}
NOBODY = 99_999_999
"""No process has this id: whatever is sent to it reaches nobody."""
DAMAGES = {
    "no bytes": b"",
    "zeros": bytes(300),
    "half of it": b'{\n  "cluster_id": "from-before",\n  "nodes": [\n    {\n      "node": 1,',
    "no object": b"[]",
    "another object": b"{}",
    "no nodes": b'{"cluster_id": "from-before", "nodes": []}',
    "nodes without ids": b'{"cluster_id": "from-before", "nodes": [{"port": 9000}]}',
    "no text": b"\xff\xfe\x00",
}
DAMAGED = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


# --- what a loss of power leaves ------------------------------------------------------------------


@pytest.mark.parametrize("below", ["data", "a/b/data"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_plan_survives_a_loss_of_power(tmp_path, monkeypatch, below, brokers):
    power = Power(monkeypatch, tmp_path)
    plan = make_plan(tmp_path / below, brokers=brokers, split=False, port=9000)
    assert power.lost(tmp_path / below / "cluster.json") == ""
    assert read_plan(tmp_path / below) == plan
    assert os.listdir(tmp_path / below) == ["cluster.json"]


def test_a_plan_that_cannot_be_made_durable_is_no_plan(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            make_plan(tmp_path / "data", brokers=1, split=False, port=9000)
    assert make_plan(tmp_path / "data", brokers=1, split=False, port=9000).processes


# --- what cannot be read --------------------------------------------------------------------------


class Running:
    """A cluster of three nodes that seem to run, and the command line beside it."""

    def __init__(self, data):
        self.data = data
        self.file = data / "cluster.json"
        self.plan = make_plan(data, brokers=3, split=False, port=9000)
        self._locks = []
        for process, port in self.plan.nodes:
            meta = Meta(self.plan.cluster_id, process.node, f"dir-{process.node}")
            format_directory(RealDisk(), str(process.directory), meta)
            facts = {"node": process.node, "host": "127.0.0.1", "port": port, "pid": NOBODY}
            for path, text in (
                (process.ready_file, json.dumps(facts)),
                (process.log_file, "it serves\n"),
                (process.directory / ".lock", f"{NOBODY}\n"),
            ):
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            self._locks.append((process.directory / ".lock").open())
            fcntl.flock(self._locks[-1], fcntl.LOCK_EX)

    def end(self):
        for lock in self._locks:
            lock.close()


@pytest.fixture
def running(tmp_path):
    made = Running(tmp_path / "data")
    yield made
    made.end()


@pytest.fixture
def command(monkeypatch, capsys, running):
    """Run a command on the cluster's data: its exit code, and what it said."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["hightide", *words, "--data", str(running.data)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return end.value.code, said.out, " ".join(said.err.split())

    return run


@DAMAGED
def test_the_nodes_are_listed_or_it_is_said_that_the_file_is_damaged(running, command, damage):
    running.file.write_bytes(damage)
    code, out, said = command("ps", "-o", "json")
    if code == 0:
        assert [row["node"] for row in json.loads(out)] == [1, 2, 3]
    else:
        assert "cluster.json" in said


@DAMAGED
@pytest.mark.parametrize("words", [["--node", "2"], ["--node", "2", "-n", "1"]])
def test_a_log_is_found_or_it_is_said_that_the_file_is_damaged(running, command, damage, words):
    running.file.write_bytes(damage)
    code, out, said = command("logs", *words)
    if code == 0:
        assert "it serves" in out
    else:
        assert "cluster.json" in said


@DAMAGED
def test_no_other_cluster_is_asked_in_place_of_one_whose_file_is_damaged(
    running, monkeypatch, capsys, damage
):
    running.file.write_bytes(damage)
    running.end()
    monkeypatch.setenv("HIGHTIDE_DATA", str(running.data))
    monkeypatch.setattr(sys, "argv", ["hightide", "topics", "list", "--timeout", "0.1"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert "cluster.json" in said or "127.0.0.1:9000" in said
    assert "19092" not in said


def test_no_other_cluster_is_asked_in_place_of_one_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HIGHTIDE_DATA", str(tmp_path / "thre"))
    monkeypatch.setattr(sys, "argv", ["hightide", "topics", "delete", "orders", "--yes"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == USAGE
    assert f"HIGHTIDE_DATA is '{tmp_path / 'thre'}'" in " ".join(capsys.readouterr().err.split())


def test_who_reads_files_needs_no_cluster(running, monkeypatch, capsys):
    running.file.write_text("damaged")
    (running.data / "events-1.jsonl").write_text("")
    monkeypatch.setenv("HIGHTIDE_DATA", str(running.data))
    monkeypatch.setattr(sys, "argv", ["hightide", "trace", "--file", str(running.data)])
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr()) == (0, ("", ""))


@DAMAGED
@pytest.mark.parametrize("words", [[], ["-n", "3"]])
def test_up_begins_with_the_nodes_that_there_were_or_says_what_to_do(
    running, command, damage, words
):
    running.file.write_bytes(damage)
    code, _, said = command("up", "--detach", *words)
    assert code != 0
    assert "cluster.json" in said
    assert running.file.read_bytes() == damage, "nobody's guess stands in its place"


# --- a file that is lost, and directories with it -------------------------------------------------


def forget(data, plan, *lost):
    """The file is gone, and so are the directories of some nodes."""
    (data / "cluster.json").unlink()
    for process in plan.processes:
        if process.node in lost:
            shutil.rmtree(process.directory)


def test_a_secure_cluster_without_its_file_does_not_come_back_open(tmp_path):
    plan = make_plan(tmp_path, **NEW, secure=True)
    forget(tmp_path, plan)
    with pytest.raises(click.UsageError, match=r"held a secure cluster.*--secure"):
        make_plan(tmp_path, **NEW)
    assert make_plan(tmp_path, **NEW, secure=True).is_secure


def test_a_directory_that_was_lost_with_the_file_is_not_made_for_a_voter(tmp_path):
    plan = make_plan(tmp_path, **NEW)
    forget(tmp_path, plan, 2)
    with pytest.raises(click.UsageError, match=r"neither cluster\.json nor broker-2.*--replace 2"):
        make_plan(tmp_path, **NEW)
    with pytest.raises(click.UsageError, match=r"neither cluster\.json nor broker-2"):
        make_plan(tmp_path, **NEW, replaced=(1, 3))
    assert not (tmp_path / "broker-2").exists()
    assert not (tmp_path / "cluster.json").exists()
    assert make_plan(tmp_path, **NEW, replaced=(2,)) == plan, "the cluster that there was"
    assert not (tmp_path / "broker-2").exists(), "for anybody who replaces it"


def test_where_only_the_file_is_lost_all_goes_on(tmp_path):
    plan = make_plan(tmp_path, **NEW)
    forget(tmp_path, plan)
    assert make_plan(tmp_path, **NEW) == plan


def test_where_all_is_lost_a_new_cluster_begins(tmp_path):
    plan = make_plan(tmp_path, **NEW)
    forget(tmp_path, plan, 1, 2, 3)
    with pytest.raises(click.UsageError, match="--replace 1: there is no cluster yet"):
        make_plan(tmp_path, **NEW, replaced=(1,))
    assert make_plan(tmp_path, **NEW).cluster_id != plan.cluster_id
    assert all((node.directory / "meta.properties").exists() for node in plan.processes)


@pytest.mark.parametrize(("brokers", "replaced"), [(1, [1]), (3, [1, 2]), (3, [1, 2, 3])])
def test_who_would_have_to_admit_the_new_directories_is_not_replaced(
    tmp_path, monkeypatch, capsys, brokers, replaced
):
    plan = make_plan(tmp_path, brokers=brokers, split=False, port=9000, formats=True)
    for process in plan.processes:
        if process.node in replaced:
            shutil.rmtree(process.directory)
    words = [word for node in replaced for word in ("--replace", str(node))]
    monkeypatch.setattr(sys, "argv", ["hightide", "up", "--data", str(tmp_path), *words])
    with pytest.raises(SystemExit) as end:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert end.value.code == USAGE
    left = [node.node for node in plan.processes if node.node not in replaced]
    assert f"only {left} would be left, and a majority has to admit a new one" in said
    made = [node.node for node in plan.processes if node.directory.exists()]
    assert made == left, "nothing was formatted"


@DAMAGED
def test_a_cluster_that_cannot_be_stopped_is_not_said_to_be_down(
    running, command, damage, monkeypatch
):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr("hightide_cli.processes.STOP_TIMEOUT_S", 0.0)
    running.file.write_bytes(damage)
    code, _, said = command("down")
    assert code != 0
    assert "cluster.json" in said or len(sent) == 3


def test_without_a_file_there_is_no_cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hightide", "ps", "-o", "json", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, json.loads(capsys.readouterr().out)) == (0, [])
