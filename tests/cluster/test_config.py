"""A node's configuration: where a value comes from, what it means, and what is refused.

Goal: the file, the environment and the flags say the same in their three ways; a mistake is met at
the start, with key, value and expectation; and what a node sets for its topics is something that a
topic may have. Method: tables over every key, so that a new key is covered without a new test;
Hypothesis writes quantities, and text that is none.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker import config_keys as keys
from hightide_broker.config import (
    ConfigError,
    make_config,
    read_assignments,
    read_environment,
    read_toml,
)
from hightide_broker.config_keys import KEYS
from hightide_broker.core.cluster.config_key import Unfit
from hightide_broker.core.cluster.topic_config import TopicConfig, check_topic_configs
from hightide_broker.core.cluster.topic_keys import (
    DELETE_RETENTION_MS,
    FLUSH,
    MIN_CLEANABLE_RATIO,
    MIN_ISR,
    POLICY,
    RETENTION_MS,
    SEGMENT_BYTES,
    TIMESTAMP_TYPE,
    TOPIC_KEYS,
    UNCLEAN,
)

BYTES, MS = KEYS["log.retention.bytes"], KEYS["log.retention.ms"]
NUMBERS = [name for name, key in KEYS.items() if type(key.parse(key.default)) is int]
ANOTHER = {
    name: key.choices[-1] if key.choices else "0.25" if name.endswith("ratio") else "4242"
    for name, key in KEYS.items()
} | {
    "log.cleanup.policy": "compact",
    "process.roles": "controller",
    "controller.quorum.voters": "4242@a:1,7@b:2",
}
"""A value of each key that is not its default."""


def error_of(name: str, value: str) -> str:
    with pytest.raises(ConfigError) as caught:
        make_config({name: value})
    return str(caught.value)


# Every key.


@pytest.mark.parametrize("name", KEYS)
def test_the_default_of_every_key_is_one_of_its_values(name: str) -> None:
    key, config = KEYS[name], make_config()
    assert config[key] == key.parse(key.default)
    assert make_config({name: key.default}).values == config.values
    if name in NUMBERS:
        assert config[key] >= key.low
    assert key.doc
    assert key.topic_key is None or TOPIC_KEYS[key.topic_key.name] is key.topic_key


@pytest.mark.parametrize("name", NUMBERS)
def test_a_word_is_no_value_of_a_number(name: str) -> None:
    assert error_of(name, "soon").startswith(f"{name} is 'soon', expected a whole number")


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.choices])
def test_a_word_must_be_one_of_the_choices(name: str) -> None:
    for choice in KEYS[name].choices:
        assert make_config({name: choice})[KEYS[name]] == KEYS[name].parse(choice)
    expected = f"{name} is 'perhaps', expected one of {', '.join(KEYS[name].choices)}"
    assert error_of(name, "perhaps") == expected


@pytest.mark.parametrize("name", NUMBERS)
def test_less_than_the_least_is_refused(name: str) -> None:
    low = KEYS[name].low
    assert error_of(name, str(low - 1)) == f"{name} is '{low - 1}', expected {low} or more"
    if not KEYS[name].topic_key:
        assert make_config({name: str(low)})[KEYS[name]] == low


# Units.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1KiB", 1024),
        ("3MiB", 3 * 1024**2),
        ("1GiB", 1024**3),
        ("2TiB", 2 * 1024**4),
        (" 64 mib ", 64 * 1024**2),
        ("1KB", 1000),
        ("64MB", 64_000_000),
        ("3gb", 3_000_000_000),
        ("1TB", 10**12),
        ("1_000", 1000),
        ("-1", -1),
    ],
)
def test_sizes_are_bytes_unless_a_unit_says_otherwise(text: str, value: int) -> None:
    assert BYTES.parse(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250", 250),
        ("250ms", 250),
        ("2s", 2000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
        ("7 D", 604_800_000),
        ("-1", -1),
    ],
)
def test_times_are_milliseconds_unless_a_unit_says_otherwise(text: str, value: int) -> None:
    assert MS.parse(text) == value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("log.segment.bytes", "1G", "a whole number, units b, kib, mib, gib, tib, kb, mb, gb, tb"),
        (
            "log.segment.bytes",
            "1.5GiB",
            "a whole number, units b, kib, mib, gib, tib, kb, mb, gb, tb",
        ),
        ("log.segment.bytes", "GiB", "a whole number, units b, kib, mib, gib, tib, kb, mb, gb, tb"),
        ("log.segment.bytes", "7d", "a whole number, units b, kib, mib, gib, tib, kb, mb, gb, tb"),
        ("log.segment.bytes", "", "a whole number, units b, kib, mib, gib, tib, kb, mb, gb, tb"),
        ("log.retention.ms", "1GiB", "a whole number, units ms, s, m, h, d"),
        ("log.retention.ms", "1 week", "a whole number, units ms, s, m, h, d"),
        ("log.retention.ms", "1e3", "a whole number, units ms, s, m, h, d"),
        ("num.partitions", "3s", "a whole number"),
        ("num.partitions", "0", "1 or more"),
        ("listen.port", "-1", "0 or more"),
        ("socket.request.max.bytes", "1023", "1024 or more"),
        ("log.cleaner.min.cleanable.ratio", "half", "a number"),
    ],
)
def test_an_error_names_key_value_and_expectation(name: str, value: str, expected: str) -> None:
    assert error_of(name, value) == f"{name} is {value!r}, expected {expected}"


@given(
    st.integers(0, 8_000_000),
    st.sampled_from(["", "b", "kib", "mib", "gib", "tib"]),
    st.sampled_from(["", " "]),
    st.sampled_from([str.lower, str.upper, str.title]),
)
@settings(max_examples=tries(100), deadline=None)
def test_a_quantity_is_its_number_times_its_unit(number, unit, space, case) -> None:
    power = ["kib", "mib", "gib", "tib"].index(unit) + 1 if len(unit) == 3 else 0
    assert BYTES.parse(f"{number}{space}{case(unit)}") == number * 1024**power


def quantity_or_error(text: str) -> int | str:
    try:
        return MS.parse(text)
    except Unfit as error:
        return str(error)


@given(st.one_of(st.text(), st.from_regex(r"-?[0-9_.]{0,6} ?[a-zA-Z]{0,4}", fullmatch=True)))
@settings(max_examples=tries(200), deadline=None)
def test_any_text_is_a_quantity_or_a_clear_error(text: str) -> None:
    found = quantity_or_error(text)
    if isinstance(found, int):
        assert found >= -1
        assert re.search(r"\d", text), "a number has digits"
    else:
        assert found.startswith(f"log.retention.ms is {text!r}, expected ")


def test_seconds_are_for_timeouts() -> None:
    assert make_config({"write.timeout.ms": "250"}).seconds(keys.WRITE_TIMEOUT_MS) == 0.25
    assert make_config().seconds(keys.REQUEST_TIMEOUT_MS) == 30.0


# Where values come from.


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default() -> None:
    sources = [
        read_toml("[num]\npartitions = 2\n[log]\ndirs = '/file'\n[node]\nid = 2"),
        read_environment({"HIGHTIDE_NUM_PARTITIONS": "3", "HIGHTIDE_LOG_DIRS": "/environment"}),
        read_assignments(("num.partitions=4",)),
    ]
    config = make_config(*sources)
    assert config[keys.NUM_PARTITIONS] == 4
    assert config[keys.LOG_DIRS] == "/environment"
    assert config[keys.NODE_ID] == 2
    assert config[keys.LISTEN_PORT] == 19092
    assert config.given == {"num.partitions", "log.dirs", "node.id"}


def test_a_wrong_value_is_an_error_only_if_nobody_overrides_it() -> None:
    assert make_config({"node.id": "x"}, {"node.id": "5"})[keys.NODE_ID] == 5
    with pytest.raises(ConfigError, match=r"node\.id is 'x'"):
        make_config({"node.id": "5"}, {"node.id": "x"})


def test_every_key_can_be_set_in_the_environment() -> None:
    variables = {f"HIGHTIDE_{name.upper().replace('.', '_')}": ANOTHER[name] for name in KEYS}
    assert len(variables) == len(KEYS), "no two keys share a variable"
    assert read_environment({**variables, "HIGHTIDE_NODE": "1", "NODE_ID": "1"}) == ANOTHER
    assert make_config(ANOTHER).values == ANOTHER


def test_every_key_can_be_set_by_a_flag() -> None:
    assert read_assignments(tuple(f"{name}={value}" for name, value in ANOTHER.items())) == ANOTHER
    assert read_assignments((" log.dirs = /a=b ", "cluster.id=")) == {
        "log.dirs": "/a=b",
        "cluster.id": "",
    }
    with pytest.raises(ConfigError, match=r"--set 'node\.id', expected key=value"):
        read_assignments(("node.id",))


def test_every_key_can_be_set_by_a_dotted_name() -> None:
    assert read_toml("".join(f'{name} = "{value}"\n' for name, value in ANOTHER.items())) == ANOTHER


def test_every_key_can_be_set_in_nested_tables() -> None:
    tables: dict[str, str] = {"": ""}
    for name, value in ANOTHER.items():
        table, _, last = name.rpartition(".")
        tables[table] = tables.get(table, f"[{table}]\n") + f'{last} = "{value}"\n'
    assert "log.segment" in tables
    assert read_toml("".join(tables.values())) == ANOTHER


def test_toml_has_its_own_numbers_and_truths() -> None:
    text = "auto.create.topics.enable = true\nlog.cleaner.min.cleanable.ratio = 0.75\n"
    config = make_config(read_toml(text + "[log.segment]\nbytes = 2048\ndelete.delay.ms = '2m'\n"))
    assert config[keys.AUTO_CREATE_TOPICS_ENABLE]
    assert config[keys.LOG_CLEANER_MIN_CLEANABLE_RATIO] == 0.75
    assert config[keys.LOG_SEGMENT_BYTES] == 2048
    assert config[keys.LOG_SEGMENT_DELETE_DELAY_MS] == 120_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node.id = [1, 2]", "node.id is a list, expected text or a number"),
        ("[log]\ndirs = 2024-01-01", "log.dirs is a date, expected"),
        ("node.id = ", "the file is no TOML: "),
        ("node.id = 1\nnode.id = 2", "the file is no TOML: "),
    ],
)
def test_a_file_that_cannot_be_read_says_why(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_toml(text)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num.partition", "num.partitions"),
        ("log.retention.bites", "log.retention.bytes"),
        ("Node.id", "node.id"),
        ("min.insync.replica", "min.insync.replicas"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(name: str, meant: str) -> None:
    assert error_of(name, "1") == f"unknown configuration key {name!r}, did you mean {meant}?"


def test_a_key_like_no_other_gets_no_suggestion() -> None:
    assert error_of("zookeeper", "1") == "unknown configuration key 'zookeeper'"


def test_the_advertised_host_is_the_listening_one_unless_it_is_set() -> None:
    assert make_config({"listen.host": "10.0.0.1"}).advertised_host == "10.0.0.1"
    both = make_config({"listen.host": "0.0.0.0", "advertised.host": "a.example"})
    assert both.advertised_host == "a.example"


@pytest.mark.parametrize("name", ["listen.host", "advertised.host"])
@pytest.mark.parametrize("every", ["0.0.0.0", "::"])
def test_an_address_that_leads_nowhere_is_never_told_to_anybody(name: str, every: str) -> None:
    """And before that it says what matters more: that all who reach it may do anything."""
    if name == "listen.host":
        assert "allow.insecure.listener = true" in error_of(name, every)
    with pytest.raises(ConfigError) as refused:
        make_config({name: every, "allow.insecure.listener": "true"})
    told = str(refused.value)
    assert told.startswith(f"{name} is {every!r}, ")
    assert "expected advertised.host" in told


def test_a_port_is_a_port() -> None:
    assert make_config({"listen.port": "65535"})[keys.LISTEN_PORT] == 65535
    assert error_of("listen.port", "65536").startswith("listen.port is '65536', expected ")


# What a node sets for its topics.


def test_a_node_that_sets_nothing_gives_its_topics_their_own_defaults() -> None:
    defaults = make_config().topic_defaults()
    check_topic_configs(defaults)
    assert len(defaults) == sum(key.topic_key is not None for key in KEYS.values())
    assert defaults == {name: TOPIC_KEYS[name].default for name in defaults}


def test_what_a_node_sets_reaches_its_topics_in_their_units() -> None:
    given_here = {
        "log.segment.bytes": "1MiB",
        "log.retention.ms": "2h",
        "log.retention.bytes": "-1",
        "log.cleanup.policy": "compact, delete",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "flush": "replicated",
        "min.insync.replicas": "2",
    }
    defaults = make_config(given_here).topic_defaults()
    check_topic_configs(defaults)
    topic = TopicConfig.of({"retention.ms": "5"}, defaults)
    assert topic[SEGMENT_BYTES] == 1 << 20
    assert defaults["retention.ms"] == "7200000"
    assert topic[RETENTION_MS] == 5, "the topic's own comes first"
    assert topic[DELETE_RETENTION_MS] == 86_400_000
    assert (topic.is_compacted, topic.is_deleted, topic.synced) == (True, True, True)
    assert topic[MIN_ISR] == 1, "what all must agree about is a record"
    assert topic[MIN_CLEANABLE_RATIO] == 0.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.cleanup.policy", "compcat"),
        ("log.cleanup.policy", ""),
        ("log.cleaner.min.cleanable.ratio", "7"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.segment.bytes", "10"),
        ("log.segment.bytes", "3GiB"),
        ("log.roll.ms", "0"),
        ("log.index.size.max.bytes", "-1"),
        ("message.max.bytes", "-1"),
        ("log.segment.delete.delay.ms", "-1"),
    ],
)
def test_what_no_topic_may_have_is_refused_from_the_node_as_well(name: str, value: str) -> None:
    assert error_of(name, value).startswith(f"{name} is {value!r}, expected ")


# A topic's keys.


@pytest.mark.parametrize("name", TOPIC_KEYS)
def test_the_default_of_every_topic_key_is_one_of_its_values(name: str) -> None:
    check_topic_configs({name: TOPIC_KEYS[name].default})
    assert TOPIC_KEYS[name].doc
    assert TopicConfig.of({}, {}).values[name] == TOPIC_KEYS[name].default


@pytest.mark.parametrize(
    ("name", "good", "bad", "expected"),
    [
        ("retention.ms", "-1", "-2", "-1 or more"),
        ("retention.ms", "0", "9223372036854775808", "9223372036854775807 or less"),
        ("segment.bytes", "1024", "1023", "1024 or more"),
        ("segment.ms", "1", "0", "1 or more"),
        ("min.insync.replicas", "1", "0", "1 or more"),
        ("max.message.bytes", "5", "5.0", "a whole number"),
        ("min.cleanable.dirty.ratio", "1", "1.01", "1 or less"),
        ("min.cleanable.dirty.ratio", "0", "nan", "0 or more"),
        ("min.cleanable.dirty.ratio", "0.5", "half", "a number"),
        ("flush", "replicated", "Synced", "one of synced, replicated"),
        ("flush", "synced", "synced,replicated", "one of synced, replicated"),
        ("cleanup.policy", "compact,delete", "compact,", "one of delete, compact"),
        ("cleanup.policy", "compact", "compacted", "one of delete, compact"),
        ("message.timestamp.type", "LogAppendTime", "now", "one of CreateTime, LogAppendTime"),
        ("unclean.leader.election.enable", "true", "True", "one of true, false"),
    ],
)
def test_a_topics_value_is_checked_and_the_refusal_says_what_was_expected(
    name: str, good: str, bad: str, expected: str
) -> None:
    check_topic_configs({name: good})
    with pytest.raises(Refused) as caught:
        check_topic_configs({"flush": "synced", name: bad})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert caught.value.message == f"{name} is {bad!r}, expected {expected}"


def test_a_value_that_was_accepted_once_is_in_force_though_the_limits_are_others_now() -> None:
    with pytest.raises(Refused, match="1024 or more"):
        check_topic_configs({"segment.bytes": "200"})
    assert TopicConfig.of({"segment.bytes": "200"}, {})[SEGMENT_BYTES] == 200


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        (UNCLEAN, " true", True),
        (FLUSH, "synced\n", "synced"),
        (TIMESTAMP_TYPE, " LogAppendTime", "LogAppendTime"),
        (POLICY, " compact , delete", {"compact", "delete"}),
        (FLUSH, "sometimes", "synced"),
        (MIN_ISR, "1__0", 1),
    ],
)
def test_what_is_in_force_can_always_be_read(key, text, value) -> None:
    """Blanks are harmless, and what no version would accept is the default: a node that raised
    here would end at each start, and could not be told another value."""
    assert TopicConfig.of({key.name: text}, {})[key] == value


@pytest.mark.parametrize("text", ["1__0", "_5", "5_", "", "²"])
def test_a_number_is_what_every_reader_of_it_takes_for_one(text: str) -> None:
    with pytest.raises(Refused, match="a whole number"):
        check_topic_configs({"min.insync.replicas": text})


@pytest.mark.parametrize("text", [" 5", "+5", "0_5", "\u0665", "5 "])
def test_numbers_reach_the_metadata_written_plainly(text: str) -> None:
    assert make_config({"min.insync.replicas": text}).topic_defaults()["min.insync.replicas"] == "5"


def test_the_defaults_are_kafkas() -> None:
    """Kafka's rules; `flush` is our own."""
    defaults = {name: key.default for name, key in TOPIC_KEYS.items()}
    assert defaults == {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "segment.index.bytes": "10485760",
        "index.interval.bytes": "4096",
        "max.message.bytes": "1048588",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.after.max.ms": "3600000",
        "delete.retention.ms": "86400000",
        "min.compaction.lag.ms": "0",
        "min.cleanable.dirty.ratio": "0.5",
        "file.delete.delay.ms": "60000",
        "compression.type": "producer",
        "flush": "synced",
    }


def test_a_topic_says_what_it_is() -> None:
    plain = TopicConfig.of({}, {})
    assert (plain.is_compacted, plain.is_deleted) == (False, True)
    assert (plain.append_time, plain.synced) == (False, True)
    other = TopicConfig.of(
        {
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",
            "flush": "replicated",
        },
        {"flush": "synced"},
    )
    assert (other.is_compacted, other.is_deleted) == (True, False)
    assert (other.append_time, other.synced) == (True, False)


@pytest.mark.parametrize(
    ("interval", "session", "seconds"), [("2s", "9s", 2), ("2s", "2s", 2 / 3), ("500", "2s", 0.5)]
)
def test_a_broker_is_heard_several_times_in_its_session(
    interval: str, session: str, seconds: float
) -> None:
    """With both at two seconds all brokers of a cluster were fenced every two seconds, for ever."""
    given = {"broker.heartbeat.interval.ms": interval, "broker.session.timeout.ms": session}
    assert make_config(given).heartbeat_s == pytest.approx(seconds)
