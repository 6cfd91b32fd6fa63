"""What the tests of the follower's end of a fetch session share: leaders made by hand.

No test lives here. `There` is broker 1, which follows; what it asks over its wires is decoded and
kept as `Asked`, and answered when a test says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from leaderkit import EPOCH, THREE, TWO, Here, broker_epoch, settled
from trio.testing import MockClock

from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME
from hightide.protocol.errors import ErrorCode
from hightide.protocol.records import Buffer
from hightide_broker.core.cluster.changes import RegisterBroker, UnfenceBroker
from hightide_broker.runtime.replication.fetcher import GATHER_S

WAIT_S, PATIENCE_S, PAUSE_S = 0.5, 4.0, 0.02
"""How long a leader may wait, how long an answer may take beyond that, the pause after an error."""
TRIES_MAX = 200
"""So many connections are tried; who wants more waits for ever, and the test with it."""
HOSTS = {TWO: "two", THREE: "three"}


class Asked:
    """A request that came; it is answered once."""

    def __init__(self, line: Wire, request_id: int, request: Any) -> None:
        self._line = line
        self._id = request_id
        self.request = request
        self.is_answered = False

    @property
    def offsets(self) -> dict[int, int]:
        """What is asked for: partition → offset."""
        return {part.partition: part.fetch_offset for part in self.request.partitions}

    @property
    def session(self) -> tuple[int, int]:
        """(number, epoch); (-1, 0) for none."""
        return self.request.session_id, self.request.session_epoch

    def answer(
        self,
        *results: m.FetchResult,
        records: Sequence[Buffer] = (),
        session_id: int | None = None,
    ) -> None:
        """With news of these partitions, in the session that was asked, if not told."""
        number = self.request.session_id if session_id is None else session_id
        body = m.FetchResponse(partitions=list(results), session_id=number)
        self._send(wire.encode_response(body, request_id=self._id), records)

    def refuse(self, code: ErrorCode) -> None:
        self._send(wire.encode_response(None, request_id=self._id, error=code, message="no"))

    def _send(self, message: bytes, records: Sequence[Buffer] = ()) -> None:
        assert not self.is_answered, "it was answered"
        self.is_answered = True
        self._line.put(b"".join(bytes(each) for each in wire.frame_buffers(message, records)))


class Wire:
    """A stream to a leader; what is sent is taken at once. Implements `ports.Stream`."""

    can_send_file = False
    peer = "a leader"
    common_name = ""

    def __init__(self, leader: FakeLeader) -> None:
        self._leader = leader
        self._incoming = bytearray()
        self._more = trio.Event()
        self._is_closed = False
        self.is_broken = False
        """Whether the next request finds out that nobody is there."""

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        if self.is_broken:
            raise OSError("nobody is there")
        data = b"".join(map(bytes, buffers))
        envelope = wire.decode_request_envelope(wire.split_frame(data[4:], message_limit=1 << 20))
        request = wire.decode_body(envelope.body, API_BY_NAME[envelope.api].request)
        self._leader.asked.append(Asked(self, envelope.id, request))
        return len(data)

    async def receive_into(self, view: memoryview, wanted: int = 1) -> int:
        while not self._incoming and not self._is_closed:
            await self._more.wait()
            self._more = trio.Event()
        count = min(len(self._incoming), len(view))
        view[:count] = self._incoming[:count]
        del self._incoming[:count]
        return count

    async def wait_writable(self) -> None:
        raise AssertionError("everything was taken")

    def put(self, data: bytes) -> None:
        self._incoming += data
        self._more.set()

    def close(self) -> None:
        """The leader is gone."""
        self._is_closed = True
        self._more.set()

    async def aclose(self) -> None:
        self.close()


class FakeLeader:
    """What one broker is asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.wires: list[Wire] = []
        self.is_up = True
        self.gate = trio.Event()
        """Connections are made while it is open."""
        self.gate.set()
        self.tries = 0
        """How often somebody wanted to connect."""

    @property
    def open(self) -> list[Asked]:
        """What was not answered yet."""
        return [each for each in self.asked if not each.is_answered]

    @property
    def by_itself(self) -> list[Asked]:
        """The fetches outside of sessions that were not answered yet."""
        return [each for each in self._fetches if each.session == (-1, 0)]

    @property
    def in_session(self) -> list[Asked]:
        """The requests of sessions that were not answered yet."""
        return [each for each in self._fetches if each.session != (-1, 0)]

    @property
    def _fetches(self) -> list[Asked]:
        return [each for each in self.open if isinstance(each.request, m.FetchRequest)]

    async def lose(self) -> None:
        """The connection, and all that was asked on it."""
        for each in self.open:
            each.is_answered = True
        self.wires[-1].close()
        await settled()


class FakeNetwork:
    """Where the leaders are. Implements `ports.Network`."""

    def __init__(self) -> None:
        self.leaders = {host: FakeLeader() for host in HOSTS.values()}

    async def connect(self, host: str, port: int) -> Wire:
        leader = self.leaders[host]
        leader.tries += 1
        await leader.gate.wait()
        if leader.tries > TRIES_MAX:
            await trio.sleep_forever()
        if not leader.is_up:
            raise ConnectionRefusedError("nobody listens")
        leader.wires.append(Wire(leader))
        return leader.wires[-1]


class There:
    """Broker 1 follows broker 2 in a topic `jade`, if not told."""

    def __init__(self, nursery: trio.Nursery, clock: MockClock, **facts: Any) -> None:
        times = {
            "replica_fetch_wait_max_ms": f"{1000 * WAIT_S:.0f}",
            "replica_socket_timeout_ms": f"{1000 * PATIENCE_S:.0f}",
        }
        self.here = Here(**times, **facts)
        self.clock = clock
        network = FakeNetwork()
        self.two, self.three = (network.leaders[HOSTS[broker]] for broker in (TWO, THREE))
        for broker, host in HOSTS.items():
            epoch = broker_epoch(broker)
            self.here.replay(
                RegisterBroker(
                    broker=broker, incarnation=host, host=host, port=9, broker_epoch=epoch
                ),
                UnfenceBroker(broker=broker, broker_epoch=epoch),
            )
        fetchers = self.here.applier._fetchers
        fetchers._network = network
        self.here.run_agenda(nursery)
        nursery.start_soon(self.here.syncer.run)
        nursery.start_soon(fetchers.run, 10)

    async def follow(self, partitions: int = 1, **facts: Any) -> Any:
        """A topic that broker 2 leads; all of it is fetched at once. Its first partition."""
        self.two.gate = trio.Event()
        replica = await self.here.create(**{"leader": TWO, "partitions": partitions, **facts})
        await settled()
        self.two.gate.set()
        await settled()
        return replica

    def replica(self, partition: int = 0) -> Any:
        return self.here.replicas.get("jade", partition)

    async def after(self, seconds: float) -> None:
        """Time passes, and everything that is due is done."""
        self.clock.jump(seconds)
        await settled()

    async def nothing_is_new(self) -> None:
        """Every fetch by itself is answered with nothing, and gathered."""
        for asked in self.two.by_itself:
            asked.answer()
        await settled()
        await self.after(GATHER_S * 1.1)


def news(partition: int = 0, **facts: Any) -> m.FetchResult:
    """What a leader says of a partition."""
    told = {"high_watermark": 0, "log_start_offset": 0, **facts}
    return m.FetchResult(topic="jade", partition=partition, **told)


async def following(
    nursery: trio.Nursery, clock: MockClock, partitions: int = 1, **facts: Any
) -> There:
    """All partitions were fetched once."""
    there = There(nursery, clock)
    await there.follow(partitions, **facts)
    (asked,) = there.two.open
    assert asked.offsets == dict.fromkeys(range(partitions), 0)
    assert asked.request.partitions[0].current_leader_epoch == EPOCH
    return there


async def quieted(
    nursery: trio.Nursery, clock: MockClock, partitions: int = 1, **facts: Any
) -> There:
    """All partitions were handed over; one request of the session waits."""
    there = await following(nursery, clock, partitions, **facts)
    await there.nothing_is_new()
    (asked,) = there.two.open
    assert asked.session == (0, 0)
    return there
