"""Goal: the Python examples of the README and of the guide run as they are written.

Method: each block but those of Spark is a process of its own, a script or a pytest file, against a
real broker; only the address is another one. Those of a document come in its order.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S
from secure_run import open_only

from hightide import blocking
from hightide.testing import BlockingCluster

pytestmark = [
    pytest.mark.live,
    open_only("the examples are written for a cluster that is open"),
]

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:19092"


def blocks_of(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [block for block in found if "spark" not in block]


BLOCKS = blocks_of("README.md")
GUIDE = blocks_of("deploy/docs/guide/clients.md")


@pytest.fixture(scope="module")
def address():
    with BlockingCluster(1) as cluster, blocking.Admin(cluster.bootstrap) as admin:
        admin.create_topic("orders", partitions=3)
        yield cluster.bootstrap


def test_there_is_one_for_trio_for_scripts_for_notebooks_for_tests_and_for_kafkas_clients():
    assert len(BLOCKS) == 5
    for sign in ("trio.run(", "with Producer(", ".open()", "hightide_cluster", "confluent_kafka"):
        assert sum(sign in block for block in BLOCKS) == 1, sign


@pytest.mark.parametrize("block", BLOCKS + GUIDE, ids=range(len(BLOCKS + GUIDE)))
def test_an_example_runs_as_it_is_written(block, address, tmp_path):
    is_test = "def test_" in block
    path = tmp_path / ("test_example.py" if is_test else "example.py")
    path.write_text(block.replace(ADDRESS, address))
    command = [sys.executable, *(["-m", "pytest", "-q"] if is_test else []), str(path)]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout
