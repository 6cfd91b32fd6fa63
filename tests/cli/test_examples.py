"""Goal: the programs in `deploy/examples` do what they say, as they are.

Method: each is a process of its own, in the order of their page, against brokers of this process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S
from secure_run import open_only
from tries import LONG

from hightide.blocking import Admin
from hightide.testing import BlockingCluster

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    open_only("the programs are written for a cluster that is open"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy/examples"
PAGE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
ROWS = 5


@pytest.fixture(scope="module")
def address():
    with BlockingCluster(1) as cluster, Admin(cluster.bootstrap) as admin:
        admin.create_topic("orders", partitions=3)
        yield cluster.bootstrap


def run(address, name, *words, stdin=b"", code=0):
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, "HIGHTIDE_BOOTSTRAP": address},
        check=False,
    )
    assert ended.returncode == code, ended.stderr.decode()
    return ended.stdout.decode().splitlines()


def test_the_page_names_them_all():
    named = re.findall(r"^\| `(\w+\.py)`", PAGE, re.MULTILINE)
    assert named == re.findall(r"deploy/examples/(\w+\.py)", PAGE)
    assert {*named} == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.fixture(scope="module")
def filled(address):
    orders = (EXAMPLES / "orders.csv").read_bytes()
    assert run(address, "ingest.py", "orders", stdin=orders) == ["5 of 5 rows are in orders"]
    return address


def test_what_cannot_be_stored_is_told(address):
    orders = (EXAMPLES / "orders.csv").read_bytes()
    told = run(address, "ingest.py", "bad/name", stdin=orders, code=1)
    assert told == ["0 of 5 rows are in bad/name"]


def test_workers_share_the_work_and_go_on_where_the_last_one_was(filled):
    first = run(filled, "worker.py", "orders", "3")
    rest = run(filled, "worker.py", "orders", str(ROWS - 3))
    assert len({*first, *rest}) == ROWS
    assert sum("grace" in line for line in [*first, *rest]) == 2


def test_columns_are_counted(filled):
    pytest.importorskip("pyarrow")
    told = run(filled, "columns.py", "orders")
    assert {*told[:2]} == {"2 ada", "2 grace"}
    assert told[2:] == ["1 barbara"]


@LONG
@pytest.mark.spark
def test_rows_are_in_parquet(filled, tmp_path):
    pytest.importorskip("pyspark")
    (told,) = run(filled, "to_parquet.py", "orders", str(tmp_path / "orders"))
    assert told.startswith(f"{ROWS} rows are in ")
