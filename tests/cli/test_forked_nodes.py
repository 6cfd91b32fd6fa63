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
from commands import COMMAND, StartedCluster, environment, hightide
from patience import PATIENCE_S
from tries import few

from hightide_cli.processes import nodes_of, said_by_holder

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
        opened = {int(each): "" for each in os.listdir("/proc/self/fd")}
        for each in [*opened]:
            try:
                opened[each] = os.readlink(f"/proc/self/fd/{each}")
            except FileNotFoundError:
                del opened[each]  # which listed them
        first, more = [opened.pop(each) for each in range(3)], {*opened.values()}
        name = open("/proc/self/comm").read().strip()
        listed = open("/proc/self/cmdline").read().strip("\\0")
        print(first, more, os.getsid(0) == os.getpid(), name, listed, sys.argv[1:])
    held = open(sys.argv[1] + ".lock", "ab")
    fcntl.flock(held, fcntl.LOCK_EX)
    child = fork(tell, ["some", "words"], log, name="broker-7")
    held.close()
    with open(sys.argv[1] + ".lock", "ab") as again:
        fcntl.flock(again, fcntl.LOCK_EX)  # waits for whoever has it
    child.wait()
    """
    said_by(program, log)
    first = ["/dev/null", str(log), str(log)]
    told = "True broker-7 hightide broker-7: some words ['some', 'words']"
    assert log.read_text() == f"{first} {{'/dev/null'}} {told}\n"


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_while_it_is_forked_is_the_parents_and_heard_there(tmp_path, number):
    """A copy that hears it on its way would go on as `up`; what the interpreter itself calls after
    a fork loses it."""
    program = f"""
    import os, signal
    def stop(*_):
        raise KeyboardInterrupt
    signal.signal(signal.{number}, stop)
    forks = os.fork
    def fork_and_strike():
        pid = forks()
        os.kill(os.getpid(), signal.{number})
        return pid
    os.fork = fork_and_strike
    parent = os.getpid()
    try:
        fork(lambda: None, [], log, name="it")
    except KeyboardInterrupt:
        print("heard by the parent:", os.getpid() == parent)
    """
    assert said_by(program, tmp_path / "log") == "heard by the parent: True\n"


def test_signals_mean_what_they_mean_to_a_new_interpreter(tmp_path):
    log = tmp_path / "log"
    program = """
    import signal, socket
    from hightide_cli.signals import told_to_stop
    def meanings():
        return [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    expected = meanings()  # `nohup` has it ignore the last, other tools block some
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    blocked = signal.pthread_sigmask(0, [])
    def tell():
        print(meanings() == expected, signal.set_wakeup_fd(-1))
        print(signal.pthread_sigmask(0, []) == blocked)
    bell, ringer = socket.socketpair()
    ringer.setblocking(False)
    signal.set_wakeup_fd(ringer.fileno())
    with told_to_stop(signal.SIGTERM):
        fork(tell, [], log, name="it").wait()
    """
    said_by(program, log)
    assert log.read_text() == "True -1\nTrue\n"


def test_what_a_program_has_set_up_for_itself_is_not_the_nodes(tmp_path):
    log, own = tmp_path / "log", tmp_path / "own"
    program = """
    import contextlib, logging
    logging.basicConfig(filename=sys.argv[2])
    def tell():
        logging.basicConfig(format="%(message)s")
        logging.warning("logged")
        print("said")
        print("complained", file=sys.stderr)
    with open(sys.argv[2], "a") as file, contextlib.redirect_stderr(file):
        fork(tell, [], log, name="it").wait()
    """
    said_by(program, log, own)
    assert sorted(log.read_text().split()) == ["complained", "logged", "said"]
    assert own.read_text() == ""


def test_a_program_without_asserts_is_not_forked(tmp_path):
    program = "from hightide_cli.children import can_fork; print(can_fork())"
    for words, may in (((), True), (("-O",), False)):
        said = subprocess.check_output([sys.executable, *words, "-c", program], text=True)
        assert said == f"{may}\n"


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
            listed = (seen / "cmdline").read_text()
            assert listed.startswith(f"hightide broker-{row['node']}: server start")
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


def test_nothing_is_left_of_an_up_whose_second_node_cannot_be_started(tmp_path):
    data = tmp_path / "data"
    (data / "logs" / "broker-2.log").mkdir(parents=True)
    failed = hightide("up", "-n", "3", "--detach", "--data", data, "--port", "0", code=None)
    assert failed.code != 0
    assert "broker-2.log" in failed.err
    assert "stopped again what this had started: broker-1" in failed.err
    assert not (data / "cluster.json").exists()


@pytest.mark.parametrize("more", [[], ["--secure"]], ids=str)
def test_what_serves_stays_where_nobody_is_left_to_hear_it(tmp_path, more):
    """As with `hightide up --detach 2>&1 | head -1`."""
    hears, told = os.pipe()
    os.close(hears)
    words = ["-n", "2", "--detach", "--data", str(tmp_path / "data"), "--port", "0", *more]
    with open(told, "wb") as nobody:
        started = subprocess.run(
            [*COMMAND, "up", *words], stdout=nobody, stderr=nobody, env=environment()
        )
    left = [node.pid() for node in nodes_of(tmp_path / "data")]
    hightide("down", "--data", tmp_path / "data")
    assert started.returncode == 0
    assert len(left) == 2
    assert None not in left


WHEN_AND_HOW = [
    (f"logs/broker-{broker}.log", number)
    for broker in (1, 2, 3)
    for number in (signal.SIGINT, signal.SIGTERM)
]


@pytest.mark.parametrize(("place", "number"), few(WHEN_AND_HOW, 2))
def test_nothing_is_left_of_an_up_that_is_told_to_stop_while_it_starts(tmp_path, place, number):
    data = tmp_path / "data"
    command = [*COMMAND, "up", "-n", "3", "--data", str(data), "--port", "0"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env=environment(), start_new_session=True, text=True
    ) as starting:
        while not (data / place).exists():
            assert starting.poll() is None
        os.killpg(starting.pid, number)
        _, told = starting.communicate(timeout=PATIENCE_S)
    assert starting.returncode in (0, 130), told  # 0: all served already
    assert "Traceback" not in told
    assert len(nodes_of(data)) == (3 if starting.returncode == 0 else 0)
    for lock in data.glob("*/.lock"):
        assert said_by_holder(lock) is None
