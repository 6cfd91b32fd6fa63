"""Peers that speak another protocol: which, by their first bytes, and what they can be told.

Pure.
"""

from __future__ import annotations

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"HTTP", b"DELE", b"PATC", b"PRI ")
_TLS = tuple(bytes((kind, 3, version)) for kind in (0x15, 0x16) for version in (1, 2, 3))
"""Its alerts and its handshakes."""
_KAFKA_KEYS = 100
"""A request of Kafka's begins with the number of its API and a version, both below this; a message
of ours with a map of msgpack, which never begins with a zero."""


def speaks(first: bytes) -> str:
    """The protocol of a peer that sends these bytes where a frame's length is expected; or none."""
    if first.startswith(_TLS):
        return "TLS"
    if first.startswith(_HTTP):
        return "HTTP"
    return "SSH" if first.startswith(b"SSH-") else ""


def speaks_kafka(body: bytes | bytearray) -> bool:
    """Whether what came in place of a message begins as a request of Kafka's own protocol does."""
    key, version = int.from_bytes(body[:2], "big"), int.from_bytes(body[2:4], "big")
    return len(body) >= 4 and max(key, version) < _KAFKA_KEYS


def http_refusal() -> bytes:
    """For a browser or `curl`: what this port is."""
    body = (
        b"This port speaks hightide's own protocol, msgpack over TCP, and not HTTP: "
        b"ask it with `hightide topics list -b HOST:PORT`, or a hightide client.\n"
    )
    head = (
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
