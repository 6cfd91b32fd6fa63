"""What requests are about, one by one: topics, groups, whatever has settings.

So that who may not do something to one of them is still served about the others.

A part is an element of a list in the request; the answer has a list of the same name. What an
answer names without having been asked for it, because everything was asked for, is left out where
it is nobody's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide_broker.core.cluster.acls import CLUSTER_NAME, Resource

Named = tuple[Resource, str | None]
"""A resource; any of its kind, where there is no name."""


class Parts(NamedTuple):
    """Those of one kind of request."""

    field: str
    """The list's name, in the request and in its answer."""
    kind: Resource | None
    """What they are; None: that differs."""
    named: Callable[[Any], Named]
    """What one of them is about, in the request, or in an answer."""
    refused: Callable[..., Any]
    """The answer about one that is refused, given it, `error` and `message`."""


def _name_in(part: Any, field: str) -> str:
    """Some requests only list names."""
    return part if isinstance(part, str) else getattr(part, field)


def _topic(part: Any) -> Named:
    return Resource.TOPIC, _name_in(part, "topic")


def _group(part: Any) -> Named:
    return Resource.GROUP, _name_in(part, "group")


def _configured(part: Any) -> Named:
    is_topic = part.kind == "topic"
    return (Resource.TOPIC, part.name) if is_topic else (Resource.CLUSTER, CLUSTER_NAME)


def _partitions(result: type[Any]) -> Parts:
    def refused(part: Any, **why: Any) -> m.Message:
        answer: m.Message = result(topic=part.topic, partition=part.partition, **why)
        return answer

    return Parts("partitions", Resource.TOPIC, _topic, refused)


def _topics(result: type[Any]) -> Parts:
    def refused(part: Any, **why: Any) -> m.Message:
        answer: m.Message = result(topic=_name_in(part, "topic"), **why)
        return answer

    return Parts("topics", Resource.TOPIC, _topic, refused)


def _groups(result: type[Any]) -> Parts:
    def refused(part: Any, **why: Any) -> m.Message:
        answer: m.Message = result(group=_name_in(part, "group"), **why)
        return answer

    return Parts("groups", Resource.GROUP, _group, refused)


def _settings() -> Parts:
    def refused(part: Any, **why: Any) -> m.Message:
        return m.ConfigResult(kind=part.kind, name=part.name, **why)

    return Parts("resources", None, _configured, refused)


PARTS: dict[type[m.Message], Parts] = {
    m.ProduceRequest: _partitions(m.ProduceResult),
    m.FetchRequest: _partitions(m.FetchResult),
    m.ListOffsetsRequest: _partitions(m.ListOffsetsResult),
    m.OffsetForLeaderEpochRequest: _partitions(m.EpochResult),
    p.DescribeProducersRequest: _partitions(p.ProducerState),
    m.DeleteRecordsRequest: _partitions(m.DeleteRecordsResult),
    g.OffsetCommitRequest: _partitions(g.CommitResult),
    g.OffsetFetchRequest: _partitions(g.FetchedOffset),
    g.OffsetDeleteRequest: _partitions(g.CommitResult),
    m.MetadataRequest: _topics(m.TopicMetadata),
    m.CreateTopicsRequest: _topics(m.TopicResult),
    m.DeleteTopicsRequest: _topics(m.TopicResult),
    m.CreatePartitionsRequest: _topics(m.TopicResult),
    g.DescribeGroupsRequest: _groups(g.DescribedGroup),
    g.DeleteGroupsRequest: _groups(g.DeletedGroup),
    g.ListGroupsRequest: _groups(g.ListedGroup),
    m.DescribeConfigsRequest: _settings(),
    m.AlterConfigsRequest: _settings(),
}
