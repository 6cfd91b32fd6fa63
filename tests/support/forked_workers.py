"""A run of tests by several processes, forked from the one that collected them.

No test lives here. What all tests import, and finding the tests, costs ten seconds of a processor:
it is done once, and each process has it. Then each takes the next file from a queue until none is
left, and tells the first process how each test went; that one counts and prints as if it had run
them itself. Files that share something are one process's (`run_order.TOGETHER`).
"""

import os
import signal
import sys
import warnings
from contextlib import suppress
from itertools import groupby, pairwise
from multiprocessing.connection import Pipe, wait

import pytest
from run_order import group_of

CAN_FORK = sys.platform.startswith("linux")
"""Elsewhere libraries that have threads do not live through it: one file after the other."""
_NUMBER_BYTES = 4


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    option = session.config.option
    if not (option.workers and CAN_FORK) or option.collectonly or session.testsfailed:
        return None
    groups = [[*items] for _, items in groupby(session.items, lambda item: group_of(item.path))]
    queue = Queue(len(groups))
    told = {}
    session.config._tmp_path_factory.getbasetemp()  # before they fork: see `use_own_directory`
    for _ in range(min(option.workers, len(groups))):
        reading, writing = Pipe(duplex=False)
        with warnings.catch_warnings(action="ignore"):
            pid = os.fork()
        if pid == 0:
            be_worker(session, groups, queue, writing)
            return True
        writing.close()
        told[reading] = pid
    Counting(session, queue, told).listen()
    return True


class Queue:
    """The numbers of groups, rising, each taken by one process: a pipe that holds all of them."""

    def __init__(self, count):
        self._reading, writing = os.pipe()
        os.write(writing, b"".join(number.to_bytes(_NUMBER_BYTES) for number in range(count)))
        os.close(writing)

    def take(self):
        """None once there are no more."""
        taken = os.read(self._reading, _NUMBER_BYTES)
        return int.from_bytes(taken) if taken else None

    def empty(self):
        for _ in iter(self.take, None):
            pass


# -- who runs tests --------------------------------------------------------------------------------


def be_worker(session, groups, queue, told):
    os.setpgrp()  # Ctrl-C is the first process's to hear, which tells each, once
    config, plugins = session.config, session.config.pluginmanager
    config.workerinput = {}  # by which plugins know that another process writes what is to be kept
    plugins.unregister(name="terminalreporter")
    plugins.register(Telling(config, told))
    capturing = plugins.getplugin("capturemanager")
    capturing.stop_global_capturing()  # into files that all of them would share
    capturing.start_global_capturing()
    capturing.suspend_global_capture()
    use_own_directory(config._tmp_path_factory)
    for number in iter(queue.take, None):
        # What the session has stays for the next group.
        for item, after in pairwise([*groups[number], session]):
            run(session, item, after)


def use_own_directory(temporary):
    """Below that of the whole run. What earlier runs left is the first process's to remove.

    Several that end at once would remove the same directory, and one fails where another is at it.
    """
    temporary._exit_stack.pop_all()
    temporary._basetemp = temporary.mktemp("process")


def run(session, item, after):
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


class Telling:
    """Tells the first process what it would count and print."""

    def __init__(self, config, told):
        self._config = config
        self._told = told

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed or self._config.option.durations is not None:
            hook = self._config.hook.pytest_report_to_serializable
            self._told.send(hook(config=self._config, report=report))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK  # told


# -- who counts ------------------------------------------------------------------------------------


class Counting:
    """What the first process does: it hears how each test went, and that none was left out."""

    def __init__(self, session, queue, told):
        self._session = session
        self._queue = queue
        self._told = told
        """Where each process tells → its id."""
        self._last = dict.fromkeys(told.values(), "anything")
        self._missing = dict.fromkeys(item.nodeid for item in session.items)
        # Tests of several files are told of in turns: dots alone.
        session.config.pluginmanager.getplugin("terminalreporter").showfspath = False

    def listen(self):
        try:
            while self._told:
                for reading in wait([*self._told]):
                    self._hear(reading)
                if self._session.shouldfail:
                    self._queue.empty()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        for nodeid in self._missing:
            self._report(failure(nodeid, "no process told how it went"))

    def _hear(self, reading):
        pid = self._told[reading]
        try:
            data = reading.recv()
        except EOFError:
            self._end(reading)
            return
        hook = self._session.config.hook.pytest_report_from_serializable
        report = hook(config=self._session.config, data=data)
        self._last[pid] = report.nodeid
        self._missing.pop(report.nodeid, None)
        self._report(report)

    def _end(self, reading):
        pid = self._told.pop(reading)
        _, status = os.waitpid(pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            why = f"a process of the tests ended with {code}, some time after this one"
            self._report(failure(self._last[pid], why))

    def _report(self, report):
        self._session.config.hook.pytest_runtest_logreport(report=report)

    def _interrupt(self):
        self._queue.empty()
        for pid in self._told.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        for pid in self._told.values():
            os.waitpid(pid, 0)


def failure(nodeid, why):
    place = nodeid.partition("::")[0], None, nodeid
    return pytest.TestReport(nodeid, place, {}, "failed", why, "call")
