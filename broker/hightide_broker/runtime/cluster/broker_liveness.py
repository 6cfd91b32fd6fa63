"""Connections of a controller to every broker, for one purpose: to notice at once that it is gone.

A broker whose process ends takes its connections with it, and nobody listens where it did. That is
certain, so the active controller need not wait for the session to run out; a broker that is only
silent, behind a cut or on a machine without power, is fenced by its session as ever. Every
controller holds these lines, active or not, so that a new one knows who died with the old one.

A line says something only after it has stood: an address that cannot be reached from here never
fences anybody.
"""

from __future__ import annotations

import logging

import trio

from hightide.net.ports import Network, Stream
from hightide.protocol.errors import AuthenticationFailed
from hightide_broker.core.cluster.image import BrokerState
from hightide_broker.core.cluster.senders import may_answer
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.cluster.metadata_loader import MetadataLoader

log = logging.getLogger("hightide.liveness")

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.05
RETRY_MAX_S = 10.0
STOOD_S = 0.5
"""A line that breaks sooner is made again after a pause, or a broker that lets nobody stay would be
called without end."""


class BrokerLiveness:
    """The lines of one controller node."""

    def __init__(self, network: Network, *, node: int) -> None:
        self.losses = Watermark()
        """How often a broker was found to be gone."""
        self.gone: dict[int, int] = {}
        """Broker → the epoch of its process that is gone for certain."""
        self._network = network
        self._node = node
        self._lines: dict[int, tuple[int, trio.CancelScope]] = {}

    async def run(self, loader: MetadataLoader) -> None:
        """Follow the metadata, and hold a line to each broker in it, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                seen = loader.applied.value
                self._match(loader.image.brokers, nursery)
                await loader.applied.wait_for(seen + 1)

    def _match(self, brokers: dict[int, BrokerState], nursery: trio.Nursery) -> None:
        """A line for every registration that serves; none for those that do not."""
        for broker, (epoch, scope) in list(self._lines.items()):
            state = brokers.get(broker)
            if state is None or state.fenced or state.epoch != epoch:
                scope.cancel()
                del self._lines[broker]
        for broker, state in brokers.items():
            if broker != self._node and not state.fenced and broker not in self._lines:
                scope = trio.CancelScope()
                self._lines[broker] = (state.epoch, scope)
                nursery.start_soon(self._hold, state, scope)

    async def _hold(self, state: BrokerState, scope: trio.CancelScope) -> None:
        has_stood, pause = False, RETRY_S
        with scope:
            while True:
                try:
                    with trio.fail_after(CONNECT_TIMEOUT_S):
                        stream = await self._network.connect(*state.node_address)
                except ConnectionRefusedError:
                    if has_stood:
                        self._lose(state)
                        return
                except (OSError, AuthenticationFailed, trio.TooSlowError) as error:
                    log.debug(
                        "no line to broker %d: %s",
                        state.broker,
                        error,
                        extra={"event": "broker_liveness.no_line"},
                    )
                else:
                    if not may_answer(stream.common_name, state.broker):
                        log.debug("%s answers for broker %d", stream.common_name, state.broker)
                        await stream.aclose()
                        await trio.sleep(RETRY_MAX_S)
                        continue
                    has_stood = True
                    self.gone.pop(state.broker, None)
                    began = trio.current_time()
                    await _until_it_breaks(stream)
                    if trio.current_time() - began >= STOOD_S:
                        # Its end means something, so the next attempt is not put off.
                        pause = RETRY_S
                        continue
                await trio.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)

    def _lose(self, state: BrokerState) -> None:
        log.info("broker %d is gone: nobody listens at %s:%d", *_where(state))
        self.gone[state.broker] = state.epoch
        self.losses.advance(self.losses.value + 1)


def _where(state: BrokerState) -> tuple[int, str, int]:
    return state.broker, *state.node_address


async def _until_it_breaks(stream: Stream) -> None:
    """Nothing is ever said on a line, so whatever comes is its end."""
    try:
        await stream.receive_into(memoryview(bytearray(1)))
    except (
        OSError,
        AuthenticationFailed,
        trio.BrokenResourceError,
        trio.ClosedResourceError,
    ) as error:
        log.debug("a line broke: %s", error)
    finally:
        await stream.aclose()
