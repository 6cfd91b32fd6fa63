"""What a handler is asked, and what it answers with: at once, later, or by closing the connection.

Nothing here knows of bytes: whichever protocol a request came in by, handlers see a `Call`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from hightide.protocol.messages import Message
from hightide.protocol.records import Buffer
from hightide_broker.storage.segment import FileSlice

M_co = TypeVar("M_co", bound=Message, covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[M_co]):
    """A request, and who sent it."""

    request: M_co
    attachments: Sequence[memoryview] = ()
    host: str = ""
    """Where it came from."""
    client_id: str = ""
    """What the sender calls itself."""


class Reply(NamedTuple):
    """A response with its attachments: slices of files, or bytes."""

    body: Message
    attachments: Sequence[FileSlice | Buffer] = ()


Later = Callable[[], Awaitable[Reply]]
"""The rest of a request that has to wait."""
Outcome = Reply | Later | None
"""None: there is no answer."""
Begin = Callable[[Call[Any]], Outcome]
"""Begins a request: what it changes is changed when this returns. Raises `Refused`."""


class CloseConnection(Exception):
    """The only way to say no to a client that expects no answer (acks=0)."""
