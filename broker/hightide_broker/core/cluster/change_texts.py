"""Changes of the metadata as sentences for the controller's log: what became of topics, of their
settings and of their partitions."""

from __future__ import annotations

from hightide_broker.core.cluster.changes import (
    AnyChange,
    ChangePartition,
    CreateAcl,
    CreatePartition,
    CreateTopic,
    RemoveAcl,
    RemoveScramCredential,
    RemoveTopic,
    SetConfig,
    SetQuota,
    SetScramCredential,
)
from hightide_broker.core.cluster.image import NO_LEADER, ClusterImage


def sentence(change: AnyChange, image: ClusterImage) -> str:
    """What a change does to an image that it was not replayed into yet; empty for other kinds."""
    match change:
        case CreateTopic():
            return f"topic {change.topic} is created, its id is {change.topic_id}"
        case RemoveTopic():
            return f"topic {image.topics_by_id[change.topic_id].name} is deleted"
        case SetConfig():
            whose = f"{change.kind} {change.name}".rstrip()
            value = "back to its default" if change.value is None else f"set to {change.value!r}"
            return f"{change.key} of {whose} is {value}"
        case SetQuota():
            whose = f"user {change.user or 'any'}, client {change.client_id or 'any'}"
            if change.ip is not None:
                whose = f"address {change.ip}"
            value = "removed" if change.value is None else f"set to {change.value}"
            return f"{change.key} of {whose} is {value}"
        case SetScramCredential():
            return f"the {change.mechanism} password of user {change.user!r} is set"
        case RemoveScramCredential():
            return f"the {change.mechanism} password of user {change.user!r} is removed"
        case CreateAcl():
            rule = f"{change.permission} {change.principal} {change.operation}"
            return f"rule {rule} {change.resource}:{change.name} ({change.pattern}) is made"
        case RemoveAcl():
            return f"rule {image.acls[change.id]} is removed"
        case CreatePartition():
            name = image.topics_by_id[change.topic_id].name
            replicas = f"its replicas are {_ids(change.replicas)}"
            return f"partition {name}-{change.partition} is created, {replicas}"
        case ChangePartition():
            return _of_partition(change, image)
    return ""


def _of_partition(change: ChangePartition, image: ClusterImage) -> str:
    topic = image.topics_by_id[change.topic_id]
    before = topic.partitions[change.partition]
    told = []
    if change.leader is not None:
        epoch = before.leader_epoch + 1
        told.append(f"leader {_id(before.leader)} -> {_id(change.leader)} in epoch {epoch}")
    for name, old, new in [
        ("ISR", before.isr, change.isr),
        ("ELR", before.elr, change.elr),
        ("last known ELR", before.last_known_elr, change.last_known_elr),
    ]:
        if new is not None and new != old:
            told.append(f"{name} {_ids(old)} -> {_ids(new)}")
    return f"partition {topic.name}-{change.partition}: {', '.join(told)}" if told else ""


def _id(broker: int) -> str:
    return "nobody" if broker == NO_LEADER else str(broker)


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "nobody"
