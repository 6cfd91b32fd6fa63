"""Another leader is no reason to wait: a pause is for the one that failed (KIP-951).

Goal: records that came back are sent as soon as a newer leader epoch is known, and the next pause
counts the attempts with that leader alone; with the same leader nothing changes. Method: the
accumulator, by hand.
"""

from __future__ import annotations

import pytest
from accumulating import Story

from hightide.protocol.errors import ApiError, ErrorCode

LOST = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")


def sent_to(story: Story, leader_epoch: int, *, now: float = 0.0) -> list:
    """What is due at that leader, as the sender has it."""
    queue = story.queue()
    if story.core.ready_at(queue, now, leader_epoch) > now:
        return []
    story.core.try_with(queue, leader_epoch)
    return [batch for batch, _ in story.core.drain([queue], max_bytes=1 << 20)]


def failing(story: Story, leader_epoch: int, *, times: int) -> None:
    """The same batch comes back so often, each time with a second of pause."""
    for number in range(times):
        (batch,) = sent_to(story, leader_epoch, now=float(number))
        story.core.retry(batch, LOST, not_before=number + 1.0)


def test_what_came_back_waits_for_the_same_leader_and_not_for_another_one():
    story = Story()
    (batch,) = story.fill(b"a")
    failing(story, 3, times=1)
    assert sent_to(story, 3, now=0.9) == []
    assert sent_to(story, 2, now=0.9) == [], "old news is none"
    assert sent_to(story, 4, now=0.1) == [batch]


def test_the_leader_that_failed_is_waited_for_when_its_pause_is_over():
    story = Story()
    (batch,) = story.fill(b"a")
    failing(story, 3, times=2)
    assert sent_to(story, 3, now=1.9) == []
    assert sent_to(story, 3, now=2.0) == [batch]


@pytest.mark.parametrize("before", [1, 4])
def test_the_next_pause_counts_the_attempts_with_the_leader_that_failed_last(before: int):
    """A new leader may lack replicas for a moment: that must not cost the longest pause."""
    story = Story()
    (batch,) = story.fill(b"a")
    failing(story, 3, times=before)
    assert story.core.attempts_with_leader(batch) == before
    for attempts in (1, 2):
        assert sent_to(story, 4, now=100.0 * attempts) == [batch]
        assert story.core.attempts_with_leader(batch) == attempts
        story.core.retry(batch, LOST, not_before=100.0 * attempts + 1)


def test_a_batch_that_never_failed_has_the_shortest_pause():
    story = Story()
    first, second = story.fill(b"a", b"b")
    failing(story, 3, times=4)
    assert sent_to(story, 5, now=50.0) == [first]
    story.core.succeed(first, 0)
    assert sent_to(story, 5, now=50.0) == [second]
    assert story.core.attempts_with_leader(second) == 1
    story.core.retry(second, LOST, not_before=51.0)
    assert sent_to(story, 5, now=50.9) == []
