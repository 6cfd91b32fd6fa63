"""What a handler is asked, and what it answers with: at once, later, or by closing the connection.

Nothing here knows of bytes: whichever protocol a request came in by, handlers see a `Call`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hightide.protocol.messages import Message
from hightide.protocol.records import Buffer
from hightide_broker.runtime.base.agenda import Act
from hightide_broker.runtime.base.measures import Course
from hightide_broker.storage.file_slice import FileSlice

M_co = TypeVar("M_co", bound=Message, covariant=True)


ANONYMOUS = "User:ANONYMOUS"


class Peer(NamedTuple):
    """Who is at the other end of a connection, as far as it is proven."""

    host: str = ""
    """Where it is."""
    principal: str = ANONYMOUS
    """`User:`, and the name in its certificate or the one it logged in with."""
    node: int = -1
    """The node that it has proven to be; -1: it has proven nothing."""
    may_be_node: bool = True
    """Whether it came where nodes may: by a listener of theirs, or by one that is for everybody."""
    client_id: str = ""
    """What it calls itself, where a request is passed on: proven by nothing."""

    @property
    def user(self) -> str:
        """The principal's name."""
        return self.principal.partition(":")[2]

    @property
    def shown(self) -> str:
        """The principal, for a line of a log that it cannot forge."""
        return self.principal if self.principal.isprintable() else repr(self.principal)[1:-1]


NOBODY_KNOWN = Peer()


@dataclass(frozen=True, slots=True)
class Call(Generic[M_co]):
    """A request, and who sent it."""

    request: M_co
    attachments: Sequence[memoryview] = ()
    peer: Peer = NOBODY_KNOWN
    client_id: str = ""
    """What the sender calls itself."""
    at: float = 0.0
    """When it came."""
    facts: Mapping[int, Any] = field(default_factory=dict)
    """What was found out about attachments before the request is begun, by their positions."""
    course: Course | None = None
    """Through the phases that are measured; a request within another has none."""

    @property
    def sender(self) -> Peer:
        """Whose request it is, for who decides it elsewhere."""
        return self.peer._replace(client_id=self.client_id)

    def asking(self, request: Message) -> Call[Any]:
        """The same call, by the same sender, with another request."""
        return replace(self, request=request)  # type: ignore[arg-type]

    def begun(self) -> Call[M_co]:
        """The same call, once what came with it has been used: records are stored by then, and a
        request that waits for others to store them, too, would keep them in memory."""
        return Call(self.request, (), self.peer, self.client_id, self.at, self.facts, self.course)


class Reply(NamedTuple):
    """A response with its attachments: slices of files, or bytes."""

    body: Message
    attachments: Sequence[FileSlice | Buffer] = ()


Later = Callable[[], Awaitable[Reply]]
"""The rest of a request that has to wait, in a task of its own."""


class Asker(Protocol):
    """Who waits for the answer to a parked request."""

    def answer(self, reply: Reply) -> None:
        """Send the answer; called once for each request."""
        ...

    def work(self, act: Act) -> None:
        """Do something for the request: what fails in it ends who asked, and nobody else."""
        ...


class Parked(Protocol):
    """A request that waits without a task: it is answered at the end of the stretch that brings
    what it waits for."""

    def begin(self, asker: Asker) -> None:
        """Wait from here on; it is answered once, unless this is dropped."""
        ...

    def drop(self) -> None:
        """Nobody wants the answer any more."""
        ...


Outcome = Reply | Later | Parked | None
"""None: there is no answer."""
Begin = Callable[[Call[Any]], Outcome]
"""Begins a request: what it changes is changed when this returns. Raises `Refused`."""


class CloseConnection(Exception):
    """The only way to say no to a client that expects no answer (acks=0), or that gets none."""

    def __init__(self, why: str, *, reason: str = "refused") -> None:
        """`reason`: as it is counted, of `counts.REASONS`."""
        super().__init__(why)
        self.reason = reason
