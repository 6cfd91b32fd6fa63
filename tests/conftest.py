"""Options and fixtures of every floor."""

import gc
import os
import signal
import subprocess

import brief_jvm
import forked_workers
import pytest
import warm_commands
from hypothesis import HealthCheck, settings
from hypothesis.strategies import text
from run_order import in_order
from tries import leave_out_long, tries

GARBAGE = 50_000
"""So many new objects are worth a look of the collector, and what most tests make and let go of is
not; 700 by default, which takes a twelfth of the processor time of tests in one process, and a
fourth of the time in which they are collected."""

# No test judges by time: a busy machine is no fault.
settings.register_profile(
    "house",
    deadline=None,
    max_examples=tries(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

# A script that starts the tests in the background has them ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

warm_commands.warm_nodes()
gc.set_threshold(GARBAGE)

ARCHIVE = pytest.StashKey[subprocess.Popen]()
"""What writes the archive of Spark's classes, beside the collection of a run by several."""


def pytest_configure(config):
    if config.option.workers:
        config.pluginmanager.register(forked_workers)
        if config.option.archive:
            config.stash[ARCHIVE] = brief_jvm.begin()


def pytest_collection_modifyitems(config, items):
    leave_out_long(config, items)
    names = in_order([item.path.name for item in items])
    rank = {name: number for number, name in enumerate(names)}
    items.sort(key=lambda item: rank[item.path.name])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Thousands of tests and all that they import stay: the collector need not look at them again
    and again while they run. The JVMs of the Spark tests live for a minute."""
    gc.collect()
    gc.freeze()
    if writing := session.config.stash.get(ARCHIVE, None):
        text().validate()  # all of Unicode is gone through once
        writing.wait()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", brief_jvm.options())
    os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", brief_jvm.flags())


def pytest_addoption(parser):
    parser.addoption(
        "--workers",
        type=int,
        default=0,
        help="run so many files at a time, each in a process of so many; 0: all in this one",
    )
    parser.addoption(
        "--no-archive",
        action="store_false",
        dest="archive",
        help="write no archive of Spark's classes: no other run will be in this environment",
    )
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="refill the results of the transcripts in tests/scenarios; read the diff afterwards",
    )


@pytest.fixture
def rewrite(request) -> bool:
    return request.config.getoption("--rewrite")
