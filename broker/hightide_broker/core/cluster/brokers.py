"""The controller's decisions about brokers: registration, heartbeats, fencing, orderly stops. Pure.

A broker registers once per process and gets its epoch, the offset of its registration; it is fenced
until its heartbeats show that it has caught up, and again when they stop coming. Before it stops it
says so, loses its leaderships in one batch, and waits until the others know. Sources: KIP-631,
KIP-841 (shutdown), KIP-966 (what a broker may have forgotten).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.addresses import check_address
from hightide_broker.core.cluster.changes import (
    AnyChange,
    ChangePartition,
    FenceBroker,
    RegisterBroker,
    StopBroker,
    UnfenceBroker,
)
from hightide_broker.core.cluster.features import check_levels
from hightide_broker.core.cluster.image import BrokerState, ClusterImage, PartitionState, TopicState
from hightide_broker.core.cluster.partition_changes import Forgot
from hightide_broker.core.cluster.partitions import Partitions
from hightide_broker.core.cluster.sessions import Sessions
from hightide_broker.core.cluster.topic_keys import FLUSH, SYNCED


class Brokers:
    """Decisions over the brokers of one image. `now` is monotonic, in seconds."""

    def __init__(
        self,
        image: ClusterImage,
        partitions: Partitions,
        *,
        cluster_id: str,
        session_timeout_s: float,
    ) -> None:
        self._image = image
        self._partitions = partitions
        self._cluster_id = cluster_id
        self._sessions = Sessions(session_timeout_s)
        self._awaits_until = 0.0

    def activate(self, now: float) -> None:
        """A new controller: every broker gets a whole session before it can be fenced. So do those
        that are fenced, to come back: after a loss of all power theirs may be the longest logs,
        and the first who is back need not be the one whom the last controller relied on."""
        self._partitions.awaited = frozenset(self._image.brokers)
        self._awaits_until = now + self._sessions.timeout_s
        for state in self._image.brokers.values():
            if not state.fenced:
                self._sessions.touch(state.broker, state.epoch, -1, now)

    # -- registration ------------------------------------------------------------------------------

    def register(
        self, request: c.RegisterBrokerRequest, now: float
    ) -> tuple[list[AnyChange], c.RegisterBrokerResponse]:
        """A broker process announces itself; -1 as epoch means the offset of its registration."""
        if request.cluster_id != self._cluster_id:
            raise Refused(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"broker {request.broker} belongs to cluster {request.cluster_id}, "
                f"this is cluster {self._cluster_id}",
            )
        if request.broker < 0:
            raise Refused(ErrorCode.INVALID_REQUEST, f"broker {request.broker}, expected 0 or more")
        for address in filter(None, ((request.host, request.port), request.internal)):
            check_address(*address)
        check_levels(request.broker, request.features, self._image.feature_levels())
        known = self._image.brokers.get(request.broker)
        if known is not None and known.incarnation == request.incarnation:
            return [], c.RegisterBrokerResponse(broker_epoch=known.epoch)
        changes: list[AnyChange] = []
        clean = True
        if known is not None:
            self._check_duplicate(known, request, now)
            is_same = request.directory == known.directory and not _is_older_copy(known, request)
            clean = is_same and request.previous_broker_epoch == known.epoch
            changes = self._partitions.leaving(
                [request.broker],
                forgot=self._lapse(known, is_same_disk=is_same, is_clean=clean),
                is_well=self.who_is_well(now),
            )
        self._partitions.log_ends.forget(request.broker)
        self._sessions.end(request.broker)
        changes.append(
            RegisterBroker(
                broker=request.broker,
                incarnation=request.incarnation,
                host=request.host,
                port=request.port,
                rack=request.rack,
                roles=tuple(request.roles),
                clean=clean,
                directory=request.directory,
                keeps_runs=request.runs is not None,
                internal=request.internal,
                features=request.features,
            )
        )
        return changes, c.RegisterBrokerResponse(broker_epoch=-1)

    def _lapse(
        self, known: BrokerState, *, is_same_disk: bool, is_clean: bool
    ) -> Callable[[TopicState, PartitionState], Forgot | None]:
        """What the replicas of a broker that comes back may lack."""

        def forgot(topic: TopicState, state: PartitionState) -> Forgot | None:
            if not is_same_disk:
                return Forgot.EVERYTHING
            # What was synced before it counted survives any stop - if that was so all the time
            # that this registration held. A replica that is the only one has all there is.
            is_synced = self._image.setting(topic.name, FLUSH) == SYNCED
            was_synced = is_synced and topic.was_synced_from(known.epoch)
            if is_clean or was_synced or len(state.replicas) == 1:
                return None
            return Forgot.UNSYNCED

        return forgot

    def _check_duplicate(
        self, known: BrokerState, request: c.RegisterBrokerRequest, now: float
    ) -> None:
        """Two processes with one id must not both live. One directory is one process: it is locked,
        so a process that registers from it has outlived the other."""
        same_process_slot = bool(request.directory) and request.directory == known.directory
        if (
            not known.fenced
            and not same_process_slot
            and self._sessions.is_alive(known.broker, now)
        ):
            raise Refused(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"broker {known.broker} is alive at {known.host}:{known.port}; another process "
                f"with this node.id may register {self._sessions.timeout_s:g} s after its last "
                f"heartbeat (broker.session.timeout.ms)",
            )

    # -- heartbeats --------------------------------------------------------------------------------

    def heartbeat(
        self, request: c.BrokerHeartbeatRequest, now: float
    ) -> tuple[list[AnyChange], c.BrokerHeartbeatResponse]:
        """A broker says that it is alive and what it wants: to serve, to be fenced, to stop."""
        state = self.check(request.broker, request.broker_epoch)
        if now >= self._awaits_until:
            self._partitions.awaited = frozenset()
        # Its epoch is the offset of its registration, and offsets are next ones: it has applied it.
        caught_up = request.metadata_offset > state.epoch
        changes: list[AnyChange] = []
        self._partitions.log_ends.heard(request.broker, request.leaderless, request.offline)
        is_well = self.who_is_well(now)
        lost = self._partitions.lost(request.broker, request.offline, is_well)
        may_lead = not (state.fenced or state.stopping or request.want_fence)
        if not lost and request.leaderless and may_lead and not request.want_shut_down:
            lost = self._partitions.arriving(request.broker, is_well)
        if lost:
            # By itself: what else is wanted is decided as of after this, with the next heartbeat.
            if not state.fenced:
                self._sessions.touch(state.broker, state.epoch, request.metadata_offset, now)
                lost += self._uncontested(state.broker, lost)
            return lost, c.BrokerHeartbeatResponse(
                caught_up=caught_up, fenced=state.fenced, should_shut_down=False
            )
        fenced, may_stop = state.fenced, False
        if state.fenced:
            may_stop = request.want_shut_down
            if caught_up and not request.want_fence and not request.want_shut_down:
                fenced, changes = False, self._unfence(state, now)
        elif request.want_shut_down:
            may_stop, changes = self._stop(state, request.metadata_offset, now)
            fenced = may_stop
        elif request.want_fence:
            fenced, changes = True, self.fence([state.broker])
        if not fenced:
            self._sessions.touch(state.broker, state.epoch, request.metadata_offset, now)
            changes += self._uncontested(state.broker, changes)
        reply = c.BrokerHeartbeatResponse(
            caught_up=caught_up, fenced=fenced, should_shut_down=may_stop
        )
        return changes, reply

    def _uncontested(self, broker: int, changes: Sequence[AnyChange]) -> list[AnyChange]:
        """What the word of a broker settles, of partitions that these changes leave alone."""
        changed = [each for each in changes if isinstance(each, ChangePartition)]
        taken = {(each.topic_id, each.partition) for each in changed}
        found = self._partitions.uncontested(broker, self._sessions.offset_of)
        return [each for each in found if (each.topic_id, each.partition) not in taken]

    def who_is_well(self, now: float) -> Callable[[int], bool]:
        """Of which brokers this controller has heard lately; others may be gone, and are not given
        what nobody leads."""
        return lambda broker: self._sessions.is_recent(broker, now)

    def check(self, broker: int, broker_epoch: int) -> BrokerState:
        """The registration a broker speaks for; raises `Refused` if it is none or an older one."""
        state = self._image.brokers.get(broker)
        if state is None:
            raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker} is not registered")
        if state.epoch != broker_epoch:
            raise Refused(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker} sent epoch {broker_epoch}, its registration has {state.epoch}",
            )
        return state

    def _unfence(self, state: BrokerState, now: float) -> list[AnyChange]:
        self._sessions.end(state.broker)  # a stop that was given up begins again
        unfenced = UnfenceBroker(broker=state.broker, broker_epoch=state.epoch)
        return [unfenced, *self._partitions.arriving(state.broker, self.who_is_well(now))]

    def _stop(
        self, state: BrokerState, metadata_offset: int, now: float
    ) -> tuple[bool, list[AnyChange]]:
        """Whether a broker may stop now, and what to change."""
        session = self._sessions.touch(state.broker, state.epoch, metadata_offset, now)
        if not state.stopping:
            changes = self._partitions.leaving([state.broker], is_well=self.who_is_well(now))
            if not changes:
                return True, self.fence([state.broker])
            stopping = StopBroker(broker=state.broker, broker_epoch=state.epoch)
            return False, [*changes, stopping]
        if session.stop_offset < 0:
            # Not with its first word: only now the image has what took its leaderships away.
            session.stop_offset = self._image.offset
            assert session.stop_offset > state.epoch, f"{session} began at {state.epoch}"
        serving = [b.broker for b in self._image.brokers.values() if not b.fenced]
        others = self._sessions.lowest_offset(b for b in serving if b != state.broker)
        others_know = others is None or others >= session.stop_offset
        if others_know and not self._partitions.led_by(state.broker):
            return True, self.fence([state.broker])
        return False, []

    def fence(
        self, brokers: Sequence[int], is_well: Callable[[int], bool] | None = None
    ) -> list[AnyChange]:
        """Take brokers out of service; what they led is led by others in the same batch, by those
        that are well if that is asked. All at once: none of them leads in between, so each stays
        eligible where nobody else is left."""
        if not brokers:
            return []
        states = [self._image.brokers[broker] for broker in brokers]
        fenced = [FenceBroker(broker=state.broker, broker_epoch=state.epoch) for state in states]
        return [*self._partitions.leaving(brokers, is_well=is_well), *fenced]

    # -- time --------------------------------------------------------------------------------------

    def fence_gone(self, gone: Mapping[int, int], now: float) -> list[AnyChange]:
        """Fence the brokers whose processes are gone for certain; `gone` is broker → the epoch of
        that process."""
        states = [(self._image.brokers.get(broker), epoch) for broker, epoch in gone.items()]
        return self.fence(
            [s.broker for s, epoch in states if s and s.epoch == epoch and not s.fenced],
            self.who_is_well(now),
        )

    def fence_silent(self, now: float) -> list[AnyChange]:
        """Fence the brokers that have been silent for longer than their session.

        The sessions go only once they are fenced: if the changes could not be written, it is tried
        again.
        """
        expired = []
        for broker in self._sessions.expired(now):
            state = self._image.brokers.get(broker)
            if state is None or state.fenced:
                self._sessions.end(broker)
            else:
                expired.append(broker)
        return self.fence(expired, self.who_is_well(now))

    @property
    def next_expiry(self) -> float:
        """When the next session would end."""
        return self._sessions.next_expiry()


def _is_older_copy(known: BrokerState, request: c.RegisterBrokerRequest) -> bool:
    """Whether the directory knows nothing of the process that was registered last from it, or not
    that it went on to serve: what it stored then is not there."""
    if request.runs is None:
        return known.keeps_runs
    if known.incarnation in request.runs[:1]:
        return False
    return known.served or known.incarnation not in request.runs
