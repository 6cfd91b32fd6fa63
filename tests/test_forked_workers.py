"""A run by several processes says of every test what one process would, and leaves none out."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_workers import CAN_FORK, Queue
from tries import LONG

SUPPORT = Path(__file__).with_name("support")
CONFTEST = """
import os, pytest, signal, sys, time
sys.path.insert(0, {support!r})
signal.signal(signal.SIGINT, signal.default_int_handler)
from forked_workers import pytest_runtestloop

def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=0)

@pytest.fixture(scope="session")
def shared():
    with open("begun", "a") as file:
        file.write("x")
    while os.stat("begun").st_size < 3:  # each of three processes takes a file
        time.sleep(0.01)
    yield os.getpid()
    with open("ended", "a") as file:
        file.write("%d\\n" % os.getpid())
"""
ALL_KINDS = """
import pytest

def test_that_passes(): pass
def test_that_fails(): print("what it said"); assert [1] == [2]
@pytest.mark.skip(reason="for a reason")
def test_that_is_skipped(): pass
@pytest.fixture
def broken(): raise RuntimeError("a broken fixture")
def test_without_its_fixture(broken): pass
@pytest.fixture
def breaks(): yield; raise RuntimeError("broken afterwards")
def test_whose_fixture_breaks(breaks): pass
@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail(): assert False
"""
WHO = """
import os

def test_one(shared): note("one", shared)
def test_two(shared): note("two", shared)
def note(name, shared):
    assert shared == os.getpid()
    with open("ran", "a") as file: file.write("%d {file}\\n" % os.getpid())
"""

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="one file after the other, here")


@pytest.fixture
def run(tmp_path):
    """Run these files by so many processes; how it ended, and what it said."""
    (tmp_path / "conftest.py").write_text(CONFTEST.format(support=str(SUPPORT)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(files, *words, workers=3):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workers"]
        ended = subprocess.run(
            [*command, str(workers), *words], cwd=tmp_path, capture_output=True, text=True
        )
        return ended.returncode, ended.stdout + ended.stderr

    return run


def summary(said):
    """The last line, without its time."""
    return said.strip().splitlines()[-1].strip("= ").rpartition(" in ")[0]


def listed(said):
    """The lines of tests that did not pass, with what is said of each."""
    *_, lines = said.partition("short test summary info")
    return sorted(lines.splitlines()[1:-1])


def test_it_counts_and_tells_what_one_process_does(run):
    files = {f"test_{number}.py": ALL_KINDS for number in range(4)}
    code, said = run(files, "-ra")
    alone, told = run(files, "-ra", workers=0)
    assert code == alone == 1
    assert summary(said) == "4 failed, 8 passed, 4 skipped, 4 xfailed, 8 errors"
    assert said.count("what it said") == told.count("what it said") > 0
    assert listed(said) == listed(told)


@LONG
def test_a_file_is_one_processes_and_what_a_session_has_ends_in_each(run, tmp_path):
    code, said = run({f"test_{number}.py": WHO.format(file=number) for number in range(20)})
    assert (code, summary(said)) == (0, "40 passed")
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len({pid for pid, file in ran}) == 3
    assert len({(pid, file) for pid, file in ran}) == len({file for _, file in ran}) == 20
    ended = (tmp_path / "ended").read_text().split()
    assert sorted(ended) == sorted({pid for pid, _ in ran})


def test_each_has_a_directory_of_its_own_in_one_that_the_first_process_removes(
    run, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    works = "def test(tmp_path): (tmp_path / 'made').touch()"
    for _ in range(5):  # which leaves the last three
        assert run({f"test_{number}.py": works for number in range(20)})[0] == 0
    [root] = tmp_path.glob("pytest-of-*")
    made = [path.relative_to(root).parts for path in root.glob("**/made")]
    assert {parts[0] for parts in made} == {"pytest-2", "pytest-3", "pytest-4"}
    assert len(made) == 3 * 20
    assert {parts[1].rstrip("0123456789") for parts in made} == {"process"}


def test_a_process_that_dies_fails_the_run_and_so_does_each_test_it_leaves(run):
    dies = "import os\ndef test_0(): pass\ndef test_1(): os._exit(0)\ndef test_2(): pass\n"
    others = {f"test_other_{number}.py": "def test(): pass" for number in range(9)}
    code, said = run({"test_dies.py": dies, **others}, workers=2)
    assert code == 1
    assert summary(said) == "2 failed, 10 passed"
    assert all("no process told how it went" in line for line in listed(said))


@LONG
def test_a_process_that_fails_is_told_of_at_the_test_that_it_ended_with(run):
    dies = "import os\ndef test_0(): pass\ndef test_1(): os._exit(7)\ndef test_2(): pass\n"
    code, said = run({"test_dies.py": dies}, workers=2)
    assert code == 1
    assert "ended with 7, some time after this one" in said


@LONG
def test_the_first_failure_ends_it_if_that_is_wished(run):
    fails = "import time\ndef test_0(): assert False\ndef test_1(): pass"
    code, said = run({f"test_{number:02}.py": fails for number in range(50)}, "-x", workers=2)
    assert code == 1
    assert "!! stopping after" in said
    assert int(summary(said).split()[0]) <= 2


@LONG
def test_ctrl_c_is_told_to_each_once_and_waited_for(tmp_path, run):
    waits = (
        "import os, signal, time\n"
        "def test():\n"
        "    try:\n"
        "        open('begun', 'a').close()\n"
        "        while True: time.sleep(60)\n"
        "    finally:\n"
        "        with open('ended', 'a') as file: file.write('x')\n"
    )
    interrupts = (
        "import os, signal, time\n"
        "def test():\n"
        "    while not os.path.exists('begun'): time.sleep(0.01)\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
        "    while True: time.sleep(60)\n"
    )
    code, said = run({"test_a.py": waits, "test_b.py": interrupts, "test_c.py": waits}, workers=2)
    assert code == pytest.ExitCode.INTERRUPTED
    assert (tmp_path / "ended").read_text() == "x"
    assert "KeyboardInterrupt" in said


def test_each_number_is_taken_once_however_many_take():
    queue = Queue(3000)
    told = []
    for _ in range(3):
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            taken = iter(queue.take, None)
            with open(writing, "w") as file:
                file.writelines(f"{number}\n" for number in taken)
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(writing)
        told.append((pid, reading))
    taken = []
    for pid, reading in told:
        with open(reading) as file:
            taken += map(int, file)
        os.waitpid(pid, 0)
    assert sorted(taken) == list(range(3000))
    assert queue.take() is None
