"""Goal: what `up` is asked for is done, or it is said why not; a node that serves says where, on a
full disk too.

Method: one planned node that seems to run, because its lock is held; and the simulated disk at its
capacity. No process and no port.
"""

import fcntl
import json
import shlex
from types import SimpleNamespace

import click
import pytest
import trio
from trio.testing import MockClock

from hightide_broker.ports import RESERVE_BYTES
from hightide_broker.simulation.disk import SimDisk
from hightide_cli.cluster import _check_port, _check_replicas
from hightide_cli.processes import _last_words, make_plan
from hightide_cli.serving import announce


@pytest.fixture
def running(tmp_path):
    """A cluster of one node that serves on 9000, in a directory with a blank in its name."""
    plan = make_plan(tmp_path / "a b", brokers=1, split=False, port=9000)
    (process,) = plan.processes
    for path, text in (
        (process.directory / ".lock", "7\n"),
        (process.ready_file, json.dumps({"pid": 7, "host": "127.0.0.1", "port": 9000})),
    ):
        path.parent.mkdir()
        path.write_text(text)
    with (process.directory / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield plan


@pytest.mark.parametrize("port", [None, 0, 9000])
def test_a_node_that_runs_where_it_is_wanted_is_left_alone(running, port):
    _check_port(running, port)


def test_another_port_than_that_of_a_node_that_runs_is_refused_with_what_stops_it(running):
    with pytest.raises(click.UsageError) as refused:
        _check_port(running, 9001)
    said = refused.value.message
    assert said.startswith("--port 9001: it runs on 9000")
    pasted = shlex.split(said[said.index("hightide down") :])
    assert pasted == ["hightide", "down", "--data", str(running.processes[0].data)]


def test_a_node_that_does_not_run_may_take_another_port(tmp_path):
    _check_port(make_plan(tmp_path, brokers=1, split=False, port=9000), 9001)


@pytest.mark.parametrize(("replicas", "brokers"), [(-1, 1), (1, 1), (3, 3), (2, 3)])
def test_as_many_replicas_as_there_will_be_brokers_are_fine(replicas, brokers):
    _check_replicas([("t", 1, replicas)], brokers)


def test_more_replicas_than_brokers_are_refused_before_anything_is_made():
    with pytest.raises(click.UsageError, match=r"--topic t: 3 replicas .* -n 3: here it is 2"):
        _check_replicas([("s", 1, 2), ("t", 1, 3)], 2)


def test_a_node_says_where_it_serves_on_a_full_disk_too(tmp_path):
    disk = SimDisk(capacity=RESERVE_BYTES + 100)
    for name in ("run", "d"):
        disk.make_dirs(name)
    disk.keep_reserve("d/.reserve")
    disk.open("d/data", create=True).append(b"x" * 100)
    serving = trio.Event()
    config = SimpleNamespace(advertised_host="h", is_split=False, metrics_address=None)
    node = SimpleNamespace(serving=serving, id=1, port=9000, cluster_id="c", config=config)

    async def body():
        serving.set()
        await announce(node, disk, "run/broker-1.json")

    trio.run(body, clock=MockClock(autojump_threshold=0))
    assert json.loads(disk.read_file("run/broker-1.json"))["port"] == 9000


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (["INFO of yesterday", "hightide: the directory is lost"], 1),
        (["INFO it begins", "Traceback", "AssertionError"], 3),
        ([], 0),
    ],
)
def test_why_a_node_ended_is_its_last_sentence_without_what_an_earlier_run_said(log, told):
    assert _last_words(log) == (log[-told:] if told else [])
