"""The blocking admin client: every call waits for its async twin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import hightide.admin.admin
import hightide.consume.consumer
import hightide.produce.producer
from hightide.admin.descriptions import (
    TRACE_START,
    AccessVerdict,
    Acl,
    AclPattern,
    ClusterDescription,
    CommittedOffset,
    ConfigEntry,
    CreatedTopic,
    ElectionResult,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMove,
    LogDirDescription,
    MetadataLogDescription,
    NodeDescription,
    QuorumDescription,
    Quota,
    TopicDescription,
    TracePlace,
    UserDescription,
)
from hightide.admin.options import AdminOptions
from hightide.blocking.base import Blocking
from hightide.consume.subscription import OffsetAndTimestamp
from hightide.net.options import arguments, from_config, taking
from hightide.protocol.login_messages import ITERATIONS_MIN, MECHANISMS
from hightide.protocol.topic_partition import TopicPartition


class Admin(Blocking):
    """`hightide.Admin` without an event loop; the arguments are those of `AdminOptions`."""

    _name = "admin client"

    @taking(AdminOptions)
    def __init__(self, options: AdminOptions) -> None:
        self._async = hightide.admin.admin.Admin(**arguments(options))
        super().__init__(self._async)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """As `hightide.Admin.from_config`."""
        return cls(**from_config(AdminOptions, config, more))

    def create_topic(
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
        create = partial(
            self._async.create_topic,
            topic,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            assignment=assignment,
            validate_only=validate_only,
        )
        return self._run(create)

    def delete_topic(self, topic: str, *, internal: bool = False) -> None:
        """Delete a topic and its records."""
        self._run(partial(self._async.delete_topic, topic, internal=internal))

    def create_partitions(self, topic: str, count: int) -> None:
        """Give a topic `count` partitions in all."""
        self._run(self._async.create_partitions, topic, count)

    def list_topics(self) -> list[TopicDescription]:
        """Every topic with its partitions."""
        return self._run(self._async.list_topics)

    def describe_topic(self, topic: str) -> TopicDescription:
        """One topic with its partitions."""
        return self._run(self._async.describe_topic, topic)

    def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Move log starts up (-1 = the high watermark); the log starts then."""
        return self._run(self._async.delete_records, offsets)

    def offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first offset at a time in ms or later, or at `EARLIEST`, `LATEST`
        or `MAX_TIMESTAMP`; offset -1: there is none."""
        return self._run(self._async.offsets, list(partitions), timestamp)

    def describe_configs(self, kind: str, name: str) -> list[ConfigEntry]:
        """Every key of a `topic`, a `broker` (by id), or the `cluster` (no name) with its value."""
        return self._run(self._async.describe_configs, kind, name)

    def alter_topic_configs(
        self, topic: str, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()
    ) -> None:
        """Set keys of a topic, or take them back to their defaults."""
        self._run(partial(self._async.alter_topic_configs, topic, set_=set_, unset=unset))

    def alter_cluster_configs(
        self, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()
    ) -> None:
        """Set what holds for all topics that do not say themselves."""
        self._run(partial(self._async.alter_cluster_configs, set_=set_, unset=unset))

    def describe_cluster(self) -> ClusterDescription:
        """The brokers, fenced ones too, and the active controller."""
        return self._run(self._async.describe_cluster)

    def describe_node(self, node: int) -> NodeDescription:
        """What the process of a registered broker has used since it started."""
        return self._run(self._async.describe_node, node)

    def describe_metadata_log(self, node: int) -> MetadataLogDescription:
        """What a node itself has of the metadata log."""
        return self._run(self._async.describe_metadata_log, node)

    def read_trace(
        self, node: int, kind: str = "events", place: TracePlace = TRACE_START
    ) -> tuple[bytes, TracePlace]:
        """What happened on a registered broker since `place`, and the place to go on from."""
        return self._run(self._async.read_trace, node, kind, place)

    def describe_log_dirs(
        self, topics: Sequence[str] | None = None, *, brokers: Sequence[int] | None = None
    ) -> list[LogDirDescription]:
        """Each broker's replicas with offsets and sizes."""
        return self._run(partial(self._async.describe_log_dirs, topics, brokers=brokers))

    def describe_quorum(self, *, even_without_leader: bool = False) -> QuorumDescription:
        """Who leads the metadata quorum, and how far everybody has followed; where nobody does, and
        that is to be told, `leader` is -1."""
        ask = self._async.describe_quorum
        return self._run(partial(ask, even_without_leader=even_without_leader))

    def add_voter(self, node: int, host: str, port: int, *, directory: str = "") -> str:
        """Admit a node that observes the metadata quorum as a voter; its directory's id."""
        return self._run(partial(self._async.add_voter, node, host, port, directory=directory))

    def remove_voter(self, node: int, *, directory: str = "") -> str:
        """Let a voter of the metadata quorum vote no more; its directory's id."""
        return self._run(partial(self._async.remove_voter, node, directory=directory))

    def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[ElectionResult]:
        """Elect the preferred leaders; or, `unclean`, any replica that lives."""
        return self._run(partial(self._async.elect_leaders, partitions, unclean=unclean))

    def list_groups(self) -> list[GroupListing]:
        """All groups, by name."""
        return self._run(self._async.list_groups)

    def describe_group(self, group: str) -> GroupDescription:
        """Members with their assignments, and the causes of the last rebalances."""
        return self._run(self._async.describe_group, group)

    def group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed, by partition."""
        return self._run(self._async.group_offsets, group)

    def group_lag(self, group: str) -> list[GroupLag]:
        """How far a group is in every partition that it reads or has committed."""
        return self._run(self._async.group_lag, group)

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Have a group without members go on elsewhere."""
        self._run(self._async.set_group_offsets, group, offsets)

    def move_group(
        self,
        group: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        to: Literal["start", "end"] | None = None,
        to_offset: int | None = None,
        to_time_ms: int | None = None,
        shift: int | None = None,
        dry_run: bool = False,
    ) -> list[GroupMove]:
        """Have a group without members go on elsewhere, in these partitions or in all that it has
        committed; `dry_run` only tells what would change."""
        move = partial(
            self._async.move_group,
            group,
            partitions,
            to=to,
            to_offset=to_offset,
            to_time_ms=to_time_ms,
            shift=shift,
            dry_run=dry_run,
        )
        return self._run(move)

    def delete_group_offsets(self, group: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Forget committed offsets of topics that no member reads."""
        self._run(self._async.delete_group_offsets, group, partitions)

    def delete_group(self, group: str) -> None:
        """Forget a group without members, with its offsets."""
        self._run(self._async.delete_group, group)

    # -- permissions -----------------------------------------------------------------------------

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Make rules; one that is there already stays."""
        self._run(self._async.create_acls, list(acls))

    def describe_acls(self, wanted: AclPattern | None = None) -> list[Acl]:
        """The rules that are meant; all, if nothing is said."""
        return self._run(self._async.describe_acls, wanted)

    def delete_acls(self, wanted: AclPattern) -> list[Acl]:
        """Remove the rules that are meant; those that there were."""
        return self._run(self._async.delete_acls, wanted)

    def explain_access(
        self, principal: str, operation: str, resource: str, name: str, *, host: str = ""
    ) -> AccessVerdict:
        """Whether somebody may do something, and which rule decides."""
        return self._run(
            partial(self._async.explain_access, principal, operation, resource, name, host=host)
        )

    def list_users(self) -> list[UserDescription]:
        """Everybody who has a password, by name."""
        return self._run(self._async.list_users)

    def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Sequence[str] = MECHANISMS,
        iterations: int = ITERATIONS_MIN,
    ) -> None:
        """Give a user a password, a new one or the first."""
        change = self._async.set_password
        self._run(partial(change, user, password, mechanisms=mechanisms, iterations=iterations))

    def delete_user(self, user: str) -> None:
        """Take all passwords of a user away."""
        self._run(self._async.delete_user, user)

    def describe_quotas(self) -> list[Quota]:
        """Every quota that is set."""
        return self._run(self._async.describe_quotas)

    def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set quotas, or remove those whose value is None."""
        self._run(self._async.alter_quotas, list(quotas))
