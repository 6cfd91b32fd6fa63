"""Who leads now: told to who asked the wrong broker, and need not look for it then (KIP-951)."""

from __future__ import annotations

from hightide.protocol.errors import ErrorCode
from hightide.protocol.messages import LeaderHint
from hightide_broker.core.cluster.image import NO_LEADER, ClusterImage

ASKED_THE_WRONG_ONE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def leader_hint(
    image: ClusterImage, topic: str, partition: int, refused: ErrorCode
) -> LeaderHint | None:
    """The leader of a partition and its epoch, where `refused` says that another broker leads and
    the metadata knows which; None otherwise."""
    known = image.topics.get(topic)
    if refused not in ASKED_THE_WRONG_ONE or known is None:
        return None
    if not 0 <= partition < len(known.partitions):
        return None
    state = known.partitions[partition]
    if state.leader == NO_LEADER:
        return None
    return LeaderHint(leader=state.leader, leader_epoch=state.leader_epoch)
