"""Goal: pytest's fixtures give each test the cluster it asked for.

Method: a project as a user has it, with tests of its own and no settings, run by a pytest of its
own; what it says is compared.
"""

import os
import re
import subprocess
import sys

import pytest
from patience import PATIENCE_S

pytestmark = [pytest.mark.live, pytest.mark.slow]

CONFTEST = """
import pytest


@pytest.fixture(scope="session")
def hightide_options():
    return {"brokers": 1, "configs": {"num.partitions": "5"}}
"""

TESTS = """
import hightide
import hightide.blocking
import pytest


def test_what_all_get(hightide_cluster):
    assert [*hightide_cluster.ports] == [1]


@pytest.mark.hightide(brokers=3, configs={"log.segment.bytes": "2048"})
def test_what_one_gets(hightide_cluster):
    assert [*hightide_cluster.ports] == [1, 2, 3]
    assert (hightide_cluster.directory / "broker-3").is_dir()
    with hightide.blocking.Admin(hightide_cluster.bootstrap) as admin:
        admin.create_topic("t")
        assert len(admin.describe_topic("t").partitions) == 5


@pytest.mark.trio
@pytest.mark.hightide(brokers=2)
async def test_trio(hightide_trio_cluster):
    async with hightide.Admin(hightide_trio_cluster.bootstrap) as admin:
        assert len((await admin.describe_cluster()).brokers) == 2
        await admin.create_topic("t")
        assert len((await admin.describe_topic("t")).partitions) == 5


def test_the_first_of_all(hightide_session_cluster):
    with hightide.blocking.Admin(hightide_session_cluster.bootstrap) as admin:
        admin.create_topic("first")


def test_the_second_of_all(hightide_session_cluster):
    with hightide.blocking.Admin(hightide_session_cluster.bootstrap) as admin:
        assert [each.topic for each in admin.list_topics()] == ["first"]


@pytest.mark.hightide(3)
def test_a_number_without_a_name(hightide_cluster):
    pass


@pytest.mark.hightide(broker=3)
def test_an_option_that_there_is_not(hightide_cluster):
    pass


@pytest.mark.hightide(brokers=3)
def test_a_marker_of_nobody(hightide_session_cluster):
    pass
"""


def test_a_project_of_a_user(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-v"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.findall(r"::(test_\w+) (PASSED|FAILED|ERROR)", told)
    wrong = [name for name, outcome in found if outcome != "PASSED"]
    assert wrong == [
        "test_a_number_without_a_name",
        "test_an_option_that_there_is_not",
        "test_a_marker_of_nobody",
    ], told
    assert len(found) == 8
    assert "that cluster is made for all tests" in told
    assert "expected names, as in @pytest.mark.hightide(brokers=1)" in told
    assert "@pytest.mark.hightide has no option 'broker', did you mean brokers?" in told
