"""The two protocols that connections speak, as far as they differ: how bytes become a request, and
an answer becomes bytes.

Everything else holds for both alike: `connection.py` reads, limits, begins, waits, counts and
sends, whoever speaks. Hightide's own protocol is in `native.py`, Kafka's in the room `kafka`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from hightide.net.outbox import FilePart
from hightide.protocol.apis import Api
from hightide.protocol.codecs import Steps
from hightide.protocol.errors import Refused, RemoteProtocolError
from hightide.protocol.messages import Message
from hightide.protocol.records import Buffer
from hightide_broker.runtime.base.call import Later, Reply

Parts = list[Buffer | FilePart]
"""A whole frame, to be sent one part after the other."""
Ask = Callable[[Message], Awaitable[Reply]]
"""Ask something of this node, as who sent the errand. Raises `Refused`."""


class Ticket(Protocol):
    """One request, as its answer needs to know it."""

    def framing(self, body: Message, parts: Sequence[Buffer | FilePart]) -> Steps[Parts]:
        """Its answer, with what is attached to that; in steps, if it tells of many things."""
        ...

    def refusing(self, refusal: Refused) -> Steps[Parts] | None:
        """Its answer if the whole of it was refused; None: there are no words for that."""
        ...

    def rest(self, reply: Reply) -> Later | None:
        """What has to be done to an answer that must not be done at once; what is attached to it
        is looked at now."""
        ...


class Question(NamedTuple):
    """What was asked."""

    ticket: Ticket
    api: Api
    request: Message
    attachments: Sequence[memoryview] = ()
    client_id: str = ""
    looks: bool = False
    """Whether what came with it is looked at before it is begun."""


class Errand(NamedTuple):
    """What takes several requests of ours, or one that is known only later; never one that would
    be parked."""

    ticket: Ticket
    run: Callable[[Ask], Awaitable[Parts]]
    """Gives the answer. Raises `Refused`."""
    client_id: str = ""


class Unanswerable(NamedTuple):
    """What nobody here has an answer to, in a frame that is well."""

    ticket: Ticket
    refusal: Refused


Heard = Question | Errand | Unanswerable


class Misheard(RemoteProtocolError):
    """The bytes are no request; `said` is what their sender is told before the connection ends."""

    def __init__(self, why: str, said: Parts) -> None:
        super().__init__(why)
        self.said = said


class Tongue(Protocol):
    """One of the protocols."""

    @property
    def in_order(self) -> bool:
        """Whether answers leave in the order of the requests."""
        ...

    def may_follow(self, start: bytes | bytearray) -> bool:
        """Where they do, whether a request that begins like this may be begun behind another one
        that may, before that is answered."""
        ...

    def hearing(self, body: bytearray) -> Steps[Heard]:
        """What a frame asks; in steps, if that is about many things. Raises `Misheard` or
        `RemoteProtocolError`."""
        ...

    def check_length(self, length: int, start: bytes) -> None:
        """Raise `RemoteProtocolError` for a frame that begins like this and is too long."""
        ...

    def farewell(self, why: str) -> Parts:
        """What is told to who sent no frame."""
        ...


START_BYTES = 2
"""So much of a frame says whose it is, and how long it may be."""


class Tongues(NamedTuple):
    """Those that a node's listeners understand."""

    native: Tongue
    kafka: Tongue | None
    """None: kafka.protocol.enable is false."""

    def of(self, start: bytes | bytearray, *, by_node_door: bool) -> Tongue:
        """Who speaks, by the first byte behind the first length: a request of Kafka's begins with
        the number of an API below 256, one of ours with a map of msgpack."""
        if self.kafka is None or by_node_door or start[0]:
            return self.native
        return self.kafka
