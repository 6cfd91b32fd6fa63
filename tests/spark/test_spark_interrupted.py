"""Ctrl-C while Spark starts and while it works: nothing is left running, nothing is printed.

Method: the launcher that PySpark calls starts a program that would stay; what py4j logs is logged.
"""

import logging
import signal
import sys

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext, java_gateway

from hightide.spark.endings import ended_by_ctrl_c, whole_or_none

STAYS = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def logged(caplog):
    """What the root logger tells of an exception, by its message."""

    def log(error):
        logging.getLogger().error("of %s", error, exc_info=error)
        return f"of {error}" in caplog.messages

    return log


def interrupted_start():
    """What was launched by a start that Ctrl-C ended."""
    launched = []

    def start():
        with whole_or_none():
            launched.append(java_gateway.Popen(STAYS))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start()
    return launched[0]


def test_a_jvm_whose_start_is_interrupted_is_ended(monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", None)
    launched_by = java_gateway.Popen
    assert interrupted_start().returncode == -signal.SIGKILL
    assert java_gateway.Popen is launched_by


def test_one_that_answers_is_kept_for_the_next_session(monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", object())
    process = interrupted_start()
    assert process.poll() is None
    process.kill()
    process.wait()


def test_an_interrupt_within_the_launch_itself_ends_what_it_started(monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", None)
    seen = []

    def strike(self, *args, **kwargs):
        started(self, *args, **kwargs)
        seen.append(self)
        raise KeyboardInterrupt

    started = java_gateway.Popen._execute_child
    monkeypatch.setattr(java_gateway.Popen, "_execute_child", strike)
    with pytest.raises(KeyboardInterrupt), whole_or_none():
        java_gateway.Popen(STAYS)
    assert seen[0].returncode == -signal.SIGKILL


def test_what_py4j_logs_of_a_start_is_raised_as_well_and_not_logged(logged):
    with whole_or_none():
        assert not logged(RuntimeError("reentrant call"))
    assert logged(RuntimeError("later"))


def test_ctrl_c_ends_what_spark_is_asked_and_only_that_goes_unlogged(logged):
    def ask():
        with ended_by_ctrl_c():
            assert not logged(KeyboardInterrupt())
            assert logged(OSError("gone"))
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda *_: None)  # Spark's own
    try:
        with pytest.raises(KeyboardInterrupt):
            ask()
        assert signal.raise_signal(signal.SIGINT) is None, "Spark's handler is back"
    finally:
        signal.signal(signal.SIGINT, before)
