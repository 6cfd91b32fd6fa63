"""What a follower's replica leaves alone, and what it owes its disk before it asks again.

Goal: answers to questions that are not asked any more change nothing; under `flush=synced` no fetch
acknowledges what is not on disk. Method: as in `test_following.py`.
"""

from __future__ import annotations

import logging

import pytest
from logkit import DIRECTORY, finish, sync
from replicakit import (
    EPOCH,
    LEADER,
    Place,
    batch,
    paused,
    state,
)

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.replication.follower import (
    AskOffsets,
    Follower,
    Ignore,
    Stop,
    Truncate,
    TruncateFully,
)
from hightide_broker.runtime.replication.following import STEPS_TOLD_MAX, owes_sync
from hightide_broker.storage.epochs import EpochCache

# --- answers that change nothing ---------------------------------------------------------------


def test_an_answer_to_an_older_question_leaves_the_replica_alone() -> None:
    place = Place((1, 2), high_watermark=1)
    question = place.ask()
    place.answer(batch(2), watermark=2)
    before = place.batches, place.offsets, place.epochs
    assert place.answer(batch(2), watermark=3, asked=question) == Ignore()
    assert place.answer(diverging=(0, 0), asked=question) == Ignore()
    assert (place.batches, place.offsets, place.epochs) == before


def test_an_answer_of_an_epoch_that_is_over_leaves_the_replica_alone() -> None:
    place = Place((1, 2), high_watermark=1)
    question = place.ask()
    place.replica.become_follower(state(LEADER, EPOCH + 1))
    for answer in (
        {"watermark": 2},
        {"diverging": (0, 0)},
        {"error": ErrorCode.FENCED_LEADER_EPOCH},
    ):
        assert place.answer(batch(2), asked=question, **answer) == Ignore()
    assert place.offsets == (0, 1, 2)
    assert place.replica.follower == Follower(leader=LEADER, epoch=EPOCH + 1)
    assert place.ask().current_leader_epoch == EPOCH + 1


def test_who_was_fenced_goes_on_in_the_next_epoch() -> None:
    place = Place((1, 2))
    assert isinstance(place.answer(error=ErrorCode.FENCED_LEADER_EPOCH), Stop)
    assert not place.replica.follower.may_fetch(1e9)
    place.replica.become_follower(state(LEADER, EPOCH + 1))
    assert place.replica.follower.may_fetch(0.0)


@pytest.mark.parametrize("role", ["leader", "nobody's follower", "offline"])
def test_who_follows_nobody_any_more_ignores_every_answer(role: str) -> None:
    place = Place((1, 2), high_watermark=1)
    question = place.ask()
    if role == "leader":
        place.replica.become_leader(state(LEADER), broker=LEADER)
    elif role == "offline":
        place.replica.go_offline("for a test")
    else:
        place.replica.become_follower(state(-1))
    assert place.answer(batch(2), asked=question) == Ignore()
    assert place.answer(diverging=(0, 0), asked=question) == Ignore()
    assert place.log.log_end == 2


def test_errors_leave_records_in_the_same_answer_alone() -> None:
    place = Place((1, 2))
    step = place.answer(batch(2), watermark=2, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert step == AskOffsets()
    step = place.answer(batch(2), watermark=2, error=ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert paused(step, place, "UNKNOWN_LEADER_EPOCH")
    assert place.offsets == (0, 0, 2)


# --- what is on disk ---------------------------------------------------------------------------


def test_with_flush_synced_no_fetch_acknowledges_what_is_not_on_disk() -> None:
    place = Place((1, 2), flush="synced")
    sync(place.disk, place.log)
    assert not owes_sync(place.replica)
    place.replica.needs_sync = False
    place.answer(batch(2), watermark=2)
    assert owes_sync(place.replica)
    assert place.replica.needs_sync
    sync(place.disk, place.log)
    assert not owes_sync(place.replica)


def test_with_flush_replicated_nothing_waits_for_the_disk() -> None:
    place = Place((EPOCH, 2), flush="replicated")
    sync(place.disk, place.log)
    place.answer(batch(2), watermark=2)
    assert place.log.synced_end < place.log.log_end
    assert not owes_sync(place.replica)
    assert not place.replica.needs_sync


def test_with_flush_replicated_a_new_epoch_is_to_be_written_and_nothing_waits_for_it() -> None:
    place = Place((1, 2), flush="replicated")
    sync(place.disk, place.log)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    written = place.disk.read_file(path)
    place.answer(batch(2), watermark=2)
    assert not owes_sync(place.replica)
    assert place.replica.needs_sync
    job = place.replica.begin_sync()
    assert job is not None
    assert job.epochs is not None
    assert not place.replica.needs_sync
    place.answer(batch(3), watermark=3)
    assert not place.replica.needs_sync, "of the same epoch"
    assert place.disk.read_file(path) == written, "nothing is written on the loop"
    finish(place.disk, place.log, job)
    assert dict(EpochCache.load(place.disk, path).entries) == {1: 0, EPOCH: 2}
    assert place.log.synced_end == 3


def test_after_a_cut_or_a_new_beginning_nothing_is_owed() -> None:
    place = Place((1, 2), (3, 2), flush="synced")
    sync(place.disk, place.log)
    place.answer(batch(4))
    place.do(Truncate(2))
    assert not owes_sync(place.replica)
    place.answer(batch(2, epoch=4))
    assert owes_sync(place.replica)
    place.do(TruncateFully(9))
    assert not owes_sync(place.replica)


# --- what is told of a thousand of them ----------------------------------------------------------


def test_of_many_ends_at_once_only_some_are_told_and_how_many_were_not(caplog) -> None:
    caplog.set_level(logging.INFO, logger="hightide.follower")
    place, left_out = Place((1, 2)), 7
    for epoch in range(EPOCH, EPOCH + STEPS_TOLD_MAX + left_out):
        place.answer(error=ErrorCode.FENCED_LEADER_EPOCH)
        place.replica.become_follower(state(LEADER, epoch + 1))
    assert len(caplog.messages) == STEPS_TOLD_MAX
    place.answer(error=ErrorCode.FENCED_LEADER_EPOCH, now=60.0)
    first, second = caplog.messages[STEPS_TOLD_MAX:]
    assert first == f"{left_out} lines like the last ones were left out"
    assert "it says why" in second
