"""What a Spark query may ask for, and how its ranges become tasks, as functions of their arguments.

Options that came after the first ones of `test_spark_pure.py`: patterns, assignments, times, sizes
of batches and tasks. Cutting ranges is held to properties that Spark's own rule has, and to a table
of examples. No JVM and no broker; whole queries are `test_spark_sources.py`'s.
"""

import json
import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from hightide.protocol.errors import UsageError
from hightide.protocol.messages import EARLIEST, LATEST
from hightide.spark.offsets import Place, Position, advanced, backlog
from hightide.spark.options import ByTime, read_options
from hightide.spark.ranges import OffsetRange, split

SIDES = ["starting", "ending"]
ONE_OF_THREE = "give one of subscribe .*, subscribePattern and assign"


def options_of(streaming=None, **more):
    """Options with a topic, unless they name one in another way."""
    given_ones = {"bootstrap.servers": "127.0.0.1:19092", **more}
    if not {"subscribePattern", "assign"} & more.keys():
        given_ones.setdefault("subscribe", "t")
    return read_options(given_ones, streaming=streaming)


# -- which topics --------------------------------------------------------------------------------


def test_the_later_options_have_the_defaults_of_kafkas_source():
    options = options_of()
    assert (options.pattern, options.assigned, options.group) == ("", None, "")
    assert options.min_offsets_per_trigger is None
    assert options.max_trigger_delay_s == 15 * 60
    assert options.min_partitions is None
    assert options.max_records_per_partition is None
    assert options.include_leader_epoch is False


def test_a_pattern_stands_for_topics():
    options = options_of(subscribePattern="flights-[0-9]+")
    assert (options.topics, options.pattern, options.assigned) == ((), "flights-[0-9]+", None)
    assert options.reads("flights-1", 7)


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "a{2,1}", "(?P<x>a)(?P<x>b)"])
def test_a_pattern_that_is_no_regular_expression_is_refused(pattern):
    with pytest.raises(UsageError) as failure:
        options_of(subscribePattern=pattern)
    assert str(failure.value).startswith(f"subscribePattern is {pattern!r}: ")


def test_an_empty_pattern_is_refused_as_an_empty_subscription_is():
    with pytest.raises(UsageError, match="subscribePattern"):
        options_of(subscribePattern="")


def test_assign_names_partitions_of_topics():
    options = options_of(assign='{"a": [2, 0], "b": [1]}')
    assert (options.topics, options.pattern) == (("a", "b"), "")
    assert options.assigned == {"a": (2, 0), "b": (1,)}
    wanted = [(t, p) for t in ("a", "b", "c") for p in range(4) if options.reads(t, p)]
    assert wanted == [("a", 0), ("a", 2), ("b", 1)]


NO_ASSIGNMENTS = """;t;{;3;null;[];{};["t"];{"t": []};{"t": 0};{"t": null};{"t": "01"};\
{"t": {"0": 1}};{"t": ["0"]};{"t": [0.0]};{"t": [true]};{"t": [-1]};{"t": [0], "u": []}"""


@pytest.mark.parametrize("text", NO_ASSIGNMENTS.split(";"))
def test_assign_is_json_of_partitions_and_nothing_else(text):
    with pytest.raises(UsageError) as failure:
        options_of(assign=text)
    assert str(failure.value) == f'assign is {text!r}, expected JSON like {{"topic":[0,1]}}'


WAYS = {"subscribe": "t", "subscribePattern": "t.*", "assign": '{"t": [0]}'}


@pytest.mark.parametrize("name", WAYS)
def test_one_way_to_name_topics_is_enough(name):
    options = read_options({"bootstrap.servers": "h:1", name: WAYS[name]})
    assert options.reads("t", 0)


@pytest.mark.parametrize(
    "names", ["", "subscribe subscribePattern", "subscribePattern assign", " ".join(WAYS)]
)
def test_topics_are_named_in_exactly_one_way(names):
    ways = {name: WAYS[name] for name in names.split()}
    with pytest.raises(UsageError, match=ONE_OF_THREE) as failure:
        read_options({"bootstrap.servers": "h:1", **ways})
    assert str(failure.value).startswith(f"options {', '.join(ways) or 'name no topic'}: ")


def test_offsets_by_partition_go_with_a_pattern_and_an_assignment():
    text = '{"t": {"0": 3}}'
    for name in ("subscribePattern", "assign"):
        options = options_of(**{name: WAYS[name]}, startingOffsets=text)
        assert options.starting == {"t": {0: 3}}
    with pytest.raises(UsageError, match=r"startingOffsets names \['u'\]"):
        options_of(assign=WAYS["assign"], startingOffsets='{"u": {"0": 3}}')


# -- where to begin and end ----------------------------------------------------------------------


def by(side, name):
    return {"time": f"{side}Timestamp", "times": f"{side}OffsetsByTimestamp"}.get(
        name, f"{side}Offsets"
    )


TIMES = '{"t": {"0": 1500, "1": 0}}'


@pytest.mark.parametrize("side", SIDES)
def test_a_time_wins_over_times_of_partitions_and_those_over_offsets(side):
    offsets = {by(side, "offsets"): '{"t": {"0": 7}}'}
    times = {by(side, "times"): TIMES}
    time = {by(side, "time"): "1700000000123"}

    def tp(*given_ones):
        merged = {name: text for each in given_ones for name, text in each.items()}
        return getattr(options_of(False, **merged), side)

    or_latest = side == "ending"
    for_each = ByTime({"t": {0: 1500, 1: 0}}, or_latest=or_latest)
    for_all = ByTime(1_700_000_000_123, or_latest=or_latest)
    assert tp(offsets) == {"t": {0: 7}}
    assert tp(times) == tp(offsets, times) == for_each
    assert tp(time) == tp(offsets, time) == tp(times, time) == for_all
    assert tp(offsets, times, time) == for_all


def test_a_time_says_nothing_about_the_other_side():
    assert options_of(False, startingTimestamp="0").starting.at == 0
    assert options_of(False, startingTimestamp="0").ending == LATEST
    assert options_of(False, endingTimestamp="5").starting == EARLIEST


def test_a_stream_may_begin_at_a_time():
    assert options_of(True, startingTimestamp="5").starting == ByTime(5, or_latest=False)


@pytest.mark.parametrize("name", ["startingTimestamp", "startingOffsetsByTimestamp"])
@pytest.mark.parametrize(
    ("strategy", "or_latest"), [(None, False), ("error", False), ("latest", True), ("LATEST", True)]
)
def test_the_strategy_says_what_to_do_where_nothing_is_that_late(name, strategy, or_latest):
    more = {} if strategy is None else {"startingOffsetsByTimestampStrategy": strategy}
    text = "9" if name == "startingTimestamp" else TIMES
    assert options_of(**{name: text}, **more).starting.or_latest is or_latest


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_where_nothing_is_that_late_an_end_is_always_the_latest(strategy):
    options = options_of(
        False,
        endingTimestamp="9",
        startingOffsetsByTimestampStrategy=strategy,
        startingTimestamp="1",
    )
    assert options.ending.or_latest is True


@pytest.mark.parametrize("strategy", ["", "earliest", "none"])
def test_an_unknown_strategy_is_refused(strategy):
    words = f"startingOffsetsByTimestampStrategy is {strategy!r}, expected error or latest"
    with pytest.raises(UsageError, match=words):
        options_of(startingOffsetsByTimestampStrategy=strategy)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("text", ["", "now", "-1", "1.5", " 5", "2023-11-14", "\u00b2"])
def test_a_time_is_milliseconds(side, text):
    with pytest.raises(UsageError, match=f"{side}Timestamp is .*, expected ms since 1970"):
        options_of(**{by(side, "time"): text})


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("text", ["", "latest", "5", "[]", '{"t": 5}', '{"t": {"0": "5"}}'])
def test_times_of_partitions_are_json(side, text):
    with pytest.raises(UsageError, match=f"{side}OffsetsByTimestamp is .*, expected JSON like"):
        options_of(**{by(side, "times"): text})


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("offset", [EARLIEST, LATEST])
def test_a_word_for_an_offset_is_no_time(side, offset):
    with pytest.raises(UsageError, match=f"ByTimestamp of t-3 is {offset}, expected 0 or more"):
        options_of(**{by(side, "times"): json.dumps({"t": {"3": offset}})})


@pytest.mark.parametrize("side", SIDES)
def test_times_name_the_subscribed_topics(side):
    with pytest.raises(UsageError, match=r"ByTimestamp names \['u'\], the query reads \['t'\]"):
        options_of(**{by(side, "times"): '{"u": {"0": 5}}'})


@pytest.mark.parametrize(("name", "text"), [("time", "5"), ("times", TIMES), ("offsets", "latest")])
def test_a_stream_has_no_end_of_any_kind(name, text):
    name = by("ending", name)
    with pytest.raises(UsageError) as failure:
        options_of(True, **{name: text})
    assert str(failure.value) == f"option {name} is for batch queries, a stream has no end"
    assert options_of(False, **{name: text}).ending != EARLIEST


# -- how much in a batch, in a task --------------------------------------------------------------


def test_what_follows_the_topics_is_read():
    options = options_of(
        minOffsetsPerTrigger="5",
        maxOffsetsPerTrigger="7",
        maxTriggerDelay="90s",
        minPartitions="11",
        maxRecordsPerPartition="13",
        includeLeaderEpoch="TRUE",
        groupId="g",
    )
    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (5, 7)
    assert options.max_trigger_delay_s == 90
    assert (options.min_partitions, options.max_records_per_partition) == (11, 13)
    assert options.include_leader_epoch is True
    assert options.group == "g"


COUNTS = ["minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "\u00b2"])
def test_a_count_is_a_whole_number_above_zero(name, text):
    with pytest.raises(UsageError, match=f"{name} is .*, expected a whole number above 0"):
        options_of(**{name: text})


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_the_flag_for_epochs_is_true_or_false(text):
    with pytest.raises(UsageError, match=f"includeLeaderEpoch is {text!r}, expected true or false"):
        options_of(includeLeaderEpoch=text)


@pytest.mark.parametrize(("low", "high"), [("1", "1"), ("9", "9"), ("9", "10")])
def test_the_least_of_a_batch_may_be_its_most(low, high):
    options = options_of(minOffsetsPerTrigger=low, maxOffsetsPerTrigger=high)
    assert options.min_offsets_per_trigger <= options.max_offsets_per_trigger


@pytest.mark.parametrize(("low", "high"), [("2", "1"), ("10", "9")])
def test_the_least_of_a_batch_is_not_above_its_most(low, high):
    words = f"minOffsetsPerTrigger is {low}, maxOffsetsPerTrigger only {high}"
    with pytest.raises(UsageError, match=words):
        options_of(minOffsetsPerTrigger=low, maxOffsetsPerTrigger=high)


@pytest.mark.parametrize(
    ("text", "delay_s"),
    [
        ("250", 0.25),
        ("250ms", 0.25),
        ("0s", 0),
        ("30s", 30),
        ("2m", 120),
        ("2min", 120),
        ("3h", 10_800),
        ("1d", 86_400),
        (" 5 M ", 300),
    ],
)
def test_a_delay_has_sparks_units_and_without_one_is_milliseconds(text, delay_s):
    assert options_of(maxTriggerDelay=text).max_trigger_delay_s == pytest.approx(delay_s)


@pytest.mark.parametrize("text", ["", "s", "-5s", "1.5s", "5 weeks", "5s5", "5m 3s"])
def test_a_delay_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"maxTriggerDelay is .*, expected a time like 30s"):
        options_of(maxTriggerDelay=text)


def test_a_group_has_kafkas_name_too_and_ours_wins():
    assert options_of(**{"kafka.group.id": "k"}).group == "k"
    assert options_of(**{"kafka.group.id": "k", "groupId": "g"}).group == "g"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("subscribePatterns", "subscribePattern"),
        ("assigned", "assign"),
        ("startingTimestampMs", "startingTimestamp"),
        ("endTimestamp", "endingTimestamp"),
        ("startOffsetsByTimestamp", "startingOffsetsByTimestamp"),
        ("endOffsetsByTimestamp", "endingOffsetsByTimestamp"),
        ("startingOffsetsByTimestampsStrategy", "startingOffsetsByTimestampStrategy"),
        ("minOffsetPerTrigger", "minOffsetsPerTrigger"),
        ("maxTriggerDelayMs", "maxTriggerDelay"),
        ("minPartition", "minPartitions"),
        ("maxRecordsPerPartitions", "maxRecordsPerPartition"),
        ("includeLeaderEpochs", "includeLeaderEpoch"),
        ("group.id", "groupId"),
        ("kafka.groupid", "kafka.group.id"),
    ],
)
def test_an_unknown_option_names_the_nearest_known_one(name, nearest):
    with pytest.raises(UsageError) as failure:
        options_of(**{name: "1"})
    assert str(failure.value) == (
        f"unknown option {name.lower()!r} of format 'hightide', did you mean {nearest}?"
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"subscribePattern": "a.*", "startingTimestamp": "5", "groupId": "g"},
        {"assign": '{"a": [0, 1]}', "startingOffsetsByTimestamp": '{"a": {"0": 1, "1": 2}}'},
        {"startingOffsets": '{"t": {"0": 1}}', "minPartitions": "3", "maxTriggerDelay": "1h"},
    ],
)
def test_options_travel_to_executors(more):
    options = options_of(**more)
    assert pickle.loads(pickle.dumps(options)) == options


# -- ranges --------------------------------------------------------------------------------------

counts = st.none() | st.integers(1, 60)


@st.composite
def some_ranges(draw):
    """Ranges with records, each of a partition of its own."""
    tps = draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), unique=True))
    starts = [draw(st.integers(0, 1000)) for _ in tps]
    sizes = [draw(st.integers(1, 400)) for _ in tps]
    return [
        OffsetRange(topic, f"id of {topic}", partition, start, start + size)
        for (topic, partition), start, size in zip(tps, starts, sizes, strict=True)
    ]


def sizes_of(ranges):
    return [each.end - each.start for each in ranges]


def parts_of(whole, parts):
    return [
        part for part in parts if (part.topic, part.partition) == (whole.topic, whole.partition)
    ]


def ranges_of(*sizes):
    return [OffsetRange("t", "id", n, 100, 100 + size) for n, size in enumerate(sizes)]


@given(some_ranges(), counts, counts)
def test_parts_cover_each_range_exactly_and_in_order(ranges, low, high):
    parts = split(ranges, min_partitions=low, max_records=high)
    assert [part for whole in ranges for part in parts_of(whole, parts)] == parts
    for whole in ranges:
        mine = parts_of(whole, parts)
        assert {part.topic_id for part in mine} == {whole.topic_id}
        assert mine[0].start == whole.start
        assert mine[-1].end == whole.end
        assert all(one.end == next_.start for one, next_ in pairwise(mine))
    assert all(part.start < part.end for part in parts)


@given(some_ranges(), counts, st.integers(1, 60))
def test_no_part_has_more_records_than_it_may(ranges, low, high):
    assert all(n <= high for n in sizes_of(split(ranges, min_partitions=low, max_records=high)))


@given(some_ranges(), st.integers(1, 500))
def test_a_limit_on_records_cuts_as_little_as_it_can_and_evenly(ranges, high):
    parts = split(ranges, min_partitions=None, max_records=high)
    for whole in ranges:
        sizes = sizes_of(parts_of(whole, parts))
        assert len(sizes) == -(-sum(sizes) // high)
        assert max(sizes) - min(sizes) <= 1


@given(some_ranges())
def test_without_limits_ranges_stay_as_they_are(ranges):
    assert split(ranges, min_partitions=None, max_records=None) == ranges
    assert split(ranges, min_partitions=len(ranges) or 1, max_records=1000) == ranges


@given(some_ranges(), st.integers(1, 900), counts)
def test_there_are_about_as_many_parts_as_were_asked_for(ranges, low, high):
    cut = split(ranges, min_partitions=None, max_records=high)
    parts = split(ranges, min_partitions=low, max_records=high)
    total = sum(sizes_of(ranges))
    if len(cut) >= low:
        assert parts == cut
    elif low >= total:
        assert len(parts) == total
    else:
        # Each range is rounded by a half at most, and has one part at least.
        assert max(low - len(cut) / 2, len(cut)) <= len(parts) < low + len(cut)


@given(some_ranges(), st.integers(1, 200))
def test_a_larger_range_never_has_fewer_parts(ranges, low):
    parts = split(ranges, min_partitions=low, max_records=None)
    by_size = sorted(ranges, key=lambda whole: whole.end - whole.start)
    found = [len(parts_of(whole, parts)) for whole in by_size]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("sizes", "low", "high", "expected"),
    [
        ([100], 4, None, [25, 25, 25, 25]),
        ([7], 3, None, [2, 2, 3]),
        ([3], 10, None, [1, 1, 1]),
        ([100, 100], 1, None, [100, 100]),
        ([100, 100], 2, None, [100, 100]),
        ([150, 50], 4, None, [50, 50, 50, 50]),
        ([300, 200, 100], 6, None, [100] * 6),
        # Three times 1.33: not every wish comes true.
        ([10, 10, 10], 4, None, [10, 10, 10]),
        ([100], None, 30, [25, 25, 25, 25]),
        ([100, 20], None, 50, [50, 50, 20]),
        ([50], None, 50, [50]),
        ([51], None, 50, [25, 26]),
        ([2], None, 1, [1, 1]),
        ([100, 100], 3, 50, [50, 50, 50, 50]),
        ([100], 4, 60, [25, 25, 25, 25]),
        ([], 4, 60, []),
    ],
)
def test_ranges_are_cut_as_in_the_table(sizes, low, high, expected):
    parts = split(ranges_of(*sizes), min_partitions=low, max_records=high)
    assert sizes_of(parts) == expected


def test_half_a_part_is_a_part_as_spark_rounds():
    # 2.5 for each: Scala's `math.round` gives 3, and at least as many as were asked for.
    parts = split(ranges_of(10, 10), min_partitions=5, max_records=None)
    assert sizes_of(parts) == [3, 3, 4, 3, 3, 4]


@pytest.mark.parametrize(("low", "high"), [(None, None), (None, 5), (1, 5), (2, None), (9, 1)])
def test_an_empty_range_stays_whole(low, high):
    empty = ranges_of(0)
    assert split(empty, min_partitions=low, max_records=high) == empty


# -- backlog -------------------------------------------------------------------------------------


def at(**offsets):
    """Partitions of topic t by name p0, p1…"""
    places = {("t", int(name[1:])): Place(offset, 0) for name, offset in offsets.items()}
    return Position(places, {"t": "id"})


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (at(), at(), 0),
        (at(p0=5), at(p0=5), 0),
        (at(p0=5), at(p0=9), 4),
        (at(p0=5, p1=0), at(p0=9, p1=100), 104),
        # What fell back does not make up for what is new; what is gone is nothing to read.
        (at(p0=5, p1=50), at(p0=9, p1=10), 4),
        (at(p0=5, p1=50), at(p0=9), 4),
    ],
)
def test_the_backlog_is_what_lies_between_two_positions(start, end, expected):
    assert backlog(start, end, {}) == expected


def test_a_new_partition_counts_from_its_first_record():
    assert backlog(at(p0=5), at(p0=9, p1=100), {("t", 1): 90}) == 14


positions = st.dictionaries(st.integers(0, 5), st.integers(0, 20)).map(
    lambda offsets: at(**{f"p{number}": offset for number, offset in offsets.items()})
)


@given(positions, positions)
def test_who_has_a_backlog_has_advanced(start, end):
    assert backlog(start, end, {}) == 0 or advanced(start, end)
