"""Two others who speak Kafka's protocol, and never saw how it is done here: kio and kafka-python.

Each reads and writes any message. What they call its fields, and what they make of them (times,
enumerations, tuples), is told apart by the order of the fields alone. No test lives here.
"""

import dataclasses
import importlib
import io
import pkgutil
import typing
import warnings
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import SimpleNamespace
from uuid import UUID

from hypothesis import strategies as st
from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioError
from kio.serial import entity_reader, entity_writer

from hightide.protocol.codecs import at_once
from hightide_broker.kafka.fields import STRUCT, fields_of, in_version
from hightide_broker.kafka.reading import Source, reader
from hightide_broker.kafka.writing import Attached, Target, writer

with (
    warnings.catch_warnings()
):  # it reads its own files in a way that Python will not have for ever
    warnings.simplefilter("ignore")
    import kafka.protocol
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.schemas.fields.codecs import BitField

SIDES = ("request", "response")
OPERATIONS = -(1 << 31)
"""Nobody asked for them."""
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_WORDS = {
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    "bytes": st.binary(max_size=12),
    "records": st.binary(min_size=1, max_size=40).map(lambda data: Attached(data, len(data))),
    "uuid": st.binary(min_size=16, max_size=16).map(
        lambda raw: urlsafe_b64encode(raw).decode().rstrip("=") if any(raw) else ""
    ),
    "bool": st.booleans(),
    "uint16": st.integers(0, 0xFFFF),
    "float64": st.floats(allow_nan=False),
}


def table_of(api, side):
    return fields_of(getattr(api, side))


# -- ours -----------------------------------------------------------------------------------------


def ours_written(api, side, version, values):
    """The bytes of a message, by our writer."""
    out = Target()
    at_once(writer(table_of(api, side), version, flexible=api.is_flexible(version))(out, values))
    assert sum(map(len, out.parts())) == out.size
    return b"".join(map(bytes, out.parts()))


def ours_read(api, side, version, data):
    """A message by our reader, which takes all of it."""
    source = Source(memoryview(data))
    read = at_once(reader(table_of(api, side), version, flexible=api.is_flexible(version))(source))
    assert source.at == len(data)
    return read


def comparable(value):
    """Records as bytes, whoever holds them."""
    if isinstance(value, Attached):
        return bytes(value.part)
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def messages(fields, version):
    """Whole messages of this version."""
    return st.fixed_dictionaries({f.name: _field(f, version) for f in in_version(fields, version)})


def is_operations(field):
    return field.name.endswith("authorized_operations") and field.kind == "int32"


def _field(field, version):
    if field.kind == STRUCT:
        one = messages(field.fields, version)
    elif is_operations(field):
        one = st.just(OPERATIONS)
    elif field.name == "error_code":
        one = st.sampled_from([each.value for each in KioError])
    elif field.kind in _WORDS:
        one = _WORDS[field.kind]
    elif field.name == "log_append_time_ms":
        one = st.integers(0, 1 << 40)  # kio makes a date of it, of years that there are
    else:
        bits = 31 if field.name.endswith("_ms") else _BITS[field.kind]
        one = st.integers(-(1 << bits) + 1, (1 << bits) - 1)
    if field.is_array:
        one = st.lists(one, max_size=3)
    return st.none() | one if version in field.nullable else one


# -- kio ------------------------------------------------------------------------------------------


def kio_knows(api, side, version):
    """Whether it has this version; it leaves out those that Kafka 4.3 does."""
    try:
        kio_kind(api, side, version)
    except KioIndexError:
        return False
    return True


def kio_kind(api, side, version):
    load = load_request_schema if side == "request" else load_response_schema
    return load(api.key, version)


def kio_read(api, side, version, data):
    kind = kio_kind(api, side, version)
    value, size = entity_reader(kind)(data, 0)
    assert size == len(data)
    return _from_kio(value, table_of(api, side), version)


def kio_written(api, side, version, values):
    kind, out = kio_kind(api, side, version), io.BytesIO()
    entity_writer(kind)(out, _to_kio(kind, values, table_of(api, side), version))
    return out.getvalue()


def _paired(kind, fields, version):
    """Our fields and theirs, which come in the same order."""
    return zip(in_version(fields, version), dataclasses.fields(kind), strict=True)


def _from_kio(value, fields, version):
    return {
        field.name: _plain(getattr(value, its.name), field, version)
        for field, its in _paired(value, fields, version)
    }


def _plain(value, field, version):
    if isinstance(value, tuple):
        return [_plain(each, field, version) for each in value]
    if field.kind == STRUCT and value is not None:
        return _from_kio(value, field.fields, version)
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, Enum):
        return value.value
    if field.kind == "uuid":
        return "" if value is None else urlsafe_b64encode(value.bytes).decode().rstrip("=")
    return bytes(value) if isinstance(value, bytes) else value


def _to_kio(kind, values, fields, version):
    hints = typing.get_type_hints(kind)
    made = {
        its.name: _rich(values[field.name], hints[its.name], its, field, version)
        for field, its in _paired(kind, fields, version)
    }
    return kind(**made)


def _rich(value, hint, its, field, version):
    if isinstance(value, list):
        return tuple(_rich(each, hint, its, field, version) for each in value)
    if value is None:
        return None
    kind = its.metadata.get("kafka_type", "")
    if field.kind == STRUCT:
        return _to_kio(_struct_in(hint), value, field.fields, version)
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=value)
    if kind.startswith("datetime"):
        return datetime.fromtimestamp(value / 1000, UTC)
    if kind == "error_code":
        return KioError(value)
    if field.kind == "uuid":
        return UUID(bytes=urlsafe_b64decode(value + "==")) if value else None
    return value.part if isinstance(value, Attached) else value


def _struct_in(hint):
    if dataclasses.is_dataclass(hint):
        return hint
    return next(filter(None, map(_struct_in, typing.get_args(hint))), None)


# -- kafka-python ---------------------------------------------------------------------------------


def _all_messages():
    for found in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in found.name:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(found.name)
    return {(kind.API_KEY, kind.type): kind for kind in ApiMessage.__subclasses__() if kind.type}


PYTHONS = _all_messages()


def python_read(api, side, version, data):
    value = PYTHONS[api.key, side].decode(data, version=version)
    return _from_python(value, table_of(api, side), version)


def python_written(api, side, version, values):
    kind = PYTHONS[api.key, side]
    made = _to_python(kind._struct, values, table_of(api, side), version)
    return bytes(kind[version](**made).encode())


def _theirs(struct, fields, version):
    theirs = [each for each in struct._fields if each.for_version_q(version)]
    return zip(in_version(fields, version), theirs, strict=True)


def _from_python(value, fields, version):
    found = {}
    for field, its in _theirs(value._struct, fields, version):
        found[field.name] = _bare(getattr(value, its.name), field, version)
    return found


def _bare(value, field, version):
    if is_operations(field) and not isinstance(value, int):
        assert not value  # they make a set of it, and nothing of none
        return OPERATIONS
    if isinstance(value, (list, tuple)) and field.is_array:
        return [_bare(each, field, version) for each in value]
    if field.kind == STRUCT and value is not None:
        return _from_python(value, field.fields, version)
    if field.kind == "uuid":
        return "" if not value or not value.int else urlsafe_b64encode(value.bytes).decode()[:22]
    return bytes(value) if field.kind in ("records", "bytes") and value is not None else value


def _to_python(struct, values, fields, version):
    return {
        its.name: _dressed(values[field.name], its, field, version)
        for field, its in _theirs(struct, fields, version)
    }


def _dressed(value, its, field, version):
    if isinstance(value, list):
        return [_dressed(each, its, field, version) for each in value]
    if value is None:
        return None
    if is_operations(field) and its._type is BitField:
        return {31}
    if field.kind == STRUCT:
        return SimpleNamespace(tags=None, **_to_python(its, value, field.fields, version))
    if field.kind == "uuid":
        return UUID(bytes=urlsafe_b64decode(value + "==")) if value else UUID(int=0)
    return value.part if isinstance(value, Attached) else value
