"""What the client tests share: a broker that can misbehave, in memory or on TCP.

No test lives here. `FakeBroker` speaks the wire with nothing of the client but the frame codec,
leads every partition it is told of, and treats the next requests of an API as `will` says. In
memory it needs no real time, so that time-outs are tested on trio's autojump clock.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from errno import ECONNREFUSED
from typing import NamedTuple

import trio
from streams import MemoryStream, memory_streams, send_all

from hightide.net.tcp import TcpNetwork, listen
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME
from hightide.protocol.columns import Record, to_records
from hightide.protocol.errors import ErrorCode
from hightide.protocol.records import BatchHeader, iter_batches, stamp

NEVER_STORED = -1
STEPS_AT_ONCE_MAX = 100_000


class SequenceCheck:
    """One partition's side of KIP-98: the next sequence, or a repeat of the last five batches."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._known: dict[int, deque[tuple[int, int, int]]] = {}

    def judge(self, header: BatchHeader) -> int | ErrorCode | None:
        """None: store it; a number: it is stored at this offset; or why it cannot be stored."""
        known = self._known.get(header.producer_id, deque())
        epoch = self._epochs.get(header.producer_id, header.producer_epoch)
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if header.producer_epoch > epoch:
            known = deque()
        for first, last, offset in known:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return offset
        expected = known[-1][1] + 1 if known else 0
        return None if header.base_sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def note(self, header: BatchHeader, offset: int) -> None:
        """The batch was stored at an offset."""
        if self._epochs.get(header.producer_id) != header.producer_epoch:
            self._epochs[header.producer_id] = header.producer_epoch
            self._known[header.producer_id] = deque(maxlen=5)
        place = (header.base_sequence, header.last_sequence, offset)
        self._known[header.producer_id].append(place)


class FakeLog:
    """A partition: whole batches, in order."""

    def __init__(self) -> None:
        self.batches: list[bytearray] = []
        self.start = 0
        self.end = 0
        self.reads_before = 0
        """How far before the offset that was asked for an answer begins."""
        self._sequences = SequenceCheck()

    def append(self, data: bytes | memoryview) -> int | ErrorCode:
        """The offset of the batch, new or known; or why not."""
        copy = bytearray(data)
        ((header, _),) = iter_batches(copy)
        if header.producer_id >= 0:
            verdict = self._sequences.judge(header)
            if verdict is not None:
                return verdict
            self._sequences.note(header, self.end)
        return self.append_unchecked(copy)

    def append_unchecked(self, data: bytes | bytearray) -> int:
        """The offset of the batch."""
        copy = bytearray(data)
        ((header, _),) = iter_batches(copy)
        stamp(copy, base_offset=self.end, leader_epoch=0)
        self.batches.append(copy)
        self.end += header.record_count
        return self.end - header.record_count

    def records(self, topic: str = "t", partition: int = 0) -> list[Record]:
        return [
            record
            for batch in self.batches
            for header, data in iter_batches(batch)
            for record in to_records(data, header, topic, partition)
        ]

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Batches from `offset` on, at least one if there is one."""
        found = b""
        for batch in self.batches:
            ((header, _),) = iter_batches(batch)
            if header.next_offset <= offset - self.reads_before:
                continue
            if found and len(found) + len(batch) > max_bytes:
                break
            found += batch
        return found

    def offset_at(self, timestamp: int) -> int:
        if timestamp == m.EARLIEST:
            return self.start
        if timestamp == m.LATEST:
            return self.end
        return next((r.offset for r in self.records() if r.timestamp >= timestamp), -1)


class Trick(NamedTuple):
    """How one request is mistreated."""

    takes_effect: bool = True
    """Whether the request is carried out, whatever is said of it."""
    share_sent: float = 1.0
    """How much of the answer's frame is sent."""
    then_closes: bool = False
    instead: bytes = b""
    """Sent in place of the answer."""
    refusal: str = ""
    """The error of each partition in the answer."""
    envelope: ErrorCode | None = None
    """The error of the answer as a whole."""
    body: m.Message | None = None
    """The answer's body, whatever was asked."""
    hint: m.LeaderHint | None = None


IGNORE = Trick(takes_effect=False, share_sent=0)
"""The request is lost, and nothing is said."""
STORE_AND_SAY_NOTHING = Trick(share_sent=0)
LOSE_ANSWER = Trick(share_sent=0, then_closes=True)
"""The request takes effect, and the connection breaks before the answer."""
CLOSE_IN_MID_ANSWER = Trick(share_sent=0.5, then_closes=True)
GARBAGE = Trick(takes_effect=False, instead=struct.pack(">I", 6) + b"\xc1\xff\xfe\xfd\xfc\xfb")
NO_FRAME = Trick(takes_effect=False, instead=b"HTTP/1.1 400 Bad Request\r\n\r\n")


def refuse(code: str, *, after_effect: bool = False, hint: m.LeaderHint | None = None) -> Trick:
    return Trick(takes_effect=after_effect, refusal=code, hint=hint)


@dataclass
class FakeBroker:
    """One broker of a cluster; `topics` say how many partitions there are."""

    topics: dict[str, int]
    id: int = 1
    host: str = "127.0.0.1"
    port: int = 1
    leaders: dict[tuple[str, int], int] = field(default_factory=dict)
    """Who leads, where it is not this broker; -1 for nobody."""
    others: list[m.BrokerInfo] = field(default_factory=list)
    logs: dict[tuple[str, int], FakeLog] = field(default_factory=lambda: defaultdict(FakeLog))
    groups: list[g.ListedGroup] = field(default_factory=list)
    requests: list[m.Message] = field(default_factory=list)
    is_down: bool = False
    bytes_sent: int = 0

    def __post_init__(self) -> None:
        self._tricks: dict[type[m.Message], deque[Trick]] = defaultdict(deque)
        self._always: dict[type[m.Message], Trick] = {}
        self._links: list[_Link] = []
        self._grown = trio.Event()
        self._producer_ids = 1000

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def will(self, kind: type[m.Message], *tricks: Trick) -> None:
        """Treat the next requests of this kind so, one each."""
        self._tricks[kind].extend(tricks)

    def always(self, kind: type[m.Message], trick: Trick | None) -> None:
        """Treat every request of this kind so, after what `will` said; None: behave again."""
        self._always.pop(kind, None)
        if trick is not None:
            self._always[kind] = trick

    def count(self, kind: type[m.Message]) -> int:
        """How many requests of a kind came."""
        return sum(isinstance(request, kind) for request in self.requests)

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.logs[(topic, partition)].records()]

    async def break_connections(self) -> None:
        """Close whatever is open."""
        links, self._links = self._links, []
        for link in links:
            await link.stream.aclose()

    def append(self, data: bytes | bytearray, topic: str = "t", partition: int = 0) -> None:
        """Store a batch that no client sent."""
        stored = self.logs[(topic, partition)].append(data)
        assert isinstance(stored, int), stored
        self._grow()

    def _grow(self) -> None:
        grown, self._grown = self._grown, trio.Event()
        grown.set()

    # -- serving -------------------------------------------------------------------------------

    async def serve(self, stream: object) -> None:
        """One connection, until it ends."""
        link = _Link(stream)
        self._links.append(link)
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    (length,) = struct.unpack(">I", await link.receive(4))
                    frame = wire.split_frame(await link.receive(length), message_limit=1 << 20)
                    envelope = wire.decode_request_envelope(frame)
                    api = API_BY_NAME[envelope.api]
                    request = wire.decode_body(envelope.body, api.request)
                    self.requests.append(request)
                    queue = self._tricks[api.request]
                    trick = queue.popleft() if queue else self._always.get(api.request, Trick())
                    reply = self._begin(request, frame.attachments, trick)
                    nursery.start_soon(self._answer, link, envelope.id, request, reply, trick)
                    if trick.then_closes and trick.share_sent == 0:
                        return
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
                pass
            finally:
                nursery.cancel_scope.cancel()
                await stream.aclose()

    def _begin(
        self, request: m.Message, attachments: list[memoryview], trick: Trick
    ) -> m.Message | None:
        """What a request does at once, in order of arrival; None if the answer takes longer."""
        match request:
            case m.ApiVersionsRequest():
                return m.ApiVersionsResponse(apis=[])
            case m.ProduceRequest():
                return self._produce(request, attachments, trick)
            case m.FetchRequest():
                return None
            case m.MetadataRequest():
                return self._metadata(request)
            case p.InitProducerIdRequest():
                self._producer_ids += 1
                return p.InitProducerIdResponse(producer_id=self._producer_ids, producer_epoch=0)
            case m.ListOffsetsRequest():
                return self._list_offsets(request, trick)
            case g.ListGroupsRequest():
                return g.ListGroupsResponse(groups=self.groups)
        raise AssertionError(f"the fake broker was asked for {request}")

    async def _answer(
        self, link: _Link, number: int, request: m.Message, reply: m.Message | None, trick: Trick
    ) -> None:
        attachments: list[bytes] = []
        if trick.share_sent == 0 and not trick.instead:
            return
        if isinstance(request, m.FetchRequest):
            reply = await self._fetch(request, attachments, trick)
        if isinstance(request, m.ProduceRequest) and request.acks == 0:
            return
        message = wire.encode_response(trick.body or reply, request_id=number, error=trick.envelope)
        frame = trick.instead or b"".join(wire.frame_buffers(message, attachments))
        frame = frame[: int(len(frame) * trick.share_sent)]
        self.bytes_sent += len(frame)
        try:
            async with link.sending:
                await send_all(link.stream, frame)
            if trick.then_closes:
                await link.stream.aclose()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _produce(
        self, request: m.ProduceRequest, attachments: list[memoryview], trick: Trick
    ) -> m.ProduceResponse:
        results = []
        for part in request.partitions:
            stored: int | ErrorCode = NEVER_STORED
            if trick.takes_effect:
                log = self.logs[(part.topic, part.partition)]
                stored = log.append(attachments[part.records])
            error = trick.refusal or (stored if isinstance(stored, ErrorCode) else None)
            results.append(
                m.ProduceResult(
                    topic=part.topic,
                    partition=part.partition,
                    error=error,
                    message="as the test says" if trick.refusal else "",
                    base_offset=stored if isinstance(stored, int) and not error else -1,
                    current_leader=trick.hint,
                )
            )
        self._grow()
        return m.ProduceResponse(partitions=results)

    async def _fetch(
        self, request: m.FetchRequest, attachments: list[bytes], trick: Trick
    ) -> m.FetchResponse:
        def found() -> bool:
            ends = [self.logs[(p.topic, p.partition)].end for p in request.partitions]
            asked = [p.fetch_offset for p in request.partitions]
            return any(end != offset for end, offset in zip(ends, asked, strict=True))

        with trio.move_on_after(request.max_wait_ms / 1000):
            while not trick.refusal and not found():
                await self._grown.wait()
        results = []
        for part in request.partitions:
            log = self.logs[(part.topic, part.partition)]
            error: str | None = trick.refusal or None
            if not error and not log.start <= part.fetch_offset <= log.end:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            room = request.max_bytes - sum(map(len, attachments))
            data = b"" if error else log.read(part.fetch_offset, min(part.max_bytes, room))
            if attachments and len(data) > room:
                data = b""
            results.append(
                m.FetchResult(
                    topic=part.topic,
                    partition=part.partition,
                    error=error,
                    high_watermark=log.end,
                    log_start_offset=log.start,
                    current_leader=trick.hint,
                    records=len(attachments) if data else -1,
                )
            )
            attachments += [data] if data else []
        return m.FetchResponse(partitions=results)

    def _metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        names = list(self.topics) if request.topics is None else request.topics
        me = m.BrokerInfo(id=self.id, host=self.host, port=self.port)
        return m.MetadataResponse(
            cluster_id="fake",
            controller=self.id,
            brokers=[me, *self.others],
            topics=[self._describe(name) for name in names],
        )

    def _describe(self, name: str) -> m.TopicMetadata:
        if name not in self.topics:
            return m.TopicMetadata(topic=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = []
        for number in range(self.topics[name]):
            leader = self.leaders.get((name, number), self.id)
            partitions.append(
                m.PartitionMetadata(
                    partition=number, leader=leader, leader_epoch=0, replicas=[1], isr=[1]
                )
            )
        return m.TopicMetadata(topic=name, topic_id=f"id-{name}", partitions=partitions)

    def _list_offsets(self, request: m.ListOffsetsRequest, trick: Trick) -> m.ListOffsetsResponse:
        return m.ListOffsetsResponse(
            partitions=[
                m.ListOffsetsResult(
                    topic=part.topic,
                    partition=part.partition,
                    error=trick.refusal or None,
                    offset=self.logs[(part.topic, part.partition)].offset_at(part.timestamp),
                )
                for part in request.partitions
            ]
        )


class _Link:
    """A connection as the fake broker sees it."""

    def __init__(self, stream: object) -> None:
        self.stream = stream
        self.sending = trio.Lock()

    async def receive(self, count: int) -> bytearray:
        data = bytearray(count)
        filled = 0
        while filled < count:
            got = await self.stream.receive_into(memoryview(data)[filled:])
            if got == 0:
                raise EOFError
            filled += got
        return data


class MemoryNetwork:
    """Connects to fake brokers by port; implements `ports.Network`."""

    def __init__(self, nursery: trio.Nursery, *brokers: FakeBroker) -> None:
        self._nursery = nursery
        self._brokers = {broker.port: broker for broker in brokers}

    async def connect(self, host: str, port: int) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        broker = self._brokers.get(port)
        if broker is None or broker.is_down:
            raise ConnectionRefusedError(ECONNREFUSED, f"nobody listens on {host}:{port}")
        here, there = memory_streams()
        self._nursery.start_soon(broker.serve, there)
        return here


class Wired(NamedTuple):
    """A fake broker and the network that leads to it."""

    broker: FakeBroker
    network: MemoryNetwork | TcpNetwork


class Watchdog(trio.abc.Instrument):
    """Ends a block whose tasks take step after step while no time passes: a virtual clock jumps
    only when everybody sleeps, so that a client that spins would hang its test."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._now = -1.0
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now = trio.current_time()
        self.steps = self.steps + 1 if now == self._now else 0
        self._now = now
        if self.steps == STEPS_AT_ONCE_MAX:
            self._scope.cancel()


@asynccontextmanager
async def in_memory(*brokers: FakeBroker) -> AsyncIterator[MemoryNetwork]:
    """The network of these brokers, which serve for the block; fails if a client spins."""
    with trio.CancelScope() as scope:
        watchdog = Watchdog(scope)
        trio.lowlevel.add_instrument(watchdog)
        try:
            async with trio.open_nursery() as nursery:
                yield MemoryNetwork(nursery, *brokers)
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.remove_instrument(watchdog)
    assert watchdog.steps < STEPS_AT_ONCE_MAX, "a client was busy and got nowhere"


@asynccontextmanager
async def on_tcp(broker: FakeBroker) -> AsyncIterator[TcpNetwork]:
    """The same broker behind a real socket; its port is set."""
    listener = await listen(broker.host, 0)
    broker.port = listener.port

    async def accept(nursery: trio.Nursery) -> None:
        while True:
            nursery.start_soon(broker.serve, await listener.accept())

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, nursery)
            try:
                yield TcpNetwork()
            finally:
                nursery.cancel_scope.cancel()
    finally:
        await listener.aclose()
