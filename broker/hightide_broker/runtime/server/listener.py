"""The node's server: who is let in, and how many.

One connection's failure never reaches another: its bytes are judged at its door, its errors end at
its own edge, and everything it may take has a limit - connections, bytes being received, requests
at work, files being sent, time to send a request, time to take an answer, time to say nothing.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable

import trio

from hightide.net.ports import Stream
from hightide.net.tcp import SocketStream
from hightide.protocol.errors import AuthenticationFailed, RemoteProtocolError
from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.names import USER
from hightide_broker.ports import NodeMustStop
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import ANONYMOUS, Peer
from hightide_broker.runtime.base.disk import descriptors_beside_the_disk
from hightide_broker.runtime.base.sparing import SparingLog
from hightide_broker.runtime.replication.traffic import TrafficByTopic
from hightide_broker.runtime.server.arrivals import Arrivals
from hightide_broker.runtime.server.connection import ServedConnection
from hightide_broker.runtime.server.counts import Counts
from hightide_broker.runtime.server.door import HANDSHAKE_S, Door, host_of
from hightide_broker.runtime.server.guesses import Guesses
from hightide_broker.runtime.server.login import LoginFailed, Logins, Session
from hightide_broker.runtime.server.login_lines import CERTIFICATE
from hightide_broker.runtime.server.native import NativeTongue
from hightide_broker.runtime.server.room import Room, room_for
from hightide_broker.runtime.server.terms import Handlers, Terms
from hightide_broker.runtime.server.throttle import Throttle
from hightide_broker.runtime.server.tongue import Tongue, Tongues

log = logging.getLogger("hightide.server")

LAST_ANSWERS_S = 1.0
"""How long the last answers of a node that stops have to leave."""
_Admitted = tuple[Stream, Peer | None, Session | None]
"""A connection as it goes on, who it is, None if it does not, and its login."""


class Server:
    """All connections of a node's listeners."""

    def __init__(
        self, terms: Terms, room: Room, arrivals: Arrivals, logins: Logins, guesses: Guesses
    ) -> None:
        self.counts = terms.counts
        self._terms = terms
        self._arrivals = arrivals
        self._room = room
        self._logins = logins
        self._guesses = guesses
        self._inside: dict[ServedConnection, None] = {}
        self._most = 0
        self._by_door: Counter[Door] = Counter()
        self._at_the_door: defaultdict[Door, dict[trio.CancelScope, Stream]] = defaultdict(dict)
        """Connections that are not admitted yet, by door."""
        self._all_closed = trio.Event()
        self._stopping = False
        self._log = SparingLog(log)

    def waiting(self) -> Counter[str]:
        """Requests that wait for news, by API."""
        return sum((each.waiting() for each in self._inside), Counter())

    def buffer_bytes(self) -> dict[str, int]:
        """What large requests on their way in hold, and may: `used`, `limit`."""
        budget = self._terms.budget
        return {"used": budget.used, "limit": budget.size}

    def connections(self) -> Counter[str]:
        """Connections open now, by listener."""
        return Counter({door.name: count for door, count in self._by_door.items()})

    def most_since(self) -> int:
        """The most that were open at once since this was asked last."""
        most, self._most = self._most, len(self._inside)
        return most

    def throttled(self) -> int:
        """Connections that are not read on now, because a quota has them wait."""
        return len(self._terms.muted)

    async def serve_stream(self, arrived: Stream, door: Door) -> None:
        """Serve one connection until it ends; never raises for what the peer does."""
        stream = arrived
        try:
            if self._has_room(arrived, door) and await self._is_in_time(arrived, door):
                stream, peer, session = await self._admit(arrived, door)
                if peer is not None and self._has_room(stream, door):  # still
                    with self._arrivals.inside(peer.host):
                        connection = ServedConnection(self._terms, stream, peer, door, session)
                        await self._serve(connection, door)
        finally:
            await stream.aclose()

    def _has_room(self, arrived: Stream, door: Door) -> bool:
        count, most = self._by_door[door], self._room.nodes if door.of_nodes else self._room.clients
        has_room = door.of_nodes or self._arrivals.has_room(host_of(arrived))
        if count < most and has_room and not self._stopping:
            return True
        self.counts.closed[door.name, "stopping" if self._stopping else "full"] += 1
        why = f"{most} are the most (max.connections)"
        if self._stopping:
            why = "the node stops"
        elif not has_room:
            why = "its address may have no more (connections.max.per.ip)"
        here = counted(count, "connection")
        self._log.write(logging.WARNING, "refused %s: %s, %s", arrived.peer, here, why)
        return False

    async def _is_in_time(self, arrived: Stream, door: Door) -> bool:
        delay_s = 0.0 if door.of_nodes else self._arrivals.delay_s(host_of(arrived))
        if delay_s:
            why = "its address comes more often than connection_creation_rate allows"
            self._log.write(logging.INFO, "turned %s away: %s", arrived.peer, why)
            await self._arrivals.keep_waiting(delay_s)
            self.counts.closed[door.name, "early"] += 1
        return not delay_s

    async def _admit(self, arrived: Stream, door: Door) -> _Admitted:
        why, reason = f"it did not prove who it is within {HANDSHAKE_S:g} s", "turned_away"
        waiting = self._at_the_door[door]
        if len(waiting) >= self._room.at_the_door:
            self._make_way(waiting)
        try:
            with trio.move_on_after(HANDSHAKE_S) as scope:
                waiting[scope] = arrived
                if not door.of_nodes:
                    await trio.sleep(self._guesses.waits_s(host_of(arrived)))
                stream, peer = await door.admit(arrived)
                if not door.users_log_in:
                    if peer.principal != ANONYMOUS:
                        self._terms.login_lines.came_in(door.name, peer, CERTIFICATE, stream)
                    return stream, peer, None
                session = await self._log_in(stream)
                peer = peer._replace(principal=f"{USER}{session.user}")
                self._terms.login_lines.came_in(door.name, peer, session.mechanism, stream)
                return stream, peer, session
        except (OSError, RemoteProtocolError) as error:
            why = str(error)
        except AuthenticationFailed as error:
            why = error.message
            if not (door.of_nodes or isinstance(error, LoginFailed)):
                self._guesses.failed(host_of(arrived))
            account = error.account if isinstance(error, LoginFailed) else None
            self._terms.login_lines.turned_away(door.name, why, account, arrived.peer)
        except (AssertionError, NodeMustStop):
            raise
        except Exception:
            why, reason = "a bug", "bug"
            log.exception(
                "who came from %s met a bug; its connection was closed",
                arrived.peer,
                extra={"event": "listener.bug"},
            )
        finally:
            waiting.pop(scope, None)
        self.counts.closed[door.name, reason] += 1
        self._log.write(logging.INFO, "turned %s away: %s", arrived.peer, why)
        return arrived, None, None

    @staticmethod
    def _make_way(waiting: dict[trio.CancelScope, Stream]) -> None:
        """Who says nothing keeps nobody out: of those that have not spoken, or else of all, one
        goes. By chance: of who comes from far, and has not been heard yet, some stay; were it the
        one that has been there longest, a flood would turn all of them away."""
        silent = [scope for scope, stream in waiting.items() if not _has_spoken(stream)]
        scope = random.choice(silent or [*waiting])
        scope.cancel()
        del waiting[scope]

    async def _log_in(self, stream: Stream) -> Session:
        is_in = False
        try:
            session = await self._logins.log_in(stream)
            is_in = True
            return session
        finally:
            if not is_in:
                await stream.aclose()

    async def _serve(self, connection: ServedConnection, door: Door) -> None:
        self._inside[connection] = None
        self._most = max(self._most, len(self._inside))
        self._by_door[door] += 1
        try:
            await connection.run()
            self.counts.closed[door.name, connection.ended_by] += 1
        finally:
            del self._inside[connection]
            self._by_door[door] -= 1
            if not self._inside:
                self._all_closed.set()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, finish those at work, close the connections. Who was waited for
        once is not waited for again, but told why there will be no more."""
        if self._stopping:
            timeout_s = min(timeout_s, LAST_ANSWERS_S)
        self._stopping = True
        self._all_closed = trio.Event()
        if not self._inside:
            return
        for connection in list(self._inside):
            connection.stop_reading()
        with trio.move_on_after(timeout_s):
            await self._all_closed.wait()


def server_of(
    routes: Handlers,
    config: BrokerConfig,
    agenda: Agenda,
    image: Callable[[], ClusterImage],
    traffic: TrafficByTopic,
    *,
    why_not: Callable[[], str],
    is_current: Callable[[], bool],
    kafka: Tongue | None = None,
) -> Server:
    """The server of a node; `why_not` and `is_current` are those of `Logins`. `kafka`: how Kafka's
    own protocol is spoken, if it is."""
    most = config[keys.MAX_CONNECTIONS]
    room = room_for(connections_max=most, open_files=descriptors_beside_the_disk())
    counts = Counts(traffic)
    tongues = Tongues(NativeTongue(), kafka)
    terms = Terms(routes, config, agenda, Throttle(image), counts, tongues, files_max=room.files)
    per_address = config[keys.CONNECTIONS_MAX_PER_IP]
    arrivals = Arrivals(image, kept_max=room.at_the_door // 4, per_address=per_address)
    guesses = Guesses(config.seconds(keys.CONNECTION_FAILED_AUTHENTICATION_DELAY_MS))
    logins = Logins(
        image,
        why_not,
        is_current,
        tongues,
        guesses,
        lifetime_ms=config[keys.CONNECTIONS_MAX_REAUTH_MS],
    )
    return Server(terms, room, arrivals, logins, guesses)


def _has_spoken(stream: Stream) -> bool:
    return isinstance(stream, SocketStream) and stream.has_spoken
