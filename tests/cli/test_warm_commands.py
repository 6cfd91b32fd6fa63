"""Commands and nodes that are forked are what a fresh interpreter makes of the same words.

Method: each way to start one, with pipes that are read to their ends, and what the system tells.
"""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import warm_commands
from commands import cold, environment
from patience import PATIENCE_S
from tries import few
from warm_commands import NODE

from hightide_cli import processes
from hightide_cli.processes import make_plan, start_node, stop_started, wait_for_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(warm_commands.COLD, reason="each has an interpreter of its own"),
]


@pytest.mark.parametrize(
    ("words", "code"),
    few(
        [
            (["--help"], 0),
            (["ps", "--data", "data"], 0),
            (["storage", "info", "--set", "log.dirs=data"], 4),
            (["certs", "show", "data"], 2),
            (["topics", "list", "--no-such-thing"], 2),
            (["errors", "NOT_LEADER_OR_FOLLOWER"], 0),
            (["sim", "replay", "11", "-J"], 0),
        ],
        3,
    ),
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_forked_command_says_and_does_what_a_fresh_one_does(tmp_path, words, code):
    found = []
    for run in (warm_commands.run, cold):
        ended = run(words, b"", environment(), tmp_path, PATIENCE_S)
        said = (
            each.replace(b"python -m hightide_cli.main", b"hightide")
            for each in (ended.stdout, ended.stderr)
        )
        found.append((ended.returncode, *(b" ".join(each.split()) for each in said)))
    assert found[0] == found[1]
    assert found[0][0] == code


def test_its_pipes_its_directory_and_its_environment_are_its_own(tmp_path):
    (tmp_path / "data").mkdir()
    data = b"x" * (1 << 20) + b"\n"
    known = environment() | {"HIGHTIDE_PS_OUTPUT": "nonsense"}
    refused = warm_commands.run(["ps", "--data", "data"], data, known, tmp_path, PATIENCE_S)
    assert (refused.returncode, b"nonsense" in refused.stderr) == (2, True)
    assert "HIGHTIDE_PS_OUTPUT" not in os.environ
    words = ["certs", "create", "here", "--node", "1=localhost"]
    made = warm_commands.run(words, b"", environment(), tmp_path, PATIENCE_S)
    assert (made.returncode, (tmp_path / "here" / "ca.pem").exists()) == (0, True)


def test_one_that_hangs_is_killed():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ["topics", "list", "-b", address, "--timeout", f"{PATIENCE_S:g}"]
        with pytest.raises(subprocess.TimeoutExpired):
            warm_commands.run(words, b"", environment(), os.getcwd(), 0.5)
        client, _ = silent.accept()
        with client:
            while client.recv(4096):
                pass  # what it had said before its end


def test_another_interpreter_is_not_forked():
    assert warm_commands.can_fork(environment())
    assert not warm_commands.can_fork(environment() | {"PYTHONPATH": "elsewhere"})
    assert not warm_commands.can_fork(environment() | {"LC_ALL": "C"})


def test_a_node_that_is_forked_has_a_session_and_words_of_its_own(tmp_path):
    plan = make_plan(tmp_path, brokers=1, split=False, port=0, formats=True)
    (node,) = plan.processes
    started = {node: start_node(node, port=0, cluster_id=plan.cluster_id)}
    try:
        wait_for_all(started)
        pid = started[node].pid
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert [word.decode() for word in command[: len(NODE)]] == NODE
        assert f"log.dirs={node.directory}".encode() in command
        assert os.getsid(pid) == pid
    finally:
        stop_started(started)


def test_who_starts_a_node_learns_how_it_ended(tmp_path):
    words = [*NODE, "--set", f"log.dirs={tmp_path / 'none'}", "--set", "node.id=x"]
    with (tmp_path / "log").open("wb") as log:
        refused = processes.spawn(words, log)
        assert refused.wait(PATIENCE_S) == refused.poll() == refused.returncode == 2
        killed = processes.spawn([*NODE, "--help"], log)
        killed.kill()
        assert killed.wait(PATIENCE_S) in (0, -signal.SIGKILL)
    assert "node.id" in (tmp_path / "log").read_text()
