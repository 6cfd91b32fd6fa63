"""What translating takes to know of the cluster: names of ids, and where brokers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.kafka.converted import Conversions
from hightide_broker.kafka.reading import Fields


class Facts:
    """Of one node, as it knows them now."""

    def __init__(
        self, image: Callable[[], ClusterImage], *, broker: int, now_ms: Callable[[], int]
    ) -> None:
        self.broker = broker
        self.now_ms = now_ms
        self.conversions = Conversions()
        self._image = image

    def name_of(self, topic_id: str) -> str:
        """The name of the topic with this id; empty: there is none."""
        state = self._image().topics_by_id.get(topic_id)
        return "" if state is None else state.name

    def named(self, topics: Iterable[Fields]) -> tuple[list[str], dict[str, str]]:
        """What topics that are asked for by `name` or `topic_id` are called, as far as there are
        any; and the names of those ids."""
        names: list[str] = []
        name_of: dict[str, str] = {}
        for topic in topics:
            if topic["name"] is not None:
                names.append(topic["name"])
            elif name := self.name_of(topic["topic_id"]):
                names.append(name)
                name_of[topic["topic_id"]] = name
        return names, name_of

    def id_of(self, topic: str) -> str:
        """The id of the topic with this name; empty: there is none any more."""
        state = self._image().topics.get(topic)
        return "" if state is None else state.topic_id

    def set_on(self, kind: str, name: str) -> dict[str, str]:
        """What is set on a resource, by kind and name of ours."""
        return self._image().configs.get((kind, name), {})

    def endpoint(self, broker: int) -> Fields | None:
        """Where a broker is; None: it is not there for clients."""
        image = self._image()
        if not image.is_active(broker):
            return None
        state = image.brokers[broker]
        return {
            "node_id": broker,
            "host": state.host,
            "port": state.port,
            "rack": state.rack or None,
        }
