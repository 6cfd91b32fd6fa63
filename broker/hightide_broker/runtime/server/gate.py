"""Whether who asks may have what a request asks for; on every node, by its own image (KIP-11).

What stands in a route's permissions is asked of the rules, before the handler sees anything: a
refusal says the same whether the topic exists or not. A request that names several is answered
about those that are allowed; what concerns the whole of it (a group, the cluster) is allowed or
refused with it. Nodes need nothing of this: by their own door they are known by certificate.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

from msgspec.structs import replace as exchanged

from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.topic_partition import INTERNAL
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.acls import CLUSTER_NAME, Operation, Resource
from hightide_broker.core.cluster.authorizer import Authorizer
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.runtime.base.call import (
    Asker,
    Call,
    CloseConnection,
    Outcome,
    Parked,
    Peer,
    Reply,
)
from hightide_broker.runtime.base.sparing import SparingLogs
from hightide_broker.runtime.server.parts import PARTS, Named, Parts

audit = logging.getLogger("hightide.audit")

CHANGING = (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
"""What is written down although it is allowed."""
CHANGING_TOPICS = (Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
"""What takes a right on the cluster, too, where the topic is the cluster's own."""
NAMES_MAX = 10
"""So many are written down of one request."""
SHOWN_CHARACTERS_MAX = 100
"""So much of a name is told to who is refused, and written down."""
PARTS_MAX = 10_000
"""Topics, partitions or groups that one request may name, where each is judged."""
ALLOWED_LINES_MAX = 100
"""Of what one principal is allowed, in the time that `sparing.py` counts."""
PRINCIPALS_MAX = 1000
"""Whose lines are counted, each apart; those who came last."""
_CODES = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
Rebuild = Callable[[Any], m.Message]
"""An answer's body, with what the gate has to say."""


class Permission(NamedTuple):
    """An operation on every resource of a kind that a request names; on any at all, if it names
    none."""

    operation: Operation
    resource: Resource | None
    """None: what each part of the request is."""
    or_on_cluster: Operation | None = None
    """Who may do this to the cluster needs nothing else."""


class Reserved(NamedTuple):
    """What stands in an answer for those alone who may do more than ask for it."""

    operations: tuple[Operation, ...]
    """On the cluster; one of them is enough."""
    without: Rebuild


class Gate:
    """Whether requests to a node are permitted, by the rules that its image has now."""

    def __init__(
        self,
        image: Callable[[], ClusterImage],
        config: BrokerConfig,
        is_current: Callable[[], bool],
    ) -> None:
        """`is_current` says whether the image has all that was committed when the node came up:
        before that, rules may be missing that deny."""
        self._is_current = is_current
        self._has_been_current = False
        self.is_on = config[keys.AUTHORIZER_ENABLE]
        self._image = image
        users = config[keys.SUPER_USERS].split(";")
        self._super_users = frozenset(filter(None, (user.strip() for user in users)))
        self._everyone_if_none = config[keys.ALLOW_EVERYONE_IF_NO_ACL_FOUND]
        self._by: tuple[ClusterImage, int] | None = None
        self.judged: Counter[tuple[str, str]] = Counter()
        """How often something was `allowed` or `denied`, by operation."""
        self._denied = SparingLogs(audit, strangers_max=PRINCIPALS_MAX)
        self._allowed = SparingLogs(
            audit, lines_max=ALLOWED_LINES_MAX, strangers_max=PRINCIPALS_MAX
        )

    @property
    def authorizer(self) -> Authorizer:
        """The rules as this node knows them now."""
        image = self._image()
        known = self._by
        if known is None or known[0] is not image or known[1] != image.acls_version:
            self._authorizer = Authorizer(
                image.acls.values(),
                super_users=self._super_users,
                everyone_if_none=self._everyone_if_none,
            )
            self._by = (image, image.acls_version)
        return self._authorizer

    def check(self, peer: Peer, permissions: Iterable[Permission], request: m.Message) -> None:
        """Raise `Refused` unless the whole of a request is allowed."""
        visit = _Visit(self.authorizer, peer, request)
        parts = PARTS.get(type(request))
        for permission in permissions:
            for named in _all_named(permission, parts, request):
                if not visit.may(permission, named):
                    raise self._refusal(visit, permission.operation, named)

    def allowed_bytes(self, permissions: Sequence[Permission], call: Call[Any]) -> int:
        """How much of what came with a request its sender may send, by the parts it belongs to."""
        sizes = list(map(len, call.attachments))
        if not self.is_on or call.peer.node >= 0 or type(call.request) not in PARTS:
            return sum(sizes)
        return sum(
            sizes[part.records]
            for part in self.allowed_parts(permissions, call)
            if 0 <= part.records < len(sizes)
        )

    def allowed_parts(self, permissions: Sequence[Permission], call: Call[Any]) -> list[Any]:
        """The parts of a request that its sender may ask."""
        parts = PARTS[type(call.request)]
        asked: list[Any] = getattr(call.request, parts.field)
        if not self.is_on or call.peer.node >= 0:
            return asked
        visit = _Visit(self.authorizer, call.peer, call.request)
        return [
            part
            for part in asked
            if all(visit.may(each, parts.named(part)) for each in permissions)
        ]

    def begin(
        self,
        permissions: Sequence[Permission],
        call: Call[Any],
        begin: Callable[[Call[Any]], Outcome],
    ) -> Outcome:
        """Begin a request, as far as it is allowed. Raises `Refused` or `CloseConnection`."""
        if not self.is_on or call.peer.node >= 0 or not permissions:
            return begin(call)
        self._check_current(call.peer)
        visit, parts = (
            _Visit(self.authorizer, call.peer, call.request),
            PARTS.get(type(call.request)),
        )
        each: list[Permission] = []
        for permission in permissions:
            if _is_of_parts(permission, parts):
                each.append(permission)
                continue
            for named in _all_named(permission, None, call.request):
                if not visit.may(permission, named):
                    raise self._refusal(visit, permission.operation, named)
        if parts is None or not each:
            self._write_down(call, permissions[0])
            return begin(call)
        assert len(each) == 1, "parts are asked for one thing"
        return self._begin_parts(visit, parts, each[0], call, begin)

    def kept_back(self, reserved: Reserved, peer: Peer, outcome: Outcome) -> Outcome:
        """The same outcome, as its reader may see it. Nothing is refused, so nothing is written
        down."""
        if not self.is_on or peer.node >= 0:
            return outcome
        may, who = self.authorizer, (peer.principal, peer.host)
        cluster = (Resource.CLUSTER, CLUSTER_NAME)
        if any(may.allows(*who, each, *cluster) for each in reserved.operations):
            return outcome
        return _added(outcome, reserved.without)

    def _begin_parts(
        self,
        visit: _Visit,
        parts: Parts,
        permission: Permission,
        call: Call[Any],
        begin: Callable[[Call[Any]], Outcome],
    ) -> Outcome:
        asked: list[Any] | None = getattr(call.request, parts.field, None)
        if asked is None:  # for everything: what is found is left out where it is not allowed
            return _added(begin(call), visit.only_allowed(parts, permission))
        if len(asked) > PARTS_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"{len(asked)} {parts.field} in one request, expected {PARTS_MAX} or less",
            )
        allowed, refused = [], []
        for part in asked:
            named = parts.named(part)
            if visit.may(permission, named):
                allowed.append(part)
            else:
                why = self._refusal(visit, permission.operation, named)
                refused.append(parts.refused(part, error=why.code, message=why.message))
        request = self._without_creation(visit, call.request, allowed)
        if allowed:
            self._write_down(call, permission, [parts.named(part)[1] for part in allowed])
        if not refused:
            outcome = begin(call if request is call.request else call.asking(request))
            return self._judged_again(outcome, visit, parts, permission)
        smaller = call.asking(exchanged(request, **{parts.field: allowed}))
        if isinstance(request, m.ProduceRequest) and request.acks == 0:
            begin(smaller)
            raise CloseConnection(f"acks=0 and {refused[0].error}: {refused[0].message}")
        if not allowed and not isinstance(request, m.MetadataRequest):
            return Reply(API_BY_REQUEST[type(request)].response(**{parts.field: refused}))

        def add(body: Any) -> m.Message:
            answer: m.Message = exchanged(
                body, **{parts.field: [*getattr(body, parts.field), *refused]}
            )
            return answer

        return _added(self._judged_again(begin(smaller), visit, parts, permission), add)

    def _judged_again(
        self, outcome: Outcome, visit: _Visit, parts: Parts, permission: Permission
    ) -> Outcome:
        """The same outcome; but a fetch that waits brings nothing that its sender may not read by
        then."""
        if not isinstance(visit.request, m.FetchRequest) or not _is_parked(outcome):
            return outcome
        image, version = self._image(), self._image().acls_version

        def judge(reply: Reply) -> Reply:
            if self._image() is image and image.acls_version == version:
                return reply
            now, refused = _Visit(self.authorizer, visit.peer, visit.request), False
            told = []
            for part in getattr(reply.body, parts.field):
                named = parts.named(part)
                if now.may(permission, named):
                    told.append(exchanged(part, records=-1))
                    continue
                refused, why = True, self._refusal(now, permission.operation, named)
                told.append(parts.refused(part, error=why.code, message=why.message))
            # What of it is allowed still is asked for again, and brought then.
            return Reply(exchanged(reply.body, **{parts.field: told})) if refused else reply

        return _Rebuilt(outcome, judge)

    def _without_creation(self, visit: _Visit, request: Any, topics: list[str]) -> Any:
        """A question about topics makes none that its sender may not make."""
        if not (isinstance(request, m.MetadataRequest) and request.auto_create):
            return request
        create = Permission(Operation.CREATE, Resource.TOPIC, Operation.CREATE)
        known = self._image().topics
        missing = [name for name in topics if name not in known]
        if all(visit.may(create, (Resource.TOPIC, name)) for name in missing):
            return request
        return exchanged(request, auto_create=False)

    def _check_current(self, peer: Peer) -> None:
        """Raise `Refused` while rules may be missing; super users need none."""
        self._has_been_current = self._has_been_current or self._is_current()
        if not self._has_been_current and peer.principal not in self._super_users:
            raise Refused(
                ErrorCode.BROKER_NOT_AVAILABLE,
                "this node has not heard of all rules yet: it waits for the controllers",
            )

    def _refusal(self, visit: _Visit, operation: Operation, named: Named) -> Refused:
        self.judged["denied", operation] += 1
        resource, name = named
        which = f"any {resource}" if name is None else f"{resource}:{_shown(name)}"
        said = f"{visit.peer.shown} may not {operation} {which}"
        self.tell_refused(visit.peer, f"{said} ({visit.api}: {visit.why_not(operation, named)})")
        return Refused(_CODES[resource], f"{said} (hightide acls explain says why)")

    def tell_refused(self, peer: Peer, said: str) -> None:
        """Write down that somebody was refused something."""
        self._denied.write(peer.principal, logging.INFO, "denied: %s, from %s", said, peer.host)

    def _write_down(
        self, call: Call[Any], permission: Permission, names: Sequence[str | None] = ()
    ) -> None:
        self.judged["allowed", permission.operation] += max(len(names), 1)
        level = logging.INFO if permission.operation in CHANGING else logging.DEBUG
        if not audit.isEnabledFor(level):
            return
        api, who = API_BY_REQUEST[type(call.request)].name, call.peer
        about = f" {', '.join(_shown(name or '') for name in names[:NAMES_MAX])}" if names else ""
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        told = (who.shown, api, about, more, who.host)
        self._allowed.write(who.principal, level, "allowed: %s %s%s%s, from %s", *told)


class _Visit:
    """One request, and who sent it, by the rules of one moment."""

    def __init__(self, authorizer: Authorizer, peer: Peer, request: m.Message) -> None:
        self._authorizer = authorizer
        self.peer = peer
        self.request = request

    @property
    def api(self) -> str:
        """The name of what is asked."""
        return API_BY_REQUEST[type(self.request)].name

    def why_not(self, operation: Operation, named: Named) -> str:
        """The rule that denies it, or that there is none that allows it."""
        resource, name = named
        if name is None:
            return "no rule allows it on any"
        who = (self.peer.principal, self.peer.host)
        verdict = self._authorizer.verdict(*who, operation, resource, name)
        return f"{verdict.reason}, {str(verdict.rule)!r}" if verdict.rule else verdict.reason

    def may(self, permission: Permission, named: Named) -> bool:
        """Whether an operation on what is named is allowed; on any at all, if it has no name."""
        may, who = self._authorizer, (self.peer.principal, self.peer.host)
        cluster = (Resource.CLUSTER, CLUSTER_NAME)
        instead = permission.or_on_cluster
        if instead is not None and may.allows(*who, instead, *cluster):
            return True
        resource, name = named
        if name is None:
            return may.allows_any(*who, permission.operation, resource)
        if resource is Resource.TOPIC and name.startswith(INTERNAL):
            # What is in it is everybody's: a right on all topics is none on all groups.
            is_change = permission.operation in CHANGING_TOPICS
            if is_change and not may.allows(*who, Operation.ALTER, *cluster):
                return False
        return may.allows(*who, permission.operation, resource, name)

    def only_allowed(self, parts: Parts, permission: Permission) -> Rebuild:
        """Leaves out of an answer what its reader may not know of."""

        def rebuild(body: Any) -> m.Message:
            found = getattr(body, parts.field)
            kept = [part for part in found if self.may(permission, parts.named(part))]
            answer: m.Message = exchanged(body, **{parts.field: kept})
            return answer

        return rebuild


def _shown(name: str) -> str:
    return repr(name[:SHOWN_CHARACTERS_MAX])


def _is_of_parts(permission: Permission, parts: Parts | None) -> bool:
    return parts is not None and parts.kind is permission.resource


def _all_named(permission: Permission, parts: Parts | None, request: Any) -> Iterator[Named]:
    """What a permission is about; any resource of its kind, where a request names none."""
    if parts is not None and _is_of_parts(permission, parts):
        yield from map(parts.named, getattr(request, parts.field, None) or ())
    elif permission.resource is Resource.CLUSTER:
        yield Resource.CLUSTER, CLUSTER_NAME
    elif permission.resource is Resource.GROUP:
        yield Resource.GROUP, request.group
    else:
        assert permission.resource is not None, "only parts differ in kind"
        yield permission.resource, None


def _added(outcome: Outcome, rebuild: Rebuild) -> Outcome:
    """The same outcome, with an answer that the gate has had its hands on."""
    if outcome is None:
        return None
    if isinstance(outcome, Reply):
        return Reply(rebuild(outcome.body), outcome.attachments)
    if not callable(outcome):
        return _Rebuilt(outcome, lambda reply: Reply(rebuild(reply.body), reply.attachments))

    async def later() -> Reply:
        reply = await outcome()
        return Reply(rebuild(reply.body), reply.attachments)

    return later


def _is_parked(outcome: Outcome) -> TypeGuard[Parked]:
    return outcome is not None and not isinstance(outcome, Reply) and not callable(outcome)


class _Rebuilt:
    """Implements `call.Parked` over another one."""

    def __init__(self, parked: Parked, rebuild: Callable[[Reply], Reply]) -> None:
        self._parked = parked
        self._rebuild = rebuild

    def begin(self, asker: Asker) -> None:
        self._parked.begin(_Between(asker, self._rebuild))

    def drop(self) -> None:
        self._parked.drop()


class _Between:
    """Implements `call.Asker` over another one."""

    def __init__(self, asker: Asker, rebuild: Callable[[Reply], Reply]) -> None:
        self._asker = asker
        self._rebuild = rebuild
        self.work = asker.work

    def answer(self, reply: Reply) -> None:
        self._asker.answer(self._rebuild(reply))
