"""The Spark source without a JVM: options, positions, the Java wrapper, and what an import costs.

Options and positions are functions of their arguments. What reads a range is
`test_spark_fetch.py`'s, whole queries are `test_spark.py`'s.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

pytest.importorskip("pyspark")

import hightide.spark
from hightide import java
from hightide.protocol.errors import HightideError, UsageError
from hightide.protocol.messages import EARLIEST, LATEST
from hightide.spark.offsets import DataLoss, Place, Position, advanced, no_further_back, prorate
from hightide.spark.options import read_options

GOOD = {"bootstrap.servers": "127.0.0.1:19092", "subscribe": "t"}


# -- options -------------------------------------------------------------------------------------


def options_of(streaming=None, **more):
    return read_options({**GOOD, **more}, streaming=streaming)


def test_defaults_are_those_of_kafkas_source():
    batch, stream = options_of(False), options_of(True)
    assert (batch.starting, batch.ending) == (EARLIEST, LATEST)
    assert stream.starting == LATEST
    for options in (batch, stream):
        assert options.bootstrap == "127.0.0.1:19092"
        assert options.topics == ("t",)
        assert options.max_offsets_per_trigger is None
        assert options.fail_on_data_loss is True
        assert options.include_headers is False
        assert options.fetch_timeout_s == 120


def test_every_option_is_read():
    options = options_of(
        True,
        subscribe=" a, b ,",
        startingOffsets='{"a": {"0": 3, "1": -2}, "b": {"0": -1}}',
        maxOffsetsPerTrigger="7",
        failOnDataLoss="FALSE",
        includeHeaders="True",
        fetchTimeoutMs="1500",
    )
    assert options.topics == ("a", "b")
    assert options.starting == {"a": {0: 3, 1: EARLIEST}, "b": {0: LATEST}}
    assert options.max_offsets_per_trigger == 7
    assert options.fail_on_data_loss is False
    assert options.include_headers is True
    assert options.fetch_timeout_s == 1.5
    batch = options_of(False, startingOffsets="EARLIEST", endingOffsets='{"t": {"0": 4}}')
    assert (batch.starting, batch.ending) == (EARLIEST, {"t": {0: 4}})


def test_names_are_read_in_any_case_and_kafkas_name_of_the_bootstrap_too():
    options = read_options({"KAFKA.Bootstrap.Servers": "h:1,i:2", "SUBSCRIBE": "t"})
    assert (options.bootstrap, options.topics) == ("h:1,i:2", ("t",))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("endOffsets", "endingOffsets"),
        ("max_offsets_per_trigger", "maxOffsetsPerTrigger"),
        ("failOnDataloss2", "failOnDataLoss"),
        ("header", "includeHeaders"),
        ("bootstrap.server", "bootstrap.servers"),
        ("subscribes", "subscribe"),
        ("fetchTimeout", "fetchTimeoutMs"),
    ],
)
def test_an_unknown_option_names_the_nearest_known_one(name, nearest):
    with pytest.raises(UsageError) as failure:
        options_of(**{name: "1"})
    assert f"unknown option {name.lower()!r} of format 'hightide'" in str(failure.value)
    assert str(failure.value).endswith(f", did you mean {nearest}?")


def test_an_unknown_option_that_is_near_to_none_is_refused_without_a_hint():
    with pytest.raises(UsageError) as failure:
        options_of(zzz="1")
    assert str(failure.value) == "unknown option 'zzz' of format 'hightide'"


@pytest.mark.parametrize("missing", ["", " ", ","])
def test_a_topic_must_be_named(missing):
    with pytest.raises(UsageError, match="option subscribe is empty"):
        options_of(subscribe=missing)


@pytest.mark.parametrize("bootstrap", ["host:", "host:port", "host:0", "host:65536", "a:1,,b:2"])
def test_a_bad_bootstrap_address_is_refused(bootstrap):
    with pytest.raises(UsageError, match=r"bootstrap address .* expected host:port"):
        options_of(**{"bootstrap.servers": bootstrap})


def test_a_bootstrap_address_must_be_given():
    with pytest.raises(UsageError, match=r"option bootstrap\.servers is missing"):
        read_options({"subscribe": "t"})


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "fetchTimeoutMs"])
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "\u00b2"])
def test_a_count_is_a_whole_number_above_zero(name, text):
    with pytest.raises(UsageError, match=f"{name} is .*, expected a whole number above 0"):
        options_of(**{name: text})


@pytest.mark.parametrize("name", ["failOnDataLoss", "includeHeaders"])
@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_a_flag_is_true_or_false(name, text):
    with pytest.raises(UsageError, match=f"{name} is {text!r}, expected true or false"):
        options_of(**{name: text})


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    "text",
    [
        "newest",
        "",
        "3",
        "[]",
        "null",
        "{",
        '{"t": 3}',
        '{"t": {"x": 3}}',
        '{"t": {"0": null}}',
        '{"t": {"0": "x"}}',
        '{"t": {"0": 1.5}}',
        '{"t": {"0": true}}',
    ],
)
def test_offsets_are_a_word_or_json(name, text):
    with pytest.raises(UsageError, match=f"{name} is .* expected earliest, latest or JSON like"):
        options_of(**{name: text})


@pytest.mark.parametrize("named", [{}, {"u": {"0": 1}}, {"t": {"0": 1}, "u": {"0": 1}}])
def test_offsets_name_the_subscribed_topics(named):
    with pytest.raises(UsageError, match=r"startingOffsets names .*, the query reads \['t'\]"):
        options_of(startingOffsets=json.dumps(named))


def test_an_offset_below_earliest_is_refused():
    with pytest.raises(UsageError, match="startingOffsets of t-4 is -3, expected -2 or more"):
        options_of(startingOffsets='{"t": {"4": -3}}')


@pytest.mark.parametrize("text", ["latest", '{"t": {"0": 5, "1": -1}}'])
def test_only_a_stream_may_start_at_latest(text):
    with pytest.raises(UsageError, match="startingOffsets of a batch query cannot be latest"):
        options_of(False, startingOffsets=text)
    assert options_of(True, startingOffsets=text).starting in (LATEST, {"t": {0: 5, 1: LATEST}})


@pytest.mark.parametrize("text", ["earliest", '{"t": {"0": 5, "1": -2}}'])
def test_a_batch_query_cannot_end_at_earliest(text):
    with pytest.raises(UsageError, match="endingOffsets cannot be earliest"):
        options_of(False, endingOffsets=text)


def test_a_stream_has_no_ending_offsets():
    with pytest.raises(UsageError, match="option endingOffsets is for batch queries"):
        options_of(True, endingOffsets="latest")


# -- positions -----------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "a-b", "Z"])
tps = st.tuples(names, st.integers(0, 12))
placed = st.builds(Place, st.integers(0, 50), st.integers(-1, 3))
positions = st.dictionaries(tps, placed, max_size=8).map(
    lambda places: Position(places, {topic: f"id of {topic}" for topic, _ in places})
)


def at(**offsets):
    """Partitions of topic t by name p0, p1…"""
    places = {("t", int(name[1:])): Place(offset, 0) for name, offset in offsets.items()}
    return Position(places, {"t": "id"})


def test_json_sorts_topics_by_name_and_partitions_by_number():
    places = {("b", 10): Place(1, 0), ("b", 9): Place(2, 1), ("a", 0): Place(3, -1)}
    text = json.dumps(Position(places, {"b": "B", "a": "A"}).to_json())
    assert text == (
        '{"v": 1, "topics": {"a": {"id": "A", "partitions": {"0": [3, -1]}}, '
        '"b": {"id": "B", "partitions": {"9": [2, 1], "10": [1, 0]}}}}'
    )


@given(positions, st.randoms(use_true_random=False))
def test_json_is_the_same_text_in_any_order_and_reads_back(position, random):
    items = list(position.places.items())
    random.shuffle(items)
    text = json.dumps(position.to_json())
    assert json.dumps(Position(dict(items), position.topic_ids).to_json()) == text
    assert Position.from_json(json.loads(text)) == position


@pytest.mark.parametrize(
    "data",
    [{}, {"v": 2, "topics": {}}, {"v": 1}, {"v": 1, "topics": {"t": {"partitions": {"0": [1]}}}}],
)
def test_json_that_no_position_gave_is_data_loss(data):
    with pytest.raises(DataLoss):
        Position.from_json(data)


def test_json_of_another_version_names_both_versions():
    with pytest.raises(DataLoss) as failure:
        Position.from_json({"v": 2, "topics": {}})
    assert isinstance(failure.value, HightideError)
    assert str(failure.value) == "checkpoint offsets have version 2, expected 1"


def test_a_position_advanced_if_an_offset_rose_or_a_partition_is_new():
    assert advanced(at(p0=5), at(p0=6))
    assert advanced(at(p0=5), at(p0=5, p1=0))
    assert not advanced(at(p0=5), at(p0=5))
    assert not advanced(at(p0=5), at(p0=4))
    assert not advanced(at(p0=5, p1=1), at(p0=5))
    # Only the epoch moved: nothing to read.
    newer = Position({("t", 0): Place(5, 9)}, {"t": "id"})
    assert not advanced(at(p0=5), newer)


@given(positions, positions)
def test_no_further_back_keeps_the_later_of_both(start, end):
    again = {t for t, _ in start.places if end.topic_ids.get(t, "") != start.topic_ids[t]}
    kept = no_further_back(start, end)
    assert kept.topic_ids == end.topic_ids | {t: start.topic_ids[t] for t, _ in start.places}
    seen = {tp: at for tp, at in end.places.items() if tp[0] not in again}
    assert kept.places.keys() == seen.keys() | start.places.keys(), "none is forgotten"
    for tp, place in kept.places.items():
        before, now = start.places.get(tp, place), seen.get(tp, place)
        assert place == (before if before.offset > now.offset else now)


@st.composite
def backlogs(draw):
    """(start, end, first, limit) with partitions new, empty, behind, or fallen back."""
    start, end, first = {}, {}, {}
    for tp in draw(st.sets(tps, min_size=1, max_size=8)):
        begin, more = draw(st.integers(0, 1000)), draw(st.integers(-5, 10_000))
        if draw(st.booleans()):
            start[tp] = Place(begin, 0)
        else:
            first[tp] = begin
        end[tp] = Place(max(0, begin + more), 1)
    ids = {topic: "id" for topic, _ in end}
    return Position(start, ids), Position(end, ids), first, draw(st.integers(1, 3000))


@given(backlogs())
def test_prorate_gives_each_backlog_something_and_about_the_limit_in_all(case):
    start, end, first, limit = case
    cut = prorate(start, end, limit, first)
    assert cut.topic_ids == end.topic_ids
    assert cut.places.keys() == end.places.keys()
    begins = {tp: start.places[tp].offset if tp in start.places else first[tp] for tp in end.places}
    total = planned = backlogged = 0
    for tp, place in end.places.items():
        backlog = max(0, place.offset - begins[tp])
        taken = max(0, cut.places[tp].offset - begins[tp])
        total, planned, backlogged = total + backlog, planned + taken, backlogged + (backlog > 0)
        assert cut.places[tp].offset <= max(place.offset, begins[tp])
        assert taken >= (backlog > 0)
    assert planned <= limit + backlogged
    # Progress is near the limit too: not one record a partition for ever.
    assert planned >= min(total, limit - backlogged)


def test_prorate_shares_by_backlog():
    cut = prorate(at(p0=0, p1=100), at(p0=900, p1=200), 100, {})
    assert cut == at(p0=90, p1=110)
    assert prorate(at(p0=0), at(p0=9), 9, {}) == at(p0=9)
    assert prorate(at(p0=0), at(p0=0, p1=60), 10, {("t", 1): 40}) == at(p0=0, p1=50)


# -- imports and Java ----------------------------------------------------------------------------


def test_the_module_that_every_spark_look_up_imports_is_light():
    heavy = ["pyarrow", "numpy", "pandas", "trio", "msgspec", "lz4", "hightide.produce.producer"]
    code = (
        "import sys, pyspark_hightide as p; "
        f"print(p.DefaultSource.name(), [n for n in {heavy} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout.strip(), done.stderr) == ("hightide []", "")


@pytest.mark.parametrize("name", hightide.spark.__all__)
def test_what_users_meet_can_be_imported_from_the_top(name):
    assert getattr(hightide.spark, name).__name__ == name
    assert name in dir(hightide.spark)
    with pytest.raises(AttributeError, match="DataLos"):
        hightide.spark.DataLos  # noqa: B018 - the look-up is the test


def test_session_is_still_a_function_when_its_module_was_imported():
    # Every call of it imports that module: the second call must find the function again.
    code = "import hightide.spark.builder; print(type(hightide.spark.session).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout.strip(), done.stderr) == ("function", "")


def make_runtime(folder, version="25.0.2"):
    """A Java runtime whose `java` prints its arguments, one a line; as -version, a version."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit 0; fi\n'
        'printf "%s\\n" "$@"\nexit 7\n'
    )
    binary.chmod(0o755)
    for name in ("lib", "conf"):
        (folder / name).mkdir()
    (folder / "release").write_text(version)
    return folder


FLAG = "--add-modules=jdk.incubator.vector"


def test_the_wrapper_drops_one_flag_and_passes_everything_else(tmp_path):
    runtime = make_runtime(tmp_path / "a place" / "java-runtime")
    home = java.Java(runtime, 21, packaged=True).spark_home()
    assert os.path.samefile(home / "lib", runtime / "lib")
    kept = ["-Xmx1g", "two words", "", "*", "$HOME", f"{FLAG}s", "--add-modules=java.sql"]
    kept += ["--add-modulesXjdk.incubator.vector", 'a"quote', "--", "-version"]
    arguments = [FLAG, *kept[:5], FLAG, *kept[5:], FLAG]
    done = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, timeout=30
    )
    assert done.stdout.split("\n")[:-1] == kept
    assert done.returncode == 7
    assert java.Java(runtime, 21, packaged=True).spark_home() == home


def test_the_wrapper_runs_a_java_whose_path_means_something_to_a_shell(tmp_path):
    runtime = make_runtime(tmp_path / 'a $place of "mine"' / "java-runtime")
    wrapper = java.Java(runtime, 21, packaged=True).spark_home() / "bin" / "java"
    done = subprocess.run([str(wrapper), "x"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("x\n", "")


def test_a_wrapper_follows_its_runtime_when_that_moves(tmp_path):
    first = make_runtime(tmp_path / "old-runtime")
    home = java.Java(first, 21, packaged=True).spark_home()
    second = make_runtime(tmp_path / "new-runtime")
    assert java.Java(second, 21, packaged=True).spark_home() == home
    assert str(second) in (home / "bin" / "java").read_text()
    assert os.path.samefile(home / "lib", second / "lib")


def test_a_systems_java_gets_a_wrapper_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = java.Java(make_runtime(tmp_path / "system"), 21, packaged=False)
    home = system.spark_home()
    assert home.is_relative_to(tmp_path / "cache")
    asked = [str(home / "bin" / "java"), FLAG, "x"]
    assert subprocess.run(asked, capture_output=True, check=False).stdout == b"x\n"
    other = java.Java(make_runtime(tmp_path / "other"), 17, packaged=False)
    assert other.spark_home() != home


def test_the_next_session_wraps_the_same_java_and_not_its_wrapper(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = make_runtime(tmp_path / "system")
    only_java(monkeypatch, system)
    for _ in range(3):
        found = java.find_java()
        assert (found.home, found.packaged) == (system, False)
        only_java(monkeypatch, found.spark_home())
    assert len([*(tmp_path / "cache" / "hightide").iterdir()]) == 1


def test_the_packaged_java_stays_the_packaged_one(tmp_path, monkeypatch):
    only_java(monkeypatch, tmp_path)
    first = java.find_java()
    only_java(monkeypatch, first.spark_home())
    assert java.find_java() == first


def test_sessions_that_start_at_once_make_one_wrapper(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = java.Java(make_runtime(tmp_path / "system"), 21, packaged=False)
    with ThreadPoolExecutor(4) as threads:
        homes = {each.result() for each in [threads.submit(system.spark_home) for _ in range(40)]}
    (home,) = homes
    assert home != system.home
    assert {path.name for path in home.iterdir()} == {"bin", "lib", "conf", "release"}


def test_a_user_whom_the_system_does_not_know_has_a_java(tmp_path, monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    system = java.Java(make_runtime(tmp_path / "system"), 21, packaged=False)
    assert system.spark_home() == system.home
    place = tmp_path / "read-only" / "java-runtime"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(java.NoJava, match="set XDG_CACHE_HOME"):
        java.Java(make_runtime(place), 21, packaged=True).spark_home()


def test_without_a_cache_a_systems_java_is_taken_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    system = java.Java(make_runtime(tmp_path / "system"), 21, packaged=False)
    assert system.spark_home() == system.home


def only_java(monkeypatch, home):
    """Nothing but this JAVA_HOME on the machine, as far as `find_java` can see."""
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(home / "nothing"))


@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("21", 21)])
def test_a_system_java_is_taken_if_it_is_new_enough(tmp_path, monkeypatch, version, number):
    home = make_runtime(tmp_path / "system", version)
    only_java(monkeypatch, home)
    chosen = java.find_java()
    assert (chosen.home, chosen.version, chosen.packaged) == (home, number, False)
    assert str(chosen) == f"system Java {number} in {home}"


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_the_packaged_java_is_taken_if_the_systems_is_too_old(tmp_path, monkeypatch, version):
    only_java(monkeypatch, make_runtime(tmp_path / "system", version))
    chosen = java.find_java()
    assert chosen.packaged
    assert chosen.version >= java.JAVA_VERSION_MIN


def test_the_packaged_java_runs_with_the_flag_that_spark_gives(tmp_path, monkeypatch):
    only_java(monkeypatch, tmp_path)
    packaged = java.find_java()
    home, bare = packaged.spark_home(), packaged.home
    results = [
        subprocess.run(
            [str(folder / "bin" / "java"), FLAG, "-version"], capture_output=True, timeout=60
        ).returncode
        for folder in (home, bare)
    ]
    # The second is why there is a wrapper.
    assert results == [0, 1]
