"""Which node a request says that it comes from, and whose certificate a name is.

Goal: no node speaks for another (CVE-2018-1288). Method: the pure rules on requests of each kind;
`tests/server/test_doors.py` holds them at the doors of nodes.
"""

import pytest

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.senders import check_sender, may_answer, name_of, node_of

FROM_2 = [
    c.VoteRequest(cluster_id="", voter=1, candidate=2, epoch=1, last_epoch=0, log_end=0),
    c.BeginQuorumEpochRequest(cluster_id="", voter=1, leader=2, epoch=1),
    m.FetchRequest(replica_id=2, max_wait_ms=0, max_bytes=1, partitions=[]),
    m.ListOffsetsRequest(replica_id=2, partitions=[]),
    c.BrokerHeartbeatRequest(broker=2, broker_epoch=1, metadata_offset=0),
    c.AlterPartitionRequest(broker=2, broker_epoch=1, partitions=[]),
    c.AllocateProducerIdsRequest(broker=2, broker_epoch=1),
]


@pytest.mark.parametrize("request_of_2", FROM_2, ids=lambda each: type(each).__name__)
def test_a_node_speaks_for_itself_alone(request_of_2):
    check_sender(request_of_2, 2)
    with pytest.raises(Refused) as caught:
        check_sender(request_of_2, 3)
    assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert caught.value.message == (
        f"a {type(request_of_2).__name__} of node 2 came from node 3: a node speaks for itself "
        "alone"
    )


def test_what_names_no_sender_may_come_from_any_node():
    check_sender(m.MetadataRequest(topics=[]), 3)


def test_a_node_that_nobody_asked_joins_for_itself_alone():
    """A request that an operator sent is passed on by whichever node was asked."""
    join = q.AddVoterRequest(id=7, host="here", port=1)
    check_sender(join, 2)
    check_sender(join, 7, is_its_own=True)
    with pytest.raises(Refused, match="a AddVoterRequest of node 7 came from node 2") as caught:
        check_sender(join, 2, is_its_own=True)
    assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("node", [0, 1, 10, 999_999_999])
def test_the_name_of_a_nodes_certificate_says_which_node_it_is(node):
    assert node_of(name_of(node)) == node
    assert may_answer(name_of(node), node)
    assert not may_answer(name_of(node), node + 1)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "node-",
        "node-01",
        "node--1",
        "node-1 ",
        " node-1",
        "Node-1",
        "node-1\n",
        "node-1000000000",
    ],
)
def test_nobody_else_has_a_nodes_name(name):
    assert node_of(name) is None


def test_where_nobody_proves_who_it_is_anybody_may_answer():
    assert may_answer("", 3)
    assert not may_answer("alice", 3)
