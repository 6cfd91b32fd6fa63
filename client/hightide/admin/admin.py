"""Admin: topics, partitions, configs and descriptions of the cluster, typed.

Every method raises `ApiError` when the cluster refuses, with the first refusal if there are
several, and `BrokerUnreachable` or `RequestTimedOut` when nobody answers within
default_api_timeout_ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import trio

from hightide.admin.access_admin import AccessAdmin
from hightide.admin.descriptions import (
    TRACE_START,
    ClusterDescription,
    ConfigEntry,
    CreatedTopic,
    ElectionResult,
    LogDirDescription,
    MetadataLogDescription,
    NodeDescription,
    QuorumDescription,
    TopicDescription,
    TracePlace,
    described,
)
from hightide.admin.group_admin import GroupAdmin
from hightide.admin.options import AdminOptions
from hightide.consume.subscription import OffsetAndTimestamp, checked_places
from hightide.net.any_broker import Address
from hightide.net.background import ki_protected, start
from hightide.net.cluster import (
    Cluster,
    closed,
    first_refusal,
    only,
    open_cluster,
)
from hightide.net.options import from_config, taking
from hightide.protocol import messages as m
from hightide.protocol import node_messages as n
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ApiError, ErrorCode, HightideError, UsageError, whole
from hightide.protocol.topic_partition import INTERNAL, TopicPartition

EACH_BROKER_S = 3.0
"""How long one broker among all may take to answer."""


def raise_first(results: Iterable[Any], *, broker: str) -> None:
    """Raise the first refusal among `results` as `ApiError`; `broker` is who answered."""
    if (refusal := first_refusal(results)) is not None:
        refusal.broker = broker
        raise refusal


class Admin(GroupAdmin, AccessAdmin):
    """Use it as `async with Admin(…) as admin`; the arguments are those of `AdminOptions`."""

    @taking(AdminOptions)
    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        self._timeout_s = options.default_api_timeout_ms / 1000
        self._cluster: Cluster | None = None
        self._voters: dict[int, Address] = {}
        """Where voters listen, as the quorum was described: the next time may take long."""
        self._stack = AsyncExitStack()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """An admin client by Kafka's dotted names; `more` are options by keyword. Raises
        `UsageError`."""
        return cls(**from_config(AdminOptions, config, more))

    @ki_protected
    async def __aenter__(self) -> Self:
        opened = open_cluster(self._options, on_retry=self._options.on_retry)
        self._cluster = await self._stack.enter_async_context(opened)
        return self

    @ki_protected
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()
        self._cluster = None

    @property
    def cluster(self) -> Cluster:
        """The connections; raises `ClosedError` outside the block."""
        if self._cluster is None:
            raise closed("admin client")
        return self._cluster

    # -- topics ----------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assignment: list[list[int]] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic; -1 = the broker's default. It can be used when this returns."""
        new = m.NewTopic(
            topic=topic,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(configs or {}),
            assignment=assignment,
        )
        request = m.CreateTopicsRequest(topics=[new], validate_only=validate_only)
        return described(CreatedTopic, await self._change_topic(request))

    async def delete_topic(self, topic: str, *, internal: bool = False) -> None:
        """Delete a topic and its records; one that others rely on, as all groups do on
        `__consumer_offsets`, only if it is said to be `internal`. Raises `UsageError`."""
        if topic.startswith(INTERNAL) and not internal:
            raise UsageError(f"{topic} is internal, others rely on it: internal=True deletes it")
        await self._change_topic(m.DeleteTopicsRequest(topics=[topic]))

    async def create_partitions(self, topic: str, count: int) -> None:
        """Give a topic `count` partitions in all."""
        more = m.MorePartitions(topic=topic, count=count)
        await self._change_topic(m.CreatePartitionsRequest(topics=[more]))

    async def _change_topic(self, request: m.Message) -> m.TopicResult:
        """What became of a request about one topic: asked again when a quota allows it, if that is
        in time (KIP-599)."""
        until = trio.current_time() + self._timeout_s
        while True:
            result: m.TopicResult = only((await self._call(request)).topics)
            again_s = result.throttle_time_ms / 1000
            is_early = result.error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            if not is_early or trio.current_time() + again_s > until:
                raise_first([result], broker=self.cluster.last_asked)
                return result
            await trio.sleep(again_s)

    async def list_topics(self) -> list[TopicDescription]:
        """Every topic with its partitions."""
        reply: m.MetadataResponse = await self._call(m.MetadataRequest())
        return [described(TopicDescription, topic) for topic in reply.topics]

    async def describe_topic(self, topic: str) -> TopicDescription:
        """One topic with its partitions."""
        reply: m.MetadataResponse = await self._call(m.MetadataRequest(topics=[topic]))
        raise_first(reply.topics, broker=self.cluster.last_asked)
        return described(TopicDescription, only(reply.topics))

    async def delete_records(
        self, offsets: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Move log starts up (-1 = the high watermark); the log starts then."""
        found = {}
        # Its answer, also the one that some replica is late, comes before the request times out.
        wait_ms = int(self.cluster.request_timeout_s * 500)
        for (topic, partition), offset in offsets.items():
            part = m.DeleteRecordsPartition(topic=topic, partition=partition, offset=offset)
            request = m.DeleteRecordsRequest(partitions=[part], timeout_ms=wait_ms)
            result: m.DeleteRecordsResult = await self.cluster.call_leader(
                topic, partition, request, timeout_s=self._timeout_s
            )
            found[TopicPartition(topic, partition)] = result.low_watermark
        return found

    async def offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first offset at a time in ms or later, or at `EARLIEST`, `LATEST`
        or `MAX_TIMESTAMP`; offset -1: there is none."""
        asked, found = whole("timestamp", timestamp), {}
        for tp in checked_places(partitions):
            at = await self.cluster.offset(*tp, asked, timeout_s=self._timeout_s)
            found[tp] = OffsetAndTimestamp(at.offset, at.timestamp, at.leader_epoch)
        return found

    # -- configs ---------------------------------------------------------------------------------

    async def describe_configs(self, kind: str, name: str) -> list[ConfigEntry]:
        """Every key of a `topic`, a `broker` (by id), or the `cluster` (no name) with its value."""
        resource = m.ConfigResource(kind=kind, name=name)
        request = m.DescribeConfigsRequest(resources=[resource])
        reply: m.DescribeConfigsResponse
        if kind == "broker" and name.isdigit():
            await self._look_for_brokers()
            if int(name) not in self.cluster.metadata.brokers:
                raise ApiError(
                    ErrorCode.BROKER_ID_NOT_REGISTERED,
                    f"broker {name} is not among {sorted(self.cluster.metadata.brokers)}",
                )
            reply = await self.cluster.call_broker(int(name), request, timeout_s=self._timeout_s)
        else:
            reply = await self._call(request)
        raise_first(reply.resources, broker=self.cluster.last_asked)
        return [described(ConfigEntry, entry) for entry in only(reply.resources).entries]

    async def alter_topic_configs(
        self, topic: str, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()
    ) -> None:
        """Set keys of a topic, or take them back to their defaults."""
        await self._alter_configs("topic", topic, set_, unset)

    async def alter_cluster_configs(
        self, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()
    ) -> None:
        """Set what holds for all topics that do not say themselves: `min.insync.replicas`, `flush`,
        `unclean.leader.election.enable`; or take it back to the built-in default."""
        await self._alter_configs("cluster", "", set_, unset)

    async def _alter_configs(
        self, kind: str, name: str, set_: Mapping[str, str] | None, unset: Sequence[str]
    ) -> None:
        change = m.ConfigChange(kind=kind, name=name, set=dict(set_ or {}), unset=list(unset))
        reply: m.AlterConfigsResponse = await self._call(m.AlterConfigsRequest(resources=[change]))
        raise_first(reply.resources, broker=self.cluster.last_asked)

    # -- descriptions ----------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, fenced ones too, and the active controller."""
        return described(ClusterDescription, await self._call(m.DescribeClusterRequest()))

    async def describe_quorum(self, *, even_without_leader: bool = False) -> QuorumDescription:
        """The quorum of controllers as its leader sees it. Raises `RequestTimedOut` where nobody
        leads it; or, `even_without_leader`, tells what one broker knows: `leader` is then -1."""
        request = q.DescribeQuorumRequest(even_without_leader=even_without_leader)
        found = described(QuorumDescription, await self._call(request))
        self._voters |= {each.id: (each.host, each.port) for each in found.voters if each.host}
        return found

    async def add_voter(self, node: int, host: str, port: int, *, directory: str = "") -> str:
        """Admit a node that observes the metadata quorum, and keeps up, as a voter (KIP-853); the
        id of its directory. Raises `ApiError` REQUEST_TIMED_OUT while it has not caught up, or
        another change of the voters is not committed: then it may be tried again."""
        request = q.AddVoterRequest(id=node, host=host, port=port, directory=directory)
        reply: q.AddVoterResponse = await self._call(request)
        return reply.directory

    async def remove_voter(self, node: int, *, directory: str = "") -> str:
        """Let a voter of the metadata quorum vote no more; the id of its directory."""
        request = q.RemoveVoterRequest(id=node, directory=directory)
        reply: q.RemoveVoterResponse = await self._call(request)
        return reply.directory

    async def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[ElectionResult]:
        """Hold elections: of the preferred replicas, or `unclean`, where nobody leads, of any live
        one, which may lose records. None: wherever one is needed. Refusals are in the results."""
        parts = None
        if partitions is not None:
            parts = [m.PartitionName(topic=topic, partition=n) for topic, n in partitions]
        request = m.ElectLeadersRequest(partitions=parts, unclean=unclean)
        reply: m.ElectLeadersResponse = await self._call(request)
        return [described(ElectionResult, each) for each in reply.partitions]

    async def describe_node(self, node: int) -> NodeDescription:
        """What the process of a registered broker has used since it started."""
        await self._look_for_brokers()
        request = n.DescribeNodeRequest()
        reply = await self.cluster.call_broker(node, request, timeout_s=self._timeout_s)
        return described(NodeDescription, reply)

    async def read_trace(
        self, node: int, kind: str = "events", place: TracePlace = TRACE_START
    ) -> tuple[bytes, TracePlace]:
        """What happened on a node since `place`: whole lines of JSON, an event each, and the place
        to go on from. No lines: that is all that there is yet. `kind` is `events`, or `positions`:
        how far its replicas were, second by second. A voter that is no registered broker is asked
        where other nodes find it, and answers if clients may come there."""
        request = n.ReadTraceRequest(kind=kind, file=place.file, position=place.position)
        reply = await self._ask_node(node, request)
        return reply.lines, TracePlace(reply.file, reply.position)

    async def describe_metadata_log(self, node: int) -> MetadataLogDescription:
        """What a node itself has of the metadata log. A voter that is no registered broker is
        asked as by `read_trace`."""
        reply = await self._ask_node(node, n.DescribeMetadataLogRequest())
        return described(MetadataLogDescription, reply)

    async def _ask_node(self, node: int, request: m.Message) -> Any:
        """A registered broker, or a voter that is none."""
        await self._look_for_brokers()
        if node in self.cluster.metadata.brokers:
            return await self.cluster.call_broker(node, request, timeout_s=self._timeout_s)
        return await self._ask_voter(node, request)

    async def _ask_voter(self, node: int, request: m.Message) -> Any:
        if node not in self._voters:
            await self.describe_quorum(even_without_leader=True)
        if node not in self._voters:
            raise ApiError(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"node {node} is no broker that serves, and none of the voters {[*self._voters]}",
            )
        timeout_s = min(self._timeout_s, EACH_BROKER_S)
        try:
            return await self.cluster.call_at(self._voters[node], request, timeout_s=timeout_s)
        except HightideError:
            self._voters.pop(node, None)  # it may have moved
            raise

    async def describe_log_dirs(
        self, topics: Sequence[str] | None = None, *, brokers: Sequence[int] | None = None
    ) -> list[LogDirDescription]:
        """Replicas with offsets and sizes, of those brokers, or of each; then one that does not
        answer within a few seconds has its `error` set, and nothing else."""
        await self._look_for_brokers()
        request = m.DescribeLogDirsRequest(topics=None if topics is None else list(topics))
        if brokers is not None:
            call = partial(self.cluster.call_broker, request=request, timeout_s=self._timeout_s)
            return [described(LogDirDescription, await call(broker)) for broker in brokers]
        found: dict[int, m.DescribeLogDirsResponse] = {}

        async def ask(broker: int) -> None:
            timeout_s = min(self._timeout_s, EACH_BROKER_S)
            try:
                found[broker] = await self.cluster.call_broker(broker, request, timeout_s=timeout_s)
            except HightideError as error:
                found[broker] = m.DescribeLogDirsResponse(
                    broker=broker, path="", replicas=[], error=str(error)
                )

        async with trio.open_nursery() as nursery:
            for broker in self.cluster.metadata.brokers:
                start(nursery, ask, broker)
        return [described(LogDirDescription, found[broker]) for broker in sorted(found)]

    async def _look_for_brokers(self) -> None:
        """Learn who the brokers are now."""
        await self.cluster.retrying(partial(self.cluster.refresh, []), timeout_s=self._timeout_s)

    async def _call(self, request: m.Message) -> Any:
        return await self.cluster.call_any(request, timeout_s=self._timeout_s)
