"""What a handler answers a request with: at once, later, or by closing the connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from hightide.protocol.messages import Message
from hightide.protocol.records import Buffer
from hightide_broker.storage.segment import FileSlice


class Reply(NamedTuple):
    """A response with its attachments: slices of files, or bytes."""

    body: Message
    attachments: Sequence[FileSlice | Buffer] = ()


Later = Callable[[], Awaitable[Reply]]
"""The rest of a request that has to wait."""
Handler = Callable[[Any, list[memoryview]], Reply | Later | None]
"""Begins one kind of request."""


class CloseConnection(Exception):
    """The only way to say no to a client that expects no answer (acks=0)."""
