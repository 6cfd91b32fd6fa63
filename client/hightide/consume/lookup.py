"""Which partitions there are: asked of the cluster, and waited for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hightide.net.cluster import Cluster
from hightide.protocol.errors import UsageError
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted


async def partitions_of(
    cluster: Cluster, topics: Iterable[str], *, timeout_s: float
) -> list[TopicPartition]:
    """All partitions of these topics; raises `ApiError` for one that does not exist."""
    found = []
    for topic in topics:
        known = await cluster.topic(topic, timeout_s=timeout_s)
        found += [TopicPartition(topic, p.partition) for p in known.partitions]
    return found


async def check_partitions(
    cluster: Cluster, wanted: Sequence[TopicPartition], *, timeout_s: float
) -> None:
    """Raise `ApiError` or `UsageError` if one of these does not exist."""
    for topic in dict.fromkeys(tp.topic for tp in wanted):
        known = await cluster.topic(topic, timeout_s=timeout_s)
        for tp in wanted:
            if tp.topic == topic and not 0 <= tp.partition < len(known.partitions):
                raise UsageError(
                    f"{tp} does not exist, {topic!r} has "
                    f"{counted(len(known.partitions), 'partition')}"
                )
