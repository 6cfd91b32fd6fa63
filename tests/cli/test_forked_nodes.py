"""Nodes that `up` forks are what interpreters of their own would have been.

Method: programs of a few lines with an interpreter of their own, which fork as `up` does and say
what they find; and `up` itself, with what the system tells of its nodes.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
from commands import StartedCluster, hightide
from patience import PATIENCE_S

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self").exists(), reason="only Linux tells what a process has open"
    ),
]


def said_by(program, *words):
    """What a program printed, which finds `log`, a file to write to, and `fork`."""
    head = "import sys; from hightide_cli.children import fork; log = open(sys.argv[1], 'ab')\n"
    command = [sys.executable, "-c", head + dedent(program), *map(str, words)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True)
    return ended.stdout.decode()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["errors", "NOT_CONTROLLER"], 0, "NOT_CONTROLLER"),
        (["errors", "NO_SUCH_CODE"], 4, "NO_SUCH_CODE"),
        (["server", "start", "--set", "node.id=x"], 2, "node.id"),
        (["ps", "--no-such-option"], 2, "Usage:"),
    ],
)
def test_it_runs_a_command_into_its_log_and_its_end_is_known(tmp_path, words, code, told):
    log = tmp_path / "log"
    program = f"""
    from hightide_cli.main import main
    print("once")
    child = fork(main, {words}, log, name="it")
    print(child.wait(), child.poll())
    """
    assert said_by(program, log) == f"once\n{code} {code}\n"
    assert told in log.read_text()
    assert "once" not in log.read_text()


def test_a_bug_of_ours_keeps_its_traceback_and_what_the_parent_was_about_to_do_is_its_own(tmp_path):
    log = tmp_path / "log"
    program = """
    def broken():
        raise ZeroDivisionError("planted")
    try:
        print(fork(broken, [], log, name="it").wait())
    finally:
        print("left")
    """
    assert said_by(program, log) == "1\nleft\n"
    assert log.read_text().startswith("Traceback")
    assert log.read_text().endswith("ZeroDivisionError: planted\n")


def test_it_is_ended_by_signals_and_an_end_that_nobody_is_told_of_is_an_end(tmp_path):
    program = """
    import signal, time
    def sleep():
        time.sleep(1000)
    for end in ("terminate", "kill"):
        child = fork(sleep, [], log, name="it")
        assert child.poll() is None
        getattr(child, end)()
        print(child.wait())
        getattr(child, end)()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    child = fork(sleep, [], log, name="it")
    child.kill()
    print(child.wait())
    """
    said = said_by(program, tmp_path / "log").split()
    assert said == [str(-signal.SIGTERM), str(-signal.SIGKILL), "0"]


def test_it_has_nothing_open_but_its_log_and_a_session_and_a_name_of_its_own(tmp_path):
    log = tmp_path / "log"
    program = """
    import fcntl, os
    def tell():
        opened = [os.readlink(f"/proc/self/fd/{each}") for each in range(3)]
        more = [each for each in os.listdir("/proc/self/fd") if int(each) > 2]
        name = open("/proc/self/comm").read().strip()
        print(opened, len(more), os.getsid(0) == os.getpid(), name, sys.argv[1:])
    held = open(sys.argv[1] + ".lock", "ab")
    fcntl.flock(held, fcntl.LOCK_EX)
    fork(tell, ["some", "words"], log, name="broker-7").wait()
    """
    said_by(program, log)
    opened, listing = ["/dev/null", str(log), str(log)], 1
    assert log.read_text() == f"{opened} {listing} True broker-7 ['some', 'words']\n"


def test_a_process_with_threads_is_not_forked(tmp_path):
    program = """
    import threading
    from hightide_cli.children import can_fork
    ended = threading.Event()
    print(can_fork())
    thread = threading.Thread(target=ended.wait)
    thread.start()
    print(can_fork())
    ended.set()
    thread.join()
    """
    assert said_by(program, tmp_path / "log") == "True\nFalse\n"


def test_nodes_of_up_are_called_what_they_are_and_hold_nothing_of_it(tmp_path):
    cluster = StartedCluster(tmp_path / "data", "-n", "3", "--port", "0")
    try:
        rows = cluster.ps()
        for row in rows:
            seen = Path(f"/proc/{row['pid']}")
            assert (seen / "comm").read_text().strip() == f"broker-{row['node']}"
            opened = set()
            for each in (seen / "fd").iterdir():
                with suppress(FileNotFoundError):
                    opened.add(os.readlink(each))
            assert str(tmp_path / "data" / "logs" / f"broker-{row['node']}.log") in opened
            assert not [each for each in opened if each.endswith("up.lock")]
            assert os.getsid(row["pid"]) == row["pid"]
        os.kill(rows[1]["pid"], signal.SIGKILL)
        again = hightide("up", "--detach", "--data", cluster.data)
        assert again.err.count("already running") == 2
        assert len({row["pid"] for row in cluster.ps()} & {row["pid"] for row in rows}) == 2
    finally:
        cluster.end()
