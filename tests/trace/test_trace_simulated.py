"""The trace of a simulated world is what real nodes would have told.

Method: one seed in which a topic is made again and again; what the checker saw by itself is
compared with what the nodes told. That it costs a history nothing is `test_replicated.py`'s.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from tracekit import of_kind

from hightide_broker.simulation import replicated
from hightide_broker.simulation.run import Outcome
from hightide_broker.trace.events import (
    LeaderBegan,
    PartitionChanged,
    QuorumRole,
    TopicChanged,
    Truncated,
)
from hightide_broker.trace.lines import Told, read_line
from hightide_broker.trace.order import begun_by, in_order, rests_on
from hightide_broker.trace.text import sentence

pytestmark = pytest.mark.slow

SEED = 4


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return replicated.run_seed(SEED, keep_story=True)


@pytest.fixture(scope="module")
def told(outcome: Outcome) -> list[Told]:
    found = [read_line(line) for line in outcome.trace.splitlines()]
    assert None not in found
    return found  # type: ignore[return-value]


def test_the_nodes_tell_of_every_election_and_cut_that_the_checker_saw(
    outcome: Outcome, told: list[Told]
) -> None:
    counts = outcome.counts
    leaders = [role for role in of_kind(told, QuorumRole) if role.role == "leader"]
    assert len({role.epoch for role in leaders}) == counts["elections"] > 1
    assert len(of_kind(told, LeaderBegan)) == counts["partition_elections"] > 5
    assert len(of_kind(told, Truncated)) == counts["cuts"] > 1
    assert all(0 <= cut.after < cut.before for cut in of_kind(told, Truncated))


def test_whoever_leads_was_elected_and_said_so(told: list[Told]) -> None:
    decided = {
        (e.topic, e.partition, e.leader_epoch, e.leader) for e in of_kind(told, PartitionChanged)
    }
    for each in told:
        if isinstance(each.what, LeaderBegan):
            what = each.what
            assert (what.topic, what.partition, what.leader_epoch, each.node) in decided
    assert all(sentence(each.node, each.what) for each in told)


def test_the_order_keeps_every_event_and_tells_lives_of_a_topic_apart(told: list[Told]) -> None:
    found = in_order(reversed(told))
    assert Counter(found) == Counter(told)
    begun = {epoch for each in found if (epoch := begun_by(each))}
    for each in found:
        begun -= {begun_by(each)}
        assert rests_on(each) not in begun
    lives = [e.what.state for e in found if isinstance(e.what, TopicChanged)]
    assert lives.count("deleted") > 5, "one topic is made again and again"
    late = max(later.ms - each.ms for later, each in pairwise(found))
    assert late < 1000, "nothing of an early life waits for a late one"
