"""How a request finds its handler, and what holds for every one of them on the way.

Whatever speaks to a node goes through `Routes.begin`, in whichever protocol it came. The table
itself is `table.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST, Api
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.senders import check_sender
from hightide_broker.runtime.base.call import (
    Begin,
    Call,
    CloseConnection,
    Outcome,
    Peer,
    Reply,
)
from hightide_broker.runtime.server.gate import Gate, Permission, Reserved

VERSION = "0.1.0"
R = TypeVar("R")
Look = Callable[[Sequence[Any], Sequence[memoryview]], Awaitable[Mapping[int, Any]]]
"""What there is to be known of attachments, by their positions, given the parts they belong to."""


def every_one(_: m.Message) -> bool:
    """All requests of an API."""
    return True


def wordless(answer: Callable[[], R]) -> Callable[[Call[Any]], R]:
    """A handler of requests that say nothing but their name."""

    def begin(_call: Call[Any]) -> R:
        return answer()

    return begin


class Route(NamedTuple):
    """A kind of request."""

    api: Api
    """Its name, its two messages, its versions."""
    begin: Begin
    permissions: tuple[Permission, ...] = ()
    """All that its sender needs; none where a connection is enough."""
    is_for_clients: bool = True
    """Whether others than nodes may ask."""
    is_of_broker: bool = False
    """Whether a node must be a broker to answer."""
    is_early: bool = False
    """Whether it is answered while the node starts."""
    is_fatal: bool = False
    """Whether others than nodes who send it are cut off, and not answered."""
    reserved: Reserved | None = None
    """What of the answer not everybody sees who may ask."""
    fits: Callable[[Any], bool] = every_one
    """Which requests of the API these are: several routes may share one."""


def check_node(call: Call[Any]) -> None:
    """Raise `Refused` unless a request that only nodes may send came where nodes may, and speaks
    for its own sender."""
    if not call.peer.may_be_node:
        raise Refused(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{type(call.request).__name__} is for nodes: they come by internal.listen.port",
        )
    if call.peer.node >= 0:
        check_sender(call.request, call.peer.node)


class Routes:
    """A node's table, in use."""

    def __init__(
        self,
        rows: Iterable[Route],
        gate: Gate,
        *,
        node: int,
        is_broker: bool,
        why_not: Callable[[], str],
        look: Look,
    ) -> None:
        """`why_not` says why the node does not serve yet, and nothing once it does."""
        self._look = look
        self._gate = gate
        self._node = node
        self._is_broker = is_broker
        self._why_not = why_not
        self._by_api: dict[str, list[Route]] = {}
        about_itself = Route(
            API_BY_REQUEST[m.ApiVersionsRequest], self._api_versions, is_early=True
        )
        for row in (about_itself, *rows):
            self._by_api.setdefault(row.api.name, []).append(row)

    def begin(self, api: Api, call: Call[Any]) -> Outcome:
        """Begin a request, in order of arrival. Raises `Refused` or `CloseConnection`."""
        route = self._route_of(api, call.request)
        if not route.is_for_clients:
            try:
                check_node(call)
            except Refused as refusal:
                self._gate.tell_refused(call.peer, refusal.message)
                if route.is_fatal and not call.peer.may_be_node:
                    raise CloseConnection(refusal.message) from refusal
                raise
        if not route.is_early and (why := self._why_not()):
            raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, why)
        if route.is_of_broker and not self._is_broker:
            raise Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self._node} is a controller, not a broker"
            )
        if not route.is_for_clients:
            return route.begin(call)
        outcome = self._gate.begin(route.permissions, call, route.begin)
        if route.reserved is None:
            return outcome
        return self._gate.kept_back(route.reserved, call.peer, outcome)

    async def look(self, api: Api, call: Call[Any]) -> Call[Any]:
        """The same call, with the facts of what came with it, as far as its sender may send it."""
        permissions = self._route_of(api, call.request).permissions
        parts = self._gate.allowed_parts(permissions, call)
        return replace(call, facts=await self._look(parts, call.attachments))

    def allowed_bytes(self, api: Api, call: Call[Any]) -> int:
        """How much of what came with a request its sender may send."""
        try:
            route = self._route_of(api, call.request)
        except Refused:
            return 0
        return self._gate.allowed_bytes(route.permissions, call)

    def judge(self, sender: Peer, request: m.Message) -> None:
        """Raise `Refused` unless somebody may ask all of this, by what is known here."""
        if self._gate.is_on and sender.node < 0:
            route = self._route_of(API_BY_REQUEST[type(request)], request)
            self._gate.check(sender, route.permissions, request)

    def _route_of(self, api: Api, request: m.Message) -> Route:
        for route in self._by_api.get(api.name, ()):
            if route.fits(request):
                return route
        raise Refused(ErrorCode.INVALID_REQUEST, f"{api.name} comes in an envelope, or not at all")

    def _api_versions(self, call: Call[m.ApiVersionsRequest]) -> Reply:
        """What the sender may ask here, in which versions."""

        def is_answered(route: Route) -> bool:
            may_ask = route.is_for_clients or call.peer.may_be_node
            return may_ask and (self._is_broker or not route.is_of_broker)

        answered = [
            routes[0].api for routes in self._by_api.values() if any(map(is_answered, routes))
        ]
        ranges = [
            m.ApiRange(name=api.name, min_version=api.min_version, max_version=api.max_version)
            for api in answered
        ]
        return Reply(m.ApiVersionsResponse(apis=ranges, broker_version=VERSION))
