"""The controller: a request becomes (changes, reply), or a refusal. It changes nothing itself.
Pure.

Every handler reads the image of everything appended so far and returns the changes to append to the
metadata log together with the reply that may be sent once they are committed. Replicas are placed
in stripes, leaders are chosen in the order of the assignment, fencing a broker moves what it led.
Sources: KIP-631, KIP-841, KIP-966.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from hightide.protocol import access_messages as a
from hightide.protocol import controller_messages as c
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker.core.cluster import acl_changes, offsets_topic, quotas, users
from hightide_broker.core.cluster.brokers import Brokers
from hightide_broker.core.cluster.changes import (
    AllocateProducerIds,
    AnyChange,
    CreatePartition,
    CreateTopic,
    RemoveTopic,
    SetConfig,
    SetUsersSecret,
)
from hightide_broker.core.cluster.image import CLUSTER, ClusterImage, TopicState
from hightide_broker.core.cluster.mutations import Take, unlimited
from hightide_broker.core.cluster.names import check_topic_form, no_topic
from hightide_broker.core.cluster.partitions import Partitions
from hightide_broker.core.cluster.topic_config import check_topic_configs, unknown_key
from hightide_broker.core.cluster.topic_keys import CLUSTER_KEYS, POLICY, TOPIC_KEYS
from hightide_broker.core.quorum.leader import METADATA_TOPIC

EMPTY: Mapping[str, str] = MappingProxyType({})
PRODUCER_ID_BLOCK = 1000
PARTITIONS_MAX = 10_000
"""Partitions of one topic, and of one request: what a few bytes can create."""


class Decision(NamedTuple):
    """What to append to the metadata log, and what to answer once that is committed."""

    changes: list[AnyChange]
    reply: m.Message


class Controller:
    """Decisions over one image."""

    def __init__(
        self,
        image: ClusterImage,
        *,
        cluster_id: str,
        default_partitions: int,
        default_replication: int,
        topic_defaults: Mapping[str, str] = EMPTY,
        session_timeout_s: float = 9.0,
    ) -> None:
        self.partitions = Partitions(image, topic_defaults)
        self.brokers = Brokers(
            image, self.partitions, cluster_id=cluster_id, session_timeout_s=session_timeout_s
        )
        self._image = image
        self._default_partitions = default_partitions
        self._default_replication = default_replication

    # -- brokers and partitions --------------------------------------------------------------------

    def register_broker(self, request: c.RegisterBrokerRequest, now: float) -> Decision:
        """A broker process announces itself. The reply's epoch is set once the offset is known."""
        return Decision(*self.brokers.register(request, now))

    def broker_heartbeat(self, request: c.BrokerHeartbeatRequest, now: float) -> Decision:
        """A broker says that it is alive and what it wants."""
        return Decision(*self.brokers.heartbeat(request, now))

    def alter_partition(self, request: c.AlterPartitionRequest) -> Decision:
        """A leader wants another ISR for its partitions."""
        self.brokers.check(request.broker, request.broker_epoch)
        changes, results = self.partitions.alter(request)
        return Decision(changes, c.AlterPartitionResponse(partitions=results))

    def elect_leaders(self, request: m.ElectLeadersRequest, now: float) -> Decision:
        """Other leaders for partitions, as somebody asks: the preferred ones, or any that live."""
        changes, results = self.partitions.elect(request, self.brokers.who_is_well(now))
        return Decision(changes, m.ElectLeadersResponse(partitions=results))

    # -- topics ------------------------------------------------------------------------------------

    def create_topics(
        self,
        request: m.CreateTopicsRequest,
        *,
        new_id: Callable[[], str],
        shift: Callable[[int], int],
        take: Take = unlimited,
    ) -> Decision:
        """Create topics; each one succeeds or fails by itself.

        `new_id` draws a topic id, `shift(n)` a number below n: where the placement starts; `take`
        is what its sender may create.
        """
        take = unlimited if request.validate_only else take
        changes: list[AnyChange] = []
        results: list[m.TopicResult] = []
        taken = set(self._image.topics)
        names = Counter(topic.topic for topic in request.topics)
        room = PARTITIONS_MAX
        for topic in request.topics:
            if names[topic.topic] > 1:
                results.append(_named_twice(topic.topic))
                continue
            try:
                check_topic_name(topic.topic, taken)
                check_topic_configs(topic.configs)
                offsets_topic.check_configs(topic.topic, {POLICY.name: None, **topic.configs})
                assignment = self._assignment(topic, shift)
                room = _take_room(room, len(assignment))
                # Last: what is refused for any other reason uses up nobody's quota.
                take(len(assignment))
            except Refused as refusal:
                results.append(_refused(topic.topic, refusal))
                continue
            taken.add(topic.topic)
            topic_id = new_id()
            changes.append(CreateTopic(topic=topic.topic, topic_id=topic_id))
            changes += [
                SetConfig(kind="topic", name=topic.topic, key=key, value=value)
                for key, value in topic.configs.items()
            ]
            changes += self._new_partitions(topic_id, 0, assignment)
            results.append(
                m.TopicResult(
                    topic=topic.topic,
                    topic_id=topic_id,
                    partitions=len(assignment),
                    replication_factor=len(assignment[0]),
                )
            )
        reply = m.CreateTopicsResponse(topics=results)
        return Decision([] if request.validate_only else changes, reply)

    def _assignment(self, topic: m.NewTopic, shift: Callable[[int], int]) -> list[tuple[int, ...]]:
        if topic.assignment is not None:
            if (topic.partitions, topic.replication_factor) != (-1, -1):
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {topic.topic!r}: an assignment excludes partitions and factor",
                )
            return self._check_assignment(topic.assignment)
        count = self._default_partitions if topic.partitions == -1 else topic.partitions
        check_partition_count(count)
        factor = (
            self._default_replication
            if topic.replication_factor == -1
            else topic.replication_factor
        )
        return self._place(0, count, factor, shift)

    def _more(
        self, more: m.MorePartitions, have: int, factor: int, shift: Callable[[int], int]
    ) -> list[tuple[int, ...]]:
        """Where the new partitions of a topic lie that has so many, of so many replicas."""
        count = more.count - have
        if more.assignment is None:
            return self._place(have, count, factor, shift)
        if len(more.assignment) != count or len(more.assignment[0]) != factor:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"an assignment of {counted(len(more.assignment), 'partition')}, expected one for "
                f"each of {count} new ones, with {counted(factor, 'replica')} as topic "
                f"{more.topic} has",
            )
        return self._check_assignment(more.assignment)

    def _check_assignment(self, assignment: list[list[int]]) -> list[tuple[int, ...]]:
        check_partition_count(len(assignment))
        for replicas in assignment:
            unknown = [b for b in replicas if b not in self._image.brokers]
            if not replicas or len(set(replicas)) != len(replicas) or unknown:
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"replicas {replicas}: each broker once, registered ones only",
                )
            if len(replicas) != len(assignment[0]):
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"replicas {replicas} and {assignment[0]}: one replication factor for all",
                )
            if not any(self._image.is_active(b) for b in replicas):
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"no broker of {replicas} is active"
                )
        return [tuple(replicas) for replicas in assignment]

    def _place(
        self, first: int, count: int, factor: int, shift: Callable[[int], int]
    ) -> list[tuple[int, ...]]:
        """Partition i starts at broker (i + shift) mod n, its other replicas follow; brokers that
        are down come after all that are not."""
        brokers = sorted(b for b in self._image.brokers if self._image.is_active(b))
        down = sorted(b for b in self._image.brokers if not self._image.is_active(b))
        if not brokers or not 1 <= factor <= len(brokers) + len(down):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}, expected 1 to {len(brokers) + len(down)} (the "
                f"registered brokers, of which {len(brokers)} are active)",
            )
        start = shift(len(brokers))
        return [
            tuple(brokers[(i + start + r) % len(brokers)] for r in range(len(brokers)))[:factor]
            + tuple(down[(i + r) % len(down)] for r in range(factor - len(brokers)))
            for i in range(first, first + count)
        ]

    def _new_partitions(
        self, topic_id: str, first: int, assignment: Sequence[tuple[int, ...]]
    ) -> list[AnyChange]:
        changes: list[AnyChange] = []
        for number, replicas in enumerate(assignment, first):
            isr = tuple(b for b in replicas if self._image.is_active(b))
            changes.append(
                CreatePartition(
                    topic_id=topic_id, partition=number, replicas=replicas, isr=isr, leader=isr[0]
                )
            )
        return changes

    def delete_topics(self, request: m.DeleteTopicsRequest, take: Take = unlimited) -> Decision:
        """Delete topics by name; `take` is what its sender may delete."""
        changes: list[AnyChange] = []
        results = []
        for name in dict.fromkeys(request.topics):
            topic = self._image.topics.get(name)
            if topic is None:
                results.append(_unknown_topic(name))
                continue
            try:
                _check_id(topic, request.ids.get(name, topic.topic_id))
                take(len(topic.partitions))
            except Refused as refusal:
                results.append(_refused(name, refusal))
                continue
            changes.append(RemoveTopic(topic_id=topic.topic_id))
            results.append(m.TopicResult(topic=name, topic_id=topic.topic_id))
        return Decision(changes, m.DeleteTopicsResponse(topics=results))

    def create_partitions(
        self,
        request: m.CreatePartitionsRequest,
        *,
        shift: Callable[[int], int],
        take: Take = unlimited,
    ) -> Decision:
        """Give topics more partitions; keyed records move to other partitions from then on. `take`
        is what its sender may create."""
        take = unlimited if request.validate_only else take
        changes: list[AnyChange] = []
        results = []
        names = Counter(more.topic for more in request.topics)
        room = PARTITIONS_MAX
        for more in request.topics:
            topic = self._image.topics.get(more.topic)
            if topic is None:
                results.append(_unknown_topic(more.topic))
                continue
            if names[more.topic] > 1:
                results.append(_named_twice(more.topic))
                continue
            have = len(topic.partitions)
            try:
                offsets_topic.check_more_partitions(more.topic)
                check_partition_count(more.count)
                if more.count <= have:
                    raise Refused(
                        ErrorCode.INVALID_PARTITIONS,
                        f"topic {more.topic} has {counted(have, 'partition')}, "
                        f"{more.count} is not more",
                    )
                room = _take_room(room, more.count - have)
                factor = len(topic.partitions[0].replicas)
                assignment = self._more(more, have, factor, shift)
                take(more.count - have)
            except Refused as refusal:
                results.append(_refused(more.topic, refusal))
                continue
            changes += self._new_partitions(topic.topic_id, have, assignment)
            results.append(
                m.TopicResult(
                    topic=more.topic,
                    topic_id=topic.topic_id,
                    partitions=more.count,
                    replication_factor=factor,
                )
            )
        reply = m.CreatePartitionsResponse(topics=results)
        return Decision([] if request.validate_only else changes, reply)

    # -- configs and producer ids ------------------------------------------------------------------

    def alter_configs(self, request: m.AlterConfigsRequest) -> Decision:
        """Set and unset configuration keys of topics."""
        changes: list[AnyChange] = []
        results = []
        for resource in request.resources:
            try:
                changes += self._config_changes(resource)
                results.append(m.ConfigResult(kind=resource.kind, name=resource.name))
            except Refused as refusal:
                results.append(
                    m.ConfigResult(
                        kind=resource.kind,
                        name=resource.name,
                        error=refusal.code,
                        message=refusal.message,
                    )
                )
        reply = m.AlterConfigsResponse(resources=results)
        return Decision([] if request.validate_only else changes, reply)

    def _config_changes(self, resource: m.ConfigChange) -> list[AnyChange]:
        if resource.kind == "cluster":
            return self._cluster_changes(resource)
        if resource.kind != "topic":
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"configs of a {resource.kind} cannot be altered while it runs, only those of a "
                f"topic, or of the cluster for all topics that do not say themselves",
            )
        if resource.name not in self._image.topics:
            raise no_topic(resource.name)
        check_topic_configs(resource.set)
        for key in resource.unset:
            if key not in TOPIC_KEYS:
                raise Refused(ErrorCode.INVALID_CONFIG, unknown_key(key, TOPIC_KEYS))
        changed: dict[str, str | None] = {**resource.set, **dict.fromkeys(resource.unset)}
        offsets_topic.check_configs(resource.name, changed)
        changes: list[AnyChange] = [
            SetConfig(kind="topic", name=resource.name, key=key, value=value)
            for key, value in changed.items()
        ]
        return changes

    def _cluster_changes(self, resource: m.ConfigChange) -> list[AnyChange]:
        """Defaults of the whole cluster; unset: the built-in one, for all nodes alike."""
        for key in (*resource.set, *resource.unset):
            if key not in CLUSTER_KEYS:
                raise Refused(
                    ErrorCode.INVALID_CONFIG,
                    f"{key!r} is no default of the cluster, expected one of "
                    f"{', '.join(CLUSTER_KEYS)}: others are each broker's, or a topic's",
                )
        check_topic_configs(resource.set)
        kind, name = CLUSTER
        changed = {**resource.set, **{key: CLUSTER_KEYS[key].default for key in resource.unset}}
        changes: list[AnyChange] = [
            SetConfig(kind=kind, name=name, key=key, value=value) for key, value in changed.items()
        ]
        return changes

    def alter_users(
        self, request: u.AlterUserScramCredentialsRequest, new_secret: Callable[[], bytes]
    ) -> Decision:
        """Passwords of users."""
        image = self._image
        lacking = None if image.users_secret else new_secret
        return Decision(*users.alter(image.users, request, lacking))

    def alter_quotas(self, request: k.AlterClientQuotasRequest) -> Decision:
        """How much users and clients may send and read."""
        changes, reply = quotas.alter(self._image.quotas, request, self._image.feature_levels())
        return Decision([] if request.validate_only else changes, reply)

    def first_users(
        self, made: Sequence[AnyChange], new_secret: Callable[[], bytes]
    ) -> list[AnyChange]:
        """Those that a directory was made with, if there never was a user."""
        if not made or self._image.users_secret:
            return []
        return [SetUsersSecret(secret=new_secret()), *made]

    def create_acls(self, request: a.CreateAclsRequest, new_id: Callable[[], str]) -> Decision:
        """Rules about who may do what."""
        return Decision(*acl_changes.create(self._image.acls, request, new_id))

    def delete_acls(self, request: a.DeleteAclsRequest) -> Decision:
        """Those that are not wanted any more."""
        return Decision(*acl_changes.delete(self._image.acls, request))

    def allocate_producer_ids(self, request: c.AllocateProducerIdsRequest) -> Decision:
        """Hand a broker a block of producer ids; none is ever handed out twice."""
        self.brokers.check(request.broker, request.broker_epoch)
        first = self._image.next_producer_id
        return Decision(
            [AllocateProducerIds(next_id=first + PRODUCER_ID_BLOCK)],
            c.AllocateProducerIdsResponse(first=first, count=PRODUCER_ID_BLOCK),
        )


def _take_room(room: int, count: int) -> int:
    """What is left of the partitions that one request may create."""
    if count > room:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"{counted(count, 'partition')} more in one request, which may create "
            f"{PARTITIONS_MAX} in all",
        )
    return room - count


def check_topic_name(name: str, taken: set[str]) -> None:
    """Raise `Refused` unless `name` is allowed and clashes with none of `taken`.

    `.` and `_` clash with each other, because names become parts of metric names, where they merge.
    """
    check_topic_form(name)
    if name == METADATA_TOPIC:
        raise Refused(ErrorCode.INVALID_TOPIC, f"topic name {name!r} is the cluster's own")
    if name in taken:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
    merged = name.replace(".", "_")
    if "_" in merged:
        for other in sorted(taken):
            if other.replace(".", "_") == merged:
                raise Refused(
                    ErrorCode.INVALID_TOPIC,
                    f"topic name {name!r} clashes with {other!r}: '.' and '_' count as the same",
                )


def check_partition_count(count: int) -> None:
    """Raise `Refused` INVALID_PARTITIONS unless a topic may have so many."""
    if not 1 <= count <= PARTITIONS_MAX:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"{counted(count, 'partition')}, expected 1 to {PARTITIONS_MAX}",
        )


def _refused(name: str, refusal: Refused) -> m.TopicResult:
    return m.TopicResult(
        topic=name,
        error=refusal.code,
        message=refusal.message,
        throttle_time_ms=refusal.throttle_time_ms,
    )


def _check_id(topic: TopicState, topic_id: str) -> None:
    """Raise `Refused` unless a topic is the one that is meant."""
    if topic.topic_id != topic_id:
        raise Refused(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"{topic.name!r} is another topic now than the one with the id {topic_id!r}",
        )


def _unknown_topic(name: str) -> m.TopicResult:
    return m.TopicResult(
        topic=name,
        error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        message=f"topic {name!r} does not exist",
    )


def _named_twice(name: str) -> m.TopicResult:
    return m.TopicResult(
        topic=name,
        error=ErrorCode.INVALID_REQUEST,
        message=f"topic {name!r} is named more than once in the request",
    )
