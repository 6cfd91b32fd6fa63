"""The cluster image: the fold of all changes. Brokers and controllers hold one each. Pure.

Only `replay` changes it, on the live path and when a log is reloaded alike, so two images at the
same offset are equal. Everything here is a dict in insertion order: the order of iteration is part
of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from hightide_broker.core.cluster.acls import Acl, Operation, Pattern, Permission, Resource
from hightide_broker.core.cluster.changes import (
    AllocateProducerIds,
    AnyChange,
    Change,
    ChangePartition,
    CreateAcl,
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    RemoveAcl,
    RemoveScramCredential,
    RemoveTopic,
    SetConfig,
    SetQuota,
    SetScramCredential,
    SetUsersSecret,
    SetVoters,
    StopBroker,
    UnfenceBroker,
)
from hightide_broker.core.cluster.config_key import Key
from hightide_broker.core.cluster.features import lowest_levels
from hightide_broker.core.cluster.quotas import Entity
from hightide_broker.core.cluster.topic_keys import FLUSH, MIN_ISR, SYNCED
from hightide_broker.core.cluster.users import Credential, UserKey
from hightide_broker.core.quorum.roles import Voter

T = TypeVar("T")
H = TypeVar("H")
V = TypeVar("V")
NO_LEADER = -1
CLUSTER = ("cluster", "")
"""Whose configuration holds for topics that do not say."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A registered broker. `epoch` is the offset of its registration."""

    broker: int
    epoch: int
    incarnation: str
    host: str
    port: int
    rack: str
    roles: tuple[str, ...]
    fenced: bool
    stopping: bool = False
    """In its controlled shutdown."""
    clean: bool = True
    directory: str = ""
    served: bool = False
    """Whether this process was ever unfenced."""
    keeps_runs: bool = False
    """Whether its directory says which processes served from it."""
    internal: tuple[str, int] | None = None
    """Where other nodes reach it, if not where clients do."""
    features: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Up to which level it knows each feature (KIP-584)."""

    @property
    def node_address(self) -> tuple[str, int]:
        """Where other nodes reach it."""
        return self.internal or (self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition and who leads it. Both epochs only rise."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    """Replicas outside the ISR that have all that is committed (KIP-966)."""
    last_leader: int = NO_LEADER
    """Who led when the ISR became empty."""
    last_known_elr: tuple[int, ...] = ()
    """Who was eligible until an unclean stop (KIP-966)."""

    @property
    def is_contested(self) -> bool:
        """Whether others than the ISR may yet lead: then nothing commits."""
        return bool(self.elr or self.last_known_elr)

    def changed(self, change: ChangePartition) -> PartitionState:
        """The state after a change; a new leader makes a new leader epoch."""
        return PartitionState(
            self.replicas,
            self.isr if change.isr is None else change.isr,
            self.leader if change.leader is None else change.leader,
            self.leader_epoch + (change.leader is not None),
            self.partition_epoch + 1,
            self.elr if change.elr is None else change.elr,
            self.last_leader if change.last_leader is None else change.last_leader,
            self.last_known_elr if change.last_known_elr is None else change.last_known_elr,
        )

    def assert_consistent(self) -> None:
        """What every change keeps: who leads is in sync, and nobody is in sync and eligible beside
        it (KIP-966)."""
        everybody = {*self.isr, *self.elr, *self.last_known_elr}
        assert everybody <= {*self.replicas}, f"{self} names brokers that have no replica"
        assert not {*self.isr} & {*self.elr}, f"{self} has members that are in sync and eligible"
        assert self.leader in (NO_LEADER, *self.isr), f"{self}: the leader is not in sync"


@dataclass(slots=True)
class TopicState:
    """A topic: partitions are numbered 0..n-1 in order."""

    name: str
    topic_id: str
    partitions: list[PartitionState] = field(default_factory=list)
    synced_since: int = -1
    """The offset of the change that made `flush` synced where it was not; -1: it always was, or is
    not. Who registered before it may hold records that it acknowledged and never synced."""

    def was_synced_from(self, broker_epoch: int) -> bool:
        """Whether `flush`, which is synced, was so all the time since that registration: then all
        that its process acknowledged was on its disk."""
        return self.synced_since < 0 or broker_epoch > self.synced_since


@dataclass(slots=True)
class ClusterImage:
    """The cluster as of `offset`, the *next* metadata offset to replay."""

    offset: int = 0
    brokers: dict[int, BrokerState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    topics_by_id: dict[str, TopicState] = field(default_factory=dict)
    contested: dict[tuple[str, int], int] = field(default_factory=dict, compare=False)
    """Partitions, by topic id and number, that others than the ISR may yet lead → the offset behind
    the last change of who that is, or of how many in sync are enough."""
    configs: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """(kind, name) → what is set on that resource."""
    next_producer_id: int = 0
    voters: tuple[Voter, ...] = ()
    """Who votes in the metadata quorum; empty while only the configuration says so."""
    quotas: dict[Entity, dict[str, int | float]] = field(default_factory=dict)
    """What users, clients and addresses may, by key."""
    users: dict[UserKey, Credential] = field(default_factory=dict)
    """What is kept of passwords."""
    users_version: int = field(default=0, compare=False)
    """Rises when a password is set or removed."""
    users_secret: bytes = field(default=b"", repr=False)
    """What answers about users that there are not rest on; empty while there never was one."""
    acls: dict[str, Acl] = field(default_factory=dict)
    """Who may do what, by the rules' ids."""
    acls_version: int = field(default=0, compare=False)
    """Rises when a rule comes or goes."""

    def replay(self, change: AnyChange, offset: int) -> None:
        """Apply the change at `offset`; asserts what a correct controller guarantees."""
        assert offset >= self.offset, f"replay of offset {offset} at {self.offset}"
        match change:
            case RegisterBroker():
                self._register(change, offset)
            case FenceBroker():
                self._set_broker(change, fenced=True, stopping=False)
            case UnfenceBroker():
                self._set_broker(change, fenced=False, stopping=False)
            case StopBroker():
                self._set_broker(change, fenced=False, stopping=True)
            case CreateTopic():
                assert change.topic not in self.topics, f"topic {change.topic} exists"
                topic = TopicState(change.topic, change.topic_id, synced_since=change.synced_since)
                self.topics[change.topic] = self.topics_by_id[change.topic_id] = topic
            case RemoveTopic():
                topic = self.topics_by_id.pop(change.topic_id)
                assert self.topics[topic.name] is topic, f"{change}: its name is another topic's"
                del self.topics[topic.name]
                for number in range(len(topic.partitions)):
                    self.contested.pop((topic.topic_id, number), None)
                self.configs.pop(("topic", topic.name), None)
            case CreatePartition():
                self._create_partition(change, offset)
            case ChangePartition():
                self._change_partition(change, offset)
            case SetConfig():
                self._set_config(change, offset)
            case SetVoters():
                self.voters = change.voters
            case SetQuota():
                holder = Entity(change.user, change.client_id, change.ip)
                _set_entry(self.quotas, holder, change.key, change.value)
            case SetUsersSecret():
                self.users_secret = change.secret
            case SetScramCredential():
                kept = (change.salt, change.stored_key, change.server_key, change.iterations)
                self.users[change.user, change.mechanism] = Credential(*kept)
                self.users_version += 1
            case RemoveScramCredential():
                del self.users[change.user, change.mechanism]
                self.users_version += 1
            case CreateAcl():
                assert change.id not in self.acls, f"rule {change.id} exists"
                self.acls[change.id] = _acl(change)
                self.acls_version += 1
            case RemoveAcl():
                del self.acls[change.id]
                self.acls_version += 1
            case AllocateProducerIds():
                assert change.next_id > self.next_producer_id, (
                    f"{change} after {self.next_producer_id}"
                )
                self.next_producer_id = change.next_id
            case _:
                assert_never(change)
        self.offset = offset + 1

    def reached(self, offset: int) -> None:
        """All below `offset` is in the image, also what changes nothing in it."""
        assert offset >= self.offset, f"{offset} after {self.offset}"
        self.offset = offset

    def _register(self, change: RegisterBroker, offset: int) -> None:
        epoch = offset if change.broker_epoch < 0 else change.broker_epoch
        assert epoch >= self.broker_epoch(change.broker), f"{change} goes back to an earlier epoch"
        self.brokers[change.broker] = BrokerState(
            change.broker,
            epoch,
            change.incarnation,
            change.host,
            change.port,
            change.rack,
            change.roles,
            fenced=change.fenced,
            stopping=change.stopping,
            clean=change.clean,
            directory=change.directory,
            served=change.served,
            keeps_runs=change.keeps_runs,
            internal=change.internal,
            features=change.features,
        )

    def _set_broker(
        self, change: FenceBroker | UnfenceBroker | StopBroker, *, fenced: bool, stopping: bool
    ) -> None:
        state = self.brokers[change.broker]
        assert state.epoch == change.broker_epoch, f"{change}, but its epoch is {state.epoch}"
        self.brokers[change.broker] = replace(
            state, fenced=fenced, stopping=stopping, served=state.served or not fenced
        )

    def _create_partition(self, change: CreatePartition, offset: int) -> None:
        topic = self.topics_by_id[change.topic_id]
        assert change.partition == len(topic.partitions), f"{change} after {len(topic.partitions)}"
        topic.partitions.append(
            PartitionState(
                change.replicas,
                change.isr,
                change.leader,
                change.leader_epoch,
                change.partition_epoch,
                change.elr,
                change.last_leader,
                change.last_known_elr,
            )
        )
        topic.partitions[-1].assert_consistent()
        self._note_contested(change, topic.partitions[-1], offset)

    def _change_partition(self, change: ChangePartition, offset: int) -> None:
        topic = self.topics_by_id[change.topic_id]
        changed = topic.partitions[change.partition].changed(change)
        changed.assert_consistent()
        topic.partitions[change.partition] = changed
        self._note_contested(change, changed, offset)

    def _note_contested(
        self, change: CreatePartition | ChangePartition, state: PartitionState, offset: int
    ) -> None:
        if state.is_contested:
            self.contested[change.topic_id, change.partition] = offset + 1
        else:
            self.contested.pop((change.topic_id, change.partition), None)

    def _set_config(self, change: SetConfig, offset: int) -> None:
        concerned = self.topics.values() if change.key == FLUSH.name else ()
        # A topic that has no partitions yet is just being made: nobody holds anything of it.
        unsynced = [t for t in concerned if t.partitions and not self._is_synced(t)]
        _set_entry(self.configs, (change.kind, change.name), change.key, change.value)
        for topic in unsynced:
            if self._is_synced(topic):
                topic.synced_since = offset
        if change.key == MIN_ISR.name:
            for topic_id, number in self.contested:
                if change.name in ("", self.topics_by_id[topic_id].name):
                    self.contested[topic_id, number] = offset + 1

    def _is_synced(self, topic: TopicState) -> bool:
        """Whether the metadata says so: without a record each node went by its own file."""
        return self.topic_settings(topic.name).get(FLUSH.name) == SYNCED

    def is_active(self, broker: int) -> bool:
        """Registered, not fenced, and not about to stop: it may lead."""
        state = self.brokers.get(broker)
        return state is not None and not state.fenced and not state.stopping

    def has_others_than(self, broker: int) -> bool:
        """Whether another broker may lead and join an ISR."""
        return any(self.is_active(each) for each in self.brokers if each != broker)

    def contested_of(self, broker: int) -> Iterator[tuple[TopicState, int, int]]:
        """The contested partitions that a broker is in sync in: topic, number, and since when, as
        in `contested`."""
        for (topic_id, number), since in self.contested.items():
            topic = self.topics_by_id[topic_id]
            if broker in topic.partitions[number].isr:
                yield topic, number, since

    def broker_epoch(self, broker: int) -> int:
        """The epoch of a broker's registration, -1 if it has none."""
        state = self.brokers.get(broker)
        return -1 if state is None else state.epoch

    def feature_levels(self) -> dict[str, int]:
        """Up to which level every registered broker knows each feature, fenced or not."""
        return lowest_levels(state.features for state in self.brokers.values())

    def topic_config(self, topic: str) -> dict[str, str]:
        """What is set on a topic."""
        return self.configs.get(("topic", topic), {})

    @property
    def cluster_config(self) -> dict[str, str]:
        """What is set for all topics that do not say themselves."""
        return self.configs.get(CLUSTER, {})

    def topic_settings(self, topic: str) -> dict[str, str]:
        """What the metadata says of a topic's keys: its own values over those of the cluster."""
        return {**self.cluster_config, **self.topic_config(topic)}

    def setting(self, topic: str, key: Key[T]) -> T:
        """One of the keys that the whole cluster must agree about (`CLUSTER_KEYS`)."""
        return key.value(self.topic_settings(topic).get(key.name, key.default))

    # -- snapshots -------------------------------------------------------------------------------

    def changes(self) -> list[Change]:
        """Changes that make an equal image out of an empty one, but for its offset."""
        found: list[Change] = [SetVoters(voters=self.voters)] if self.voters else []
        found += [_registration(state) for state in self.brokers.values()]
        # Before the topics: what they were set to says nothing of when.
        for (kind, name), entries in self.configs.items():
            found += [
                SetConfig(kind=kind, name=name, key=key, value=value)
                for key, value in entries.items()
            ]
        for topic in self.topics.values():
            found.append(
                CreateTopic(
                    topic=topic.name, topic_id=topic.topic_id, synced_since=topic.synced_since
                )
            )
            found += [
                CreatePartition(
                    topic_id=topic.topic_id,
                    partition=number,
                    replicas=state.replicas,
                    isr=state.isr,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    elr=state.elr,
                    last_leader=state.last_leader,
                    last_known_elr=state.last_known_elr,
                )
                for number, state in enumerate(topic.partitions)
            ]
        found += [
            SetQuota(key=key, value=value, **holder._asdict())
            for holder, entries in self.quotas.items()
            for key, value in entries.items()
        ]
        if self.users_secret:
            found.append(SetUsersSecret(secret=self.users_secret))
        found += [
            SetScramCredential(user=user, mechanism=mechanism, **credential._asdict())
            for (user, mechanism), credential in self.users.items()
        ]
        found += [CreateAcl(id=number, **acl._asdict()) for number, acl in self.acls.items()]
        if self.next_producer_id:
            found.append(AllocateProducerIds(next_id=self.next_producer_id))
        return found

    @classmethod
    def of_snapshot(cls, changes: Iterable[AnyChange], end_offset: int) -> ClusterImage:
        """The image of a snapshot of everything below `end_offset`."""
        image = cls()
        for change in changes:
            image.replay(change, 0)
            image.offset = 0
        image.offset = end_offset
        image.contested = dict.fromkeys(image.contested, end_offset)
        return image

    def copy(self) -> ClusterImage:
        """An image of its own; what it is made of is never changed in place but for topics."""
        topics = {
            name: replace(topic, partitions=list(topic.partitions))
            for name, topic in self.topics.items()
        }
        return ClusterImage(
            offset=self.offset,
            brokers=dict(self.brokers),
            topics=topics,
            topics_by_id={topic.topic_id: topic for topic in topics.values()},
            contested=dict(self.contested),
            configs={resource: dict(entries) for resource, entries in self.configs.items()},
            next_producer_id=self.next_producer_id,
            voters=self.voters,
            quotas={holder: dict(entries) for holder, entries in self.quotas.items()},
            users=dict(self.users),
            users_version=self.users_version,
            users_secret=self.users_secret,
            acls=dict(self.acls),
        )


def _set_entry(table: dict[H, dict[str, V]], holder: H, key: str, value: V | None) -> None:
    """Set what a holder has by this key, or with None unset it; who has nothing is not there."""
    entries = table.setdefault(holder, {})
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
    if not entries:
        del table[holder]


def _acl(change: CreateAcl) -> Acl:
    return Acl(
        Resource(change.resource),
        change.name,
        Pattern(change.pattern),
        change.principal,
        change.host,
        Operation(change.operation),
        Permission(change.permission),
    )


def _registration(state: BrokerState) -> RegisterBroker:
    return RegisterBroker(
        broker=state.broker,
        incarnation=state.incarnation,
        host=state.host,
        port=state.port,
        rack=state.rack,
        roles=state.roles,
        clean=state.clean,
        directory=state.directory,
        broker_epoch=state.epoch,
        fenced=state.fenced,
        stopping=state.stopping,
        served=state.served,
        keeps_runs=state.keeps_runs,
        internal=state.internal,
        features=dict(state.features),
    )


def differences(old: ClusterImage, new: ClusterImage) -> list[AnyChange]:
    """Changes that concern whatever differs: who follows the metadata by changes, and got a
    snapshot instead, is to look at these again in `new`."""
    found: list[AnyChange] = [
        RemoveTopic(topic_id=topic_id)
        for topic_id in old.topics_by_id
        if topic_id not in new.topics_by_id
    ]
    for topic in new.topics.values():
        before = old.topics_by_id.get(topic.topic_id)
        partitions = before.partitions if before is not None else []
        for number, state in enumerate(topic.partitions):
            if number >= len(partitions) or partitions[number] != state:
                found.append(ChangePartition(topic_id=topic.topic_id, partition=number))
        if old.topic_settings(topic.name) != new.topic_settings(topic.name):
            found.append(SetConfig(kind="topic", name=topic.name, key="", value=None))
    return found
