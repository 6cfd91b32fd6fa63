"""The shipped pipeline as a whole: what it writes, where it goes on, and how it refuses and ends.

Goal: rows, windows and results are exactly what the records say, each once, over any number of
runs and whatever cut them short. Method: one broker in its own process and Spark on this machine;
what is expected is computed from the records in plain Python. A command that is to be stopped is a
process with a JVM of its own; another one goes on in the session of the tests.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import os
import re
import signal
import subprocess
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")

from commands import COMMAND, environment, hightide
from patience import PATIENCE_S
from secure_run import reaching, spark_options, variables
from spark_support import broker, logged, numbered, spark, until  # noqa: F401
from test_spark_sink_queries import records_of

from hightide.blocking import Producer
from hightide.protocol.errors import UsageError
from hightide.spark.pipeline import PipelineFailed, start
from hightide.spark.pipeline_config import read_config
from hightide.spark.pipeline_status import standings
from hightide_cli.main import cli

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

BEGIN_MS, MINUTE_MS, WATERMARK_MS = 1_700_000_040_000, 60_000, 30_000
STORED_LATER_MS = 3_600_000
"""How far a record's timestamp is behind the time in its value."""
TASKS = 2
"""As many as the session shuffles to."""
AGGREGATE = {"window": "1 minute", "watermark": "30 seconds"}
AGGREGATE |= {"by": ["carrier", "upper(origin) AS place"]}
AGGREGATE |= {"compute": ["count(*) AS flights", "sum(delay) AS delay"]}
MALFORMED = [
    b"no json",
    b"",
    b" ",
    b'["AA"]',
    b'{"carrier": "AA", "delay": "late", "at": %d}' % BEGIN_MS,
]


def flights(first, stop, seconds=1):
    """Events, one every so many seconds; every third one has no origin."""
    names, origins = ("carrier", "origin", "delay", "at"), (None, "jfk", "lga")
    numbers = [(number, BEGIN_MS + number * seconds * 1000) for number in range(first, stop)]
    found = [(("AA", "UA")[n % 2], origins[n % 3], n % 60, at) for n, at in numbers]
    return [dict(zip(names, values, strict=True)) for values in found]


def store(broker, topic, events, partitions=1):
    """Store events, alternating between partitions; the rows that a pipeline makes of them."""
    with Producer(**reaching(broker.address)) as producer:
        sent = []
        for number, event in enumerate(events):
            options = {"partition": number % partitions, "timestamp": event["at"] + STORED_LATER_MS}
            sent.append(producer.send(topic, json.dumps(event).encode(), **options))
        places = [each.result(PATIENCE_S) for each in sent]
    return [(p.partition, p.offset, e["delay"], None) for p, e in zip(places, events, strict=True)]


def finished(*runs, delay_min=0, later_ms=0):
    """The windows that are out after these runs, by the rule: what is behind the watermark of the
    runs before is late; a window is out when the watermark has reached its end."""
    groups, watermark = {}, 0
    for run in runs:
        events = [event for event in run if event["delay"] >= delay_min]
        for event in events:
            begin = (event["at"] + later_ms) // MINUTE_MS * MINUTE_MS
            if begin + MINUTE_MS > watermark:
                where = (begin, event["carrier"], event["origin"] and event["origin"].upper())
                groups.setdefault(where, []).append(event["delay"])
        watermark = max(event["at"] for event in events) + later_ms - WATERMARK_MS
    return in_order(
        {"window_start": utc(begin), "window_end": utc(begin + MINUTE_MS), "carrier": carrier}
        | ({"place": place} if place else {})
        | {"flights": len(delays), "delay": sum(delays)}
        for (begin, carrier, place), delays in groups.items()
        if begin + MINUTE_MS <= watermark
    )


def utc(ms):
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def keyed(windows):
    """What the results topic holds of windows: each with its groups as the key."""
    return in_order((f"{row['carrier']},{row.get('place', '')}".encode(), row) for row in windows)


def in_order(rows):
    return sorted(rows, key=repr)


class Pipeline:
    """A pipeline's settings with directories and topics of its own, and what its outputs hold."""

    def __init__(self, spark, broker, place, *, partitions=1, **settings):
        self.spark, self.broker, self.place = spark, broker, place
        self.topic, self.results_topic = broker.topic(partitions), broker.topic()
        outputs = {"parquet": str(place / "windows"), "topic": self.results_topic}
        way = spark_options(broker.address)
        self.settings = {"bootstrap": way.pop("bootstrap.servers"), "client": way}
        self.settings |= {"topics": [self.topic], "format": "json"}
        self.settings |= {"schema": "carrier string, origin string, delay int, at bigint"}
        self.settings |= {"checkpoint": str(place / "checkpoint"), "parquet": str(place / "rows")}
        self.settings |= {"aggregate": {**AGGREGATE, **outputs}, **settings}

    def start(self, *, once=True, **changes):
        """Start it; `changes` may be the aggregate's as well."""
        if own := {name: changes.pop(name) for name in AGGREGATE if name in changes}:
            changes["aggregate"] = {**self.settings["aggregate"], **own}
        return start(self.spark, read_config({**self.settings, **changes}), once=once)

    def run(self):
        """Run it once, to its end."""
        running = self.start()
        until(lambda: not running.is_active, "its end", progress=running.progress)
        running.check()

    def standings(self):
        """Of each query whether its last batch is finished, and whether there is more to read."""
        config = read_config(self.settings)
        found = standings(Path(config.checkpoint), config, timeout_s=PATIENCE_S)
        return {each.query: (each.is_finished, each.lag > 0) for each in found}

    def read(self, name, *columns):
        frame = self.spark.read.parquet(str(self.place / name)).selectExpr(*columns)
        return in_order(map(tuple, frame.collect()))

    def rows(self):
        return self.read("rows", "partition", "offset", "delay", "_corrupt_record")

    def windows(self):
        return in_order(json.loads(row) for (row,) in self.read("windows", "to_json(struct(*))"))

    def results(self):
        return [(r.key, json.loads(r.value)) for r in records_of(self.broker, self.results_topic)]


def test_raw_records_of_every_topic_that_matches_are_written_as_they_are(spark, broker, tmp_path):
    names = [broker.topic(name=name) for name in ("raw-1", "raw-2", "not-raw")]
    for name in names:
        broker.fill(name, numbered(0, 10))
    settings = {"topics": [], "pattern": "raw-.*", "format": "raw", "schema": ""}
    settings |= {"filter": "offset >= 5", "aggregate": None}
    pipeline = Pipeline(spark, broker, tmp_path, **settings)
    pipeline.run()
    found = pipeline.read("rows", "topic", "partition", "offset", "CAST(value AS string)", "key")
    assert found == [(name, 0, n, f"{n:06}", None) for name in names[:2] for n in range(5, 10)]


ON_TIME, MORE = flights(0, 240), flights(240, 360)
MIXED = flights(100, 101) + flights(200, 201) + MORE
"""The first one is late after `ON_TIME`, the second one not."""


@pytest.fixture(scope="module")
def history(spark, broker, tmp_path_factory):
    """The rows to expect and what the outputs held, after each of three runs."""
    place, settings = tmp_path_factory.mktemp("history"), {"event_time": "timestamp_millis(at)"}
    pipeline = Pipeline(spark, broker, place, partitions=2, filter="delay >= 5", **settings)
    stored, found = [], []
    for events, malformed in ((ON_TIME, MALFORMED), (MIXED, []), ([], [])):
        stored += store(broker, pipeline.topic, events, partitions=2)
        texts = zip(broker.fill(pipeline.topic, malformed, partition=1), malformed, strict=True)
        stored += [(1, offset, None, value.decode()) for offset, value in texts]
        pipeline.run()
        rows = in_order(row for row in stored if row[2] is None or row[2] >= 5)
        found.append((rows, pipeline.rows(), pipeline.windows(), pipeline.results()))
    return found


def test_rows_are_filtered_and_values_that_do_not_parse_are_kept(history):
    for expected, rows, *_ in history:
        assert rows == expected
    assert [len(rows) for _, rows, *_ in history] == [220 + 5, 332 + 5, 332 + 5]


def test_windows_and_results_are_written_when_the_watermark_has_passed_their_end(history):
    expected = finished(ON_TIME, delay_min=5)
    assert len(expected) == 3 * 6
    _, _, windows, results = history[0]
    assert (windows, in_order(results)) == (expected, keyed(expected))


def test_results_leave_a_task_in_one_order_whatever_a_store_of_state_makes_of_them(history):
    *_, results = history[0]
    places = [(key, row["window_start"]) for key, row in results]
    assert len({start for _, start in places}) > TASKS
    assert sum(before > after for before, after in pairwise(places)) < TASKS


def test_a_second_run_goes_on_where_the_first_one_was(history):
    expected = finished(ON_TIME, MIXED, delay_min=5)
    assert expected != finished(ON_TIME + MIXED, delay_min=5)
    assert expected != finished(ON_TIME, MORE, delay_min=5)
    _, _, windows, results = history[1]
    assert (windows, in_order(results)) == (expected, keyed(expected))


def test_a_run_with_nothing_new_changes_nothing(history):
    assert history[2] == history[1]


def test_a_pipeline_that_is_cut_short_writes_everything_once(spark, broker, tmp_path):
    pipeline, events = Pipeline(spark, broker, tmp_path), flights(0, 600, seconds=20)
    pipeline.settings["aggregate"]["parquet"] = ""
    rows, queries = store(broker, pipeline.topic, events), ("rows", "results")
    running = pipeline.start(once=False, trigger="100 milliseconds", max_offsets_per_trigger=20)
    places = [tmp_path / "checkpoint" / name for name in queries]
    until(lambda: all(len(logged(p, "commits")) > 1 for p in places), "two batches of each")
    running.stop()
    assert [is_behind for _, is_behind in pipeline.standings().values()] == [True, True]
    pipeline.run()
    for place in places:  # as if the driver had died before it wrote this down
        (place / "commits" / str(logged(place, "commits")[-1])).unlink()
    assert pipeline.standings() == dict.fromkeys(queries, (False, False))
    pipeline.run()
    assert pipeline.rows() == in_order(rows)
    assert in_order(pipeline.results()) == keyed(finished(events, later_ms=STORED_LATER_MS))
    assert pipeline.standings() == dict.fromkeys(queries, (True, False))


def test_a_value_that_does_not_parse_may_end_the_pipeline(spark, broker, tmp_path):
    pipeline = Pipeline(spark, broker, tmp_path, aggregate=None, malformed="fail")
    rows = store(broker, pipeline.topic, flights(0, 5))
    pipeline.run()
    broker.fill(pipeline.topic, MALFORMED)
    with pytest.raises(PipelineFailed, match=r"^query rows: .*MALFORMED_RECORD"):
        pipeline.run()
    assert pipeline.rows() == rows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filter": "delay >"}, "PARSE_SYNTAX_ERROR"),
        ({"filter": "late > 5"}, "`late` cannot be resolved"),
        ({"event_time": "arrival"}, "`arrival` cannot be resolved"),
        ({"schema": "carrier strin"}, 'data type "STRIN"'),
        ({"schema": "int"}, "schema 'int', expected fields"),
        ({"schema": "carrier string, Offset int"}, "field 'offset' of the schema is a column"),
        ({"window": "1 huor"}, "'1 huor'"),
        ({"watermark": "1 huor"}, "'1 huor'"),
        ({"by": ["airline"]}, "`airline` cannot be resolved"),
        ({"compute": ["sum("]}, "PARSE_SYNTAX_ERROR"),
        ({"trigger": "1 huor"}, "'1 huor'"),
    ],
)
def test_what_spark_does_not_understand_is_a_usage_error(spark, broker, tmp_path, changes, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        Pipeline(spark, broker, tmp_path).start(once=False, **changes)
    assert spark.streams.active == []


def test_queries_that_had_started_end_when_another_is_refused(spark, broker, tmp_path, request):
    stream = spark.readStream.format("rate").load().writeStream.format("noop")
    taken = stream.queryName("mine-windows").start()
    request.addfinalizer(taken.stop)
    with pytest.raises(UsageError, match="mine-windows"):
        Pipeline(spark, broker, tmp_path, name="mine").start(once=False)
    assert (tmp_path / "checkpoint" / "rows").exists()
    assert [query.name for query in spark.streams.active] == ["mine-windows"]


def test_what_is_not_there_is_told_without_a_jvm(broker, tmp_path):
    place, words = ["--checkpoint", tmp_path], ["--parquet", tmp_path / "rows", "--topic", "none"]
    ended = hightide("pipeline", "run", *place, *words, address=broker.address, code=4)
    assert "topic 'none' does not exist" in ended.err
    assert "Java" not in ended.err
    assert list(tmp_path.iterdir()) == []
    assert "is no pipeline's checkpoint" in hightide("pipeline", "status", *place, code=2).err


def test_a_command_ends_well_when_told_and_the_next_goes_on(spark, broker, tmp_path, monkeypatch):
    topic, checkpoint = broker.topic(2), str(tmp_path / "c")
    words = ["pipeline", "run", "-b", broker.address, "--topic", topic, "-o", "ndjson"]
    words += ["--checkpoint", checkpoint, "--parquet", str(tmp_path / "rows")]
    status = ["pipeline", "status", "--checkpoint", checkpoint, "-o", "ndjson"]
    broker.fill(topic, numbered(0, 500))
    command = [*COMMAND, *words, "--master", "local[2]", "--max-offsets-per-trigger", "20"]
    with (
        (tmp_path / "err").open("wb") as err,
        subprocess.Popen(
            command,
            stdout=-1,
            stderr=err,
            env=environment(broker.address),
            start_new_session=True,
        ) as process,
    ):
        first = json.loads(process.stdout.readline())
        # Its JVM is told as well, as `timeout`, systemd and a closed terminal do.
        os.killpg(process.pid, signal.SIGTERM)
        process.stdout.read()
    said = (tmp_path / "err").read_text()
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert (first["query"], first["rows"], 0 < first["lag"][topic] < 500) == ("rows", 20, True)
    assert sum(row["lag"] for row in hightide(*status).rows) > 0
    broker.fill(topic, numbered(500, 510), partition=1)
    monkeypatch.setattr("hightide_cli.pipeline.open_session", lambda *_: nullcontext(spark))
    ended = CliRunner().invoke(cli, [*words, "--once"], env=variables(broker.address))
    assert ended.exit_code == 0, ended.output
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (last["query"], last["lag"]) == ("rows", {topic: 0})
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(bytes(row.value) for row in rows) == numbered(0, 510)
    names = "is_finished", "lag", "offset", "high_watermark", "group_offset"
    found = [[row[name] for name in names] for row in hightide(*status).rows]
    assert found == [[True, 0, 500, 500, 500], [True, 0, 10, 10, 10]]
