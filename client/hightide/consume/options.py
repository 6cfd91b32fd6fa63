"""What a consumer may be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from hightide.consume.assignors import Assignor
from hightide.consume.membership import named
from hightide.consume.selection import checked_topics
from hightide.consume.subscription import Listener, checked_places, checked_reset
from hightide.net.explained import explained
from hightide.net.options import ClientOptions
from hightide.protocol.errors import UsageError


@explained
@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """The options of `Consumer`: Kafka's names and defaults, times in ms, sizes in bytes."""

    client_id: str = "hightide-consumer"
    topics: Sequence[str] | str = ()
    """What to read, one topic by its name or several: all partitions, or those that the group
    gives."""
    partitions: Iterable[tuple[str, int]] = ()
    """What to read, instead of topics: (topic, partition) each."""
    group_id: str = ""
    """The consumer group: who shares the topics, and keeps where it is. Kafka: group.id."""
    auto_offset_reset: str = "latest"
    """Where to begin without a committed offset, or with one that is gone: earliest, latest, or
    none (an error). Kafka: auto.offset.reset."""
    max_poll_records: int = 500
    """The most that one `poll` returns. Kafka: max.poll.records."""
    fetch_min_bytes: int = 1
    """A broker answers once it has so much. Kafka: fetch.min.bytes."""
    fetch_max_wait_ms: float = 500
    """How long a broker waits for fetch_min_bytes. Kafka: fetch.max.wait.ms."""
    fetch_max_bytes: int = 50 << 20
    """The most in one answer, but for a first batch that is larger. Kafka: fetch.max.bytes."""
    max_partition_fetch_bytes: int = 1 << 20
    """The most of one partition in an answer. Kafka: max.partition.fetch.bytes."""
    prefetch_bytes: int = 16 << 20
    """So much is fetched ahead of the caller."""
    check_crcs: bool = True
    """Whether records are checked once more after their way here. Kafka: check.crcs."""
    client_rack: str = ""
    """Where this consumer stands: a replica in sync there serves it (KIP-392). Kafka:
    client.rack."""
    enable_auto_commit: bool = True
    """Whether what was handed out is committed by itself, in a group. Kafka:
    enable.auto.commit."""
    auto_commit_interval_ms: float = 5_000
    """How often what was handed out is committed. Kafka: auto.commit.interval.ms."""
    group_instance_id: str = ""
    """A name that outlives this process: it comes back without a rebalance (KIP-345). Kafka:
    group.instance.id."""
    partition_assignment_strategy: str | Sequence[str] | Assignor = ("range", "cooperative-sticky")
    """How the group shares partitions: range, roundrobin, sticky, cooperative-sticky, several in
    the order of preference, or a function. Kafka: partition.assignment.strategy."""
    session_timeout_ms: float = 45_000
    """A member that is silent for so long is taken for dead. Kafka: session.timeout.ms."""
    heartbeat_interval_ms: float = 3_000
    """How often a member says that it lives. Kafka: heartbeat.interval.ms."""
    max_poll_interval_ms: float = 300_000
    """A member that has not polled for so long leaves its group. Kafka: max.poll.interval.ms."""
    on_assigned: Listener | None = None
    """Told of partitions that this member was given; may be a coroutine function."""
    on_revoked: Listener | None = None
    """Told of partitions that it has to give away, before it does: the time to commit."""
    on_lost: Listener | None = None
    """Told of partitions that others may own already."""
    default_api_timeout_ms: float = 60_000
    """How long a call may take that has no timeout of its own. Kafka: default.api.timeout.ms."""

    def __post_init__(self) -> None:
        """Raises `UsageError` for options that cannot be, or cannot work together."""
        super().__post_init__()
        for name in ("max_poll_records", "prefetch_bytes"):
            if getattr(self, name) == 0:
                raise UsageError(f"{name} is 0, expected 1 or more: nothing would ever be read")
        checked_reset(self.auto_offset_reset)
        named(self.partition_assignment_strategy)
        keep = partial(object.__setattr__, self)  # the struct is frozen from here on
        keep("topics", checked_topics(self.topics))
        keep("partitions", tuple(checked_places(self.partitions)))
        if self.topics and self.partitions:
            raise UsageError("give topics or partitions, not both")
