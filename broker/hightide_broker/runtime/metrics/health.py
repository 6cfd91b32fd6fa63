"""Whether a node is alive, and whether it is ready: by what it knows of itself alone.

Alive is who answers at all. If that hung on others, a cluster without a quorum would be restarted
node by node, which makes the outage longer. Ready is a broker that was let serve and was not told
otherwise; how other nodes are does not matter, or a roll would wait for ever. So a broker stays
ready while nobody leads the quorum: it goes on serving what it leads, and clients need a place to
begin. A controller alone, where no clients come, is ready once it knows who leads.
"""

from __future__ import annotations

from hightide_broker.runtime.metrics.node import Node

STATES = ("starting", "recovering", "fenced", "running", "draining", "stopping")
"""A node starts; if its last stop was not an orderly one, it recovers its logs meanwhile. A broker
is let serve, and fenced while the controller does not hear it. A node that stops in order drains
first, where others can take what it leads: they are handed that, and only then it stops."""


def state_of(node: Node) -> str:
    """One of `STATES`."""
    if node.stopping:
        return "draining" if node.draining else "stopping"
    if not node.serving.is_set():
        return "recovering" if node.replicas.recovering.bytes else "starting"
    return "fenced" if _is_fenced(node) else "running"


def why_not_ready(node: Node) -> str:
    """Why clients should go elsewhere; empty: they need not."""
    state = state_of(node)
    if state == "starting":
        return f"node {node.id} is starting"
    if state == "recovering":
        return f"node {node.id} {node.replicas.recovering.told}"
    if state == "draining":
        return f"node {node.id} stops: it hands what it leads to others"
    if state == "stopping":
        return f"node {node.id} stops"
    if state == "fenced":
        return f"broker {node.id} is fenced: the controller does not hear it"
    if node.lifecycle is None and node.quorum.leader < 0:
        return f"node {node.id} knows no active controller"
    return ""


def is_missing_a_leader(node: Node) -> bool:
    """Whether this node hears of no active controller: told to people, and no reason to go."""
    return node.quorum.core.leader_that_is_heard < 0


def _is_fenced(node: Node) -> bool:
    if node.lifecycle is None:
        return False
    known = node.image.brokers.get(node.id)
    return known is None or known.fenced
