"""Elections that come to nothing are told with a measure; what they decide is always told.

Goal: a cluster without a quorum for a week still has in its trace how that began. Method: what one
node does, told to a list on a clock that jumps; a node whose others are away, in virtual time.
"""

import logging
from types import SimpleNamespace

import pytest
import trio
from brokers import DATA, new_node, settings
from small_worlds import in_world, until, until_led
from tracekit import kept, of_kind

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.quorum.roles import Role
from hightide_broker.runtime.quorum.told import PAUSE_S, TOLD_MAX, QuorumTold
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace.events import NodeStarted, QuorumRole, QuorumVote
from hightide_broker.trace.text import sentence

LONG_S = 240
"""In which elections alone, told one by one, would fill the trace that is tried several times."""
ALONE = {
    "controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
    "cluster.id": "c",
}


class Quorum:
    """A node's part in it, and what is told."""

    def __init__(self):
        self.events = []
        self.told = QuorumTold(self.events.append)

    def role(self, role, leader=-1, epoch=1):
        self.told.role_taken(SimpleNamespace(role=role, epoch=epoch, leader=leader, voted=-1), 5)

    def heard(self, leader):
        node = SimpleNamespace(role=Role.FOLLOWER, epoch=1, leader=leader, voted=-1)
        self.told.leader_heard(node, 5)

    def votes(self, *, pre_vote):
        request = c.VoteRequest(
            cluster_id="c",
            candidate=2,
            voter=1,
            epoch=1,
            log_end=0,
            last_epoch=0,
            pre_vote=pre_vote,
        )
        self.told.answered(request, c.VoteResponse(epoch=1, leader=-1, granted=False))

    @property
    def counts(self):
        return [each.left_out for each in self.events]


async def in_vain(act, seconds):
    for _ in range(seconds):
        act()
        await trio.sleep(1)


ACTS = [
    lambda quorum: quorum.role(Role.PROSPECTIVE),
    lambda quorum: quorum.votes(pre_vote=True),
]


@pytest.mark.parametrize("act", ACTS, ids=["roles", "questions"])
async def test_what_comes_to_nothing_is_told_first_and_then_once_a_minute(act, autojump_clock):
    quorum = Quorum()
    await in_vain(lambda: act(quorum), TOLD_MAX + 10 * int(PAUSE_S))
    assert quorum.counts[:TOLD_MAX] == [0] * TOLD_MAX
    later = quorum.counts[TOLD_MAX:]
    assert 9 <= len(later) <= 10
    assert {*later} == {int(PAUSE_S) - 1}


async def test_the_log_has_the_roles_that_the_trace_has(autojump_clock, caplog):
    caplog.set_level(logging.INFO, "hightide.quorum")
    quorum = Quorum()
    await in_vain(lambda: quorum.role(Role.PROSPECTIVE), 3 * TOLD_MAX)
    assert [each.getMessage() for each in caplog.records] == ["prospective epoch=1"] * TOLD_MAX
    quorum.role(Role.FOLLOWER, leader=2)
    assert caplog.records[-1].getMessage() == "follower epoch=1 leader=2"


async def test_a_leader_is_told_with_how_many_were_not_and_the_next_election_is_whole(
    autojump_clock,
):
    quorum = Quorum()
    await in_vain(lambda: quorum.role(Role.PROSPECTIVE), TOLD_MAX + 30)
    quorum.role(Role.FOLLOWER, leader=2)
    assert quorum.events[-1] == QuorumRole(
        role="follower", epoch=1, leader=2, log_end=5, left_out=30
    )
    told = len(quorum.events)
    await in_vain(lambda: quorum.role(Role.PROSPECTIVE), TOLD_MAX)
    assert quorum.counts[told:] == [0] * TOLD_MAX


async def test_a_leader_that_is_only_named_again_is_no_news_until_it_answers(autojump_clock):
    quorum = Quorum()
    quorum.role(Role.FOLLOWER, leader=2)

    def in_a_circle():
        quorum.role(Role.UNATTACHED, leader=2)
        quorum.role(Role.FOLLOWER, leader=2)

    await in_vain(in_a_circle, TOLD_MAX)
    assert quorum.counts == [0] * (1 + TOLD_MAX)
    quorum.heard(leader=2)
    assert quorum.events[-1] == QuorumRole(
        role="follower", epoch=1, leader=2, log_end=5, left_out=TOLD_MAX
    )
    told = len(quorum.events)
    quorum.heard(leader=2)
    await in_vain(in_a_circle, TOLD_MAX // 2)
    assert quorum.counts[told:] == [0] * TOLD_MAX


async def test_a_leader_that_is_heard_does_not_have_the_questions_of_others_told_again(
    autojump_clock,
):
    quorum = Quorum()

    def one_asks_in_vain():
        quorum.votes(pre_vote=True)
        quorum.heard(leader=2)

    await in_vain(one_asks_in_vain, TOLD_MAX + 10)
    assert len(quorum.events) == TOLD_MAX


async def test_what_is_decided_is_told_however_often(autojump_clock):
    quorum = Quorum()
    for number in range(3 * TOLD_MAX):
        quorum.role(Role.LEADER, leader=1, epoch=number)
        quorum.votes(pre_vote=False)
        quorum.told.answered(m.FetchRequest(max_wait_ms=0, partitions=[]), c.VoteResponse(epoch=1))
        quorum.told.voters_written(number, ())
    assert len(quorum.events) == 9 * TOLD_MAX
    assert {*(each.left_out for each in of_kind(quorum.events, QuorumRole, QuorumVote))} == {0}


async def test_questions_do_not_hide_how_an_election_begins(autojump_clock):
    quorum = Quorum()
    await in_vain(lambda: quorum.votes(pre_vote=True), 5 * TOLD_MAX)
    before = len(quorum.events)
    await in_vain(lambda: quorum.role(Role.PROSPECTIVE), TOLD_MAX)
    assert len(quorum.events) == before + TOLD_MAX


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            QuorumRole(role="prospective", epoch=3, left_out=57),
            "node 1 is prospective in epoch 3 of the quorum (after 57 changes of role that came to "
            "nothing)",
        ),
        (
            QuorumRole(role="follower", epoch=3, leader=2, left_out=1),
            "node 1 follows node 2 in epoch 3 of the quorum (after 1 change of role that came to "
            "nothing)",
        ),
        (
            QuorumVote(candidate=2, epoch=3, granted=False, is_pre_vote=True, left_out=2),
            "node 2 asked node 1 whether it could win after epoch 3: no (after 2 questions that "
            "came to nothing)",
        ),
    ],
)
def test_a_sentence_says_how_many_were_left_out(event, said):
    assert sentence(1, event) == said


def test_a_broker_that_does_not_reach_its_leader_for_long_tells_little_and_that_it_is_back():
    async def body(world):
        leader, (broker,) = await until_led(world), world.machines[3:]
        await until(lambda: broker.node and broker.node.serving.is_set())
        told = []
        broker.node.trace.tell = told.append
        world.network.cut(broker.name, leader.name)
        world.network.cut(leader.name, broker.name)
        await trio.sleep(LONG_S)
        circle = len(of_kind(told, QuorumRole))
        assert TOLD_MAX <= circle <= TOLD_MAX + LONG_S / PAUSE_S
        world.network.heal()
        await until(lambda: broker.node.controller_id == leader.id)
        last = of_kind(told, QuorumRole)[circle:][-1]
        assert (last.role, last.leader) == ("follower", leader.id)
        assert last.left_out > 0

    in_world(body, observers=1)


async def test_a_node_without_its_quorum_does_not_push_out_how_that_began(autojump_clock):
    disk = SimDisk()
    small = {**ALONE, "trace.max.bytes": "8192", "controller.quorum.retry.backoff.ms": "500"}
    async with new_node(disk, settings(small), wait=False):
        await trio.sleep(LONG_S)
    told = kept(disk)
    roles = of_kind(told, QuorumRole)
    assert of_kind(told, NodeStarted), "the first event is there still"
    assert TOLD_MAX + 3 <= len(roles) <= TOLD_MAX + 6
    assert sum(each.left_out for each in roles) > LONG_S / 3
    assert disk.exists(f"{DATA}/trace")
