"""Bytes that are no message: one clear error, and no memory beyond the limits.

Goal: promise 7 of the design, for the codec alone. Method: messages that are cut at each byte, in
which bits are turned, or which announce more than comes; every API in its first and last version.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judges import SIDES, comparable, messages, ours_read, ours_written, table_of
from test_codec_judges import QUIET
from tries import some

from hightide.protocol.codecs import at_once
from hightide.protocol.errors import RemoteProtocolError
from hightide_broker.kafka.codec import read_header, reading_request, writing_answer
from hightide_broker.kafka.fields import fields_of
from hightide_broker.kafka.reading import (
    ELEMENTS_MAX,
    STRING_BYTES_MAX,
    TEXT_BYTES_MAX,
    Source,
    reader,
)
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.kafka.writing import Target, writer

ENDS = [
    pytest.param(api, version, side, id=f"{api.name}-{version}-{side}")
    for api in API_BY_KEY.values()
    for version in sorted({api.versions.first, api.versions.last})
    for side in (SIDES if version == api.versions.last else some(SIDES, 0))
]
"""What strangers send, and the newest of what is answered."""


@pytest.mark.parametrize(("api", "version", "side"), ENDS)
def test_a_message_that_is_cut_anywhere_is_refused(api, version, side):
    @QUIET
    @given(values=messages(table_of(api, side), version))
    def cut(values):
        data = ours_written(api, side, version, values)
        for length in range(len(data)):
            with pytest.raises(RemoteProtocolError):
                ours_read(api, side, version, data[:length])

    cut()


@pytest.mark.parametrize(("api", "version", "side"), ENDS)
def test_a_message_whose_bits_were_turned_is_read_or_refused(api, version, side):
    read = reader(table_of(api, side), version, flexible=api.is_flexible(version))

    @QUIET
    @given(values=messages(table_of(api, side), version), data=st.data())
    def turn(values, data):
        written = bytearray(ours_written(api, side, version, values))
        for _ in range(data.draw(st.integers(1, 4)) if written else 0):
            at = data.draw(st.integers(0, len(written) * 8 - 1))
            written[at // 8] ^= 1 << at % 8
        source = Source(memoryview(written))
        try:
            found = at_once(read(source))
        except RemoteProtocolError:
            return
        assert elements_in(found) <= len(written)

    turn()


def elements_in(value):
    """Elements of arrays, however deep."""
    if isinstance(value, dict):
        return sum(map(elements_in, value.values()))
    return sum(1 + elements_in(each) for each in value) if isinstance(value, list) else 0


def read_by(table, data, *, flexible=False):
    return at_once(reader(fields_of(table), 0, flexible=flexible)(Source(memoryview(data))))


@pytest.mark.parametrize(
    ("table", "data", "flexible", "words"),
    [
        ("a []int32", b"\x7f\xff\xff\xff", False, "2147483647 elements at byte 4, 0 bytes"),
        ("a []int32", b"\xff\xff\xff\xff", False, "a before byte 4 is null"),
        ("a []string", b"\xff\xff\xff\xff\x0f", True, "elements at byte 5"),
        ("a []int8", b"\xff\xff\xff\xff\xff\x01", True, "more than 32 bits"),
        ("a []int8", b"\xff\xff\xff\xff\x1f", True, "more than 32 bits"),
        ("a string", b"\x7f\xff", False, "32767 bytes are needed at byte 2, 0 are left"),
        ("a string", b"\xff\xff", False, "a before byte 2 is null"),
        ("a string", b"\x00\x01\xff", False, "no UTF-8"),
        ("a string", b"\x81\x80\x02", True, f"{STRING_BYTES_MAX} are the most"),
        ("a int8", b"\x01\x02\x05\x00\x04\x00", True, "tag 4 behind 5"),
        ("a int8 #0 =0", b"\x01\x00\x02\x01\x01", True, "ends at byte 4, its tag at 5"),
        ("a int8 #0 =0", b"\x01\x00\x00", True, "1 byte is needed"),
        ("a uuid", bytes(15), False, "16 bytes are needed"),
    ],
)
def test_what_is_wrong_is_said(table, data, flexible, words):
    with pytest.raises(RemoteProtocolError) as refusal:
        read_by(table, data, flexible=flexible)
    assert words in str(refusal.value)


def test_elements_are_counted_over_the_whole_message():
    half = ELEMENTS_MAX // 2 + 1
    some = half.to_bytes(4, "big") + bytes(half)
    with pytest.raises(RemoteProtocolError) as refusal:
        read_by("a []int8\nb []int8", some + some)
    assert f"more than {ELEMENTS_MAX} elements" in str(refusal.value)
    read_by("a []int8\nb []int8", some + bytes(4))


def test_text_is_counted_over_the_whole_message_and_records_are_not():
    size = TEXT_BYTES_MAX // 2 + 1
    half = size.to_bytes(4, "big") + bytes(size)
    with pytest.raises(RemoteProtocolError) as refusal:
        read_by("a bytes\nb bytes", half + half)
    assert f"more than {TEXT_BYTES_MAX} bytes" in str(refusal.value)
    found = read_by("a records\nb records", half + half)
    assert (len(found["a"]), len(found["b"])) == (size, size)


def test_records_are_slices_of_the_frame():
    data = bytearray(b"\x00\x00\x00\x02ab")
    found = read_by("a records", data)
    data[4:] = b"xy"
    assert bytes(found["a"]) == b"xy"


def test_tags_that_nobody_knows_are_skipped():
    newer = "a int8\nb string #3 =null\nc int32 #7 =0\nd int8 #9 =0"
    out = Target()
    values = {"a": 1, "b": "new", "c": 5, "d": 2}
    at_once(writer(fields_of(newer), 0, flexible=True)(out, values))
    assert read_by("a int8\nc int32 #7 =0", bytes(out), flexible=True) == {"a": 1, "c": 5}


def test_a_null_struct_is_one_byte():
    table = "a {} ?\n  b int8"
    for value, data in (({"b": 5}, b"\x01\x05\x00\x00"), (None, b"\xff\x00")):
        out = Target()
        at_once(writer(fields_of(table), 0, flexible=True)(out, {"a": value}))
        assert bytes(out) == data
        assert read_by(table, data, flexible=True) == {"a": value}


def test_a_sentence_that_is_too_long_for_a_string_is_cut_between_characters():
    out = Target()
    at_once(writer(fields_of("a string"), 0, flexible=False)(out, {"a": "é" * STRING_BYTES_MAX}))
    assert read_by("a string", bytes(out)) == {"a": "é" * (STRING_BYTES_MAX // 2)}


def test_a_request_and_the_header_of_its_answer():
    api = API_BY_KEY[12]
    values = {"group_id": "g", "generation_id": 3, "member_id": "m", "group_instance_id": None}
    body = b"\x00\x0c\x00\x04\x00\x00\x00\x2a\x00\x02me\x00"
    body += ours_written(api, "request", 4, values)
    header = read_header(memoryview(body))
    assert header[:4] == (12, 4, 42, "me")
    assert at_once(reading_request(api, header, memoryview(body))) == values
    answer = b"".join(map(bytes, at_once(writing_answer(api, 4, 42, {"error_code": 27}))))
    assert answer == b"\x00\x00\x00\x0c" + b"\x00\x00\x00\x2a\x00" + b"\x00\x00\x00\x00\x00\x1b\x00"
    with pytest.raises(RemoteProtocolError) as refusal:
        at_once(reading_request(api, header, memoryview(body)[:-1]))
    assert "heartbeat version 4" in str(refusal.value)


def test_the_answer_to_api_versions_has_no_tags_in_its_header():
    api = API_BY_KEY[18]
    writing = writing_answer(api, 3, 7, {"error_code": 0, "api_keys": []})
    answer = b"".join(map(bytes, at_once(writing)))
    assert answer == b"\x00\x00\x00\x0c\x00\x00\x00\x07\x00\x00\x01\x00\x00\x00\x00\x00"
    assert comparable(ours_read(api, "response", 3, answer[8:]))["api_keys"] == []
