"""Options and fixtures of every floor."""

import os
import signal

import brief_jvm
import pytest
from hypothesis import HealthCheck, settings
from tries import tries

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

# The JVMs of the Spark tests live for a minute.
os.environ.setdefault("SPARK_SUBMIT_OPTS", brief_jvm.options())
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", brief_jvm.options())

# Files whose tests share a Spark session: as few workers as this start one, and it is warm.
TOGETHER = (
    (
        "test_spark_pipeline.py",
        "test_spark_losses.py",
        "test_spark_sources.py",
        "test_spark_tls.py",
    ),
    (
        "test_spark.py",
        "test_spark_sink_queries.py",
        "test_spark_streaming.py",
        "test_spark_extremes.py",
        "test_spark_filters.py",
    ),
)

# Long files first, those that keep every core busy beside those that mostly wait: a whole run is
# then as short as the machine allows. Needs `--no-loadscope-reorder`, as deploy/test.sh has it.
FIRST = (
    *TOGETHER[0],
    *TOGETHER[1],
    "test_mutants.py",
    "test_cluster_live.py",
    "test_replication_mutants.py",
    "test_spark_kills.py",
    "test_spark_adversary.py",
    "test_lost_disks_live.py",
    "test_spark_cluster.py",
    "test_demo.py",
    "test_cli_bench.py",
    "test_lost_voters_live.py",
    "test_secure_live.py",
    "test_kill.py",
    "test_attacks.py",
    "test_disk_mutants.py",
    "test_quorum_storms.py",
    "test_cli_secrets.py",
    "test_strangers_live.py",
    "test_cli_live.py",
)


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
    rank = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="refill the results of the transcripts in tests/scenarios; read the diff afterwards",
    )


@pytest.fixture
def rewrite(request) -> bool:
    return request.config.getoption("--rewrite")
