"""`hightide console` and `up --console` as a shell sees them.

Goal: what cannot be is said in a sentence, and what was started ends without noise; method:
commands as processes.
"""

import json
import signal

import pytest
from click.testing import CliRunner
from commands import hightide
from console_run import Console, Visitor
from patience import wait_until
from three_nodes import Nodes

from hightide_cli import console as command
from hightide_cli import console_process
from hightide_cli.console_process import held_file, hold, running
from hightide_console.serving import listening

REFUSED, USAGE = 1, 2
NOBODY = "127.0.0.1:1"


def test_without_its_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(console_process, "find_spec", lambda name: None)
    ended = CliRunner().invoke(command.console, ["-b", NOBODY])
    assert ended.exit_code == REFUSED
    assert "pip install 'hightide[console]'" in ended.stderr


@pytest.mark.parametrize("address", ["here", "127.0.0.1:", "127.0.0.1:70000", ":x", "-1"])
def test_an_address_that_is_none_is_a_usage_error(address):
    ended = CliRunner().invoke(command.console, ["-b", NOBODY, "--listen", address])
    assert ended.exit_code == USAGE
    assert f"--listen {address!r}, expected HOST:PORT or PORT" in ended.stderr


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("[::1]:80", ("::1", 80)),
        ("here.example:0", ("here.example", 0)),
    ],
)
def test_an_address_is_a_host_and_a_port_or_a_port_of_loopback(text, where):
    assert command.parse_listen(text) == where


def test_where_it_cannot_listen_is_said_in_a_sentence():
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        ended = CliRunner().invoke(command.console, ["-b", NOBODY, "--listen", str(port)])
        assert ended.exit_code == REFUSED
        assert ended.stderr == f"Error: --listen {port}: Address already in use\n"
    ended = CliRunner().invoke(command.console, ["-b", NOBODY, "--listen", "no.invalid:0"])
    assert ended.exit_code == REFUSED
    assert ended.stderr.startswith("Error: --listen no.invalid:0: ")


def test_what_a_console_holds_is_held_by_one_and_told_to_others(tmp_path, monkeypatch):
    monkeypatch.setattr(console_process, "LOOKED_AT_S", 0)
    assert running(tmp_path) == {}
    with hold(held_file(tmp_path)) as file:
        assert running(tmp_path) == {}, "it has not said yet where it is"
        json.dump({"pid": 1, "address": "a"}, file)
        file.flush()
        assert running(tmp_path) == {"pid": 1, "address": "a"}
        with pytest.raises(BlockingIOError):
            hold(held_file(tmp_path))
    assert running(tmp_path) == {}, "it ended, whatever it wrote"


def test_who_only_looks_whether_one_runs_keeps_none_from_starting(tmp_path, monkeypatch):
    path, tried = held_file(tmp_path), []
    path.parent.mkdir()
    looks = path.open("a+")
    console_process.fcntl.flock(looks, console_process.fcntl.LOCK_SH)

    def look_no_more(_):
        tried.append(1)
        looks.close()

    monkeypatch.setattr(console_process.time, "sleep", look_no_more)
    hold(path).close()
    assert tried == [1]


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_quietly_even_while_somebody_looks(number):
    console = Console(NOBODY)  # no cluster is there: a page says so
    watching = Visitor(console).watch()
    watching.until(lambda state: state["cluster"]["error"], "the page says what is wrong")
    code, said = console.end(number)
    assert (code, said.splitlines()) == (0, ["Ctrl-C stops it", "stopped"])
    wait_until(lambda: watching.is_over, "the stream has ended")


@pytest.mark.live
@pytest.mark.slow
def test_a_cluster_has_one_console_which_ends_with_it(tmp_path):
    data = tmp_path / "data"
    nodes = Nodes(data, "--console")
    try:
        address = running(data)["address"]
        assert f"the console: {address}" in nodes.up.err
        again = hightide("up", "--detach", "--console", "--data", data)
        assert f"the console: {address}" in again.err
        assert running(data)["address"] == address
        said = nodes.down().err
        assert "console (process" in said
        assert "still runs" not in said
        assert running(data) == {}
        assert (data / "logs" / "console.log").read_text().splitlines()[1:] == [
            "Ctrl-C stops it",
            "stopped",
        ]
    finally:
        console_process.stop_console(data)
        nodes.end()
