"""Goal: the README's Python examples run as they are written.

Method: each block but those of Spark is a process of its own, a script or a pytest file, against a
real broker; only the address is another one.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S

from hightide import blocking
from hightide.testing import BlockingCluster

pytestmark = pytest.mark.live

README = Path(__file__).resolve().parents[2] / "README.md"
ADDRESS = "127.0.0.1:19092"
BLOCKS = [
    block
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if "spark" not in block
]


@pytest.fixture(scope="module")
def address():
    with BlockingCluster(1) as cluster, blocking.Admin(cluster.bootstrap) as admin:
        admin.create_topic("orders", partitions=3)
        yield cluster.bootstrap


def test_there_is_one_for_trio_for_scripts_for_notebooks_and_for_tests():
    assert len(BLOCKS) == 4
    for sign in ("trio.run(", "with Producer(", ".open()", "hightide_cluster"):
        assert sum(sign in block for block in BLOCKS) == 1, sign


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
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
