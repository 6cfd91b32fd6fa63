"""A vote is for a node with its directory: two nodes of one id are two candidates (KIP-853).

Goal: where a node takes another one's place under its id, and both live, an epoch has one leader
all the same, also when voters start again in between. Method: voters by themselves, over logs in
memory, that are asked by hand; then what a driver keeps of a vote on its disk.
"""

from __future__ import annotations

import random

import pytest
import trio
from brokers import DATA, FakeClock
from quorum_checker import QuorumChecker
from quorum_node import Entry, FakeLog, Node, voters
from sim_machines import virtual
from small_worlds import in_world, until_led

from hightide.protocol import controller_messages as c
from hightide_broker.core.quorum.ready import NOBODY, Answered, ElectionState, Requested, Tick
from hightide_broker.core.quorum.roles import QuorumConfig, Role
from hightide_broker.core.quorum.state_machine import Quorum
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.quorum.metadata_log import MetadataLog
from hightide_broker.runtime.quorum.peers import NodeAddresses
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.directory import METADATA_DIRECTORY
from hightide_broker.storage.quorum_state import (
    QuorumState,
    read_quorum_state,
    write_quorum_state,
)
from hightide_broker.storage.segment import LogConfig

HERE = f"{DATA}/{METADATA_DIRECTORY}"
NOW = 7.0
NO_VOTE = ElectionState(1)


def log_of(*records):
    """A log with these records of the voters, one after the other."""
    return FakeLog([Entry(1, "voters", voters(names)) for names in records])


def node_of(directory, log=None, known=NO_VOTE):
    """A node that follows nobody."""
    config = QuorumConfig(
        node=int(directory[:-1]), voters=(1, 2, 3, 4), directory=directory, cluster_id="tide"
    )
    return Quorum(config, log or FakeLog(), known, random=lambda: 0.5, now=0.0)


def asked(node, candidate, epoch, *, pre_vote=False, log_end=9):
    """The answer to a candidate, by its directory, and what the node keeps at once."""
    request = c.VoteRequest(
        cluster_id="tide",
        voter=node.config.node,
        voter_directory=node.config.directory,
        candidate=int(candidate[0]),
        candidate_directory=candidate if len(candidate) > 1 else "",
        epoch=epoch,
        last_epoch=1,
        log_end=log_end,
        pre_vote=pre_vote,
    )
    ready = node.step(Requested(request), NOW)
    return ready.reply, ready.election_state


def votes(node, candidate, epoch, **more):
    reply, _ = asked(node, candidate, epoch, **more)
    assert reply.granted != bool(reply.message), "a no has a reason, a yes needs none"
    return reply.granted


def again(node):
    """The node after a restart: all it knows is what it kept."""
    return node_of(node.config.directory, node._log, node.election_state)


def as_it_is(node):
    return node


@pytest.mark.parametrize("then", [as_it_is, again])
def test_a_vote_is_for_one_directory_of_a_node(then):
    node = node_of("1a")
    reply, kept = asked(node, "4a", 2)
    assert (reply.granted, kept) == (True, ElectionState(2, NOBODY, 4, "4a"))
    node = then(node)
    assert not votes(node, "4b", 2)
    assert not votes(node, "2a", 2)
    assert votes(node, "4a", 2), "it asks again, and has the vote"
    assert node.election_state == ElectionState(2, NOBODY, 4, "4a")


@pytest.mark.parametrize("then", [as_it_is, again])
def test_the_next_epoch_has_votes_of_its_own(then):
    node = node_of("1a")
    assert votes(node, "4a", 2)
    node = then(node)
    assert votes(node, "4b", 3)
    assert node.election_state == ElectionState(3, NOBODY, 4, "4b")
    assert not votes(then(node), "4a", 3)


def test_a_later_epoch_without_a_vote_forgets_the_directory_too():
    node = node_of("1a", log_of("1a 2a 3a 4a"))
    assert votes(node, "4a", 2)
    assert not votes(node, "4a", 3, log_end=0), "its log is too short"
    assert node.election_state == ElectionState(3)


def test_a_vote_from_before_there_were_directories_is_for_none_that_is_named():
    """An older file does not say which of the two it was for: the next epoch will."""
    node = node_of("1a", known=ElectionState(2, NOBODY, 4))
    assert not votes(node, "4a", 2)
    assert not votes(node, "4b", 2)
    assert votes(node, "4", 2), "a node of an older version asks again"
    assert votes(node, "4a", 3)


def test_a_promise_to_vote_is_none():
    node = node_of("1a")
    assert votes(node, "4a", 1, pre_vote=True)
    assert votes(node, "4b", 1, pre_vote=True)
    assert node.election_state == NO_VOTE


def test_the_checker_of_the_other_tests_tells_two_nodes_of_one_id_apart():
    checker = QuorumChecker((1, 2, 3, 4))
    node = Node(1, FakeLog(), ElectionState(2, NOBODY, 4, "4a"), directory="1a")
    checker.check_vote(node, (4, "4a"), 2)
    with pytest.raises(AssertionError, match="not durable"):
        checker.check_vote(node, (4, "4b"), 2)
    node.election_state = ElectionState(2, NOBODY, 4, "4b")
    with pytest.raises(AssertionError, match=r"1 votes for \(4, '4a'\) and \(4, '4b'\) in 2"):
        checker.check_vote(node, (4, "4b"), 2)


# --- candidates ---------------------------------------------------------------------------------


def wishes(ready):
    """What a candidate asks for after a step."""
    return [sending for sending in ready.send if isinstance(sending.request, c.VoteRequest)]


def stands(node):
    """Let its time pass: what it asks others for."""
    ready = node.step(Tick(), NOW)
    assert node.role is Role.PROSPECTIVE
    return wishes(ready)


def seeks(candidate, sendings, electorate):
    """Let a candidate ask those of the electorate once; what it asks for then."""
    asks = []
    for peer, request in sendings:
        if peer in electorate:
            reply = electorate[peer].step(Requested(request), NOW).reply
            asks += wishes(candidate.step(Answered(peer, request, reply), NOW))
    return asks


def test_a_candidate_votes_for_its_own_directory_and_names_it():
    node = node_of("2b", log_of("1a 2b 3a"))
    promises = stands(node)
    assert {s.request.candidate_directory for s in promises} == {"2b"}
    assert node.election_state == NO_VOTE, "nothing was voted yet"
    sendings = seeks(node, promises, {1: node_of("1a")})
    assert node.role is Role.CANDIDATE
    assert node.election_state == ElectionState(2, NOBODY, 2, "2b")
    assert {s.request.candidate_directory for s in sendings} == {"2b"}


@pytest.mark.parametrize("then", [as_it_is, again])
def test_a_removed_node_and_the_one_in_its_place_do_not_both_lead_an_epoch(then):
    """4a has the record that removes it, and does not know that it is committed: it may stand. 4b
    is in its place by a record that the others lack. Both have 2a and 3a to vote for them."""
    before, left, after = "1a 2a 3a 4a", "1a 2a 3a", "1a 2a 3a 4b"
    old, new = node_of("4a", log_of(before, left)), node_of("4b", log_of(before, left, after))
    electorate = {
        2: node_of("2a", log_of(before, left)),
        3: node_of("3a", log_of(before, left)),
    }
    theirs, ours = stands(old), stands(new)
    theirs, ours = seeks(old, theirs, electorate), seeks(new, ours, electorate)
    assert {old.role, new.role} == {Role.CANDIDATE}
    assert {old.epoch, new.epoch} == {2}
    seeks(old, theirs, electorate)
    seeks(new, ours, {peer: then(node) for peer, node in electorate.items()})
    assert (old.is_leader, new.is_leader) == (True, False)


# --- what is kept -------------------------------------------------------------------------------


class Nobody:
    """Peers that are never there."""

    async def call(self, peer, request, *, timeout_s):
        await trio.sleep_forever()


def driver_on(disk):
    return QuorumDriver(
        QuorumConfig(node=1, voters=(1, 2, 3), directory="1a"),
        MetadataLog(disk, HERE, config=LogConfig(segment_bytes=1 << 20), clock=FakeClock()),
        disk=disk,
        directory=HERE,
        peers=Nobody(),
        addresses=NodeAddresses(),
        syncer=Syncer(disk, Agenda()),
        random=random.Random(1),
        request_timeout_s=1.0,
    )


def test_a_driver_begins_with_the_vote_that_is_on_its_disk():
    async def body():
        disk = SimDisk()
        disk.make_dirs(HERE)
        kept = QuorumState(NOBODY, 4, 3, "3b")
        write_quorum_state(disk, HERE, kept)
        assert driver_on(disk).core.election_state == ElectionState(4, NOBODY, 3, "3b")
        assert read_quorum_state(disk, HERE) == kept

    virtual(body)


def test_every_voter_keeps_the_directory_that_it_voted_for():
    async def body(world):
        leader = await until_led(world)
        directory = leader.node.quorum.core.config.directory
        assert directory
        found = [
            read_quorum_state(each.disk, f"{each.directory}/{METADATA_DIRECTORY}")
            for each in world.voters
        ]
        for_it = [kept for kept in found if kept.voted_id == leader.id]
        assert len(for_it) >= 2
        assert {kept.voted_directory_id for kept in for_it} == {directory}

    in_world(body)
