"""What holds for every connection of a node: who answers, what is spoken, and all limits."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from hightide.protocol.apis import Api
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Call, Outcome
from hightide_broker.runtime.base.sparing import SparingLog
from hightide_broker.runtime.server.budget import ByteBudget
from hightide_broker.runtime.server.counts import Counts
from hightide_broker.runtime.server.login_lines import LoginLines
from hightide_broker.runtime.server.muted import MutedRoom
from hightide_broker.runtime.server.throttle import Throttle
from hightide_broker.runtime.server.tongue import Tongues

log = logging.getLogger("hightide.server")

RECEIVE_BYTES_MAX = 256 << 20
"""Bytes of requests that may be on their way in at a time, over all connections."""


class Handlers(Protocol):
    """Who answers requests."""

    def begin(self, api: Api, call: Call[Any]) -> Outcome:
        """Begin a request, in order. Raises `Refused` or `CloseConnection`."""
        ...

    async def look(self, api: Api, call: Call[Any]) -> Call[Any]:
        """The same call, with the facts of what came with it, as far as its sender may send it:
        what takes too long to be found out in a stretch."""
        ...

    def allowed_bytes(self, api: Api, call: Call[Any]) -> int:
        """How much of what came with a request its sender may send: what is refused is no debt of
        those by whose name it came."""
        ...


class Terms:
    """What holds for every connection of a node."""

    def __init__(
        self,
        handlers: Handlers,
        config: BrokerConfig,
        agenda: Agenda,
        throttle: Throttle,
        counts: Counts,
        tongues: Tongues,
        *,
        files_max: int,
    ) -> None:
        """`files_max`: how many files may be open to be sent at a time."""
        self.handlers = handlers
        self.tongues = tongues
        self.throttle = throttle
        self.counts = counts
        self.agenda = agenda
        self.frame_limit = config[keys.SOCKET_REQUEST_MAX_BYTES]
        self.idle_s = config.seconds(keys.CONNECTIONS_MAX_IDLE_MS)
        self.write_s = config.seconds(keys.WRITE_TIMEOUT_MS)
        self.receive_s = config.seconds(keys.REQUEST_TIMEOUT_MS)
        self.in_flight_max = config[keys.MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION]
        self.budget = ByteBudget(max(RECEIVE_BYTES_MAX, self.frame_limit))
        self.muted = MutedRoom()
        self.files_left = files_max
        self.log = SparingLog(log)
        self.login_lines = LoginLines(counts)
