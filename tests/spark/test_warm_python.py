"""Spark's Python processes that are forked are what an interpreter makes of the same words.

Method: the script that stands in for the interpreter, with the pipes and signals that Spark has for
it.
"""

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

pytest.importorskip("pyspark")

from patience import PATIENCE_S, wait_until
from warm_commands import COLD
from warm_python import RUN, WarmPython

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    pytest.mark.skipif(COLD, reason="each has an interpreter of its own"),
]

DAEMON = ("-m", "hightide.spark.endings", "pyspark.worker")
RUNNER = ("-m", RUN[-1])


@pytest.fixture(scope="module")
def warm():
    with closing(WarmPython()) as made:
        yield made


def begun(program, words, **variables):
    return subprocess.Popen(
        [program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | variables,
    )


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def child_of(warm):
    """The process that was forked last."""
    forks = warm.forks.pid
    with open(f"/proc/{forks}/task/{forks}/children", encoding="utf-8") as file:
        children = file.read().split()
    return int(children[-1]) if children else None


def test_a_daemon_tells_its_port_and_ends_with_its_stdin(warm):
    with begun(warm.program, DAEMON) as daemon:
        assert 0 < int.from_bytes(daemon.stdout.read(4), "big") < 1 << 16
        child = child_of(warm)
        with open(f"/proc/{child}/cmdline", encoding="utf-8") as file:
            assert file.read().split("\0")[1:4] == [*DAEMON]
        daemon.stdin.close()
        assert daemon.wait(PATIENCE_S) == 1  # as PySpark has it
        assert daemon.stderr.read() == b""
    wait_until(lambda: state_of(child) == "gone", "it is reaped")


def test_what_fails_says_so_and_ends_as_an_interpreter_does(warm):
    """It has no address of the JVM, or one that leads nowhere."""
    for variables in ({}, {"PYTHON_WORKER_FACTORY_PORT": "0", "PYTHONPATH": "/no/such"}):
        said = []
        for program in (warm.program, sys.executable):
            with begun(program, RUNNER, **variables) as runner:
                _, errors = runner.communicate(timeout=PATIENCE_S)
                said.append((runner.returncode, errors.decode().splitlines()[-1]))
        assert said[0] == said[1]
        assert said[0][0] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_is_ended_takes_its_child_with_it(warm, number):
    with begun(warm.program, DAEMON) as daemon:
        daemon.stdout.read(4)
        child = child_of(warm)
        daemon.send_signal(number)
        assert daemon.wait(PATIENCE_S) == -number
        wait_until(lambda: state_of(child) == "gone", "its child ends")


def test_how_a_child_is_ended_is_told(warm):
    with begun(warm.program, DAEMON) as daemon:
        daemon.stdout.read(4)
        os.kill(child_of(warm), signal.SIGKILL)
        assert daemon.wait(PATIENCE_S) == -signal.SIGKILL


def test_other_words_and_hooks_have_an_interpreter(warm, tmp_path):
    (tmp_path / "a_hook").mkdir()
    (tmp_path / "a_hook" / "sitecustomize.py").write_text("print('hooked', flush=True)")
    words = ("-c", "import sys; print(sys.argv, sys.flags.isolated)", "a b")
    with begun(warm.program, words) as other:
        assert other.communicate()[0] == b"['-c', 'a b'] 0\n"
    with begun(warm.program, DAEMON, PYTHONPATH=str(tmp_path / "a_hook")) as hooked:
        assert hooked.stdout.readline() == b"hooked\n"


def test_without_the_process_that_forks_there_is_an_interpreter():
    with closing(WarmPython()) as warm:
        warm.forks.kill()
        warm.forks.wait(PATIENCE_S)
        with begun(warm.program, DAEMON) as daemon:
            assert int.from_bytes(daemon.stdout.read(4), "big")
