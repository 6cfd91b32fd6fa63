"""A broker's life as the controller sees it: registered, unfenced, heard of, and gone in order.

Source: KIP-631. A broker that loses the controller goes on serving what it leads: epochs fence it,
not silence. A newer registration of its id ends it.
"""

from __future__ import annotations

import logging
from typing import Protocol

import trio

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.config import BrokerConfig
from hightide_broker.ports import NodeMustStop
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.cluster.controller_channel import ControllerChannel

log = logging.getLogger("hightide.lifecycle")

RETRY_S = 0.1
STOP_POLL_S = 0.02
STOP_APPLY_S = 0.5
"""How long a broker that stops waits to apply what a controller answered by: where that has stopped
as well, nobody may be left to say that it is committed."""
_FATAL = (
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
)


class Reports(Protocol):
    """What there is to tell the controller of this broker's replicas."""

    @property
    def news(self) -> Watermark:
        """Rises when it should be told at once."""
        ...

    def offline(self) -> list[c.OfflineReplica]: ...

    def leaderless(self) -> list[c.LeaderlessReplica]: ...


class BrokerLifecycle:
    """Registration and heartbeats of this broker."""

    def __init__(
        self,
        channel: ControllerChannel,
        applied: Watermark,
        *,
        broker: int,
        config: BrokerConfig,
        replicas: Reports,
    ) -> None:
        self.broker_epoch = -1
        self.unfenced = trio.Event()
        """Set once the controller has let this broker serve, and it has applied that."""
        self._channel = channel
        self._applied = applied
        self._broker = broker
        self._replicas = replicas
        self._interval_s = config.heartbeat_s
        self._stopping = False
        self._beating = trio.Lock()
        """One heartbeat at a time: a late one must not bring back a broker that was let go."""

    async def register(self, request: c.RegisterBrokerRequest) -> None:
        """Register, however long it takes to find a controller; returns once it is applied here.

        Raises `NodeMustStop` if this node belongs to another cluster.
        """
        pause = RETRY_S
        while True:
            try:
                reply, offset = await self._channel.ask(request)
                break
            except Refused as refusal:
                self._give_up_on(refusal)
                log.warning("not registered yet: %s", refusal)
            await trio.sleep(pause)
            pause = min(2 * pause, self._interval_s)
        assert isinstance(reply, c.RegisterBrokerResponse)
        self.broker_epoch = reply.broker_epoch
        await self._applied.wait_for(offset)

    async def run(self) -> None:
        """Send heartbeats until cancelled, or until `stop` takes over."""
        pause = RETRY_S
        while True:
            known = self._replicas.news.value
            try:
                async with self._beating:
                    if self._stopping:
                        return
                    reply, offset = await self._beat()
            except Refused as refusal:
                self._give_up_on(refusal)
                log.warning("the controller did not hear of this broker: %s", refusal)
                await trio.sleep(pause)
                pause = min(2 * pause, self._interval_s)
                continue
            pause = RETRY_S
            if not reply.fenced and not self.unfenced.is_set():
                await self._applied.wait_for(offset)
                self.unfenced.set()
            with trio.move_on_after(RETRY_S if reply.fenced else self._interval_s):
                await self._replicas.news.wait_for(known + 1)

    async def _beat(self, *, stopping: bool = False) -> tuple[c.BrokerHeartbeatResponse, int]:
        request = c.BrokerHeartbeatRequest(
            broker=self._broker,
            broker_epoch=self.broker_epoch,
            metadata_offset=self._applied.value,
            want_shut_down=stopping,
            offline=self._replicas.offline(),
            leaderless=self._replicas.leaderless(),
        )
        reply, offset = await self._channel.ask(request, timeout_s=self._interval_s)
        assert isinstance(reply, c.BrokerHeartbeatResponse)
        return reply, offset

    def _give_up_on(self, refusal: Refused) -> None:
        if refusal.code in _FATAL:
            raise NodeMustStop(f"the controller does not want this broker: {refusal}")

    async def stop(self, timeout_s: float) -> None:
        """Hand leadership on, and wait until the others know; no longer than `timeout_s`, and not
        at all where no controller can be found."""
        self._stopping = True
        pause = 0.0
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    async with self._beating:
                        reply, offset = await self._beat(stopping=True)
                except Refused as refusal:
                    log.warning(
                        "the controller did not hear that this broker stops: %s",
                        refusal,
                        extra={"event": "broker_lifecycle.stop_unheard"},
                    )
                    if refusal.code in (*_FATAL, ErrorCode.REQUEST_TIMED_OUT):
                        return
                else:
                    with trio.move_on_after(STOP_APPLY_S):
                        await self._applied.wait_for(offset)
                    if reply.should_shut_down:
                        return
                if pause:
                    await trio.sleep(pause)
                pause = STOP_POLL_S
        log.warning("stopping without the controller's leave after %g s", timeout_s)
