"""What a few bytes from anybody may ask: nothing that costs a node or an epoch its life.

Goal: requests and responses that no node of ours sends are refused and change nothing, and what one
request may create is bounded. Method: a controller whose decisions are committed at once, one
node's `Quorum` with messages made by hand, and simulated worlds that a stranger talks to.
"""

import pytest
from brokers import FakeClock
from controller_cluster import ControlledCluster, leaders, refusal
from quorum_world import FakeLog, Node, QuorumWorld
from small_worlds import ask, in_world, others, until_led

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.changes import FenceBroker, SetConfig
from hightide_broker.core.cluster.controller import PARTITIONS_MAX
from hightide_broker.core.cluster.topic_config import CLUSTER_KEYS
from hightide_broker.core.quorum.leader import EPOCH_MAX
from hightide_broker.core.quorum.ready import Answered, ElectionState, Requested
from hightide_broker.runtime.quorum.metadata_log import CHANGES_BYTES_MAX, MetadataLog
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.simulation.world import CLUSTER_ID
from hightide_broker.storage.segment import LogConfig

E = ErrorCode
HALF = PARTITIONS_MAX // 2
IMPOSSIBLE = [EPOCH_MAX + 1, 2**31 - 1, 2**31, 2**63, -1, -(2**31)]

# What one request may create.


def test_the_topics_of_one_request_share_the_partitions_that_it_may_create():
    cluster = ControlledCluster(1)
    wishes = {"a": HALF, "b": HALF + 1, "c": HALF, "d": 1}
    results = cluster.create_all(
        *(m.NewTopic(topic=topic, partitions=count) for topic, count in wishes.items())
    )
    assert [each.error for each in results] == [None, E.INVALID_PARTITIONS] * 2
    assert sorted(cluster.image.topics) == ["a", "c"]
    assert cluster.create("d").error is None, "the next request has room of its own"


def test_a_validation_counts_the_partitions_of_a_request_as_its_creation_does():
    wishes = [m.NewTopic(topic=topic, partitions=PARTITIONS_MAX) for topic in ("a", "b")]
    results = ControlledCluster(1).create_all(*wishes, validate_only=True)
    assert [each.error for each in results] == [None, E.INVALID_PARTITIONS]


def test_topics_that_one_request_makes_larger_share_the_partitions_that_it_may_add():
    cluster = ControlledCluster(1)
    for topic in "abcd":
        cluster.create(topic, partitions=2)
    results = cluster.more_all(("a", HALF + 2), ("b", HALF + 3), ("c", HALF + 2), ("d", 3))
    assert [each.error for each in results] == [None, E.INVALID_PARTITIONS] * 2
    assert [len(leaders(cluster, topic)) for topic in "abcd"] == [HALF + 2, 2, HALF + 2, 2]
    assert cluster.more("d", 3).error is None


def test_a_batch_of_too_many_bytes_is_refused_and_nothing_is_written():
    disk = SimDisk()
    log = MetadataLog(
        disk, "data/log-0", config=LogConfig(segment_bytes=1 << 20), clock=FakeClock()
    )
    log.append_leader_change(1, leader=1, voters=[1])
    used, end = disk.used_bytes(), log.log_end
    large = SetConfig(kind="topic", name="t", key="k", value="v" * (CHANGES_BYTES_MAX // 4))
    assert refusal(log.append, [large] * 4, 1) is E.INVALID_REQUEST
    assert (disk.used_bytes(), log.log_end) == (used, end)


def test_a_batch_of_no_more_than_the_limit_is_written():
    disk = SimDisk()
    log = MetadataLog(
        disk, "data/log-0", config=LogConfig(segment_bytes=1 << 20), clock=FakeClock()
    )
    large = SetConfig(kind="topic", name="t", key="k", value="v" * (CHANGES_BYTES_MAX // 4 - 99))
    assert log.append([large] * 4, 1) == 0
    assert log.append([FenceBroker(broker=1, broker_epoch=1)], 1) == log.log_end - 1 == 4


@pytest.mark.parametrize("broker", [-1, -2, -(2**31)])
def test_no_broker_registers_with_a_negative_id(broker):
    cluster = ControlledCluster(1)
    before = len(cluster.log)
    assert refusal(cluster.register, broker) is E.INVALID_REQUEST
    assert (len(cluster.log), list(cluster.image.brokers)) == (before, [1])


def test_a_broker_may_have_the_id_0():
    assert ControlledCluster(0).image.brokers[0].epoch == len(CLUSTER_KEYS)


# Data is not fetched from a controller.


@pytest.mark.parametrize("topics", [[], ["orders"], ["orders", "payments"]])
def test_a_controller_refuses_a_fetch_of_data_and_lives(topics):
    async def body(world):
        leader = await until_led(world)
        for machine in (leader, others(world, leader)[0]):
            parts = [m.FetchPartition(topic=t, partition=0, fetch_offset=0) for t in topics]
            request = m.FetchRequest(max_wait_ms=0, max_bytes=1, partitions=parts)
            answer = await ask(world, machine, request)
            assert (answer.code, "is a controller" in str(answer)) == (
                E.NOT_LEADER_OR_FOLLOWER,
                True,
            )
        status = await ask(world, leader, q.DescribeQuorumRequest())
        assert status.leader == leader.id
        assert all(machine.node for machine in world.machines)

    in_world(body)


# Epochs that cannot be, and nodes of no cluster.

STATES = [ElectionState(4, 3, -1), ElectionState(4, -1, -1), ElectionState(4, -1, 2)]


def voter(election_state=STATES[0], log=()):
    """Voter 1 of three as its election state says, and its world."""
    world = QuorumWorld((1, 2, 3))
    node = Node(1, FakeLog(log), election_state)
    world.start(node)
    return world, node


def standing(node):
    quorum = node.up
    return node.election_state, quorum.role, quorum.epoch, quorum.leader, quorum.voted


def asked(kind, epoch, cluster="tide"):
    """A request of voter 2 to voter 1, which is in epoch 4."""
    told = {"cluster_id": cluster, "voter": 1, "epoch": epoch}
    match kind:
        case "vote" | "pre-vote":
            pre = kind == "pre-vote"
            return c.VoteRequest(**told, candidate=2, last_epoch=0, log_end=0, pre_vote=pre)
        case "begin":
            return c.BeginQuorumEpochRequest(**told, leader=2)
    return c.EndQuorumEpochRequest(**told, leader=2, successors=[1, 3])


KINDS = ["vote", "pre-vote", "begin", "end"]


def answer_to(node, request):
    return node.up.step(Requested(request), 0.0)


@pytest.mark.parametrize("election_state", STATES)
@pytest.mark.parametrize("epoch", IMPOSSIBLE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_an_impossible_epoch_changes_nothing(kind, epoch, election_state):
    _, node = voter(election_state)
    before = standing(node)
    ready = answer_to(node, asked(kind, epoch))
    assert (ready.reply.error, ready.reply.epoch) == (E.INVALID_REQUEST, 4)
    assert (ready.election_state, standing(node)) == (None, before)


@pytest.mark.parametrize("election_state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_names_no_cluster_changes_nothing(kind, election_state):
    _, node = voter(election_state)
    before = standing(node)
    ready = answer_to(node, asked(kind, 5, cluster=""))
    assert ready.reply.error == E.INCONSISTENT_CLUSTER_ID
    assert (ready.election_state, standing(node)) == (None, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_a_possible_epoch_is_heard(kind):
    """Otherwise the tests above would prove nothing."""
    _, node = voter()
    ready = answer_to(node, asked(kind, 5))
    assert (ready.reply.error, node.up.epoch, ready.election_state.epoch) == (None, 5, 5)


def seeking():
    """A voter that asks for pre-votes in epoch 4, and what it has asked voter 2."""
    world, node = voter(ElectionState(4, -1, -1))
    world.now = 100.0
    world.tick(node)
    (sent,) = [letter.asked for letter in world.letters if letter.asked.peer == 2]
    return world, node, sent.request


def following():
    """A voter that follows voter 3 in epoch 4, and its fetch."""
    world, node = voter()
    world.tick(node)
    (sent,) = [letter.asked for letter in world.letters]
    return world, node, sent.request


@pytest.mark.parametrize("leader", [-1, 2])
@pytest.mark.parametrize("epoch", IMPOSSIBLE)
def test_an_answer_to_a_vote_of_an_impossible_epoch_changes_nothing(epoch, leader):
    world, node, request = seeking()
    before = standing(node)
    response = c.VoteResponse(epoch=epoch, leader=leader)
    ready = node.up.step(Answered(2, request, response), world.now)
    assert (ready.election_state, standing(node)) == (None, before)


@pytest.mark.parametrize("leader", [-1, 2])
@pytest.mark.parametrize("response", [c.BeginQuorumEpochResponse, c.EndQuorumEpochResponse])
@pytest.mark.parametrize("epoch", IMPOSSIBLE)
def test_a_late_answer_of_an_impossible_epoch_changes_nothing(epoch, response, leader):
    _, node = voter()
    before = standing(node)
    kind = "begin" if response is c.BeginQuorumEpochResponse else "end"
    answered = Answered(2, asked(kind, 3), response(epoch=epoch, leader=leader))
    ready = node.up.step(answered, 0.0)
    assert (ready.election_state, standing(node)) == (None, before)


@pytest.mark.parametrize("epoch", IMPOSSIBLE)
def test_an_answer_to_a_fetch_of_an_impossible_epoch_changes_nothing(epoch):
    world, node, request = following()
    before = standing(node)
    hint = m.LeaderHint(leader=2, leader_epoch=epoch)
    result = m.FetchResult(topic="__cluster_metadata", partition=0, current_leader=hint)
    ready = node.up.step(Answered(3, request, m.FetchResponse(partitions=[result])), world.now)
    assert (ready.election_state, standing(node)) == (None, before)


def test_an_answer_of_a_possible_epoch_is_heard():
    world, node, request = seeking()
    response = c.VoteResponse(epoch=EPOCH_MAX, leader=2)
    node.up.step(Answered(2, request, response), world.now)
    assert (node.up.epoch, node.up.leader) == (EPOCH_MAX, 2)


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_stranger_with_a_huge_epoch_ends_neither_a_node_nor_a_term(pre_vote):
    async def body(world):
        leader = await until_led(world)
        epoch = leader.node.quorum.core.epoch
        request = c.VoteRequest(
            cluster_id=CLUSTER_ID,
            voter=leader.id,
            candidate=others(world, leader)[0].id,
            epoch=2**31 - 1,
            last_epoch=0,
            log_end=0,
            pre_vote=pre_vote,
        )
        assert (await ask(world, leader, request)).error == E.INVALID_REQUEST
        assert world.leader() is leader
        assert leader.node.quorum.core.epoch == epoch
        assert all(machine.node for machine in world.machines)

    in_world(body)


# Successors.


@pytest.mark.parametrize("epoch", [4, 5])
@pytest.mark.parametrize("successors", [[1, 2, 3, 1], [1, 2] + [7] * 2000, [2, 1] + [7] * 2000])
def test_an_end_of_an_epoch_with_more_successors_than_voters_changes_nothing(epoch, successors):
    _, node = voter()
    before = standing(node)
    request = c.EndQuorumEpochRequest(
        cluster_id="tide", voter=1, leader=3, epoch=epoch, successors=successors
    )
    ready = answer_to(node, request)
    assert ready.reply.error == E.INVALID_REQUEST
    assert (ready.election_state, standing(node)) == (None, before)


@pytest.mark.parametrize("successors", [[1, 2, 3], [2, 1], [2], []])
def test_an_end_of_an_epoch_with_as_many_successors_as_voters_is_heard(successors):
    _, node = voter()
    request = c.EndQuorumEpochRequest(
        cluster_id="tide", voter=1, leader=3, epoch=4, successors=successors
    )
    assert answer_to(node, request).reply.error is None
    stands = node.up.role.value == "prospective"
    assert stands == (successors[:1] == [1]), "the best successor stands at once"
