"""Goal: records, formats and times as people and pipes write them survive the way in and out.

Method: properties over any record, any line and any time, and tables of what the command line
promises; no process and no broker.
"""

import importlib
import json
from datetime import UTC, datetime, timedelta

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hightide.columns import Record
from hightide.errors import UsageError
from hightide.records import TIMESTAMP_MAX
from hightide_cli.envelope import decode_line, encode_record
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
        b'{"value": {"b64": "?"}}',
        b'{"value": {"b64": 5}}',
        b'{"value": "\\ud800"}',
        b'{"headers": 5}',
        b'{"headers": {"a": "b"}}',
        b'{"headers": [["name"]]}',
        b'{"headers": [[5, "v"]]}',
        b'{"headers": [["\\ud800", "v"]]}',
        b'{"timestamp": "now"}',
        b'{"timestamp": true}',
        b'{"partition": 0.5}',
        b"[" * 100_000,
    ],
    ids=lambda line: line[:30].decode("ascii", "replace"),
)
def test_a_line_that_is_no_record_is_a_usage_error(line):
    with pytest.raises(UsageError):
        decode_line(line)


@given(st.binary(max_size=40))
def test_any_other_line_gives_a_record_or_a_usage_error(line):
    try:
        fields = decode_line(line)
    except UsageError:
        return
    assert set(fields) == {"key", "value", "headers", "timestamp", "partition"}


RECORD = Record("t", 2, 7, 1234, b"key", b"val\xff", (("a", b"1"), ("b", None)), 0, 5)


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
    assert consume._formatter(text)(RECORD) == printed


def test_a_format_shows_a_null_as_nothing_of_length_minus_one():
    null = Record("t", 0, 0, 0, None, None)
    assert consume._formatter("[%k|%v|%K|%S|%h]")(null) == b"[||-1|-1|]"


@given(st.text().filter(lambda text: not set(text) & {"%", "\\"}))
def test_a_format_without_tokens_prints_itself(text):
    assert consume._formatter(text)(RECORD) == text.encode("utf-8", "strict")


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
