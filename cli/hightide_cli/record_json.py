"""The JSON line of a record: `consume -J` writes it and `produce -J` reads it back, without loss.

`{"topic","partition","offset","timestamp","key","value","headers"}`; bytes that are UTF-8 text are
a string, others `{"b64": …}`, a null is null; headers are pairs `[name, value]` in order.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from hightide.protocol.columns import Headers, Record
from hightide.protocol.errors import UsageError, did_you_mean


def encode_bytes(data: bytes | None) -> Any:
    """Text, `{"b64": …}`, or None."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode()}


def decode_bytes(value: Any, field: str) -> bytes | None:
    """What `encode_bytes` wrote; raises `UsageError`."""
    if value is None:
        return None
    if isinstance(value, str):
        return _encode_text(value, field)
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except ValueError as error:
            raise UsageError(f"{field}: {error}") from error
    raise UsageError(f'{field} is {value!r}, expected text, {{"b64": …}} or null')


def _encode_text(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{field} is no text: {error}") from error


def encode_record(record: Record) -> str:
    """One line."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": encode_bytes(record.key),
        "value": encode_bytes(record.value),
        "headers": [[name, encode_bytes(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False)


_NO_RECORD = "; -J reads what consume -J writes: where a line is itself the value, leave it out"
FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def decode_line(line: bytes) -> dict[str, Any]:
    """topic, key, value, headers, timestamp and partition of a line; None where it does not say.
    What it says of an offset is where it came from."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:  # which counts lines from here on
        raise UsageError(f"line is no JSON: {error.msg}, at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise UsageError(f"line is {fields!r}, expected an object")
    for name in fields:
        if name not in FIELDS:
            meant = "" if "value" in fields else _NO_RECORD
            hint = did_you_mean(name, FIELDS) or f", expected {', '.join(FIELDS)}{meant}"
            raise UsageError(f"unknown key {name!r}{hint}")
    if "value" not in fields:
        raise UsageError("no value; a null is written as such")
    topic = fields.get("topic")
    if not isinstance(topic, str | None):
        raise UsageError(f"topic is {topic!r}, expected text")
    headers: list[tuple[str, bytes | None]] = []
    pairs = fields.get("headers") or []
    if not isinstance(pairs, list):
        raise UsageError(f"headers is {pairs!r}, expected pairs [name, value]")
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise UsageError(f"header {pair!r}, expected [name, value]")
        _encode_text(pair[0], "header name")
        headers.append((pair[0], decode_bytes(pair[1], f"header {pair[0]}")))
    kept: Headers = tuple(headers)
    return {
        "topic": topic,
        "key": decode_bytes(fields.get("key"), "key"),
        "value": decode_bytes(fields.get("value"), "value"),
        "headers": kept,
        "timestamp": _whole(fields, "timestamp"),
        "partition": _whole(fields, "partition"),
    }


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name} is {value!r}, expected a whole number")
    return value
