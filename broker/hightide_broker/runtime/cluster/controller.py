"""The controller of this node: idle until the quorum elects it, then active for that term.

The active controller runs decisions one after the other. A decision reads an image of everything
appended so far, its changes go to the metadata log and into that image in the same stretch, and its
reply is parked until they are committed: nobody is ever told what might still be lost. When the
term is over, everything that waits fails with NOT_CONTROLLER, and the image is forgotten; the next
term begins with what is committed.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import trio

from hightide.net.ports import Random
from hightide.protocol import access_messages as a
from hightide.protocol import controller_messages as c
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.addresses import check_address
from hightide_broker.core.cluster.change_events import (
    BACK_TO_PREFERRED,
    NEW_CONTROLLER,
    NOBODY_LISTENS,
    NOT_HEARD,
    cause_of,
    event_of,
)
from hightide_broker.core.cluster.change_texts import sentence
from hightide_broker.core.cluster.changes import AnyChange, RegisterBroker, SetVoters
from hightide_broker.core.cluster.controller import Controller, Decision
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.mutations import MutationQuotas, Take, unlimited
from hightide_broker.core.cluster.partitions import REBALANCE_MAX
from hightide_broker.core.cluster.users import SECRET_BYTES
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.runtime.base.call import ANONYMOUS, Peer
from hightide_broker.runtime.base.measures import Histogram
from hightide_broker.runtime.base.watermark import Wake
from hightide_broker.runtime.cluster.broker_liveness import BrokerLiveness
from hightide_broker.runtime.cluster.metadata_loader import MetadataLoader
from hightide_broker.runtime.quorum.described import as_led
from hightide_broker.runtime.quorum.driver import QuorumDriver, Term, not_controller
from hightide_broker.trace.events import Event, PartitionChanged, Tell, tell_nobody

log = logging.getLogger("hightide.controller")

_NO_ROOM_PAUSE_S = 1.0
REBALANCE_SOON_S = 10.0
"""After so long leaders are moved back for the first time in a term, and again if there were too
many: a cluster that was stopped is led by the node that stopped last."""
CHANGES_TOLD_MAX = 20
"""Lines for changes that are made together: a broker may leave the ISR of thousands."""


def random_id(random: Random) -> str:
    """A 16-byte id in base64url, 22 characters, that does not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(random.randbytes(16)).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


Judge = Callable[[Peer, m.Message], None]


ADDING = (
    m.CreateTopicsRequest,
    m.CreatePartitionsRequest,
    m.AlterConfigsRequest,
    k.AlterClientQuotasRequest,
    u.AlterUserScramCredentialsRequest,
    a.CreateAclsRequest,
)
"""Requests whose effects stay, and may be asked for without end."""


class _Active(NamedTuple):
    """What the controller is while it is active."""

    term: Term
    image: ClusterImage
    core: Controller
    mutations: MutationQuotas


class ControllerShell:
    """The controller of this node."""

    def __init__(
        self,
        quorum: QuorumDriver,
        metadata_loader: MetadataLoader,
        liveness: BrokerLiveness,
        *,
        cluster_id: str,
        config: BrokerConfig,
        random: Random,
        judge: Judge,
        first_users: Sequence[AnyChange] = (),
        tell: Tell = tell_nobody,
    ) -> None:
        """`judge` raises `Refused` for what somebody may not ask; `first_users` are made if there
        never was one."""
        self.elections: Counter[str] = Counter()
        """Leaders that were found here, by how; see `change_events.ELECTIONS`."""
        self.commit_seconds = Histogram()
        self.event_seconds = Histogram()
        """How long it took to decide something and to write it down, commits not counted."""
        self._tell = tell
        self._judge = judge
        self._quorum = quorum
        self._first_users = first_users
        self._metadata_loader = metadata_loader
        self._liveness = liveness
        self._cluster_id = cluster_id
        self._config = config
        self._random = random
        self._timeout_s = config.seconds(keys.REQUEST_TIMEOUT_MS)
        self._session_s = config.seconds(keys.BROKER_SESSION_TIMEOUT_MS)
        self._rebalance_s = config[keys.LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS]
        self._active: _Active | None = None

    @property
    def is_active(self) -> bool:
        """Whether requests are decided here now."""
        return self._active is not None

    # -- terms -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Be active in every term of this node, until cancelled."""
        last = -1
        while True:
            await self._quorum.led.wait_for(last + 1)
            last = self._quorum.led.value
            term = self._quorum.term
            if term is None:
                continue
            try:
                await self._activate(term)
                await self._watch(term)
            except Refused as refusal:
                log.info("no longer active in epoch %d: %s", term.epoch, refusal.message)
            finally:
                self._active = None

    async def _activate(self, term: Term) -> None:
        """Begin once everything from before the term is committed, and in the image."""
        await term.committed.wait_for(term.start + 1)
        await self._metadata_loader.applied.wait_for(term.start + 1)
        if term.committed.closed is not None:
            raise term.committed.closed
        image = self._metadata_loader.image.copy()
        core = Controller(
            image,
            cluster_id=self._cluster_id,
            default_partitions=self._config[keys.NUM_PARTITIONS],
            default_replication=self._config[keys.DEFAULT_REPLICATION_FACTOR],
            topic_defaults=self._config.topic_defaults(),
            session_timeout_s=self._session_s,
        )
        core.brokers.activate(trio.current_time())
        self._active = _Active(term, image, core, MutationQuotas())
        self._quorum.announce_move()
        log.info("active controller of epoch %d from offset %d", term.epoch, image.offset)

    async def _watch(self, term: Term) -> None:
        """Fence brokers that are gone or silent, and move leaders back, until the term is over."""
        assert self._active is not None
        core = self._active.core
        rebalance_at = trio.current_time() + min(REBALANCE_SOON_S, self._rebalance_s)
        settled, losses = False, -1
        while True:
            began = trio.current_time()
            try:
                if not settled:
                    self._append(core.partitions.settle(), NEW_CONTROLLER)
                    self._append(
                        core.first_users(self._first_users, self._new_secret), NEW_CONTROLLER
                    )
                    settled = True
                losses = self._liveness.losses.value
                while gone := core.brokers.fence_gone(self._liveness.gone, trio.current_time()):
                    self._append(gone, NOBODY_LISTENS)
                self._append(core.brokers.fence_silent(trio.current_time()), NOT_HEARD)
                if trio.current_time() >= rebalance_at:
                    rebalance_at = trio.current_time() + self._rebalance_s
                    if self._config[keys.AUTO_LEADER_REBALANCE_ENABLE]:
                        is_well = core.brokers.who_is_well(trio.current_time())
                        back = core.partitions.rebalance(is_well)
                        self._append(back, BACK_TO_PREFERRED)
                        if len(back) == REBALANCE_MAX:
                            soon = trio.current_time() + REBALANCE_SOON_S
                            rebalance_at = min(rebalance_at, soon)
                self._took_since(began)
            except Refused as refusal:
                if term.committed.closed is not None:
                    raise
                log.warning("what time asks for has to wait: %s", refusal)
                await trio.sleep(_NO_ROOM_PAUSE_S)
            # A session that begins while this sleeps cannot end before `soon`.
            soon = trio.current_time() + self._session_s
            await self._until_news(term, losses, min(core.brokers.next_expiry, rebalance_at, soon))

    async def _until_news(self, term: Term, losses: int, deadline: float) -> None:
        """Until a broker more is gone, or `deadline`; raises `Refused` when the term is over."""
        wake = Wake()
        term.committed.wake_at_close(wake)
        self._liveness.losses.wake_at(losses + 1, wake)
        try:
            with trio.move_on_at(deadline):
                await wake.wait()
        finally:
            wake.set()
        if term.committed.closed is not None:
            raise term.committed.closed

    # -- requests --------------------------------------------------------------------------------

    async def submit(self, request: m.Message, sender: Peer | None = None) -> tuple[m.Message, int]:
        """Decide, append, wait for commit; the reply and the metadata offset it holds at. What
        `sender` may ask is judged here, by what is committed: the node that passed it on may
        have known less, or have waited.

        Raises `Refused`: NOT_CONTROLLER where or when this node is not active, REQUEST_TIMED_OUT
        when the changes do not commit in time.
        """
        since = trio.current_time()
        if isinstance(request, q.RemoveVoterRequest):
            await self._quorum.hear_all_but(request.id, since)
        if isinstance(request, q.AddVoterRequest):
            await self._try_address(request, sender)
        if self._active is None:
            raise not_controller(self._quorum.leader)
        term = self._active.term
        began = trio.current_time()
        try:
            self._check_allowed(sender, request)
            self._check_room(request)
            take = self._allowance(self._active, sender)
            decision = self._decide(self._active.core, request, since, take)
        except Refused as refusal:
            self._took_since(began)
            # It, too, may come from what is not committed yet.
            await self._committed(term, "refused")
            raise refusal
        reply = decision.reply
        first = self._append(decision.changes, cause_of(request), sender)
        self._took_since(began)
        for number, change in enumerate(decision.changes):
            if isinstance(change, RegisterBroker):
                reply = c.RegisterBrokerResponse(broker_epoch=first + number)
        try:
            return reply, await self._committed(term, "done")
        except Refused as refusal:
            if not decision.changes:
                raise
            # Not to be asked for again as if nothing had happened.
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the change did not commit here, it may still take effect: {refusal.message}",
            ) from refusal

    def _took_since(self, began: float) -> None:
        self.event_seconds.observe(trio.current_time() - began)

    async def _try_address(self, request: q.AddVoterRequest, sender: Peer | None) -> None:
        """Raise `Refused` unless a node that could vote now answers where it is to be recorded: a
        voter that nobody reaches cannot lead, and counts in every majority. Source: KIP-853."""
        if self._active is None:
            return
        try:
            self._check_allowed(sender, request)  # or anybody could have this node call anywhere
            *_, voter = self._adding(request, trio.current_time())
        except Refused:
            return  # with the words of the decision
        await self._quorum.greet(voter)

    def _adding(self, request: q.AddVoterRequest, now: float) -> tuple[Voter, ...]:
        """The voters with one more; raises `Refused`."""
        check_address(request.host, request.port)
        return self._quorum.core.adding(request, now)

    def _check_allowed(self, sender: Peer | None, request: m.Message) -> None:
        """Raise `Refused` for what a sender may not ask; nobody is this node itself."""
        if sender is not None:
            self._judge(sender, request)

    def _check_room(self, request: m.Message) -> None:
        """Raise `Refused` where the disk is full, and a request would have it hold more for ever:
        what is left is needed by the cluster itself. What deletes is let through."""
        deletes = isinstance(request, u.AlterUserScramCredentialsRequest) and not request.upsertions
        if isinstance(request, ADDING) and not deletes and self._quorum.is_short_of_room:
            raise Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "the controller's disk is full: free some room; until then nothing is added to the "
                "metadata, and what is deleted there is",
            )

    async def _committed(self, term: Term, what: str) -> int:
        """Wait until everything written so far is committed; where that ends. Raises `Refused`."""
        end, since = self._quorum.metadata.log_end, trio.current_time()
        with trio.move_on_after(self._timeout_s):
            await term.committed.wait_for(end)
            self.commit_seconds.observe(trio.current_time() - since)
            return end
        raise Refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"what the request was {what} by did not commit within "
            f"request.timeout.ms={self._timeout_s * 1000:.0f}",
        )

    def _append(self, changes: list[AnyChange], cause: str, sender: Peer | None = None) -> int:
        """Write changes to the log and into the controller's own image; the first one's offset."""
        asked = "" if sender is None or sender.principal == ANONYMOUS else f", for {sender.shown}"
        active = self._active
        if not changes or active is None:
            return -1
        first = self._quorum.append(changes, active.term.epoch)
        told = left_out = 0
        for number, change in enumerate(changes):
            if told >= CHANGES_TOLD_MAX:
                left_out += 1
            elif line := sentence(change, active.image):
                told += 1
                name = f"controller.{type(change).__struct_config__.tag}"
                log.info("%s%s", line, asked, extra={"event": name})
            heard, offset = active.core.partitions.log_ends, first + number
            self._tell_of(event_of(change, active.image, heard, offset=offset, cause=cause))
            active.image.replay(change, first + number)
        if left_out:
            more = counted(left_out, "change")
            log.info("and %s more with these: hightide trace tells of all", more)
        return first

    def _tell_of(self, event: Event | None) -> None:
        if isinstance(event, PartitionChanged) and event.election:
            self.elections[event.election] += 1
        if event is not None:
            self._tell(event)

    def _new_secret(self) -> bytes:
        return self._random.randbytes(SECRET_BYTES)

    @staticmethod
    def _allowance(active: _Active, sender: Peer | None) -> Take:
        """How many partitions somebody may create or delete; nodes as many as they need."""
        if sender is None or sender.node >= 0:
            return unlimited
        quotas = active.image.quotas
        return active.mutations.of(quotas, sender.user, sender.client_id, trio.current_time())

    def _decide(self, core: Controller, request: m.Message, since: float, take: Take) -> Decision:
        """What becomes of a request that came at `since`, whose sender may `take` so much of what
        is counted; raises `Refused`."""
        new_id: Callable[[], str] = partial(random_id, self._random)
        now = trio.current_time()
        match request:
            case c.RegisterBrokerRequest():
                return core.register_broker(request, now)
            case c.BrokerHeartbeatRequest():
                return core.broker_heartbeat(request, now)
            case c.AlterPartitionRequest():
                return core.alter_partition(request)
            case c.AllocateProducerIdsRequest():
                return core.allocate_producer_ids(request)
            case m.CreateTopicsRequest():
                shift = self._random.randrange
                return core.create_topics(request, new_id=new_id, shift=shift, take=take)
            case m.DeleteTopicsRequest():
                return core.delete_topics(request, take)
            case m.CreatePartitionsRequest():
                return core.create_partitions(request, shift=self._random.randrange, take=take)
            case m.AlterConfigsRequest():
                return core.alter_configs(request)
            case m.ElectLeadersRequest():
                return core.elect_leaders(request, now)
            case k.AlterClientQuotasRequest():
                return core.alter_quotas(request)
            case u.AlterUserScramCredentialsRequest():
                return core.alter_users(request, self._new_secret)
            case a.CreateAclsRequest():
                return core.create_acls(request, new_id)
            case a.DeleteAclsRequest():
                return core.delete_acls(request)
            case q.AddVoterRequest():
                voters = self._adding(request, now)
                reply = q.AddVoterResponse(directory=voters[-1].directory)
                return Decision([SetVoters(voters=voters)], reply)
            case q.RemoveVoterRequest():
                directory = self._quorum.core.membership.directory_of(request.id)
                voters = self._quorum.core.removing(request, since)
                return Decision(
                    [SetVoters(voters=voters)], q.RemoveVoterResponse(directory=directory)
                )
            case q.DescribeQuorumRequest():
                return Decision([], as_led(self._quorum.core, self._cluster_id))
        name = type(request).__name__
        raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is no request to a controller")
