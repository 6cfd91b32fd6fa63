"""What a follower's replica does with answers: records stored, a log cut, a pause, an end.

Goal: what the leader stored is stored here byte for byte or not at all; the watermark keeps to
what is here; a cut takes epochs, producers and the recovery point along; trouble with the disk is
told apart. Method: a real replica on the simulated disk takes batches and answers made by hand.
"""

from __future__ import annotations

import random

import pytest
from logkit import check_contiguous, path_of, reopen, sync
from replicakit import (
    EPOCH,
    RECOVERY_POINTS,
    Place,
    batch,
    flipped,
    joined,
    paused,
    sequenced,
    spans_of,
)
from trio.testing import wait_all_tasks_blocked

from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.records import parse_header
from hightide_broker.core.replication.follower import Append, Pause, Stop, Truncate, TruncateFully
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.base.watermark import Wake, Watermark
from hightide_broker.runtime.replication.following import own_log

# --- records -----------------------------------------------------------------------------------


def test_records_are_stored_as_the_leader_stored_them() -> None:
    place = Place()
    sent = [batch(0, 3, epoch=1), batch(3, epoch=1), batch(4, 2, epoch=3), batch(6, epoch=EPOCH)]
    assert place.answer(*sent, watermark=5) == Append(5, 0)
    assert [stored.data for stored in place.batches] == [bytes(each) for each in sent]
    assert place.offsets == (0, 5, 7)
    assert place.epochs == {1: 0, 3: 4, EPOCH: 6}
    assert (place.ask().fetch_offset, place.ask().last_fetched_epoch) == (7, EPOCH)


def test_gaps_that_the_leaders_cleaner_left_are_gaps_here() -> None:
    place = Place()
    place.answer(batch(0), batch(5, 2), batch(9), watermark=10)
    assert spans_of(place.batches) == [(EPOCH, 0, 1), (EPOCH, 5, 7), (EPOCH, 9, 10)]
    assert place.offsets == (0, 10, 10)


def test_batches_of_a_newer_epoch_and_all_after_them_are_left_out() -> None:
    """KAFKA-18723: the leader was overtaken while it answered."""
    place = Place((3, 2))
    sent = [batch(2), batch(3, epoch=EPOCH + 1), batch(4, epoch=EPOCH), batch(5, epoch=4)]
    assert place.answer(*sent, watermark=6) == Append(6, 0)
    assert spans_of(place.batches) == [(3, 0, 2), (EPOCH, 2, 3)]
    assert place.offsets == (0, 3, 3)
    assert place.epochs == {3: 0, EPOCH: 2}


def test_a_batch_that_was_cut_short_on_its_way_comes_again_with_the_next_answer() -> None:
    place = Place()
    whole = joined(batch(0), batch(1))
    assert isinstance(place.answer(whole[:-1]), Append)
    assert place.ask().fetch_offset == 1
    assert place.replica.follower.may_fetch(0.0)


@pytest.mark.parametrize(
    ("position", "why"),
    [(at, "damaged records: batch at offset 1 has CRC") for at in (17, 20, 22, 30, 60, -1)]
    + [(16, "magic")],
)
def test_an_answer_with_damaged_records_is_refused_whole(position: int, why: str) -> None:
    place = Place()
    step = place.answer(batch(0), flipped(batch(1), position), batch(2), watermark=3)
    assert paused(step, place, why)
    assert place.batches == []
    assert place.offsets == (0, 0, 0)
    assert place.answer(batch(0), batch(1), batch(2), watermark=3, now=1.0) == Append(3, 0)
    assert place.offsets == (0, 3, 3)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([batch(3), batch(2)], id="backwards"),
        pytest.param([batch(3), batch(3)], id="twice"),
        pytest.param([batch(3, 2), batch(4)], id="overlapping"),
        pytest.param([batch(1)], id="stored already"),
        pytest.param([batch(2, 4)], id="over the log end"),
    ],
)
def test_batches_that_do_not_continue_the_log_are_refused(sent: list[bytearray]) -> None:
    place = Place((2, 1), (2, 2), high_watermark=1)
    before = place.batches
    assert paused(place.answer(*sent, watermark=9), place, "damaged records")
    assert place.batches == before
    check_contiguous(place.log)
    assert place.replica.high_watermark == 1


def test_a_batch_that_ends_before_the_start_of_an_empty_log_is_refused() -> None:
    place = Place()
    place.do(TruncateFully(7))
    assert paused(place.answer(batch(4, 3), watermark=9), place, "batch 4..6")
    assert place.offsets == (7, 7, 7)


def test_a_log_that_starts_inside_a_batch_of_the_leaders_takes_the_whole_batch() -> None:
    place = Place()
    place.do(TruncateFully(7))
    assert isinstance(place.answer(batch(4, 6), watermark=12, log_start=7), Append)
    assert [each.base_offset for each in place.log.headers(4)] == [4]
    assert place.offsets == (7, 10, 10)
    assert place.epochs == {EPOCH: 7}
    # It begins below 7, where nothing is durable any more.
    assert place.lowered[-1] == (4, 7)


def test_a_log_that_ends_inside_the_leaders_first_batch_begins_again_with_it() -> None:
    """All that is older is gone there: nothing else could ever follow here."""
    place = Place((1, 5), (2, 2), high_watermark=5)
    assert isinstance(place.answer(batch(5, 5), watermark=10, log_start=7), Append)
    assert spans_of(place.batches) == [(EPOCH, 5, 10)]
    assert place.offsets == (7, 10, 10)
    assert place.lowered == [(5, 7)]


def test_a_disk_that_fails_in_the_middle_of_a_cut_takes_the_replica_offline() -> None:
    place = Place((1, 3), (2, 3), high_watermark=6)
    place.disk.fail("replace", "leader-epoch", "No space left on device")
    assert isinstance(place.do(Truncate(2)), Stop)
    assert "cutting it at 0 failed" in place.replica.offline


def test_beside_a_new_segment_lies_what_was_known_of_producers_below_it() -> None:
    place = Place(segment_bytes=200)
    place.answer(*[sequenced(number, number) for number in range(4)])
    first, second, *_ = place.log.segment_bases()
    assert place.log.producer_snapshots.offsets() == place.log.segment_bases()[1:]
    place.replica.producers.restore(place.log.producer_snapshots.read(second))
    known = place.replica.producers.check(parse_header(sequenced(0, second - 1)))
    assert (first, known.base_offset) == (0, second - 1)


def test_a_disk_that_fails_to_take_a_snapshot_of_producers_takes_the_replica_offline() -> None:
    place = Place(segment_bytes=200)
    place.disk.fail("replace", ".snapshot")
    place.answer(*[sequenced(number, number) for number in range(4)])
    assert "snapshot" in place.replica.offline


# --- watermark and log start -------------------------------------------------------------------


def test_the_watermark_is_the_leaders_as_far_as_the_log_reaches() -> None:
    place = Place((EPOCH, 100))
    seen = [place.answer(watermark=mark) and place.offsets[1] for mark in (98, 99, 99, 100, 101)]
    assert seen == [98, 99, 99, 100, 100]
    place.answer(batch(100, 5), watermark=103)
    assert place.offsets == (0, 103, 105)


@pytest.mark.parametrize("mark", [3, 0, -1])
def test_a_leader_that_knows_of_a_lower_watermark_takes_nothing_back(mark: int) -> None:
    """A new leader may be behind for a while."""
    place = Place((2, 6), high_watermark=5)
    place.answer(batch(6), watermark=mark)
    assert place.offsets == (0, 5, 7)


def test_the_log_start_is_the_leaders_as_far_as_it_is_committed() -> None:
    place = Place((1, 4), (3, 4))
    for watermark, log_start, found in [(2, 1, 1), (3, 6, 3), (3, 0, 3), (3, -1, 3), (8, 6, 6)]:
        place.answer(watermark=watermark, log_start=log_start)
        assert place.offsets[0] == found, f"watermark {watermark}, log start {log_start}"
    assert place.epochs == {3: 6}
    place.answer(watermark=8, log_start=50)
    assert place.offsets == (8, 8, 8)


# --- cuts --------------------------------------------------------------------------------------


def test_a_cut_takes_records_and_their_epochs_and_the_watermark_down() -> None:
    place = Place((1, 2), (1, 2), (3, 2), high_watermark=5)
    assert place.answer(batch(6), watermark=9, log_start=5, diverging=(2, 4)) == Truncate(4)
    assert spans_of(place.batches) == [(1, 0, 2), (1, 2, 4)]
    assert place.offsets == (0, 4, 4)
    assert place.epochs == {1: 0}
    assert (place.ask().fetch_offset, place.ask().last_fetched_epoch) == (4, 1)


def test_a_cut_above_the_watermark_leaves_it() -> None:
    place = Place((1, 2), (1, 2), (3, 2), high_watermark=1)
    committed = place.replica.committed
    place.answer(diverging=(2, 4))
    assert place.offsets == (0, 1, 4)
    assert place.replica.committed is committed
    assert committed.closed is None


def test_a_cut_inside_a_batch_ends_before_it() -> None:
    place = Place((1, 3), (1, 3), high_watermark=5)
    place.answer(diverging=(1, 4))
    assert place.offsets == (0, 3, 3)
    assert place.lowered == [(3, 6)]


def test_who_waits_for_a_watermark_that_is_cut_away_hears_so() -> None:
    place = Place((1, 4), (3, 2), high_watermark=5)
    wake, old = Wake(), place.replica.committed
    old.wake_at(6, wake)
    place.answer(diverging=(2, 4))
    assert wake.is_set
    assert isinstance(old.closed, Refused)
    assert old.closed.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (place.replica.committed.value, place.replica.committed.closed) == (4, None)


@pytest.mark.parametrize("end", [4, 5])
def test_a_cut_at_the_log_end_takes_an_epoch_without_records_and_nothing_else(end: int) -> None:
    place = Place((1, 4), high_watermark=3)
    place.log.epochs.assign(3, 4)
    assert place.answer(diverging=(2, end)) == Truncate(4)
    assert place.epochs == {1: 0}
    assert place.offsets == (0, 3, 4)
    assert place.lowered == []


def test_a_sync_that_a_cut_made_void_is_owed_again() -> None:
    """Its topic had come to be synced while an answer was on its way."""
    place = Place((1, 4), (3, 2), flush="synced")
    job = place.replica.begin_sync()
    assert job is not None
    place.answer(diverging=(2, 4))
    place.replica.finish_sync(job)
    assert place.replica.owes_records
    assert place.replica.needs_sync, "or nobody asks for it, and it fetches no more"


def test_a_cut_below_the_log_start_takes_it_along() -> None:
    place = Place(*[(1, 1)] * 8)
    place.answer(watermark=8, log_start=5)
    place.do(Truncate(3))
    assert place.offsets == (3, 3, 3)
    assert place.epochs == {}
    place.answer(batch(3), watermark=4)
    assert place.offsets == (3, 4, 4)


def test_a_cut_below_every_segment_begins_again_there() -> None:
    place = Place(segment_bytes=200)
    place.answer(*[batch(number) for number in range(6)], watermark=6)
    place.log.delete_segments(2)
    base = place.log.segment_bases()[0]
    place.do(Truncate(base - 1))
    assert place.offsets == (base - 1, base - 1, base - 1)
    assert place.lowered == [(base - 1, 6)]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
def test_a_cut_forgets_what_producers_wrote_above_it_and_nothing_below(segment_bytes: int) -> None:
    place = Place(segment_bytes=segment_bytes)
    place.answer(*[sequenced(number, number, epoch=4) for number in range(6)])
    place.do(Truncate(3))
    producers = place.replica.producers
    assert producers.check(parse_header(sequenced(9, 2))).base_offset == 2
    assert producers.check(parse_header(sequenced(9, 3))) is None
    with pytest.raises(Refused) as caught:
        producers.check(parse_header(sequenced(9, 4)))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # The next leader took sequence 3 in at another offset.
    place.answer(batch(3), sequenced(4, 3))
    assert producers.check(parse_header(sequenced(9, 3))).base_offset == 4


def test_beginning_again_drops_everything() -> None:
    place = Place((1, 2), high_watermark=1)
    place.answer(sequenced(2, 0), watermark=2)
    old = place.replica.committed
    assert place.do(TruncateFully(9)) == TruncateFully(9)
    assert place.offsets == (9, 9, 9)
    assert (place.batches, place.epochs, len(place.replica.producers)) == ([], {}, 0)
    assert (place.lowered, old.closed) == ([(9, 3)], None)
    assert place.ask().last_fetched_epoch == -1
    place.answer(batch(9), watermark=10, log_start=9)
    assert place.offsets == (9, 10, 10)


@pytest.mark.parametrize("step", [Truncate(3), TruncateFully(9)])
@pytest.mark.parametrize("full", [True, False])
def test_a_recovery_point_that_cannot_be_written_prevents_the_cut(
    step: Truncate | TruncateFully, full: bool
) -> None:
    place = Place((1, 3), (1, 3), high_watermark=5)
    before = place.batches
    if full:
        place.disk.capacity = 0
    else:
        place.disk.fail("replace", RECOVERY_POINTS)
    answer = place.do(step)
    assert (place.log.log_end, place.batches) == (6, before)
    assert isinstance(answer, Pause if full else Stop)
    assert bool(place.replica.offline) != full


@pytest.mark.parametrize("seed", range(12))
def test_what_was_synced_before_a_cut_is_not_believed_after_a_power_failure(seed: int) -> None:
    place = Place((1, 2), (1, 2), (3, 2), (3, 2))
    sync(place.disk, place.log)
    recovery_point = place.log.synced_end
    place.answer(diverging=(2, 4))
    place.answer(batch(4, 2), batch(6, 2), watermark=8)
    place.disk.crash(random.Random(seed))
    recovery_point = min(recovery_point, place.lowered[-1][0])
    log = reopen(place.disk, recovery_point=recovery_point, config=place.log.config)
    assert log.log_end >= 4
    assert [header.leader_epoch for header, _ in log.batches()][:2] == [1, 1]
    assert all(header.leader_epoch in (1, EPOCH) for header, _ in log.batches())


# --- disks -------------------------------------------------------------------------------------


def test_on_a_full_disk_it_waits_and_keeps_what_found_room() -> None:
    place = Place((EPOCH, 1), high_watermark=1)
    place.disk.capacity = place.disk.used_bytes() + len(batch(1)) + 20
    step = place.answer(batch(1), batch(2), watermark=3)
    assert paused(step, place, "disk is full")
    assert place.offsets == (0, 1, 2)
    place.disk.capacity = 1 << 30
    place.answer(batch(2), watermark=3, now=1.0)
    assert place.offsets == (0, 3, 3)


def test_a_disk_that_fails_while_records_are_stored_takes_the_replica_offline() -> None:
    place = Place((1, 1), high_watermark=1)
    old = place.replica.committed
    place.disk.fail("write", "jade-0")
    assert isinstance(place.answer(batch(1), watermark=2), Stop)
    check_offline(place, old)
    assert place.log.log_end == 1


@pytest.mark.parametrize("flush", ["replicated", "synced"])
async def test_a_disk_that_fails_to_take_an_epoch_takes_the_replica_offline_at_the_next_sync(
    nursery, flush: str
) -> None:
    """Records are stored without a look at the file of the epochs."""
    place = Place((1, 1), high_watermark=1, flush=flush)
    agenda, old = Agenda(), place.replica.committed
    syncer = Syncer(place.disk, agenda)
    nursery.start_soon(agenda.run)
    nursery.start_soon(syncer.run)
    place.disk.fail("replace", "jade-0/leader-epoch")
    assert place.answer(batch(1), watermark=1) == Append(1, 0)
    assert (place.log.log_end, place.replica.offline) == (2, "")
    syncer.mark(place.replica)
    await wait_all_tasks_blocked()
    check_offline(place, old)
    assert place.log.synced_end < 2, "nothing that came with it is called durable"


def check_offline(place: Place, old: Watermark) -> None:
    """The disk has failed, and those that waited heard of it."""
    assert "Input/output error" in place.replica.offline
    assert isinstance(old.closed, Refused)
    assert old.closed.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(Refused, match="offline"):
        own_log(place.replica)


@pytest.mark.parametrize(
    ("step", "operation"),
    [
        (Truncate(2), "truncate"),
        (Truncate(2), "sync"),
        (Truncate(2), "replace"),
        (Truncate(2), "read"),
        (TruncateFully(9), "sync"),
        (TruncateFully(9), "replace"),
    ],
)
def test_a_disk_that_fails_during_a_cut_takes_the_replica_offline(
    step: Truncate | TruncateFully, operation: str
) -> None:
    place = Place((1, 2), (3, 2), high_watermark=1)
    place.disk.fail(operation, "jade-0")
    assert isinstance(place.do(step), Stop)
    assert "Input/output error" in place.replica.offline


def test_damage_that_is_found_on_the_way_to_a_cut_takes_the_replica_offline() -> None:
    place = Place((1, 2), (1, 2), (3, 2))
    place.disk.corrupt(path_of(0), len(batch(0, 2)) + 16)
    step = place.do(Truncate(3))
    assert isinstance(step, Stop)
    assert f"{path_of(0)} is damaged" in step.why
    assert "hightide log verify" in place.replica.offline
