"""Whether a node may be away for a while, by the two rules that keep a roll from refusing anybody;
and which voters are away.

Method: clusters as an admin client describes them, made up.
"""

import pytest

from hightide import PartitionDescription, QuorumDescription, QuorumReplica, TopicDescription
from hightide.admin.descriptions import SILENT_MS
from hightide.admin.restarts import why_not_restart


def topic(*partitions, name="t"):
    """Partitions as (replicas, ISR)."""
    return TopicDescription(
        topic=name,
        topic_id="id",
        internal=False,
        partitions=[
            PartitionDescription(
                partition=number,
                leader=isr[0] if isr else -1,
                leader_epoch=0,
                replicas=list(replicas),
                isr=list(isr),
                elr=[],
                last_known_elr=[],
                last_leader=-1,
                error=None,
                message="",
            )
            for number, (replicas, isr) in enumerate(partitions)
        ],
    )


def quorum(leader, **behind_ms):
    """Voters, by how long ago each was caught up."""
    voters = [
        QuorumReplica(
            id=int(name[1:]),
            directory="",
            host="h",
            port=1,
            log_end_offset=1,
            lag=0,
            last_fetch_ms_ago=ms,
            last_caught_up_ms_ago=ms,
        )
        for name, ms in behind_ms.items()
    ]
    return QuorumDescription(
        cluster_id="c",
        leader=leader,
        epoch=1,
        high_watermark=1,
        voters=voters,
        observers=[],
    )


WELL = quorum(1, n1=0, n2=10, n3=10)


@pytest.mark.parametrize(
    ("leader", "behind_ms", "silent"),
    [
        (1, {"n1": 0, "n2": 10, "n3": SILENT_MS - 1}, []),
        (1, {"n1": 0, "n2": SILENT_MS, "n3": 60_000}, [2, 3]),
        (2, {"n1": -1, "n2": 0, "n3": 10}, [1]),
        (-1, {"n1": -1, "n2": -1, "n3": -1}, []),
    ],
)
def test_voters_are_silent_that_their_leader_hears_no_more(leader, behind_ms, silent):
    """A frozen process keeps its connections: only what it does not say tells."""
    assert quorum(leader, **behind_ms).silent == silent


@pytest.mark.parametrize(
    ("partitions", "needed", "may"),
    [
        ([((1, 2, 3), (1, 2, 3))], 2, True),
        ([((1, 2, 3), (2, 3))], 2, True),
        ([((1, 2, 3), (1, 2))], 2, False),
        ([((1, 2, 3), (1,))], 2, False),
        ([((1, 2, 3), (3,))], 1, True),
        ([((2, 3), (2,))], 2, True),
        ([((1,), (1,))], 1, True),
        ([((1, 2), (1, 2))], 2, True),
        ([((1, 2, 3), (1, 2, 3)), ((1, 2, 3), (1, 3))], 2, False),
    ],
    ids=[
        "all in sync",
        "it is out already",
        "the last but one in sync",
        "the last in sync",
        "another is in sync",
        "it has no replica",
        "no replica but its own",
        "no more replicas than must be in sync would block for ever",
        "one partition is enough to say no",
    ],
)
def test_no_partition_may_be_left_with_fewer_in_sync_than_it_needs(partitions, needed, may):
    why = why_not_restart(1, [topic(*partitions)], {"t": needed}, WELL)
    assert (why == []) is may
    if not may:
        assert "min.insync.replicas is 2" in why[0]


@pytest.mark.parametrize(
    ("described", "may"),
    [
        (WELL, True),
        (quorum(2, n1=10, n2=0, n3=10), True),
        (quorum(1, n1=0, n2=10, n3=60_000), False),
        (quorum(1, n1=0, n2=10, n3=-1), False),
        (quorum(1, n1=0), True),
        (quorum(1, n1=0, n2=5, n3=5, n4=5, n5=60_000), True),
        (quorum(2, n2=0, n3=60_000, n4=60_000), True),
    ],
    ids=[
        "all keep up",
        "another leads",
        "the second one of three",
        "one was never heard",
        "the only one",
        "one of five is behind",
        "it has no vote",
    ],
)
def test_the_other_controllers_must_be_able_to_decide(described, may):
    assert (why_not_restart(1, [], {}, described) == []) is may
