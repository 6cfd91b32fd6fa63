"""What a pipeline's settings may be, where they come from, and what its checkpoint keeps of them.

Goal: a mistake is told with the name of the setting before a JVM starts, flags go over the file,
and a checkpoint is not taken up by another pipeline or by windows of another kind. Method: tables
of settings; files are real and in a temporary directory. No Spark session and no broker; whole
pipelines are `test_spark_pipeline.py`'s.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JJavaError

from hightide.protocol.errors import UsageError
from hightide.spark import pipeline_config as pc
from hightide.spark.offsets import Place, Position
from hightide.spark.pipeline import PipelineFailed, _reason, _spark_says_no, lag
from hightide.spark.pipeline_status import newest
from hightide_cli.pipeline import _merged, _reached
from hightide_cli.processes import make_plan

HOURLY = {"window": "1 hour", "compute": ["count(*) AS n"], "topic": "hourly"}
READ = {"topics": ["flights"], "format": "json", "schema": "carrier string"}
SETTINGS = {**READ, "checkpoint": "out/c", "parquet": "out/flights", "aggregate": HOURLY}
FILE = {"topics": ["a"], "name": "x", "spark": {"s.a": "1", "s.b": "1"}, "aggregate": HOURLY}


def settings(**changes):
    """The settings above with some others; None: without."""
    return {name: value for name, value in {**SETTINGS, **changes}.items() if value is not None}


def hourly(**changes):
    return settings(aggregate={**HOURLY, **changes})


# -- where things are ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint", "parquet", "aggregate.parquet"])
@pytest.mark.parametrize("below", ["", "/below", "/far/below"])
def test_a_place_that_is_a_file_is_told_before_a_jvm_starts(tmp_path, name, below):
    (tmp_path / "file").write_text("")
    place = f"{tmp_path}/file{below}"
    places = {"checkpoint": str(tmp_path / "c"), "parquet": str(tmp_path / "p")}
    given = settings(**places) | {name: place} if "." not in name else settings(**places)
    if name == "aggregate.parquet":
        given["aggregate"] = {**HOURLY, "parquet": place}
    with pytest.raises(UsageError, match=rf"{name} '{place}': \S+/file is a file"):
        pc.check_places(pc.read_config(given))


def test_places_that_are_not_there_yet_or_are_no_paths_are_fine(tmp_path):
    there = {"checkpoint": f"{tmp_path}/c/d", "parquet": "s3a://bucket/p"}
    pc.check_places(pc.read_config(settings(**there)))
    pc.check_places(pc.read_config(settings(checkpoint=f"file://{tmp_path}/c", parquet="")))


def test_a_directory_that_is_no_checkpoint_is_told_by_what_it_lacks(tmp_path):
    with pytest.raises(UsageError, match=r"no pipeline's checkpoint: it has no pipeline\.json$"):
        pc.recall(tmp_path)


def test_what_fails_in_java_is_told_without_where():
    class Failed(Py4JJavaError):
        def __init__(self):
            self.java_exception = SimpleNamespace(toString=lambda: "java.io.IOException: no room")

    told = r"^pipeline: java\.io\.IOException: no room$"
    with pytest.raises(PipelineFailed, match=told), _spark_says_no():
        raise Failed


def test_a_pipeline_asks_the_brokers_that_other_commands_ask(tmp_path, monkeypatch):
    make_plan(tmp_path / "data", brokers=1, split=False, port=9000)
    monkeypatch.delenv("HIGHTIDE_BOOTSTRAP", raising=False)
    monkeypatch.setenv("HIGHTIDE_DATA", str(tmp_path / "data"))
    assert _reached({})["bootstrap"] == "127.0.0.1:9000"
    assert _reached({"bootstrap": "h:1"})["bootstrap"] == "h:1"


# -- settings ------------------------------------------------------------------------------------


def test_settings_that_are_not_given_have_defaults():
    config = pc.read_config({"topics": ["t"], "checkpoint": "c", "parquet": "p"})
    assert (config.bootstrap, config.name) == ("127.0.0.1:19092", "pipeline")
    assert (config.format, config.malformed, config.starting) == ("raw", "keep", "earliest")
    assert (config.event_time, config.trigger, config.aggregate) == ("timestamp", "1 second", None)
    aggregate = pc.read_config(settings()).aggregate
    assert (aggregate.slide, aggregate.watermark, aggregate.by) == ("", "10 minutes", [])


@pytest.mark.parametrize(
    "given",
    [
        settings(topics=None, pattern="f.*"),
        settings(format=None, schema=None),
        settings(parquet=None),
        settings(aggregate=None),
        hourly(topic="", parquet="out/hourly") | {"parquet": ""},
    ],
)
def test_one_output_and_one_way_to_name_topics_is_enough(given):
    assert isinstance(pc.read_config(given), pc.PipelineConfig)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (settings(topics=None), "expected topics or pattern, one of them"),
        (settings(pattern="f.*"), "expected topics or pattern, one of them"),
        (settings(checkpoint=""), "checkpoint is empty, expected a directory"),
        (settings(schema=None), "format json needs a schema"),
        (settings(format="raw"), "format json needs a schema, and raw has none"),
        (settings(parquet=None, aggregate=None), "nothing is written"),
        (hourly(compute=[]), "aggregate.compute is empty"),
        (hourly(topic=""), "the aggregate goes nowhere"),
        (hourly(topic="flights"), "results go to 'flights', which is read"),
        (settings(topics=None, pattern="h.*"), "results go to 'hourly', which is read"),
        (settings(topics=None, pattern="("), "pattern '(': "),
        (hourly(window=""), "Expected `str` of length >= 1 - at `$.aggregate.window`"),
        (hourly(watermark=""), "Expected `str` of length >= 1 - at `$.aggregate.watermark`"),
        (settings(trigger=""), "Expected `str` of length >= 1 - at `$.trigger`"),
        (settings(max_offsets_per_trigger=0), "Expected `int` >= 1"),
        (settings(spark=3), "spark is 3, expected a table"),
        (settings(checkpoint=None), "checkpoint is missing: --checkpoint, or in a file"),
        (
            settings(aggregate={"window": "1 hour"}),
            "compute is missing: --compute, or in a file in [aggregate]",
        ),
        (settings(topics="flights"), "Expected `array`, got `str` - at `$.topics`"),
        (settings(format="avro"), "Invalid enum value 'avro' - at `$.format`"),
        (settings(malformed="drop"), "Invalid enum value 'drop' - at `$.malformed`"),
        (settings(starting="now"), "Invalid enum value 'now' - at `$.starting`"),
        (settings(fail_on_data_loss="no"), "Expected `bool`, got `str`"),
        (settings(spark={"spark.ui.enabled": True}), "Expected `str`, got `bool`"),
        (settings(aggregate="hourly"), "Expected `object | null`, got `str` - at `$.aggregate`"),
        (hourly(window=3600), "Expected `str`, got `int` - at `$.aggregate.window`"),
        (settings(topic="flights"), "no setting topic, did you mean topics?"),
        (
            settings(zzz=1),
            "no setting zzz: checkpoint, bootstrap, client, name, topics, pattern, format,",
        ),
        (hourly(windows="1 hour"), "no setting aggregate.windows, did you mean aggregate.window?"),
        (hourly(zzz=1), "no setting aggregate.zzz: window, compute, slide, watermark, by,"),
    ],
)
def test_settings_that_cannot_work_are_refused(given, words):
    with pytest.raises(UsageError, match=f"^pipeline: {re.escape(words)}"):
        pc.read_config(given)


# -- files and flags -----------------------------------------------------------------------------


def test_a_file_says_settings_and_tables(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text('name = "n"\n[aggregate]\nwindow = "1 hour"\n[spark]\n"spark.x" = "1"\n')
    expected = {"name": "n", "aggregate": {"window": "1 hour"}, "spark": {"spark.x": "1"}}
    assert pc.read_file(file) == expected


def test_names_of_spark_may_be_tables_as_toml_makes_them():
    given = settings(spark={"spark": {"executor": {"memory": "2g"}}, "spark.x": "1"})
    assert pc.read_config(given).spark == {"spark.executor.memory": "2g", "spark.x": "1"}


@pytest.mark.parametrize("content", [b"topics = [", b'name = "\xff"', None])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    file = tmp_path / "p.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=f"^{re.escape(str(file))}: ."):
        pc.read_file(file)


@pytest.mark.parametrize(
    ("flags", "conf", "changed"),
    [
        ({"name": None, "topics": (), "by": (), "window": None}, (), {}),
        ({"name": "y", "topics": ("b", "c")}, (), {"name": "y", "topics": ["b", "c"]}),
        ({"parquet": "rows"}, (), {"parquet": "rows"}),
        ({"windows_parquet": "w"}, (), {"aggregate": {**HOURLY, "parquet": "w"}}),
        ({"results": "r"}, (), {"aggregate": {**HOURLY, "topic": "r"}}),
        ({"slide": "1 minute"}, (), {"aggregate": {**HOURLY, "slide": "1 minute"}}),
        ({}, ("s.a=2", "s.c=x=y"), {"spark": {"s.a": "2", "s.b": "1", "s.c": "x=y"}}),
    ],
)
def test_flags_go_over_the_file(flags, conf, changed):
    assert _merged(FILE, flags, conf) == {**FILE, **changed}


def test_flags_alone_make_a_pipeline():
    flags = {"topics": ("a",), "checkpoint": "c", "window": "1 hour", "by": ("k", "l")}
    flags |= {"compute": ("count(*) AS n",), "windows_parquet": "w", "results": "r"}
    windows = pc.Aggregate(**HOURLY | {"by": ["k", "l"], "parquet": "w", "topic": "r"})
    expected = pc.PipelineConfig(topics=["a"], checkpoint="c", aggregate=windows)
    assert pc.read_config(_merged({}, flags, ())) == expected


@pytest.mark.parametrize(
    ("given", "flags", "conf"),
    [({"aggregate": "x"}, {"window": "1 hour"}, ()), ({"spark": 3}, {}, ("a=b",))],
)
def test_a_file_that_has_something_else_in_place_of_a_table_is_refused(given, flags, conf):
    with pytest.raises(click.UsageError, match="expected a table"):
        _merged(given, flags, conf)


def test_a_setting_of_spark_without_a_value_is_refused():
    with pytest.raises(click.UsageError, match=r"--conf 's\.c', expected NAME=VALUE"):
        _merged({}, {}, ("s.a=2", "s.c"))


# -- what a checkpoint keeps ---------------------------------------------------------------------


def test_a_directory_is_of_this_machine_or_elsewhere():
    places = ["out/c", "/a b/c", "file:///a/c", "hdfs://names/c"]
    assert [pc.local_path(p) for p in places] == [Path("out/c"), Path("/a b/c"), Path("/a/c"), None]


def kept(checkpoint, scheme="", **changes):
    """The settings that `remember` was given, and kept."""
    config = pc.read_config(settings(checkpoint=f"{scheme}{checkpoint}", **changes))
    pc.remember(config)
    assert [file.name for file in checkpoint.iterdir()] == ["pipeline.json"]
    assert pc.recall(checkpoint) == config
    return config


@pytest.mark.parametrize(
    "changes",
    [
        {"filter": "carrier = 'AA'"},
        {"parquet": "elsewhere"},
        {"topics": ["flights", "more"], "trigger": "5 seconds", "max_offsets_per_trigger": 10},
        {"aggregate": {**HOURLY, "parquet": "w", "topic": "other"}},
        {"scheme": "file://"},
    ],
)
def test_what_no_window_depends_on_may_change(tmp_path, changes):
    place = tmp_path / "made" / "checkpoint"
    assert kept(place) != kept(place, **changes)


def test_a_checkpoint_elsewhere_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pc.remember(pc.read_config(settings(checkpoint="hdfs://names/checkpoint")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (settings(name="b"), "pipeline.json is of pipeline 'pipeline', not 'b'"),
        (hourly(window="2 hours"), "aggregate.window was '1 hour' and is now '2 hours'"),
        (hourly(slide="1 minute"), "aggregate.slide was '' and is now '1 minute'"),
        (hourly(watermark="1 day"), "aggregate.watermark was '10 minutes' and is now '1 day'"),
        (hourly(by=["k"]), "aggregate.by was [] and is now ['k']"),
        (hourly(compute=["max(x)"]), "compute was ['count(*) AS n'] and is now ['max(x)']"),
    ],
)
def test_another_pipeline_and_windows_of_another_kind_are_refused(tmp_path, given, words):
    before = kept(tmp_path)
    with pytest.raises(UsageError, match=re.escape(words)):
        pc.check_same(pc.read_config({**given, "checkpoint": str(tmp_path)}))
    assert pc.recall(tmp_path) == before


def test_a_topic_that_is_read_no_more_is_given_up_only_by_who_says_so(tmp_path):
    before = kept(tmp_path)
    other = settings(checkpoint=str(tmp_path), aggregate=None, topics=["other"])
    with pytest.raises(UsageError, match="give another checkpoint, or"):
        pc.check_same(pc.read_config(other))
    pc.check_same(pc.read_config({**other, "fail_on_data_loss": False}))
    both = [*before.topics, "other"]
    pc.check_same(pc.read_config({**other, "topics": both}))


def test_windows_that_rest_for_a_while_are_the_same_when_they_are_wanted_again(tmp_path):
    kept(tmp_path)
    pc.remember(pc.read_config(settings(checkpoint=str(tmp_path), aggregate=None)))
    again = {**hourly(window="2 hours"), "checkpoint": str(tmp_path)}
    with pytest.raises(UsageError, match="was '1 hour' and is now '2 hours'"):
        pc.check_same(pc.read_config(again))


@pytest.mark.parametrize("content", [None, "{", "{}", '{"checkpoint": 1}'])
def test_a_directory_without_settings_is_no_checkpoint(tmp_path, content):
    if content is not None:
        (tmp_path / "pipeline.json").write_text(content)
    with pytest.raises(UsageError, match=f"^{re.escape(str(tmp_path))} is no pipeline's"):
        pc.recall(tmp_path)


# -- how far it is -------------------------------------------------------------------------------


def at(**offsets):
    """A position as a query's own JSON; `a0=5`: partition 0 of topic a is at 5."""
    places = {(name[0], int(name[1:])): Place(offset, 0) for name, offset in offsets.items()}
    return json.dumps(Position(places, {topic: f"id-{topic}" for topic, _ in places}).to_json())


@pytest.mark.parametrize(
    ("head", "done", "expected"),
    [
        (at(a0=5, a1=7, b0=3), at(a0=1, a1=1, b0=3), {"a": 10, "b": 0}),
        (at(a0=5, a1=7), at(a0=9, a1=5), {"a": 2}),
        ("null", at(a0=1), {}),
        (at(a0=1), None, {}),
    ],
)
def test_the_lag_of_a_topic_is_that_of_its_partitions(head, done, expected):
    assert lag(head, done) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[X] it broke\n=== Streaming Query ===\nplan", "[X] it broke"),
        ("T\nhightide.a.B: one\nat z\nhightide.spark.offsets.DataLoss: t: two\nat y", "t: two"),
        ("see hightide.a.B: one\n=== Streaming Query ===", "see hightide.a.B: one"),
    ],
)
def test_a_failure_is_told_in_our_words_or_without_the_plan(text, reason):
    assert _reason(text) == reason


def test_the_newest_batch_is_the_greatest_number(tmp_path):
    assert newest(tmp_path / "none") is newest(tmp_path) is None
    for name in ("9", "10", ".11.crc", "12.compact", "metadata"):
        (tmp_path / name).touch()
    assert newest(tmp_path) == 10
