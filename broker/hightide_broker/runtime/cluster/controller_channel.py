"""This node's way to the active controller, wherever it is: in this process, or behind an envelope.

A request is sent again only if it has certainly had no effect: there was no connection, or the node
that got it was not active. Source: KIP-590.
"""

from __future__ import annotations

import msgspec
import trio

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_NAME, API_BY_REQUEST
from hightide.protocol.errors import (
    ApiError,
    ErrorCode,
    HightideError,
    Refused,
    RemoteProtocolError,
)
from hightide.protocol.wire import MESSAGE_BYTES_MAX, decode_body
from hightide.protocol.words import counted
from hightide_broker.core.cluster.senders import check_sender
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.runtime.base.call import Call, Later, Peer, Reply
from hightide_broker.runtime.cluster.controller import ControllerShell
from hightide_broker.runtime.quorum.driver import QuorumDriver, not_controller
from hightide_broker.runtime.quorum.peers import NotSent, Peers

OTHERS_WAIT_S = 10.0
"""How long others' requests wait for a controller to be active: who asked wants to hear why nothing
happens, before its own patience ends, and may ask again."""
RETRY_S = 0.02
RETRY_MAX_S = 0.25
PASSED_ON_BYTES_MAX = MESSAGE_BYTES_MAX - 1024
"""The largest envelope: the other node would end the connection for more, on which the requests of
others are, too."""


class ControllerChannel:
    """Requests to the active controller."""

    def __init__(
        self,
        quorum: QuorumDriver,
        controller: ControllerShell | None,
        peers: Peers,
        *,
        timeout_s: float,
    ) -> None:
        self._quorum = quorum
        self._controller = controller
        self._peers = peers
        self._timeout_s = timeout_s

    async def ask(
        self,
        request: m.Message,
        *,
        timeout_s: float | None = None,
        sender: Peer | None = None,
    ) -> tuple[m.Message, int]:
        """The controller's reply, and the metadata offset it holds at; `sender` is whose request it
        is, if not this node's own. Raises `Refused`."""
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        leaderless_s = patience_s if sender is None else min(patience_s, OTHERS_WAIT_S)
        began, pause = trio.current_time(), RETRY_S
        with trio.move_on_after(patience_s):
            while trio.current_time() - began < leaderless_s:
                try:
                    return await self._ask_once(request, patience_s, sender)
                except (NotSent, ApiError) as error:
                    if isinstance(error, ApiError) and error.code is not ErrorCode.NOT_CONTROLLER:
                        raise Refused(error.code, _plain(error)) from error
                except Refused as refusal:
                    if refusal.code is not ErrorCode.NOT_CONTROLLER:
                        raise
                except HightideError as error:
                    raise Refused(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"the controller did not answer, it may have done it: {error}",
                    ) from error
                with trio.move_on_after(pause) as waiting:
                    await self._quorum.moved()
                # One that has just won is not active yet, and nobody tells when it is.
                has_won = not waiting.cancelled_caught and self._quorum.leader != NOBODY
                pause = RETRY_S if has_won else min(pause * 2, RETRY_MAX_S)
        raise Refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"no controller was active within {leaderless_s:g} s; the quorum of "
            f"{self._quorum.core.membership.voters} needs a majority",
        )

    async def _ask_once(
        self, request: m.Message, timeout_s: float, sender: Peer | None
    ) -> tuple[m.Message, int]:
        leader = self._quorum.leader
        if self._controller is not None and (
            self._controller.is_active or leader == self._quorum.node
        ):
            return await self._controller.submit(request, sender)
        if leader in (NOBODY, self._quorum.node):
            raise not_controller(leader)
        api = API_BY_REQUEST[type(request)]
        envelope = c.EnvelopeRequest(
            api=api.name,
            body=msgspec.Raw(msgspec.msgpack.encode(request)),
            principal="" if sender is None else sender.principal,
            host="" if sender is None else sender.host,
            client="" if sender is None else sender.client_id,
        )
        size = len(msgspec.msgpack.encode(envelope))
        if size > PASSED_ON_BYTES_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"{counted(size, 'byte')} to be passed on to the controller, "
                f"{PASSED_ON_BYTES_MAX} are the most: ask for less at a time",
            )
        answer, _ = await self._peers.call(leader, envelope, timeout_s=timeout_s)
        assert isinstance(answer, c.EnvelopeResponse)
        return decode_body(answer.body, api.response), answer.metadata_offset

    def open_envelope(self, call: Call[c.EnvelopeRequest]) -> Later:
        """A request that another node passes on; it is decided here or not at all."""
        request = call.request
        api = API_BY_NAME.get(request.api)
        if api is None:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"{request.api[:60]!r} is no request to a controller"
            )
        if self._controller is None:
            raise not_controller(self._quorum.leader)
        controller, inner = self._controller, _passed_on(request.body, api.request)
        if call.peer.node >= 0:
            check_sender(inner, call.peer.node, is_its_own=not request.principal)
        sender = None
        if request.principal:
            sender = Peer(request.host, request.principal, client_id=request.client)

        async def later() -> Reply:
            reply, offset = await controller.submit(inner, sender)
            body = msgspec.Raw(msgspec.msgpack.encode(reply))
            return Reply(c.EnvelopeResponse(metadata_offset=offset, body=body))

        return later


def _passed_on(body: msgspec.Raw, kind: type[m.Message]) -> m.Message:
    """What is in an envelope. Its bytes are those of whom the node speaks for, and end no
    connection on which others' requests are, too: raises `Refused`."""
    try:
        return decode_body(body, kind)
    except RemoteProtocolError as error:
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error


def _plain(error: ApiError) -> str:
    """The controller's own sentence, without the code before it."""
    return error.message.removeprefix(f"{error.code}: ")
