"""A leader takes records alone, dies, and finds others in its place when it returns.

No test lives here: what happens is looked at by tests and by who makes pictures.
"""

import json
import signal

from commands import hightide
from patience import wait_until

ALONE = ("--acks", "1", "-X", "enable.idempotence=false")
"""Without a quorum nobody gives a producer its id."""


def is_told(cluster, topic, end):
    """Whether a trace says that somebody's log of partition 0 ends there."""
    words = ("trace", "--data", cluster.data, "--positions", "--topic", topic, "-o", "ndjson")
    told = [json.loads(line)["what"] for line in hightide(*words).out.decode().splitlines()]
    return any(
        [name, partition, log_end] == [topic, 0, end]
        for what in told
        for name, partition, _, _, _, log_end, _ in what.get("replicas", ())
    )


def diverge(cluster, topic, *, lost, kept, meanwhile=lambda leader: None):
    """Bring it about on partition 0 of a topic, on three nodes; the leader of before. Records that
    it had alone are `lost`, those that the others took after it are `kept`. While it is dead,
    `meanwhile` is called with it."""
    (state,) = cluster.describe(topic)["partitions"]
    leader = state["leader"]
    others = sorted({1, 2, 3} - {leader})
    alone = cluster.address_of(leader)
    for node in others:
        cluster.send(node, signal.SIGSTOP)
    # A fetch that is under way may still bring the others one answer; what comes then, none does.
    hightide("produce", topic, *ALONE, stdin=b"under way\n", address=alone)
    hightide("produce", topic, *ALONE, stdin=lost, address=alone)
    cluster.kill(leader)
    for node in others:
        cluster.send(node, signal.SIGCONT)
    meanwhile(leader)
    addresses = ",".join(cluster.address_of(node) for node in others)
    hightide("produce", topic, stdin=kept, address=addresses)
    (state,) = cluster.describe(topic)["partitions"]
    wait_until(
        lambda: is_told(cluster, topic, state["log_end_offset"]), "the others' trace tells of it"
    )
    cluster.start_one(leader)

    def is_whole():
        (part,) = cluster.describe(topic)["partitions"]
        return len(part["isr"]) == 3

    wait_until(is_whole, "the leader of before is in sync again")
    return leader
