"""Requests about the cluster: metadata, topics, configs, producer ids, descriptions.

What changes the cluster goes to the controller, and is answered only after this broker has applied
it: a topic that was created can be used at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import node_messages as n
from hightide.protocol import producer_messages as p
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.image import CLUSTER, NO_LEADER, ClusterImage, TopicState
from hightide_broker.core.cluster.leaderless import why_nobody_leads
from hightide_broker.core.cluster.names import no_topic
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.cluster.topic_keys import CLUSTER_KEYS, TOPIC_KEYS
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.base.call import Call, Later, Peer, Reply
from hightide_broker.runtime.base.trace import Trace
from hightide_broker.runtime.base.usage import Usage
from hightide_broker.runtime.quorum.described import as_known, log_of
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.trace.ring import KINDS, Place

PRODUCER_IDS_WAIT_S = 5.0
"""How long a producer waits for its id here: another broker may reach the controller."""
DESCRIBE_QUORUM_WAIT_S = 3.0
"""Who asks how the quorum is wants to hear that nobody leads it, before an own patience ends."""
MISSED_LEADER_WAIT_S = 1.0
"""Who is content with what one broker knows waits no longer, if that broker hears of no leader."""


class Metadata(Protocol):
    """What the node knows of the cluster, and its way to the controller."""

    cluster_id: str

    @property
    def image(self) -> ClusterImage: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def controller_id(self) -> int: ...

    async def change(
        self, request: m.Message, *, timeout_s: float | None = None, sender: Peer | None = None
    ) -> m.Message:
        """Have the controller decide for who sent it; returns once this broker has applied it.
        Raises `Refused`."""
        ...


class AdminHandlers:
    """Everything that is not about records."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        *,
        broker: int,
        config: BrokerConfig,
        disk: Disk,
        quorum: QuorumDriver,
        usage: Usage,
        trace: Trace,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._broker = broker
        self._config = config
        self._disk = disk
        self._quorum = quorum
        self._usage = usage
        self._trace = trace
        self._producer_ids = range(0)

    # -- metadata --------------------------------------------------------------------------------

    def metadata(self, call: Call[m.MetadataRequest]) -> Reply | Later:
        """Brokers and topics; may make topics that are missing, if the configuration says so."""
        request = call.request
        named = dict.fromkeys(request.topics or ())
        missing = [name for name in named if name not in self._metadata.image.topics]
        allowed = self._config[keys.AUTO_CREATE_TOPICS_ENABLE]
        if missing and allowed and request.auto_create:
            return partial(self._create_and_describe, call, missing)
        return self._describe_metadata(request, {})

    async def _create_and_describe(
        self, call: Call[m.MetadataRequest], missing: list[str]
    ) -> Reply:
        new = m.CreateTopicsRequest(topics=[m.NewTopic(topic=name) for name in missing])
        reply = await self._metadata.change(new, sender=call.sender)
        assert isinstance(reply, m.CreateTopicsResponse)
        refused = {
            result.topic: (result.error, result.message) for result in reply.topics if result.error
        }
        return self._describe_metadata(call.request, refused)

    def _describe_metadata(
        self, request: m.MetadataRequest, refused: Mapping[str, tuple[str, str]]
    ) -> Reply:
        image = self._metadata.image
        names = sorted(image.topics) if request.topics is None else dict.fromkeys(request.topics)
        topics = []
        for name in names:
            topic = image.topics.get(name)
            if topic is None:
                why = no_topic(name)
                error, message = refused.get(name, (why.code, why.message))
                topics.append(m.TopicMetadata(topic=name, error=error, message=message))
            else:
                topics.append(_topic_metadata(topic, image))
        return Reply(
            m.MetadataResponse(
                cluster_id=self._metadata.cluster_id,
                controller=self._metadata.controller_id,
                brokers=self._brokers(only_active=True),
                topics=topics,
                metadata_offset=image.offset,
            )
        )

    def _brokers(self, *, only_active: bool) -> list[m.BrokerInfo]:
        return [
            m.BrokerInfo(
                id=state.broker,
                host=state.host,
                port=state.port,
                rack=state.rack,
                roles=list(state.roles),
                fenced=state.fenced,
                epoch=state.epoch,
            )
            for state in self._metadata.image.brokers.values()
            if not (only_active and state.fenced)
        ]

    def describe_cluster(self) -> Reply:
        """Every registered broker, fenced ones too."""
        return Reply(
            m.DescribeClusterResponse(
                cluster_id=self._metadata.cluster_id,
                controller=self._metadata.controller_id,
                brokers=self._brokers(only_active=False),
            )
        )

    def describe_node(self) -> Reply:
        """What this process has used."""
        return Reply(n.DescribeNodeResponse(node=self._broker, **self._usage()._asdict()))

    def describe_metadata_log(self) -> Reply:
        """What this node itself has of the metadata log."""
        quorum = self._quorum
        return Reply(log_of(self._broker, quorum.metadata, quorum.core.high_watermark))

    async def read_trace(self, call: Call[n.ReadTraceRequest]) -> Reply:
        """What happened on this node, as far as it is kept."""
        request = call.request
        if request.kind not in KINDS or min(request.file, request.position) < 0:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"kind {request.kind!r}, expected one of {KINDS}, at a place from 0 on",
            )
        try:
            place = Place(request.file, request.position)
            lines, place = await self._trace.piece(request.kind, place)
        except DiskError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return Reply(n.ReadTraceResponse(node=self._broker, lines=lines, **place._asdict()))

    def describe_log_dirs(self, call: Call[m.DescribeLogDirsRequest]) -> Reply:
        """This broker's replicas with their offsets and sizes."""
        wanted = call.request.topics
        infos = [
            self._describe(replica)
            for replica in self._replicas
            if wanted is None or replica.topic in wanted
        ]
        path = self._replicas.directory
        try:
            free = self._disk.free_bytes(path)
        except DiskError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return Reply(
            m.DescribeLogDirsResponse(
                broker=self._broker, path=path, replicas=infos, free_bytes=free
            )
        )

    def _describe(self, replica: Replica) -> m.ReplicaInfo:
        if replica.offline:
            return m.ReplicaInfo(
                topic=replica.topic,
                partition=replica.partition,
                size_bytes=-1,
                log_start_offset=-1,
                log_end_offset=-1,
                high_watermark=-1,
                error=replica.offline,
            )
        log = replica.log
        return m.ReplicaInfo(
            topic=replica.topic,
            partition=replica.partition,
            size_bytes=log.size_bytes,
            log_start_offset=log.log_start,
            log_end_offset=log.log_end,
            high_watermark=replica.high_watermark,
            synced_offset=log.synced_end,
            leader_epoch=replica.leader_epoch,
            waits_for_room=self._replicas.troubles.waits_for_room(replica.tp),
        )

    # -- changes ---------------------------------------------------------------------------------

    async def change(self, call: Call[m.Message]) -> Reply:
        """Topics, configs and voters: the controller decides."""
        return Reply(await self._metadata.change(call.request, sender=call.sender))

    async def describe_quorum(self, call: Call[q.DescribeQuorumRequest]) -> Reply:
        """The quorum as its leader sees it, or that nobody leads it."""
        may_be_told = call.request.even_without_leader
        is_missed = may_be_told and self._metadata.controller_id == NOBODY
        wait_s = MISSED_LEADER_WAIT_S if is_missed else DESCRIBE_QUORUM_WAIT_S
        try:
            found = await self._metadata.change(call.request, timeout_s=wait_s, sender=call.sender)
        except Refused as refusal:
            is_told = may_be_told and self._metadata.controller_id == NOBODY
            if refusal.code is not ErrorCode.REQUEST_TIMED_OUT or not is_told:
                raise
            found = as_known(self._quorum.core, self._metadata.cluster_id)
        return Reply(found)

    def init_producer_id(self) -> Reply | Later:
        """A producer id that nobody has had before, epoch 0."""
        if self._producer_ids:
            return self._next_producer_id()
        return self._refill_producer_ids

    async def _refill_producer_ids(self) -> Reply:
        request = c.AllocateProducerIdsRequest(
            broker=self._broker, broker_epoch=self._metadata.broker_epoch
        )
        reply = await self._metadata.change(request, timeout_s=PRODUCER_IDS_WAIT_S)
        assert isinstance(reply, c.AllocateProducerIdsResponse)
        # Two of these may have run at once: keep whichever block is not used up.
        if not self._producer_ids:
            self._producer_ids = range(reply.first, reply.first + reply.count)
        return self._next_producer_id()

    def _next_producer_id(self) -> Reply:
        producer_id, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return Reply(p.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    # -- configs ---------------------------------------------------------------------------------

    def describe_configs(self, call: Call[m.DescribeConfigsRequest]) -> Reply:
        """Every key of a topic or of this broker, with its value and where it comes from."""
        results = []
        for resource in call.request.resources:
            try:
                entries = self._config_entries(resource)
                results.append(
                    m.ConfigResult(kind=resource.kind, name=resource.name, entries=entries)
                )
            except Refused as refusal:
                results.append(
                    m.ConfigResult(
                        kind=resource.kind,
                        name=resource.name,
                        error=refusal.code,
                        message=refusal.message,
                    )
                )
        return Reply(m.DescribeConfigsResponse(resources=results))

    def _config_entries(self, resource: m.ConfigResource) -> list[m.ConfigEntry]:
        if resource.kind == "topic":
            return self._topic_entries(resource.name)
        if (resource.kind, resource.name) == CLUSTER:
            return self._cluster_entries()
        if resource.kind == "broker" and resource.name == str(self._broker):
            return [
                m.ConfigEntry(
                    name=key.name,
                    value=self._config.values[key.name],
                    default=key.name not in self._config.given,
                    read_only=True,
                    doc=key.doc,
                )
                for key in keys.KEYS.values()
            ]
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"{resource.kind} {resource.name!r}, expected a topic, broker {self._broker}, or the "
            f"cluster, which has no name",
        )

    def _cluster_entries(self) -> list[m.ConfigEntry]:
        """What holds for all topics that do not say themselves."""
        known = self._metadata.image.cluster_config
        return [
            m.ConfigEntry(
                name=key.name,
                value=known.get(key.name, key.default),
                default=known.get(key.name, key.default) == key.default,
                doc=key.doc,
            )
            for key in CLUSTER_KEYS.values()
        ]

    def _topic_entries(self, topic: str) -> list[m.ConfigEntry]:
        if topic not in self._metadata.image.topics:
            raise no_topic(topic)
        set_here = self._metadata.image.topic_config(topic)
        in_metadata = self._metadata.image.topic_settings(topic)
        config = TopicConfig.of(in_metadata, self._config.topic_defaults())
        return [
            m.ConfigEntry(
                name=key.name,
                value=config.values[key.name],
                default=key.name not in set_here,
                doc=key.doc,
            )
            for key in TOPIC_KEYS.values()
        ]


def _topic_metadata(topic: TopicState, image: ClusterImage) -> m.TopicMetadata:
    partitions = [
        m.PartitionMetadata(
            partition=number,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            replicas=list(state.replicas),
            isr=list(state.isr),
            elr=list(state.elr),
            last_known_elr=list(state.last_known_elr),
            last_leader=state.last_leader,
            message=why_nobody_leads(f"{topic.name}-{number}", state, image.is_active),
            error=ErrorCode.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else None,
        )
        for number, state in enumerate(topic.partitions)
    ]
    return m.TopicMetadata(
        topic=topic.name,
        topic_id=topic.topic_id,
        internal=topic.name.startswith("__"),
        partitions=partitions,
    )
