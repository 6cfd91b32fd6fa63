"""Options and fixtures of every floor."""

import gc
import os
import signal

import brief_jvm
import pytest
import warm_commands
from hypothesis import HealthCheck, settings
from hypothesis.strategies import text
from run_order import TOGETHER, in_order
from tries import tries

GARBAGE = 10_000
"""So many new objects are worth a look of the collector; 700 by default, which takes a twelfth of
the processor time of tests in one process."""

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

# The JVMs of the Spark tests live for a minute.
os.environ.setdefault("SPARK_SUBMIT_OPTS", brief_jvm.options())
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", brief_jvm.flags())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return next((names[0] for names in TOGETHER if file.endswith(names)), file)

    return Together(config, log)


def pytest_collection_modifyitems(items):
    # Needs `--no-loadscope-reorder`, as deploy/test.sh has it.
    names = in_order([item.path.name for item in items])
    rank = {name: number for number, name in enumerate(names)}
    items.sort(key=lambda item: rank[item.path.name])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Thousands of tests and all that they import stay: the collector need not look at them again
    and again while they run, nor at what most tests make and let go of."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    if session.config.option.collectonly:
        text().validate()  # all of Unicode is gone through once, and kept for the workers


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="refill the results of the transcripts in tests/scenarios; read the diff afterwards",
    )


@pytest.fixture
def rewrite(request) -> bool:
    return request.config.getoption("--rewrite")
