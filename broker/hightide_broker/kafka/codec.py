"""Frames of Kafka's protocol: headers, and the messages behind them. Pure.

A request is `api key, version, correlation id, client id` and the request's own fields, an answer
the correlation id and the answer's. From an API's first flexible version on both headers have
tagged fields, too; but for the answer to ApiVersions, which a client reads before it knows who
answers (KIP-511).
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from hightide.protocol.codecs import Steps, at_once
from hightide.protocol.errors import RemoteProtocolError
from hightide_broker.kafka.fields import KafkaApi, fields_of
from hightide_broker.kafka.reading import Fields, ReadInSteps, Source, reader
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.kafka.writing import Target, WriteInSteps, writer

API_VERSIONS_KEY = 18
_START = struct.Struct(">hhih")
_ANSWER = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")


class Header(NamedTuple):
    """What every request begins with."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    end: int
    """Where its first field of its own begins, or the tagged ones of the header."""


def read_header(body: memoryview) -> Header:
    """The header of a request, but for its tagged fields. Raises `RemoteProtocolError`."""
    source = Source(body)
    key, version, correlation_id, length = _START.unpack_from(body, source.take(_START.size))
    client_id = str(source.take_text(max(length, 0)), "utf-8", "replace")
    return Header(key, version, correlation_id, client_id, source.at)


def reading_request(api: KafkaApi, header: Header, body: memoryview) -> Steps[Fields]:
    """The fields of a request. Raises `RemoteProtocolError`."""
    source = Source(body, header.end)
    try:
        if api.is_flexible(header.version):
            at_once(_header_tags(source))
        found: Fields = yield from _request_reader(api.key, header.version)(source)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{api.name} version {header.version}: {error}") from error
    return found


def writing_answer(
    api: KafkaApi, version: int, correlation_id: int, answer: Fields
) -> Steps[list[object]]:
    """The frame of an answer, as parts to send one after the other."""
    out = Target()
    out += bytes(_ANSWER.size)
    if api.is_flexible(version) and api.key != API_VERSIONS_KEY:
        out.varint(0)
    yield from _response_writer(api.key, version)(out, answer)
    _ANSWER.pack_into(out, 0, out.size - _LENGTH.size, correlation_id)
    return out.parts()


@cache
def _request_reader(key: int, version: int) -> ReadInSteps:
    api = API_BY_KEY[key]
    return reader(fields_of(api.request), version, flexible=api.is_flexible(version))


@cache
def _response_writer(key: int, version: int) -> WriteInSteps:
    api = API_BY_KEY[key]
    return writer(fields_of(api.response), version, flexible=api.is_flexible(version))


_header_tags: ReadInSteps = reader((), 0, flexible=True)
