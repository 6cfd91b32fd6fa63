"""Goal: records, formats and times as people and pipes write them survive the way in and out.

Method: properties over any record, any line and any time, and tables of what the command line
promises; no process and no broker.
"""

import importlib
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hightide.protocol.columns import Record
from hightide.protocol.errors import UsageError
from hightide.protocol.records import TIMESTAMP_MAX
from hightide_cli.format import Formatter
from hightide_cli.record_json import decode_line, encode_record
from hightide_cli.times import parse_time

consume = importlib.import_module("hightide_cli.consume")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# -- records as text -------------------------------------------------------------------------------

blobs = st.none() | st.binary() | st.text().map(str.encode)
records = st.builds(
    Record,
    topic=st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
    partition=st.integers(0, (1 << 31) - 1),
    offset=st.integers(0, (1 << 63) - 1),
    timestamp=st.integers(0, TIMESTAMP_MAX),
    key=blobs,
    value=blobs,
    headers=st.lists(st.tuples(st.text(), blobs), max_size=4).map(tuple),
)


@given(records)
def test_the_json_line_of_any_record_reads_back_as_that_record(record):
    line = encode_record(record).encode()
    assert b"\n" not in line
    assert b"\r" not in line
    fields = json.loads(line)
    assert list(fields) == [
        *("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    ]
    assert (fields["topic"], fields["offset"]) == (record.topic, record.offset)
    assert decode_line(line) == {
        "topic": record.topic,
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
        "timestamp": record.timestamp,
        "partition": record.partition,
    }


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"text", "text"),
        ("grüße\n".encode(), "grüße\n"),
        (b"", ""),
        (None, None),
        (b"\xff\x00", {"b64": "/wA="}),
    ],
)
def test_text_is_a_string_other_bytes_are_base64_and_nothing_is_null(data, shown):
    fields = json.loads(encode_record(Record("t", 0, 0, 0, data, data, (("h", data),))))
    assert fields["key"] == fields["value"] == shown
    assert fields["headers"] == [["h", shown]]


def test_a_line_may_leave_out_everything_but_its_value():
    assert decode_line(b'{"value": "v"}') == {
        "topic": None,
        "key": None,
        "value": b"v",
        "headers": (),
        "timestamp": None,
        "partition": None,
    }


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"\xff",
        b"[]",
        b'{"value": 5}',
        b'{"valu": "v"}',
        b'{"value": "v", "time": 5}',
        b'{"key": "no value"}',
        b'{"value": "v", "topic": 5}',
        b'{"value": {"b64": "?"}}',
        b'{"value": {"b64": 5}}',
        b'{"value": "\\ud800"}',
        b'{"value": "v", "headers": 5}',
        b'{"value": "v", "headers": {"a": "b"}}',
        b'{"value": "v", "headers": [["name"]]}',
        b'{"value": "v", "headers": [[5, "v"]]}',
        b'{"value": "v", "headers": [["\\ud800", "v"]]}',
        b'{"value": "v", "timestamp": "now"}',
        b'{"value": "v", "timestamp": true}',
        b'{"value": "v", "partition": 0.5}',
        b"[" * 100_000,
    ],
    ids=lambda line: line[:30].decode("ascii", "replace"),
)
def test_a_line_that_is_no_record_is_a_usage_error(line):
    with pytest.raises(UsageError):
        decode_line(line)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"id": 1, "shop": "north"}', "where a line is itself the value, leave it out"),
        (b'{"valeu": "v"}', "unknown key 'valeu', did you mean value?"),
        (b'{"value": "v", "id": 1}', "unknown key 'id', expected topic, partition"),
        (b'{"value" "v"}', "line is no JSON: Expecting ':' delimiter, at column 10$"),
    ],
)
def test_json_that_is_not_of_consume_is_told_what_is_read(line, told):
    with pytest.raises(UsageError, match=told.replace("?", r"\?")) as refused:
        decode_line(line)
    assert ("leave it out" in str(refused.value)) == ("leave it out" in told)


@given(st.binary(max_size=40))
def test_any_other_line_gives_a_record_or_a_usage_error(line):
    try:
        fields = decode_line(line)
    except UsageError:
        return
    assert set(fields) == {"topic", "key", "value", "headers", "timestamp", "partition"}


RECORD = Record("t", 2, 7, 1234, b"key", b"val\xff", (("a", b"1"), ("b", None)), 0, 5)


def formatted(text, record=RECORD):
    return Formatter(text, lambda *_: (-1, -1))(record)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%v", b"val\xff"),
        ("%s", b"val\xff"),
        ("%k", b"key"),
        ("%S %K", b"4 3"),
        ("%t-%p@%o", b"t-2@7"),
        ("%T %e", b"1234 5"),
        ("%h", b"a=1,b="),
        ("100%%", b"100%"),
        (r"%o\n\t\r\0\\", b"7\n\t\r\0\\"),
        ("größe %o", "größe 7".encode()),
        ("%%v", b"%v"),
    ],
)
def test_a_format_prints_the_fields_its_tokens_name(text, printed):
    assert formatted(text) == printed


def test_a_format_shows_a_null_as_nothing_of_length_minus_one():
    null = Record("t", 0, 0, 0, None, None)
    assert formatted("[%k|%v|%K|%S|%h]", null) == b"[||-1|-1|]"
    assert (
        formatted("%v{json} %v{msgpack} %v{hex}|%k{big8}|%R", null) == b"null null ||" + b"\xff" * 4
    )


def test_a_format_counts_and_knows_the_bounds_of_a_log():
    show = Formatter("%i %[ %| %]\\n", lambda topic, partition: (3, partition))
    assert show(RECORD) + show(RECORD) == b"1 3 2 2\n2 3 2 2\n"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%v{hex} %v{base64}", b"000000000000012c AAAAAAAAASw="),
        ("%v{big64} %v{little64}", b"300 3170815612645539840"),
        ("%v{big32}", b"<8 bytes, not 4>"),
        ("%k{json}", b'"key"'),
        ("%v{json}", b'"\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0001,"'),
        ("%k{msgpack}", b"<no msgpack: "),
        ("%o{hex} %o{big16}", b"7 \0\x07"),
        ("%p{little32}", b"\x02\0\0\0"),
        ("%R%k", b"\0\0\0\x08key"),
        ("%d", b"1970-01-01T00:00:01.234+00:00"),
        ("%d{strftime[%H:%M:%S {%Y}]}", b"00:00:01 {1970}"),
        ("%h{ %k=%v}", b" a=1 b="),
        ("%h{<%k:%v{hex}>}", b"<a:31><b:>"),
        ("%x/%y", b"1000/3"),
        ("%", b"%"),
        ("\\x%%{v}", b"\\x%{v}"),
        ("%t{", None),
        ("%v{nibble}", None),
        ("%o{json}", None),
        ("%t{hex}", None),
        ("%d{%Y}", None),
        ("%h{%z}", None),
        ("%z", None),
    ],
)
def test_a_format_with_modifiers(text, printed):
    record = Record(
        "t", 2, 7, 1234, b"key", (300).to_bytes(8, "big"), RECORD.headers, 0, 5, 1000, 3
    )
    if printed is None:
        with pytest.raises(click.UsageError, match="format"):
            formatted(text, record)
    elif printed.startswith(b"<no"):
        assert formatted(text, record).startswith(printed)
    else:
        assert formatted(text, record) == printed


def test_what_a_record_says_in_msgpack_is_shown_as_json():
    data = msgspec.msgpack.encode({"a": [1, None, "x"]})
    assert formatted("%v{msgpack}", Record("t", 0, 0, 0, None, data)) == b'{"a":[1,null,"x"]}'


@given(st.binary(max_size=12), st.sampled_from(["", "{hex}", "{base64}", "{json}", "{msgpack}"]))
def test_whatever_the_bytes_are_a_format_shows_them(data, modifier):
    assert isinstance(formatted(f"%v{modifier}", Record("t", 0, 0, 0, None, data)), bytes)


@given(st.text(alphabet="%vkhdoTti[]|{}\\nx ", max_size=12))
def test_any_format_is_understood_or_a_usage_error(text):
    with suppress(click.UsageError):
        formatted(text)


@given(st.text().filter(lambda text: not set(text) & {"%", "\\"}))
def test_a_format_without_tokens_prints_itself(text):
    assert formatted(text) == text.encode("utf-8", "strict")


# -- times and places ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", ("start", 0)),
        ("end", ("end", 0)),
        ("0", ("offset", 0)),
        ("42", ("offset", 42)),
        ("-3", ("back", 3)),
        ("@1500", ("time", 1500)),
        ("@1970-01-01T00:00:02", ("time", 2000)),
    ],
)
def test_from_takes_an_offset_a_count_or_a_time(text, place):
    assert consume.parse_start(text) == place


@given(st.text(max_size=12))
def test_from_refuses_every_other_word_as_usage(text):
    try:
        kind, number = consume.parse_start(text)
    except click.UsageError:
        return
    assert kind in {"start", "end", "offset", "back", "time"}
    assert isinstance(number, int)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1370044800000", 1_370_044_800_000),
        ("2013-06-01", 1_370_044_800_000),
        ("2013-06-01T00:00:00Z", 1_370_044_800_000),
        ("2013-06-01T02:00:00+02:00", 1_370_044_800_000),
        ("2013-06-01T00:00:00.250", 1_370_044_800_250),
    ],
)
def test_a_time_is_iso_or_milliseconds_and_utc_if_it_does_not_say(text, ms):
    assert parse_time(text) == ms


@given(st.integers(0, 253_402_300_799_999))
@example(1001)
def test_a_time_keeps_every_millisecond(ms):
    assert parse_time((EPOCH + timedelta(milliseconds=ms)).isoformat()) == ms


@pytest.mark.parametrize("text", ["", "noon", "²", "1.5", "2013-13-01", "1969-12-31T23:59:59.999Z"])
def test_what_is_no_time_since_1970_is_a_usage_error(text):
    with pytest.raises(click.UsageError):
        parse_time(text)
