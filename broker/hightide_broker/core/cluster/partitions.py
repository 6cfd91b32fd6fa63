"""The controller's decisions about partitions that exist: leaders and in-sync replicas. Pure.

A broker that leaves takes itself out of every ISR and hands its leadership on, in one batch of
changes; one that arrives leads what waits for it. A leader's own wish (`alter_partition`) is
granted only as of the epochs that the controller has. Sources: KIP-497, KIP-841, KIP-966, KIP-460.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker.core.cluster.changes import AnyChange, ChangePartition, SetConfig
from hightide_broker.core.cluster.image import (
    CLUSTER,
    NO_LEADER,
    ClusterImage,
    PartitionState,
    TopicState,
)
from hightide_broker.core.cluster.log_ends import LogEnds
from hightide_broker.core.cluster.partition_changes import (
    Election,
    Forgot,
    Rules,
    change_partition,
    let_go,
)
from hightide_broker.core.cluster.topic_keys import CLUSTER_KEYS, MIN_ISR, UNCLEAN

REBALANCE_MAX = 1000
"""Leaders moved in one batch."""


class Partitions:
    """Decisions over the partitions of one image."""

    def __init__(self, image: ClusterImage, defaults: Mapping[str, str]) -> None:
        """`defaults`: what this controller's own file says, which counts where no record does."""
        self.log_ends = LogEnds()
        self.awaited: frozenset[int] = frozenset()
        """Brokers that may yet come back to a controller that is new, and say how long their logs
        are."""
        self._image = image
        self._defaults = defaults

    def _rules(
        self, topic: TopicState, number: int, is_active: Callable[[int], bool] | None = None
    ) -> Rules:
        has_others = len(topic.partitions[number].replicas) > 1

        def may_lead(broker: int) -> bool:
            # Who has said that its replica is offline has nothing there to lead with; if that is
            # the only one, it tells as the leader what is wrong with it.
            if has_others and self.log_ends.is_offline(broker, topic.topic_id, number):
                return False
            return (is_active or self._image.is_active)(broker)

        return Rules(
            may_lead,
            self._image.setting(topic.name, MIN_ISR),
            self._image.setting(topic.name, UNCLEAN),
            self.log_ends.of(topic.topic_id, number, topic.partitions[number].leader_epoch),
            self._untold(topic, number, may_lead),
        )

    def _untold(
        self, topic: TopicState, number: int, may_lead: Callable[[int], bool]
    ) -> tuple[int, ...]:
        """`may_lead`: the image does not know yet of who is just being unfenced."""
        state, is_active = topic.partitions[number], self._image.is_active
        expected = [b for b in state.replicas if b in self.awaited or is_active(b) or may_lead(b)]
        return self.log_ends.untold(topic.topic_id, number, state.leader_epoch, expected)

    def _all(self) -> Iterator[tuple[TopicState, int, PartitionState]]:
        for topic in self._image.topics.values():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    # -- brokers that leave and arrive -------------------------------------------------------------

    def led_by(self, broker: int) -> bool:
        """Whether a broker leads anything."""
        return any(partition.leader == broker for _, _, partition in self._all())

    def leaving(
        self,
        brokers: Collection[int],
        *,
        forgot: Callable[[TopicState, PartitionState], Forgot | None] | None = None,
        is_well: Callable[[int], bool] | None = None,
    ) -> list[AnyChange]:
        """Take brokers out of every ISR they are in, and elect where they led.

        `forgot(topic, partition)`: what their replicas may lack of what they had. `is_well`: who
        may lead of those that stay, if not every active broker; where nobody may, nobody leads, and
        the whole ISR stays eligible.
        """

        def is_active(other: int) -> bool:
            return other not in brokers and self._image.is_active(other)

        changes: list[AnyChange] = []
        for topic, number, state in self._all():
            leavers = [b for b in brokers if b in state.replicas]
            lapses = {b: what for b in leavers if forgot and (what := forgot(topic, state))}
            had_all = {*state.isr, *state.elr, *state.last_known_elr}
            if not any(b in state.isr or (b in lapses and b in had_all) for b in leavers):
                continue
            may_lead: Callable[[int], bool] = is_active
            isr = tuple(b for b in state.isr if b not in brokers)
            stays_led = state.leader != NO_LEADER and not any(b in state.isr for b in brokers)
            if is_well is not None and not stays_led and not any(map(is_well, isr)):
                # Others in sync may be gone, too: none of them must lead and commit without
                # those that come back, whose logs may be the longest that are left.
                isr, may_lead = (), _both(is_active, is_well)
            rules = self._rules(topic, number, may_lead)
            change = change_partition(topic.topic_id, number, state, rules, isr=isr, forgot=lapses)
            _add(changes, change)
        return changes

    def lost(
        self, broker: int, offline: Iterable[c.OfflineReplica], is_well: Callable[[int], bool]
    ) -> list[AnyChange]:
        """Replicas of a broker serve nobody any more: take them out of ISR and ELR, and elect
        where they led one that is well - but where nobody else leads or could, things stay as they
        are: it may be the only one that holds what is committed."""

        def is_active(other: int) -> bool:
            return other != broker and self._image.is_active(other) and is_well(other)

        changes: list[AnyChange] = []
        for replica in dict.fromkeys(offline):
            topic = self._image.topics_by_id.get(replica.topic_id)
            if topic is None or not 0 <= replica.partition < len(topic.partitions):
                continue
            state = topic.partitions[replica.partition]
            # While somebody leads, that one has all that those who stopped uncleanly may have.
            known = () if state.leader == NO_LEADER else state.last_known_elr
            if broker not in (*state.isr, *state.elr, *known):
                continue
            rules = self._rules(topic, replica.partition, is_active)
            change = change_partition(
                topic.topic_id,
                replica.partition,
                state,
                rules,
                isr=tuple(b for b in state.isr if b != broker),
                forgot={broker: Forgot.EVERYTHING},
            )
            # Those who may be elected uncleanly say first how long their logs are. Where that is
            # not allowed, nobody leads instead who may miss something: the disk is still there.
            may_follow = rules.unclean and any(map(is_active, state.replicas))
            leads = (*state.isr, *state.elr)
            if change is not None and (may_follow or state.changed(change).leader in leads):
                changes.append(change)
        return changes

    def arriving(self, broker: int, is_well: Callable[[int], bool]) -> list[AnyChange]:
        """A broker is unfenced now, or said how far its logs reach: elect it, or another one that
        is well, where nobody leads and somebody may."""

        def is_active(other: int) -> bool:
            return other == broker or (self._image.is_active(other) and is_well(other))

        changes: list[AnyChange] = []
        for topic, number, partition in self._all():
            if partition.leader == NO_LEADER and broker in partition.replicas:
                rules = self._rules(topic, number, is_active)
                _add(changes, change_partition(topic.topic_id, number, partition, rules))
        return changes

    def uncontested(self, broker: int, heard: Callable[[int], int]) -> list[ChangePartition]:
        """`broker` was heard of: where enough of those in sync have been by now, let go of who else
        is eligible. `heard`: how far a broker said that it has followed the metadata."""
        changes = []
        for topic, number, since in self._image.contested_of(broker):
            state = topic.partitions[number]
            if heard(state.leader) < since:
                continue  # before all that takes longer
            told = [
                member
                for member in state.isr
                if heard(member) >= since
                and not self.log_ends.is_offline(member, topic.topic_id, number)
            ]
            min_isr = self._image.setting(topic.name, MIN_ISR)
            change = let_go(topic.topic_id, number, state, min_isr, told)
            if change is not None:
                changes.append(change)
        return changes

    def settle(self) -> list[AnyChange]:
        """What a new controller has to put right. The first one of a cluster writes down the
        defaults that all nodes must agree about, as its own file has them; later ones find them."""
        known = self._image.cluster_config
        missing = {
            name: self._defaults.get(name, key.default)
            for name, key in CLUSTER_KEYS.items()
            if name not in known
        }
        kind, name = CLUSTER
        return [
            SetConfig(kind=kind, name=name, key=key, value=value) for key, value in missing.items()
        ]

    # -- in-sync replicas --------------------------------------------------------------------------

    def alter(
        self, request: c.AlterPartitionRequest
    ) -> tuple[list[AnyChange], list[c.AlterPartitionResult]]:
        """Grant or refuse each partition's new ISR; a refused one changes nothing."""
        changes: list[AnyChange] = []
        results = []
        seen: set[tuple[str, int]] = set()
        for wish in request.partitions:
            try:
                if (wish.topic_id, wish.partition) in seen:
                    raise Refused(ErrorCode.INVALID_REQUEST, "the partition is named twice")
                seen.add((wish.topic_id, wish.partition))
                change = self._grant(request.broker, wish)
            except Refused as refusal:
                results.append(
                    c.AlterPartitionResult(
                        topic_id=wish.topic_id,
                        partition=wish.partition,
                        error=refusal.code,
                        message=refusal.message,
                    )
                )
                continue
            changes.append(change)
            results.append(self._result(wish, change))
        return changes, results

    def _result(self, wish: c.AlterPartition, change: ChangePartition) -> c.AlterPartitionResult:
        topic = self._image.topics_by_id[wish.topic_id]
        after = topic.partitions[wish.partition].changed(change)
        return c.AlterPartitionResult(
            topic_id=wish.topic_id,
            partition=wish.partition,
            leader=after.leader,
            leader_epoch=after.leader_epoch,
            partition_epoch=after.partition_epoch,
            isr=list(after.isr),
        )

    def _grant(self, sender: int, wish: c.AlterPartition) -> ChangePartition:
        """Kafka's checks, in Kafka's order; raises `Refused`."""
        topic = self._image.topics_by_id.get(wish.topic_id)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has id {wish.topic_id}")
        if not 0 <= wish.partition < len(topic.partitions):
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic.name} has {counted(len(topic.partitions), 'partition')}, "
                f"not {wish.partition}",
            )
        state = topic.partitions[wish.partition]
        name = f"{topic.name}-{wish.partition}"
        if wish.leader_epoch > state.leader_epoch or wish.partition_epoch > state.partition_epoch:
            raise Refused(
                ErrorCode.NOT_CONTROLLER,
                f"{name}: epochs {wish.leader_epoch}/{wish.partition_epoch} are newer than ours, "
                f"{state.leader_epoch}/{state.partition_epoch}",
            )
        if wish.leader_epoch < state.leader_epoch:
            raise Refused(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{name}: leader epoch {wish.leader_epoch} is over, this is {state.leader_epoch}",
            )
        if sender != state.leader:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"{name} is led by {state.leader}, not by {sender}"
            )
        if wish.partition_epoch < state.partition_epoch:
            raise Refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{name}: partition epoch {wish.partition_epoch}, ours is {state.partition_epoch}",
            )
        self._check_isr(name, state, wish)
        rules, isr = self._rules(topic, wish.partition), tuple(wish.isr)
        change = change_partition(topic.topic_id, wish.partition, state, rules, isr=isr)
        if change is None:
            # Granted all the same: the new partition epoch makes earlier proposals too old.
            change = ChangePartition(
                topic_id=topic.topic_id, partition=wish.partition, isr=state.isr
            )
        return change

    def _check_isr(self, name: str, state: PartitionState, wish: c.AlterPartition) -> None:
        members = set(wish.isr)
        if len(members) != len(wish.isr) or not members <= {*state.replicas}:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"{name}: ISR {wish.isr}, expected some of {list(state.replicas)}, each once",
            )
        if state.leader not in members:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"{name}: ISR {wish.isr} without leader {state.leader}"
            )
        # -1, or nothing said: whichever process of the broker it is (KIP-903).
        epochs = [*wish.broker_epochs, *[-1] * len(wish.isr)]
        for member, epoch in zip(wish.isr, epochs, strict=False):
            if not self._image.is_active(member):
                why = "is fenced, stopping, or not registered"
            elif epoch not in (-1, self._image.brokers[member].epoch):
                why = f"has epoch {self._image.brokers[member].epoch}, not {epoch}"
            else:
                continue
            raise Refused(ErrorCode.INELIGIBLE_REPLICA, f"{name}: broker {member} of the ISR {why}")

    # -- elections by hand and by timer ------------------------------------------------------------

    def elect(
        self, request: m.ElectLeadersRequest, is_well: Callable[[int], bool]
    ) -> tuple[list[AnyChange], list[m.ElectLeadersResult]]:
        """Elections that somebody asked for (KIP-460), among brokers that are well."""
        is_active = _both(self._image.is_active, is_well)
        changes: list[AnyChange] = []
        results = []
        wanted = request.partitions
        if wanted is None:
            wanted = [
                m.PartitionName(topic=topic.name, partition=number)
                for topic, number, partition in self._all()
                if self._needs(partition, unclean=request.unclean)
            ]
        for each in {(part.topic, part.partition): part for part in wanted}.values():
            try:
                change = self._elect(each, is_active, unclean=request.unclean)
            except Refused as refusal:
                results.append(
                    m.ElectLeadersResult(
                        topic=each.topic,
                        partition=each.partition,
                        leader=self._leader_of(each),
                        error=refusal.code,
                        message=refusal.message,
                    )
                )
                continue
            _add(changes, change)
            leader = change.leader if change.leader is not None else NO_LEADER
            results.append(
                m.ElectLeadersResult(topic=each.topic, partition=each.partition, leader=leader)
            )
        return changes, results

    def _leader_of(self, part: m.PartitionName) -> int:
        topic = self._image.topics.get(part.topic)
        if topic is None or not 0 <= part.partition < len(topic.partitions):
            return NO_LEADER
        return topic.partitions[part.partition].leader

    def _needs(self, partition: PartitionState, *, unclean: bool) -> bool:
        if unclean:
            return partition.leader == NO_LEADER
        return partition.leader != partition.replicas[0]

    def _elect(
        self, part: m.PartitionName, is_active: Callable[[int], bool], *, unclean: bool
    ) -> ChangePartition:
        topic = self._image.topics.get(part.topic)
        if topic is None or not 0 <= part.partition < len(topic.partitions):
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{part.topic}-{part.partition} does not exist",
            )
        state = topic.partitions[part.partition]
        if unclean and self.log_ends.is_offline(state.leader, topic.topic_id, part.partition):
            raise Refused(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                f"{part.topic}-{part.partition} is led by broker {state.leader}, whose replica is "
                f"offline: stop that broker first, then what the others have is known",
            )
        if not self._needs(state, unclean=unclean):
            what = "has a leader" if unclean else "is led by its preferred replica"
            raise Refused(
                ErrorCode.ELECTION_NOT_NEEDED,
                f"{part.topic}-{part.partition} {what}: {state.leader}",
            )
        if unclean:
            self._check_heard(topic, part.partition)
        election = Election.UNCLEAN if unclean else Election.PREFERRED
        change = change_partition(
            topic.topic_id,
            part.partition,
            state,
            self._rules(topic, part.partition, is_active),
            election=election,
        )
        preferred = state.replicas[0]
        if not unclean and (change is None or change.leader != preferred):
            raise Refused(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"{part.topic}-{part.partition}: broker {preferred} is not alive and in sync",
            )
        if change is None or change.leader is None:
            raise Refused(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                f"{part.topic}-{part.partition}: no replica of {list(state.replicas)} is alive and "
                f"has a log",
            )
        return change

    def _check_heard(self, topic: TopicState, number: int) -> None:
        """Raise `Refused` while the longest log may be one of which nothing is known yet: it would
        be cut."""
        if untold := self._untold(topic, number, self._image.is_active):
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{topic.name}-{number}: brokers {list(untold)} have not said yet how far their "
                f"logs reach, and the longest is to lead: try again",
            )

    def rebalance(self, is_well: Callable[[int], bool]) -> list[AnyChange]:
        """Move leaders back to their preferred replicas, and elect where nobody leads and somebody
        may, among brokers that are well; no more than `REBALANCE_MAX` at once."""
        is_active = _both(self._image.is_active, is_well)
        changes: list[AnyChange] = []
        for topic, number, partition in self._all():
            online, preferred = partition.leader == NO_LEADER, partition.replicas[0]
            if partition.leader == preferred:
                continue
            change = change_partition(
                topic.topic_id,
                number,
                partition,
                self._rules(topic, number, is_active),
                election=Election.ONLINE if online else Election.PREFERRED,
            )
            if change is None or change.leader is None:
                continue
            # A leader that is only silent for a moment loses to the preferred one, and to no other.
            if online or change.leader == preferred:
                changes.append(change)
            if len(changes) == REBALANCE_MAX:
                break
        return changes


def _add(changes: list[AnyChange], change: ChangePartition | None) -> None:
    if change is not None:
        changes.append(change)


def _both(one: Callable[[int], bool], other: Callable[[int], bool]) -> Callable[[int], bool]:
    return lambda broker: one(broker) and other(broker)
