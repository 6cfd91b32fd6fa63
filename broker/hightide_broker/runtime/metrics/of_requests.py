"""Metrics of what a node is asked, by whom it may be asked, and how it says no."""

from __future__ import annotations

from collections.abc import Iterator

from hightide_broker.config import listeners_that_ask_nobody
from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Measured, counter, each, gauge, histogram, one
from hightide_broker.runtime.server.counts import PHASES


def about_requests(node: Node) -> Iterator[Measured]:
    """What was asked, how it went, and who is connected."""
    counts = node.server.counts
    requests = list(counts.requests.items())
    yield Measured(counter("requests", "Requests that were answered.", "api", "error"), requests)
    help_ = "From when a request was there until its answer was; what waits for news waits for it."
    yield each(histogram("request_seconds", help_, "api"), counts.seconds)
    help_ = "Of that, how long a request waited its turn, was carried out, waited, was sent."
    phases = {
        (kind, name): step
        for kind, steps in counts.phases.items()
        for name, step in zip(PHASES, steps, strict=True)
    }
    yield Measured(histogram("request_phase_seconds", help_, "request", "phase"), phases.items())
    help_ = "Requests that wait for news: for records, or for replicas to have them."
    yield each(gauge("waiting_requests", help_, "api"), node.server.waiting())
    help_ = "What large requests on their way in hold, and how much they may."
    yield each(gauge("buffer_bytes", help_, "kind"), node.server.buffer_bytes())
    help_ = "Batches of producers that were refused, by why."
    yield each(counter("rejected_batches", help_, "error"), counts.rejected)
    connections = node.server.connections()
    yield each(gauge("connections", "Connections open now.", "listener"), connections)
    closed = list(counts.closed.items())
    help_ = "Connections that ended or were not let in, by why."
    yield Measured(counter("connections_closed", help_, "listener", "reason"), closed)


def about_access(node: Node) -> Iterator[Measured]:
    """Who came in, who was slowed down."""
    judged = list(node.gate.judged.items())
    help_ = "What was allowed, and what was not."
    yield Measured(counter("authorizations", help_, "result", "operation"), judged)
    help_ = "1 for a listener that lets in who does not prove who it is."
    insecure = listeners_that_ask_nobody(node.config)
    yield each(
        gauge("listener_insecure", help_, "listener"), {k: int(v) for k, v in insecure.items()}
    )
    doors = node.doors
    expiry = gauge("certificate_expiry_timestamp_seconds", "When it ends.", "listener")
    yield each(expiry, doors.expiries() if doors else {})
    help_ = "Certificates that were replaced, and that could not be."
    found = {kind: doors.renewals[kind] if doors else 0 for kind in ("ok", "failed")}
    yield each(counter("certificate_reloads", help_, "result"), found)
    logins = [
        ((way, "ok" if came_in else "failed"), count)
        for (way, came_in), count in node.server.counts.logins.items()
    ]
    help_ = "Users that proved who they are, or did not."
    yield Measured(counter("authentications", help_, "mechanism", "result"), logins)
    throttled = node.server.counts.throttled_s
    yield each(counter("throttle_seconds", "Waits that clients were told.", "quota"), throttled)
    help_ = "Connections that are not read on now, because a quota has them wait."
    yield one(gauge("throttled_connections", help_), node.server.throttled())
