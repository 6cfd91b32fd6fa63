"""The metadata quorum as stories in `scenarios/quorum`, and what is too small for a story.

Goal: elections, pre-votes, announcements, replication and snapshots follow Kafka's rules (KIP-595,
KIP-630, KIP-996, KIP-1166), and the stories reach every legal transition. Method: transcripts told
to a few nodes in memory, where each letter arrives when the story says so; beneath them plain tests
of what must be refused, forgotten or found again.
"""

from __future__ import annotations

import pytest
import transcripts
from quorum_story import QuorumStory, tell
from quorum_world import Entry, FakeLog, Node, QuorumWorld

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum import peers
from hightide_broker.core.quorum import state_machine as core
from hightide_broker.core.quorum.leader import fetch_refusal
from hightide_broker.core.quorum.ready import Answered, ElectionState, Requested, Tick
from hightide_broker.core.quorum.roles import TRANSITIONS, QuorumConfig, Role


@pytest.mark.parametrize("path", transcripts.stories("quorum"), ids=lambda path: path.stem)
def test_the_story_is_as_it_is_told(path, rewrite):
    transcripts.play(path, QuorumStory(), rewrite=rewrite)


def test_the_stories_reach_every_legal_transition_and_no_other():
    story = QuorumStory()
    for path in transcripts.stories("quorum"):
        transcripts.play(path, story, rewrite=False)
    assert story.reached == {(old, new) for old, news in TRANSITIONS.items() for new in news}


def told(*steps: str, story: QuorumStory | None = None) -> QuorumStory:
    """A story, or how it goes on, after these steps, whatever their answers are."""
    return tell(story or QuorumStory(), *steps)


# --- elections ----------------------------------------------------------------------------------


def test_the_followers_of_a_dead_leader_elect_another():
    """A promise of a voter that still names the dead leader is a promise."""
    story = told("voters 1 2 3", "start 1", "start 2", "start 3", "elect 1 2 3")
    told("catch-up 2>1", "catch-up 3>1", "crash 1", "gone 2>1", "gone 3>1", story=story)
    told("tick 2 at=1.5", "ask 2>3 pre-vote", story=story)
    assert story.world.nodes[2].up.role is Role.CANDIDATE
    told("ask 2>3 vote", story=story)
    assert story.world.nodes[2].up.is_leader


def test_a_vote_leaves_with_the_state_that_says_so():
    world = QuorumWorld((1, 2, 3))
    node = Node(1, FakeLog())
    world.start(node)
    for candidate, epoch in ((2, 1), (2, 1), (3, 4)):
        request = c.VoteRequest(
            cluster_id="tide", voter=1, candidate=candidate, epoch=epoch, last_epoch=0, log_end=0
        )
        before = node.election_state
        ready = node.up.step(Requested(request), 0.0)
        assert ready.reply.granted
        assert ready.election_state == (
            None if before.epoch == epoch else ElectionState(epoch, -1, candidate)
        )
        node.election_state = ready.election_state or before


def test_a_quorum_of_one_leads_a_new_epoch_at_each_start():
    world = QuorumWorld((7,))
    node = Node(7, FakeLog())
    for epoch in (1, 2, 3):
        world.start(node)
        world.tick(node)
        assert (node.up.role, node.election_state) == (Role.LEADER, ElectionState(epoch, 7, 7))
        assert node.log.last_epoch == epoch
        assert node.up.high_watermark == node.log.log_end
        world.crash(node)


def test_nobody_wants_to_be_woken_in_the_past():
    """A driver that sleeps until `wake_at` must not spin: a tick moves it on."""
    world = QuorumWorld((1, 2, 3))
    for node in (1, 2, 3, 4):
        world.start(Node(node, FakeLog(), election_state=ElectionState(1, 1 if node > 2 else -1)))
    for _ in range(200):
        world.now = max(world.now, min(node.wake_at for node in world.nodes.values())) + 0.001
        for node in world.nodes.values():
            for _ in range(3):
                world.tick(node)
            assert node.wake_at > world.now, node.up
        for asked in list(world.asked):
            world.give_up(asked)


def test_a_stopping_voter_is_no_candidate_any_more():
    story = told("voters 1 2 3", "start 1", "start 2", "tick 1 at=1.1", "resign 1", "ask 1>2")
    assert story.world.nodes[1].up.role is not Role.LEADER
    if story.world.nodes[1].up.role is Role.CANDIDATE:
        story.ask("1>2", "vote")
    assert story.world.nodes[1].up.role is not Role.LEADER


# --- followers ----------------------------------------------------------------------------------


class Pair:
    """Voters 1 and 3 lead and agree, and 2 begins to follow with a log of its own."""

    def __init__(self, mine: str, *, leader: str) -> None:
        newest = max(map(int, (mine + "," + leader).split(",")))
        self.story = told(
            "voters 1 2 3",
            f"start 1 log={leader} epoch={newest}",
            f"start 3 log={leader} epoch={newest}",
            f"start 2 log={mine} epoch={newest}",
            "elect 1 3",
            "catch-up 3>1",
            f"hear 2 begin from=1 epoch={newest + 1}",
        )
        self.leader, self.follower = self.story.world.nodes[1], self.story.world.nodes[2]

    def start_leader_at(self, offset: int) -> None:
        self.leader.log.start_at(self.leader.log.snapshot(offset))

    def follow(self, times: int = 1) -> None:
        for _ in range(times):
            self.story.ask("2>1")


def test_the_offer_of_a_snapshot_commits_nothing_of_a_log_that_may_differ():
    pair = Pair("1,1,1,1,2,2,2,2", leader="1,1,1,1,1,1,3,3")
    pair.start_leader_at(6)
    pair.follow()
    assert pair.follower.up.high_watermark == 0
    pair.follow(times=4)
    assert pair.follower.log.entries == pair.leader.log.entries
    assert pair.follower.up.high_watermark == pair.leader.log.log_end


def test_a_cut_commits_nothing_of_a_log_that_may_still_differ():
    pair = Pair("1,1,2,2,2,4,4", leader="1,1,1,1,1,1,1,3,3")
    pair.follow()
    assert pair.follower.log.log_end == 5, "the first cut is not deep enough"
    assert pair.follower.up.high_watermark == 0
    pair.follow(times=3)
    assert pair.follower.log.entries == pair.leader.log.entries
    assert pair.follower.up.high_watermark == pair.leader.log.log_end


@pytest.mark.parametrize("position", [1, 5, -1])
def test_a_piece_of_another_place_than_asked_for_drops_the_snapshot(position):
    pair = Pair("1", leader="1,1,1")
    pair.story.world.piece_bytes = 5
    pair.start_leader_at(3)
    pair.follow()
    (asked,) = (a for a in pair.story.world.asked if a.asker == 2)
    epoch = pair.leader.up.epoch
    wrong = c.FetchSnapshotResponse(epoch=epoch, leader=1, size=9, position=position, data=0)
    ready = pair.follower.up.step(Answered(1, asked.request, wrong, [memoryview(b"12345")]), 2.0)
    assert ready.piece is None
    assert not ready.send, "it waits a moment"
    again = pair.follower.up.step(Tick(), ready.wake_at)
    assert [type(sending.request) for sending in again.send] == [m.FetchRequest]


@pytest.mark.parametrize(
    ("size", "data", "attachments"),
    [
        (9, 1, [b"12345"]),
        (9, -1, [b"12345"]),
        (9, 0, []),
        (9, 0, [b""]),
        (4, 0, [b"12345"]),
    ],
    ids=["another's bytes", "no bytes named", "no bytes sent", "empty", "more than the whole"],
)
def test_an_answer_without_a_piece_drops_the_snapshot(size, data, attachments):
    """Asked for the same piece at once, the leader would answer the same without end."""
    pair = Pair("1", leader="1,1,1")
    pair.start_leader_at(3)
    pair.follow()
    (asked,) = (a for a in pair.story.world.asked if a.asker == 2)
    told = {"epoch": pair.leader.up.epoch, "leader": 1, "position": 0}
    wrong = c.FetchSnapshotResponse(**told, size=size, data=data)
    pieces = [memoryview(each) for each in attachments]
    ready = pair.follower.up.step(Answered(1, asked.request, wrong, pieces), 2.0)
    assert (ready.piece, ready.install, ready.send) == (None, None, [])
    again = pair.follower.up.step(Tick(), ready.wake_at)
    assert [type(sending.request) for sending in again.send] == [m.FetchRequest]


def test_a_snapshot_that_comes_whole_is_installed():
    pair = Pair("1", leader="1,1,1")
    pair.start_leader_at(3)
    pair.follow()
    (asked,) = (a for a in pair.story.world.asked if a.asker == 2)
    told = {"epoch": pair.leader.up.epoch, "leader": 1, "position": 0}
    whole = c.FetchSnapshotResponse(**told, size=5, data=0)
    piece = memoryview(b"12345")
    ready = pair.follower.up.step(Answered(1, asked.request, whole, [piece]), 2.0)
    assert (ready.piece, ready.install) == (((3, 1), 0, piece), (3, 1))


def test_an_answer_to_a_fetch_that_was_answered_is_ignored():
    pair = Pair("1", leader="1,1,1")
    (asked,) = (a for a in pair.story.world.asked if a.asker == 2)
    (letter,) = (e for e in pair.story.world.letters if e.asked is asked)
    pair.story.world.deliver(letter)
    (answer,) = (e for e in pair.story.world.letters if e.asked is asked)
    pair.story.world.deliver(answer)
    again = Answered(1, asked.request, answer.response, answer.attachments)
    ready = pair.follower.up.step(again, 2.0)
    assert (list(ready.append), ready.send, ready.election_state) == ([], [], None)


# --- observers ----------------------------------------------------------------------------------


def test_an_observer_finds_the_same_leader_again_after_a_long_silence():
    story = told("voters 1", "start 1", "tick 1", "start 4", "tick 4", "ask 4>1", "lose 4>1")
    observer = story.world.nodes[4]
    assert observer.up.role is Role.FOLLOWER
    told("tick 4 at=2.5", story=story)
    assert observer.up.role is Role.UNATTACHED
    told("ask 4>1", story=story)
    assert (observer.up.role, observer.up.leader) == (Role.FOLLOWER, 1)


def a_candidate_that_nobody_has_heard(now: str) -> QuorumStory:
    """Leader 1 is followed by voter 3 and observer 4, since 2.5; voter 2 stood for epoch 2. It is
    `now`."""
    story = told("voters 1 2 3", "start 1", "start 3", "start 4", "elect 1 3", "tick 4")
    told("settle 1 3 4", "tick 1 at=2.5", "expire 1", "settle 1 3 4", story=story)
    told("start 2 epoch=2 voted=2", f"tick 1 at={now}", story=story)
    assert story.world.nodes[2].up.role is Role.CANDIDATE
    assert story.world.nodes[1].up.is_leader
    return story


def test_an_observer_follows_the_leader_of_the_epoch_before_a_candidate_that_died():
    """Epoch 2 ends with its candidate, and nobody else ever heard of it: who is in it follows
    nobody any more."""
    story = a_candidate_that_nobody_has_heard(now="4.6")
    observer = story.world.nodes[4]
    told("timeout 4>1 fetch", "tick 4", "ask 4>2 fetch", "crash 2", story=story)
    assert observer.election_state == ElectionState(1, 1), "it was told of epoch 2"
    assert observer.up.role is Role.UNATTACHED
    while observer.up.role is Role.UNATTACHED:
        told(f"tick 4 at={observer.wake_at}", story=story)
        (letter,) = (each for each in story.world.letters if each.sender == 4)
        assert letter.to in (1, 3), "it asks one after the other"
        told(f"ask 4>{letter.to} fetch", "expire 1", story=story)
        if any((each.sender, each.to) == (1, 4) for each in story.world.letters):
            told("deliver 1>4", story=story)
    told("write 1 a", "settle 1 3 4", story=story)
    assert (observer.up.leader, observer.up.epoch) == (1, 1)
    assert observer.log.entries == story.world.nodes[1].log.entries
    assert observer.up.high_watermark == 2


@pytest.mark.parametrize(("told_of", "then"), [((-1, 2), (1, 1)), ((2, 2), (2, 2))])
def test_an_observer_takes_a_later_epoch_over_with_its_leader_only(told_of, then):
    story = a_candidate_that_nobody_has_heard(now="2.6")
    observer = story.world.nodes[4]
    (asked,) = (each for each in story.world.asked if each.asker == 4)
    refusal = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "ask another")
    answer = fetch_refusal(asked.request, refusal, *told_of)
    observer.up.step(Answered(1, asked.request, answer), 2.6)
    assert observer.up.role is Role.FOLLOWER
    assert (observer.up.leader, observer.up.epoch) == then


def test_a_voter_takes_an_epoch_over_that_has_no_leader():
    """Its vote is what the next election needs, in a later epoch than that one."""
    story = a_candidate_that_nobody_has_heard(now="4.6")
    voter = story.world.nodes[3]
    told("timeout 3>1 fetch", "tick 3", story=story)
    assert (voter.up.role, voter.up.epoch) == (Role.PROSPECTIVE, 1)
    told("ask 3>2 pre-vote", story=story)
    assert voter.election_state == ElectionState(2)
    assert voter.up.role is Role.UNATTACHED


def test_a_leader_forgets_the_observer_that_is_longest_silent(monkeypatch):
    monkeypatch.setattr(peers, "OBSERVERS_MAX", 3)
    story = told("voters 1", "start 1", "tick 1")
    for at, observer in enumerate((11, 12, 13, 11, 14)):
        story.tick("1", f"{at + 1}")
        story.hear("1", "fetch", **{"from": str(observer), "log": "1@1", "epoch": "1"})
    assert story.replicas("1").endswith("; 11, 13, 14")


def test_the_state_of_an_observer_that_once_led_elects_nobody():
    world = QuorumWorld((1, 2))
    node = Node(3, FakeLog([Entry(1, "a")]), election_state=ElectionState(4, 3, 3))
    world.start(node)
    assert (node.up.role, node.up.leader) == (Role.UNATTACHED, -1)
    for now in (0.0, 5.0, 50.0):
        ready = node.up.step(Tick(), now)
        assert all(isinstance(sending.request, m.FetchRequest) for sending in ready.send)
    assert node.up.epoch == 4


def test_a_voter_that_knows_nothing_asks_soon_and_one_that_voted_does_not():
    def first_question(known):
        config = QuorumConfig(node=1, voters=(1, 2, 3))
        return core.Quorum(config, FakeLog(), known, random=lambda: 0.5, now=7.0).step(Tick(), 7.0)

    assert first_question(ElectionState()).wake_at == 7.05
    assert first_question(ElectionState(epoch=4, voted=2)).wake_at == 8.5
