"""What a node's HTTP port answers, and the task that finds out whether its event loop keeps up."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from hightide_broker.runtime.base.measures import Histogram
from hightide_broker.runtime.metrics import (
    kafka_exporter,
    of_groups,
    of_node,
    of_replicas,
    of_requests,
)
from hightide_broker.runtime.metrics.health import is_missing_a_leader, state_of, why_not_ready
from hightide_broker.runtime.metrics.http import Answer, Port
from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import (
    OPEN_METRICS,
    TEXT,
    Measured,
    is_open_wanted,
    lines,
)
from hightide_broker.runtime.server.entrance import Listen, Listener, next_stream

LOOK_S = 1.0
"""How often it is asked whether the event loop keeps up."""
PLAIN = "text/plain; charset=utf-8"
PATHS = "/metrics, /metrics/detail, /metrics/kafka_exporter, /healthz, /livez, /readyz"


class MetricsPort:
    """Where one node is asked, if it may be; made by `open_metrics_port`."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener

    @property
    def port(self) -> int:
        """The port that is listened on; -1: there is none."""
        return -1 if self._listener is None else self._listener.port

    async def run(self, node: Node) -> None:
        """Answer until cancelled; ends at once where nobody may ask."""
        if self._listener is None:
            return
        watching = Watching(node)
        port = Port(watching.respond)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watching.look_at_the_loop)
            while True:
                nursery.start_soon(port.serve, await next_stream(self._listener))

    async def aclose(self) -> None:
        """Take no more connections."""
        if self._listener is not None:
            await self._listener.aclose()


async def open_metrics_port(address: tuple[str, int] | None, listen: Listen) -> MetricsPort:
    """Listen there; raises `OSError` that names the setting."""
    if address is None:
        return MetricsPort(None)
    try:
        return MetricsPort(await listen(*address))
    except OSError as error:
        host, port = address
        why = error.strerror or error
        raise OSError(f"metrics.listen {host}:{port}: {why}") from error


class Watching:
    """What is answered about a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop_lag = Histogram()

    async def look_at_the_loop(self) -> None:
        """Until cancelled, find out how late the event loop is."""
        while True:
            due = trio.current_time() + LOOK_S
            await trio.sleep_until(due)
            self._loop_lag.observe(trio.current_time() - due)

    def respond(self, target: str, accept: str) -> Answer:
        """The answer to a request."""
        path, _, query = target.partition("?")
        if path in ("/metrics", "/metrics/detail", "/metrics/kafka_exporter"):
            is_open = is_open_wanted(accept)
            found: Iterator[Measured | None]
            if path == "/metrics/kafka_exporter":
                found = self._as_kafka_exporter()
            else:
                found = self.measured(in_detail=path == "/metrics/detail")
            return Answer(200, OPEN_METRICS if is_open else TEXT, lines(found, is_open=is_open))
        if path in ("/healthz", "/livez"):
            return Answer(200, PLAIN, ["alive\n"])
        if path == "/readyz":
            return self._ready(in_words=query == "verbose")
        return Answer(404, PLAIN, [f"{PATHS}\n"])

    def _ready(self, *, in_words: bool) -> Answer:
        why = why_not_ready(self._node)
        said = why or "ready"
        if in_words:
            missing = ", no active controller is heard" if is_missing_a_leader(self._node) else ""
            said = f"{said} (state {state_of(self._node)}{missing})"
        return Answer(503 if why else 200, PLAIN, [f"{said}\n"])

    def _as_kafka_exporter(self) -> Iterator[Measured]:
        yield from kafka_exporter.about_the_cluster(self._node)
        if self._node.lifecycle is not None:
            yield from kafka_exporter.about_partitions(self._node)
            yield from kafka_exporter.about_groups(self._node)

    def measured(self, *, in_detail: bool) -> Iterator[Measured | None]:
        """Every metric; `in_detail`: the offsets of partitions, too. None: see `page.lines`."""
        node = self._node
        yield from of_node.about_the_node(node, self._loop_lag)
        yield from of_node.about_the_disk(node)
        yield from of_node.about_the_quorum(node)
        yield from of_node.about_the_controller(node)
        yield from of_requests.about_requests(node)
        yield from of_requests.about_access(node)
        if node.lifecycle is None:
            return
        yield from of_replicas.about_replicas(node)
        yield from of_replicas.about_topics(node)
        yield from of_groups.about_groups(node)
        if in_detail:
            yield from of_replicas.about_partitions(node)
