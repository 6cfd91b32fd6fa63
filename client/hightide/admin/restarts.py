"""Whether a node may be away for a while: nobody is refused, and a majority decides. Pure.

The two rules of Kubernetes operators for Kafka: no partition may be left with fewer replicas in
sync than acks=all needs, and a majority of controllers must be there without it. A partition with
no more replicas than it needs in sync would block for ever, and is left out. Source: Strimzi's
roller.
"""

from __future__ import annotations

from collections.abc import Iterator

from hightide.admin.descriptions import (
    QuorumDescription,
    QuorumReplica,
    TopicDescription,
)

VOTER_BEHIND_MS_MAX = 2_000
"""A voter that was caught up so long ago, or less, counts as one that is there
(`controller.quorum.fetch.timeout.ms`)."""


def why_not_restart(
    node: int, topics: list[TopicDescription], min_isr: dict[str, int], quorum: QuorumDescription
) -> list[str]:
    """Reasons to wait with a restart; none: it may be restarted. `min_isr`: by topic."""
    found = list(_partitions_at_risk(node, topics, min_isr))
    voters = {voter.id: voter for voter in quorum.voters}
    if node in voters:
        others = [each.id for each in quorum.voters if each.id != node and _is_there(each, quorum)]
        needed = len(voters) // 2 + 1
        if len(voters) > 1 and len(others) < needed:
            found.append(
                f"of the other controllers only {others or 'none'} keep up, and {needed} of "
                f"{len(voters)} have to decide"
            )
    return found


def _is_there(voter: QuorumReplica, quorum: QuorumDescription) -> bool:
    return voter.id == quorum.leader or 0 <= voter.last_caught_up_ms_ago <= VOTER_BEHIND_MS_MAX


def _partitions_at_risk(
    node: int, topics: list[TopicDescription], min_isr: dict[str, int]
) -> Iterator[str]:
    for topic in topics:
        needed = min_isr.get(topic.topic, 1)
        for part in topic.partitions:
            if node not in part.replicas or len(part.replicas) <= needed:
                continue
            left = [broker for broker in part.isr if broker != node]
            if len(left) < needed:
                yield (
                    f"{topic.topic}-{part.partition} would have {left or 'nobody'} in sync, and "
                    f"min.insync.replicas is {needed}"
                )
