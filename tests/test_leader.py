"""A partition's leader: what is committed, and when nothing may be.

Goal: the high watermark follows what `flush` promises, stands still while too few replicas are in
sync, and never falls. Method: the leader is driven by hand with the events of its log; Hypothesis
mixes those with changes of the ISR and of the topic's configuration.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.errors import ErrorCode, Refused
from hightide_broker.core.leader import Leader


def leader(
    *,
    replicas: tuple[int, ...] = (1,),
    isr: tuple[int, ...] | None = None,
    min_isr: int = 1,
    synced_counts: bool = True,
    log_end: int = 0,
    high_watermark: int = 0,
) -> Leader:
    """Broker 1, at the start of epoch 4: all it has is synced."""
    return Leader(
        broker=1,
        epoch=4,
        replicas=replicas,
        isr=replicas if isr is None else isr,
        partition_epoch=0,
        min_isr=min_isr,
        synced_counts=synced_counts,
        epoch_start=log_end,
        log_end=log_end,
        synced_end=log_end,
        high_watermark=high_watermark,
    )


# What counts.


def test_with_flush_synced_only_synced_records_are_committed() -> None:
    alone = leader()
    assert alone.on_append(10) == 0
    assert alone.on_synced(6) == 6
    assert alone.on_append(12) == 6
    assert alone.on_synced(12) == 12


def test_with_flush_replicated_an_appended_record_is_committed_at_once() -> None:
    alone = leader(synced_counts=False)
    assert alone.on_append(10) == 10
    assert alone.on_synced(6) == 10
    assert alone.on_append(12) == 12


def test_an_older_sync_that_ends_later_takes_nothing_back() -> None:
    alone = leader()
    alone.on_append(10)
    assert [alone.on_synced(end) for end in (8, 3)] == [8, 8]
    assert alone.synced_end == 8


def test_a_topic_that_begins_to_sync_keeps_its_watermark_and_waits_for_the_disk() -> None:
    alone = leader(synced_counts=False)
    alone.on_append(10)
    alone.synced_counts = True
    assert alone.advance() == 10
    assert alone.on_synced(7) == 10
    assert alone.on_append(20) == 10
    assert alone.on_synced(15) == 15


def test_a_topic_that_ceases_to_sync_commits_what_is_in_the_log() -> None:
    alone = leader()
    alone.on_append(10)
    alone.synced_counts = False
    assert alone.advance() == 10


def test_an_isr_member_that_has_not_fetched_holds_the_watermark() -> None:
    """HW1, HW5: its log end is not known in this epoch, so nothing of it can count."""
    pair = leader(replicas=(1, 2), log_end=5, high_watermark=5)
    pair.on_append(10)
    assert pair.on_synced(10) == 5


# Enough replicas.


@pytest.mark.parametrize(
    ("replicas", "isr", "min_isr", "is_enough"),
    [
        ((1,), (1,), 1, True),
        ((1,), (1,), 3, True),
        ((1, 2), (1,), 1, True),
        ((1, 2), (1,), 2, False),
        ((1, 2), (1, 2), 2, True),
        ((1, 2, 3), (1, 3), 2, True),
        ((1, 2, 3), (1, 3), 3, False),
        ((1, 2, 3), (1, 3), 9, False),
        ((1, 2, 3), (3, 1, 2), 9, True),
    ],
)
def test_acks_all_needs_min_isr_but_no_more_than_there_are_replicas(
    replicas: tuple[int, ...], isr: tuple[int, ...], min_isr: int, is_enough: bool
) -> None:
    some = leader(replicas=replicas, isr=isr, min_isr=min_isr)
    if is_enough:
        some.refuse_if_too_few()
        return
    with pytest.raises(Refused) as caught:
        some.refuse_if_too_few()
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert f"{list(isr)}" in caught.value.message
    assert f"min.insync.replicas is {min(min_isr, len(replicas))}" in caught.value.message


@pytest.mark.parametrize("synced_counts", [True, False])
def test_below_min_isr_nothing_is_committed_until_there_are_enough_again(
    synced_counts: bool,
) -> None:
    """KIP-966: the records stay in the log and are committed later."""
    lonely = leader(replicas=(1, 2, 3), isr=(1,), min_isr=2, synced_counts=synced_counts)
    lonely.on_append(10)
    assert lonely.on_synced(10) == 0
    lonely.min_isr = 1
    assert lonely.advance() == 10
    lonely.min_isr = 2
    lonely.on_append(20)
    assert lonely.on_synced(20) == 10


# A new leader.


def test_a_new_leader_does_not_know_its_watermark_below_the_start_of_its_epoch() -> None:
    new = leader(log_end=10, high_watermark=4)
    assert not new.knows_its_watermark()
    assert new.advance() == 10
    assert new.knows_its_watermark()


def test_the_start_of_the_epoch_is_enough_to_know_the_watermark() -> None:
    new = leader(replicas=(1, 2), isr=(1,), min_isr=2, log_end=10, high_watermark=9)
    new.on_append(15)
    assert not new.knows_its_watermark()
    new.high_watermark = 10
    assert new.knows_its_watermark()


def test_an_empty_partition_knows_its_watermark() -> None:
    assert leader().knows_its_watermark()


# What cannot be.


def test_a_log_end_that_falls_is_our_own_fault() -> None:
    alone = leader(log_end=10)
    with pytest.raises(AssertionError, match="fell from 10 to 9"):
        alone.on_append(9)


def test_more_synced_than_appended_is_our_own_fault() -> None:
    alone = leader(log_end=10)
    with pytest.raises(AssertionError, match="synced 11 above log end 10"):
        alone.on_synced(11)


def test_a_leader_that_breaks_its_promises_is_noticed() -> None:
    for name, value in (("high_watermark", 11), ("synced_end", 11), ("replicas", (2, 3))):
        broken = leader(log_end=10)
        setattr(broken, name, value)
        with pytest.raises(AssertionError):
            broken.check_invariants()


# Any history.


@pytest.mark.slow
@given(
    replicas=st.sampled_from([(1,), (2, 1), (1, 2, 3)]),
    start=st.integers(0, 20),
    known=st.integers(0, 20),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 9)),
            st.tuples(st.just("sync"), st.integers(0, 60)),
            st.tuples(st.just("min_isr"), st.integers(1, 4)),
            st.tuples(st.just("flush"), st.integers(0, 1)),
        ),
        max_size=30,
    ),
)
@settings(max_examples=300, deadline=None)
def test_the_watermark_of_the_only_member_is_what_counts_of_its_log_and_never_falls(
    replicas: tuple[int, ...], start: int, known: int, steps: list[tuple[str, int]]
) -> None:
    alone = leader(replicas=replicas, isr=(1,), log_end=start, high_watermark=min(start, known))
    end = synced = start
    watermark = min(start, known)
    for step, number in steps:
        match step:
            case "append":
                end += number
                told = alone.on_append(end)
            case "sync":
                told = alone.on_synced(min(number, end))
                synced = max(synced, min(number, end))
            case "min_isr":
                alone.min_isr = number
                told = alone.advance()
            case _:
                alone.synced_counts = bool(number)
                told = alone.advance()
        if min(alone.min_isr, len(replicas)) == 1:
            watermark = max(watermark, synced if alone.synced_counts else end)
        assert told == alone.high_watermark == watermark, step
        assert watermark <= end


@given(
    st.lists(st.sampled_from([(1,), (1, 2), (1, 2, 3), (3, 1)]), min_size=1, max_size=20),
    st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_no_change_of_the_isr_makes_the_watermark_fall(
    isrs: list[tuple[int, ...]], min_isr: int
) -> None:
    some = leader(replicas=(1, 2, 3), min_isr=min_isr, synced_counts=False)
    for number, isr in enumerate(isrs, 1):
        before, some.isr = some.high_watermark, isr
        after = some.on_append(number)
        assert before <= after <= number
        assert after == before or len(isr) >= min_isr
        if isr == (1,) and min_isr == 1:
            assert after == number, "nobody else is waited for"
