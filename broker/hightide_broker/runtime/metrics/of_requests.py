"""Metrics of what a node is asked, by whom it may be asked, and how it says no."""

from __future__ import annotations

from collections.abc import Iterator

from hightide_broker.config import listeners_that_ask_nobody, ways_in
from hightide_broker.core.replication.refusals import CAUSES
from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Measured, counter, each, gauge, histogram, one
from hightide_broker.runtime.server.counts import PHASES

WAITING = ("produce", "fetch", "join", "sync", "delete_records")
"""Requests that may have to wait for what others do: for replicas, records, a group."""


def about_requests(node: Node) -> Iterator[Measured]:
    """What was asked, how it went, and who is connected."""
    counts = node.server.counts
    requests = list(counts.requests.items())
    yield Measured(counter("requests", "Requests that were answered.", "api", "error"), requests)
    help_ = "From when a request was there until its answer was; what waits for news waits for it."
    yield each(histogram("request_seconds", help_, "api"), counts.seconds)
    help_ = (
        "Of that, how long a request waited its turn and for quotas, was at work, waited, was sent."
    )
    phases = {
        (*kind, name): step
        for kind, steps in counts.phases.items()
        for name, step in zip(PHASES, steps, strict=True)
    }
    labels = ("api", "sender", "phase")
    yield Measured(histogram("request_phase_seconds", help_, *labels), phases.items())
    help_ = "Requests that wait for news: of records, of replicas that have them, of a group."
    now = node.server.waiting() + node.coordinators.counts.waiting
    yield each(gauge("waiting_requests", help_, "kind"), {kind: now[kind] for kind in WAITING})
    help_ = "What large requests on their way in hold, and how much they may."
    yield each(gauge("buffer_bytes", help_, "kind"), node.server.buffer_bytes())
    help_ = "Batches of producers that were refused for what they are, by what that is."
    rejected = [((cause,), node.replicas.traffic.rejected[cause]) for cause in CAUSES]
    yield Measured(counter("rejected_batches", help_, "cause"), rejected)
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
    # Those that have not happened yet, too: who watches a rate would not see the first of them.
    tried = {(*way, came_in): 0 for way in ways_in(node.config) for came_in in (True, False)}
    logins = [
        ((listener, way, "ok" if came_in else "failed"), count)
        for (listener, way, came_in), count in (tried | node.server.counts.logins).items()
    ]
    help_ = "Users that proved who they are, or did not."
    labels = ("listener", "mechanism", "result")
    yield Measured(counter("authentications", help_, *labels), logins)
    throttled = node.server.counts.throttled_s
    yield each(counter("throttle_seconds", "Waits that clients were told.", "quota"), throttled)
    help_ = "Connections that are not read on now, because a quota has them wait."
    yield one(gauge("throttled_connections", help_), node.server.throttled())
