"""Frames and messages: what is sent arrives, and what cannot be is refused before it costs much.

Goal: every message of the registry survives the wire and the evolution rule holds; whatever the
bytes, the only exception is `RemoteProtocolError`, and no message grows far beyond its size.
Method: instances are built from the Structs' own fields, bytes by the msgpack library and by hand;
Hypothesis draws values and damage; bombs are read under tracemalloc.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from types import UnionType
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields
from tries import tries

from hightide.protocol.apis import APIS, Api
from hightide.protocol.bins import BIN_HEADER_BYTES_MAX, bin_header, read_bin
from hightide.protocol.errors import ERRORS, ApiError, ErrorCode, RemoteProtocolError, error_code
from hightide.protocol.messages import ErrorBody, Message, MetadataRequest, RequestEnvelope
from hightide.protocol.wire import (
    ATTACHMENTS_MAX,
    FRAME_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Frame,
    decode_body,
    decode_request_envelope,
    decode_response_envelope,
    encode_request,
    encode_response,
    frame_buffers,
    frame_length,
    split_frame,
)

MIB = 1 << 20
SIZES = [0, 1, 255, 256, 65_535, 65_536]


def descendants(kind: type) -> set[type]:
    return {*kind.__subclasses__()}.union(*map(descendants, kind.__subclasses__()))


MESSAGES = sorted(descendants(Message), key=lambda kind: kind.__name__)
REQUESTS, RESPONSES = [api.request for api in APIS], [api.response for api in APIS]
MARK = msgpack.ExtType(5, b"?")
few, some, many = (settings(max_examples=tries(count), deadline=None) for count in (20, 100, 300))


def smallest(kind: object) -> object:
    """The plainest value of a field's type, as msgpack has it."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Annotated, list):
        return smallest(inside[0]) if origin is Annotated else [smallest(inside[0])]
    if origin is dict:
        return {"k": smallest(inside[1])}
    if origin in (Union, UnionType):
        return None
    if isinstance(kind, type) and issubclass(kind, Message):
        return required_only(kind)
    return {int: 7, str: "s", bytes: b"b", bool: True, msgspec.Raw: 7}[kind]


def required_only(kind: type[Message]) -> dict[str, object]:
    return {field.name: smallest(field.type) for field in fields(kind) if field.required}


def values(kind: object, *, least: int = 0) -> st.SearchStrategy:
    """Any value of a field's type, as Python has it; a list in a list is never empty."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return values(inside[0], least=least)
    if origin is list:
        return st.lists(values(inside[0], least=1), min_size=least, max_size=3)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), values(inside[1]), max_size=2)
    if origin in (Union, UnionType):
        return st.none() | st.one_of([values(i) for i in inside if i is not type(None)])
    if origin is tuple:
        return st.tuples(*map(values, inside))
    if isinstance(kind, type) and issubclass(kind, Message):
        return st.builds(kind, **{field.name: values(field.type) for field in fields(kind)})
    return {
        int: st.integers(-(1 << 63), (1 << 63) - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
        bool: st.booleans(),
        msgspec.Raw: st.just(msgspec.Raw(b"\x80")),
    }[kind]


def named(part: object) -> object:
    return getattr(part, "__name__", part)


def plainly(value: object) -> object:
    return msgspec.to_builtins(value, enc_hook=msgspec.msgpack.decode, builtin_types=(bytes,))


def body_of(buffers: list) -> bytes:
    """The bytes after the length, which is checked."""
    joined = b"".join(buffers)
    assert frame_length(joined[:4]) == len(joined) - 4
    return joined[4:]


def split(body: bytes, *, message_limit: int = MESSAGE_BYTES_MAX) -> Frame:
    return split_frame(body, message_limit=message_limit)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgpack.packb(value))


def envelope(**fields: object) -> dict[str, object]:
    return {"api": "fetch", "version": 1, "id": 42, **fields}


def open_request(message: bytes) -> RequestEnvelope:
    return decode_request_envelope(split(message))


# Round trips and the evolution rule.


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@given(data=st.data(), request_id=st.integers(0, (1 << 63) - 1))
@few
def test_a_request_arrives_as_it_was_sent(api: Api, data: st.DataObject, request_id: int) -> None:
    request = data.draw(values(api.request))
    sent = encode_request(request, request_id=request_id, client="me", attachments=[b"abc"])
    frame = split(body_of(sent))
    found = decode_request_envelope(frame)
    assert (found.api, found.version) == (api.name, api.max_version)
    assert (found.id, found.client) == (request_id, "me")
    assert decode_body(found.body, api.request) == request
    assert frame.attachments == [b"abc"]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@given(data=st.data(), request_id=st.integers(0, (1 << 63) - 1))
@few
def test_a_response_arrives_as_it_was_sent(api: Api, data: st.DataObject, request_id: int) -> None:
    response = data.draw(values(api.response))
    message = encode_response(response, request_id=request_id)
    found = decode_response_envelope(split(body_of(frame_buffers(message, []))))
    assert (found.id, found.error) == (request_id, None)
    assert decode_body(found.body, api.response) == response


@pytest.mark.parametrize("code", ErrorCode)
def test_a_refusal_arrives_with_its_code_and_sentence(code: ErrorCode) -> None:
    message = encode_response(None, request_id=3, error=code, message="because")
    found = decode_response_envelope(split(message))
    assert found.error == ErrorBody(code=code.value, message="because")
    assert error_code(found.error.code) is code
    assert msgpack.unpackb(message)["error"]["code"] == code.value


def test_the_envelopes_are_the_documented_maps() -> None:
    sent = body_of(encode_request(MetadataRequest(topics=["t"]), request_id=42, client="name"))
    asked = {"api": "metadata", "version": 1, "id": 42, "client": "name"}
    assert msgpack.unpackb(sent) == {**asked, "body": {"topics": ["t"]}}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_unknown_keys_are_ignored_at_every_depth(kind: type[Message]) -> None:
    def with_unknown(value: object) -> object:
        if isinstance(value, list):
            return [with_unknown(item) for item in value]
        if isinstance(value, dict):
            known = {key: with_unknown(item) for key, item in value.items()}
            return {"new_first": [1, {"a": None}], **known, "new_last": MARK}
        return value

    plain = required_only(kind)
    assert decode_body(raw(with_unknown(plain)), kind) == decode_body(raw(plain), kind)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_missing_keys_take_the_defaults(kind: type[Message]) -> None:
    plain = required_only(kind)
    found = decode_body(raw(plain), kind)
    assert {name: plainly(getattr(found, name)) for name in plain} == plain
    for field in fields(kind):
        if not field.required and field.type is not msgspec.Raw:
            made = field.default_factory is not msgspec.NODEFAULT
            default = field.default_factory() if made else field.default
            assert getattr(found, field.name) == default, field.name


REQUIRED = [(kind, name) for kind in MESSAGES for name in required_only(kind)]
TYPED = [(k, field.name) for k in MESSAGES for field in fields(k) if field.type is not msgspec.Raw]


@pytest.mark.parametrize(("kind", "name"), REQUIRED, ids=named)
def test_a_missing_required_key_is_refused_and_named(kind: type[Message], name: str) -> None:
    cut = {key: value for key, value in required_only(kind).items() if key != name}
    with pytest.raises(RemoteProtocolError, match=f"{kind.__name__}: .*`{name}`"):
        decode_body(raw(cut), kind)


@pytest.mark.parametrize("wrong", [MARK, b"bin", 1.5, [[[]]], {"a": []}], ids=repr)
def test_a_value_of_the_wrong_type_is_refused_and_its_field_named(wrong: object) -> None:
    for kind, name in TYPED:
        if type(wrong) in ((hint := get_type_hints(kind)[name]), *get_args(hint)):
            continue
        message = {**required_only(kind), name: wrong}
        with pytest.raises(RemoteProtocolError, match=rf"{kind.__name__}: .*\$\.{name}"):
            decode_body(raw(message), kind)


@pytest.mark.parametrize("name", ["api", "version", "id"])
def test_an_envelope_without_a_required_key_is_refused_and_the_key_named(name: str) -> None:
    cut = {key: value for key, value in envelope().items() if key != name}
    with pytest.raises(RemoteProtocolError, match=f"request envelope: .*`{name}`"):
        open_request(msgpack.packb(cut))
    with pytest.raises(RemoteProtocolError, match=r"response envelope: .*`id`"):
        decode_response_envelope(split(msgpack.packb({"body": {}})))


@pytest.mark.parametrize("message", [b"\xc0", b"\x00", b"\x90", b"\xa1x", b"\xc4\x00", b"\xc2"])
def test_a_message_that_is_no_map_is_refused(message: bytes) -> None:
    for read in (open_request, lambda body: decode_body(msgspec.Raw(body), MetadataRequest)):
        with pytest.raises(RemoteProtocolError, match="Expected `object`"):
            read(message)


def test_every_element_of_a_list_has_a_required_key() -> None:
    types = [field.type for kind in MESSAGES for field in fields(kind)]
    elements = {get_args(t)[0] for t in types if get_origin(t) is list} & {*MESSAGES}
    assert len(elements) > 10
    assert [kind.__name__ for kind in elements if not required_only(kind)] == []


# Lengths and attachments.


@pytest.mark.parametrize("prefix_type", [bytes, bytearray, memoryview])
def test_a_length_is_four_bytes_and_never_zero(prefix_type: Callable[[bytes], bytes]) -> None:
    assert frame_length(prefix_type(b"\x00\x01\x02\x03")) == 0x010203
    assert frame_length(prefix_type(b"\x00\x00\x00\x01after")) == 1
    with pytest.raises(RemoteProtocolError, match="0 bytes"):
        frame_length(prefix_type(bytes(4)))


@pytest.mark.parametrize("limit", [1, 65_536, FRAME_BYTES_MAX])
def test_a_length_above_the_limit_is_refused_with_both_named(limit: int) -> None:
    assert frame_length(struct.pack(">I", limit), limit=limit) == limit
    with pytest.raises(RemoteProtocolError, match=rf"{limit + 1} bytes.* {limit} .*max\.bytes\)$"):
        frame_length(struct.pack(">I", limit + 1), limit=limit)


HTTP_WORDS = [b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"HTTP", b"DELE", b"PRI "]
STRANGERS = [(word, "HTTP") for word in HTTP_WORDS]
STRANGERS += [(b"\x16\x03\x01\x02", "TLS"), (b"\x15\x03\x03\x00", "TLS"), (b"SSH-", "SSH")]


@pytest.mark.parametrize(("prefix", "protocol"), STRANGERS)
def test_a_stranger_is_told_which_protocol_it_seems_to_speak(prefix: bytes, protocol: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"seems to speak {protocol}(:|$)"):
        frame_length(memoryview(prefix))


@pytest.mark.parametrize("sizes", [[], *([size] for size in SIZES), SIZES, SIZES[::-1], [0] * 5])
def test_attachments_arrive_in_order_as_slices_of_the_frame(sizes: list[int]) -> None:
    attachments = [bytes([index + 65]) * size for index, size in enumerate(sizes)]
    body = body_of(frame_buffers(b"\x80", [memoryview(a) for a in attachments]))
    unpacker = msgpack.Unpacker(max_buffer_size=len(body))
    unpacker.feed(body)
    assert list(unpacker) == [{}, *attachments], "a frame is nothing but msgpack objects"
    frame = split(body)
    assert frame.message == b"\x80"
    assert frame.attachments == attachments
    assert all(view.obj is body for view in (frame.message, *frame.attachments))


def test_a_frame_cut_anywhere_has_fewer_attachments_or_is_refused() -> None:
    message = msgpack.packb(envelope(client="c" * 300))
    attachments = [b"", b"a", b"b" * 256]
    body = body_of(frame_buffers(message, attachments))
    whole, position = {len(message): 0}, len(message)
    for number, attachment in enumerate(attachments, 1):
        position += len(bin_header(len(attachment))) + len(attachment)
        whole[position] = number
    for size in range(len(body) + 1):
        if size in whole:
            assert split(body[:size]).attachments == attachments[: whole[size]]
        else:
            with pytest.raises(RemoteProtocolError):
                split(body[:size])


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 12_287, 12_288, 12_289, 100_000])
@pytest.mark.parametrize("attached", [0, 1, 5000, 70_000])
def test_a_message_ends_where_it_ends_whatever_follows(size: int, attached: int) -> None:
    message = b"\x00" if size == 1 else b"\xc6" + struct.pack(">I", size - 5) + bytes(size - 5)
    body = body_of(frame_buffers(message, [b"\x90" * attached]))
    frame = split(body, message_limit=size)
    assert len(frame.message) == size
    assert frame.attachments == [b"\x90" * attached]
    if size > 1:
        with pytest.raises(RemoteProtocolError, match=f"limit is {size - 1} bytes"):
            split(body, message_limit=size - 1)


def test_attachments_are_limited_in_number() -> None:
    assert len(split(b"\x80" + b"\xc4\x00" * ATTACHMENTS_MAX).attachments) == ATTACHMENTS_MAX
    with pytest.raises(RemoteProtocolError, match=str(ATTACHMENTS_MAX)):
        split(b"\x80" + b"\xc4\x00" * (ATTACHMENTS_MAX + 1))


@pytest.mark.parametrize("second", [b"\x80", b"\xc0", b"\xa1x", b"\xd9\x01x", b"\xc7\x01\x05x"])
def test_an_attachment_that_is_no_bin_is_refused_and_numbered(second: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="attachment 1: byte 4"):
        split(b"\x80\xc4\x01x" + second)


@given(size=st.sampled_from(SIZES) | st.integers(0, 70_000), before=st.integers(0, 3))
@some
def test_a_bin_is_msgpacks_and_is_read_back_in_place(size: int, before: int) -> None:
    packed = bin_header(size) + bytes(size)
    assert packed == msgpack.packb(bytes(size))
    assert len(bin_header(size)) <= BIN_HEADER_BYTES_MAX
    buffer = b"?" * before + packed + b"after"
    assert read_bin(memoryview(buffer), before) == (bytes(size), before + len(packed))
    for cut in {0, 1, 2, len(packed) - 1} - {len(packed)}:
        with pytest.raises(ValueError, match=r"cut off|needs"):
            read_bin(memoryview(packed[:cut]), 0)


# Bombs.


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory `call` held while it returned or was refused."""
    tracemalloc.start()
    try:
        with suppress(RemoteProtocolError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FILL = b"\x90" * (10 * MIB)
HUGE = b"\xff\xff\xff\xff"
BOMBS = {
    "10 MB of empty arrays": FILL,
    "a million empty arrays": b"\xdd\x00\x10\x00\x00" + FILL[:MIB],
    "an array of 4 G": b"\xdd" + HUGE + FILL,
    "a map of 4 G": b"\xdf" + HUGE + FILL,
    "a bin of 4 G": b"\xc6" + HUGE + FILL,
    "a string of 4 G": b"\xdb" + HUGE + FILL,
    "an extension of 4 G": b"\xc9" + HUGE + b"\x01" + FILL,
    "arrays in arrays": b"\x91" * 1_000_000 + b"\xc0",
    "maps in maps": b"\x81\xa1a" * 300_000 + b"\xc0",
    "arrays of 4 G in arrays of 4 G": (b"\xdd" + HUGE) * 200_000,
}


@pytest.mark.parametrize("where", [b"", b"\x84\xa3api\xa1x\xa7version\x01\xa2id\x01\xa1z"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_little_memory(bomb: str, where: bytes) -> None:
    body = where + BOMBS[bomb]
    with pytest.raises(RemoteProtocolError):
        open_request(body)
    assert peak_bytes(lambda: open_request(body)) < 4 * MIB


def test_a_bomb_as_an_attachment_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"attachment 0: .* needs 4294967295 bytes"):
        split(b"\x80\xc6" + HUGE + FILL)


@pytest.mark.parametrize("depth", [10, 900, 1000, 1023, 1024, 100_000])
@pytest.mark.parametrize("open_one", [b"\x91", b"\x81\xa1a"], ids=["arrays", "maps"])
@pytest.mark.parametrize("key", ["body", "unknown"])
def test_nesting_is_refused_or_ignored_at_any_depth(depth: int, open_one: bytes, key: str) -> None:
    nested = msgpack.packb(key) + open_one * depth + b"\xc0"
    with suppress(RemoteProtocolError):
        found = open_request(b"\x84" + msgpack.packb(envelope())[1:] + nested)
        with suppress(RemoteProtocolError):
            decode_body(found.body, REQUESTS[0])
    with suppress(RemoteProtocolError):
        decode_body(msgspec.Raw(b"\x81" + nested), REQUESTS[0])


LISTS = [
    (kind, field.name, smallest(get_args(variant)[0]))
    for kind in MESSAGES
    for field in fields(kind)
    for variant in (field.type, *get_args(field.type))
    if get_origin(variant) is list
]


@pytest.mark.parametrize(("kind", "name", "element"), LISTS, ids=named)
def test_a_list_takes_at_most_fifty_times_the_memory_of_its_bytes(
    kind: type[Message], name: str, element: object
) -> None:
    others = {key: value for key, value in required_only(kind).items() if key != name}
    start = bytes([0x81 + len(others)]) + msgpack.packb(others)[1:] + msgpack.packb(name)
    full = msgpack.packb(element)
    for fill in (full, full.replace(b"\xa1s", b"\xa0"), full.replace(b"\x91\x07", b"\x90")):
        count = (1 << 16) // len(fill)
        bomb = msgspec.Raw(start + b"\xdd" + struct.pack(">I", count) + fill * count)
        taken = []
        peak = peak_bytes(lambda bomb=bomb, taken=taken: taken.append(decode_body(bomb, kind)))
        assert [len(getattr(message, name)) for message in taken] == [count] or fill != full
        assert peak < 50 << 16, f"{peak} bytes for {count} times {fill.hex()}"


# Anything else.


def take_everything(body: bytes, kinds: list[type[Message]]) -> None:
    """All that a broker or a client does with a frame; only `RemoteProtocolError` may stop it."""
    raws = [msgspec.Raw(body)]
    with suppress(RemoteProtocolError):
        frame = split(body, message_limit=4096)
        for decode in (decode_request_envelope, decode_response_envelope):
            with suppress(RemoteProtocolError):
                raws.append(decode(frame).body)
    for kind, one in product(kinds, raws):
        with suppress(RemoteProtocolError):
            assert isinstance(decode_body(one, kind), kind)


NO_UTF8 = [b"\xa1\xff", b"\xa2\xc3\x28", b"\xa3\xed\xa0\x80", b"\xd9\x01\x80"]


@pytest.mark.parametrize("text", NO_UTF8)
def test_a_string_that_is_no_utf8_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_request(b"\x83\xa7version\x01\xa2id\x01\xa3api" + text)
    with pytest.raises(RemoteProtocolError):
        decode_response_envelope(split(b"\x82\xa2id\x01\xa5error\x81\xa4code" + text))
    with pytest.raises(RemoteProtocolError):
        decode_body(msgspec.Raw(b"\x81\xa6topics\x91" + text), REQUESTS[1])


@pytest.mark.parametrize("ext", [b"\xd4\x05x", b"\xd6\xff\0\0\0\0", b"\xd7\xff" + b"\xff" * 8])
def test_an_extension_type_is_refused_or_harmless(ext: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_request(ext)
    unknown = b"\x84" + msgpack.packb(envelope())[1:] + b"\xa1z" + ext
    assert open_request(unknown) == open_request(msgpack.packb(envelope()))
    body = open_request(b"\x84" + msgpack.packb(envelope())[1:] + b"\xa4body" + ext).body
    for kind in REQUESTS + RESPONSES:
        with pytest.raises(RemoteProtocolError):
            decode_body(body, kind)


@given(body=st.binary(max_size=100))
@some
def test_random_bytes_are_refused_or_harmless(body: bytes) -> None:
    take_everything(body, MESSAGES)


@given(data=st.data())
@many
def test_a_damaged_frame_is_refused_or_harmless(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(REQUESTS + RESPONSES))
    message = envelope(body=plainly(data.draw(values(kind))))
    body = bytearray(body_of(frame_buffers(msgpack.packb(message), [b"attached"])))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    take_everything(bytes(body), [kind])
    take_everything(bytes(body[: data.draw(st.integers(0, len(body)))]), [kind])


# The error table.


def test_every_error_has_a_meaning_and_a_new_one_is_unknown() -> None:
    assert list(ERRORS) == list(ErrorCode)
    assert len({info.number for info in ERRORS.values()}) == len(ErrorCode)
    assert all(info.retriable for info in ERRORS.values() if info.refresh)
    assert error_code("SOMETHING_NEW") is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("code", ErrorCode)
def test_an_api_error_says_its_code_and_whether_a_retry_can_help(code: ErrorCode) -> None:
    error = ApiError(code, broker="h:1", attempts=2, elapsed_s=1.5, knob="retries")
    assert (error.retriable, error.refresh) == ERRORS[code][1:3]
    facts = "[broker h:1, 2 attempts, 1.5 s, see retries]"
    assert str(error) == f"{code}: {ERRORS[code].meaning} {facts}"
