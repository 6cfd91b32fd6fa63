"""A partition's leader: what is committed, and when nothing may be.

Goal: the high watermark follows the slowest of those who count and what `flush` promises, stands
still while too few replicas are in sync, and never falls; what a fetch says of a replica is kept,
for this leader epoch only. Method: the leader is driven by hand with the events of its log, of its
followers and of the metadata.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.replication.leader import NEVER, UNKNOWN, Leader, Remote

LAG_S = 10.0


def leader(
    *,
    replicas: tuple[int, ...] = (1,),
    isr: tuple[int, ...] | None = None,
    log_end: int = 0,
    **facts: Any,
) -> Leader:
    """Broker 1 at the start of epoch 4, at 0 s: all it has is synced; broker n is active and is
    registered with epoch 100 + n."""
    given = {
        "now": 0.0,
        "broker": 1,
        "broker_epoch": 101,
        "epoch": 4,
        "replicas": replicas,
        "isr": replicas if isr is None else isr,
        "partition_epoch": 7,
        "min_isr": 1,
        "synced_counts": True,
        "epoch_start": log_end,
        "log_end": log_end,
        "synced_end": log_end,
        "high_watermark": 0,
        "lag_max_s": LAG_S,
        "active": {broker: 100 + broker for broker in (1, 2, 3, 4)},
    }
    return Leader(**{**given, **facts})


def of_three(**facts: Any) -> Leader:
    """One of three replicas, all in sync if not told; records need not be synced."""
    return leader(**{"replicas": (1, 2, 3), "synced_counts": False, **facts})


def fetch(some: Leader, broker: int, offset: int, now: float = 0.0, **facts: int) -> int:
    """The watermark after a fetch of the broker's registered process, if not told."""
    said = {"log_start": 0, "broker_epoch": 100 + broker, **facts}
    return some.on_fetch(broker, offset, now, **said)


# What counts.


def test_with_flush_synced_only_synced_records_are_committed() -> None:
    alone = leader()
    assert alone.on_append(10, 0.0) == 0
    assert alone.on_synced(6, 0.0) == 6
    assert alone.on_append(12, 0.0) == 6
    assert alone.on_synced(12, 0.0) == 12


def test_with_flush_replicated_an_appended_record_is_committed_at_once() -> None:
    alone = leader(synced_counts=False)
    assert alone.on_append(10, 0.0) == 10
    assert alone.on_synced(6, 0.0) == 10
    assert alone.on_append(12, 0.0) == 12


def test_an_older_sync_that_ends_later_takes_nothing_back() -> None:
    alone = leader()
    alone.on_append(10, 0.0)
    assert [alone.on_synced(end, 0.0) for end in (8, 3)] == [8, 8]
    assert alone.synced_end == 8


def test_a_topic_that_begins_to_sync_keeps_its_watermark_and_waits_for_the_disk() -> None:
    alone = leader(synced_counts=False)
    alone.on_append(10, 0.0)
    alone.synced_counts = True
    assert alone.advance(0.0) == 10
    assert alone.on_synced(7, 0.0) == 10
    assert alone.on_append(20, 0.0) == 10
    assert alone.on_synced(15, 0.0) == 15


def test_a_topic_that_ceases_to_sync_commits_what_is_in_the_log() -> None:
    alone = leader()
    alone.on_append(10, 0.0)
    alone.synced_counts = False
    assert alone.advance(0.0) == 10


def test_the_watermark_is_the_smallest_log_end_in_sync() -> None:
    some = of_three()
    some.on_append(10, 0.0)
    assert fetch(some, 2, 4) == 0
    assert fetch(some, 3, 7) == 4
    assert fetch(some, 2, 9) == 7
    assert fetch(some, 3, 10) == 9
    assert fetch(some, 2, 10) == 10


def test_who_is_not_in_sync_and_not_about_to_be_is_not_waited_for() -> None:
    some = of_three(isr=(1, 2), log_end=5, high_watermark=5)
    some.on_append(10, 0.0)
    assert fetch(some, 3, 2) == 5
    assert fetch(some, 2, 10) == 10


def test_what_all_followers_have_still_waits_for_the_leaders_own_disk() -> None:
    some = of_three(synced_counts=True)
    some.on_append(10, 0.0)
    assert [fetch(some, broker, 10) for broker in (2, 3)] == [0, 0]
    assert some.on_synced(6, 0.0) == 6
    assert some.on_synced(10, 0.0) == 10


def test_a_member_that_has_not_fetched_holds_the_watermark() -> None:
    """Its log end is not known in this epoch, so nothing of it can count."""
    some = of_three(log_end=5, high_watermark=3)
    some.on_append(10, 0.0)
    assert fetch(some, 2, 10) == 3
    assert fetch(some, 3, 0) == 3
    assert fetch(some, 3, 10) == 10


def test_a_follower_that_falls_back_is_waited_for_but_takes_nothing_back() -> None:
    some = of_three()
    some.on_append(10, 0.0)
    fetch(some, 2, 10)
    assert fetch(some, 3, 8) == 8
    assert fetch(some, 3, 5) == 8
    assert some.remotes[3].log_end == 5
    assert some.on_append(20, 0.0) == 8
    assert fetch(some, 2, 20) == 8
    assert fetch(some, 3, 9) == 9


def test_a_member_that_the_metadata_adds_takes_nothing_back() -> None:
    some = of_three(isr=(1,))
    assert some.on_append(10, 0.0) == 10
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 0.0) == 10
    assert some.on_append(20, 0.0) == 10


# A replica that is about to join.


def just_removed(**facts: Any) -> Leader:
    """Broker 3 had all 10 records at 0 s; then came 10 more, and the controller removed it."""
    some = of_three(**facts)
    some.on_append(10, 0.0)
    fetch(some, 2, 10)
    assert fetch(some, 3, 10) == 10
    some.on_append(20, 1.0)
    assert fetch(some, 2, 20, 1.0) == 10
    return some


def fetching_again(said: int = 103) -> Leader:
    """After that it fetches again: by now it has what there was at its last fetch, at 0 s, but not
    all 20 that are committed. Then come 10 more."""
    some = just_removed()
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 2.0) == 20
    assert fetch(some, 3, 15, 3.0, broker_epoch=said) == 20
    some.on_append(30, 3.0)
    fetch(some, 2, 30, 3.0)
    assert some.proposal is None
    return some


def test_who_was_caught_up_not_too_long_ago_is_waited_for() -> None:
    """It may join any moment, and would have to chase a watermark that runs away."""
    some = fetching_again()
    assert some.advance(3.0) == 20
    assert some.advance(LAG_S) == 20
    assert some.advance(LAG_S + 0.001) == 30


def test_who_the_metadata_removed_is_not_waited_for_until_it_fetches_again() -> None:
    """Its replica may be offline: it would never fetch, and all would wait for a whole lag."""
    some = just_removed()
    assert some.advance(2.0) == 10, "a member is, until the controller says otherwise"
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 2.0) == 20
    assert (some.remotes[3].caught_up_at, some.remotes[3].log_end) == (NEVER, 10)
    assert (some.remotes[2].caught_up_at, some.remotes[2].log_end) == (1.0, 20)
    some.on_append(30, 2.0)
    assert fetch(some, 2, 30, 2.0) == 30


def test_who_was_removed_and_fetches_is_not_waited_for_until_it_is_caught_up_again() -> None:
    some = just_removed()
    some.on_metadata((1, 2, 3), (1, 2), 8, 2.0)
    some.on_append(30, 3.0)
    assert fetch(some, 3, 5, 3.0) == 20, "it has lost some that it had"
    assert fetch(some, 2, 30, 3.0) == 30
    assert fetch(some, 3, 29, 4.0) == 30, "there were 30 when it fetched"
    some.on_append(40, 4.0)
    assert fetch(some, 2, 40, 4.0) == 40
    assert fetch(some, 3, 35, 5.0) == 40, "it has those by now"
    some.on_append(50, 5.0)
    assert fetch(some, 2, 50, 5.0) == 40
    assert (some.remotes[3].caught_up_at, some.proposal) == (4.0, None)


@pytest.mark.parametrize("partition_epoch", [6, 7])
def test_metadata_that_is_no_newer_removes_nobody(partition_epoch: int) -> None:
    some = just_removed()
    assert some.on_metadata((1, 2, 3), (1, 2), partition_epoch, 2.0) == 10
    assert some.remotes[3].caught_up_at == 0.0
    assert some.advance(LAG_S + 1) == 10


def test_who_is_only_proposed_to_be_removed_is_waited_for() -> None:
    some = just_removed()
    assert some.drop_laggards(LAG_S + 1)
    assert some.advance(LAG_S + 1) == 10
    assert some.on_metadata((1, 2, 3), (1, 2), 8, LAG_S + 1) == 20


def test_who_is_waited_for_is_told_by_offset() -> None:
    some = of_three(isr=(1, 2))
    some.on_append(10, 0.0)
    assert some.waits_for(10) == [2]
    fetch(some, 2, 6)
    assert (some.waits_for(6), some.waits_for(7)) == ([], [2])
    fetch(some, 3, 10)
    assert some.proposal is not None
    assert set(some.proposal.isr) == {1, 2, 3}
    assert (some.waits_for(10), some.waits_for(11)) == ([2], [2, 3])


def test_a_fenced_or_stopping_replica_is_not_waited_for() -> None:
    some = just_removed()
    some.active = {1: 101, 2: 102}
    assert some.advance(2.0) == 10, "a member is, until the controller says otherwise"
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 2.0) == 20
    some = fetching_again()
    assert some.advance(3.0) == 20
    some.active = {1: 101, 2: 102}
    assert some.advance(3.0) == 30


def test_a_replica_whose_process_was_replaced_is_not_waited_for() -> None:
    some = fetching_again()
    assert some.advance(3.0) == 20
    some.active = {**some.active, 3: 203}
    assert some.advance(3.0) == 30


def test_a_replica_that_does_not_say_its_broker_epoch_is_waited_for() -> None:
    some = fetching_again(said=UNKNOWN)
    some.active = {**some.active, 3: 203}
    assert some.advance(3.0) == 20
    assert some.advance(LAG_S + 0.001) == 30


def test_a_removed_member_that_never_fetched_is_not_waited_for() -> None:
    some = of_three()
    some.on_append(10, 0.0)
    assert fetch(some, 2, 10) == 0
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 1.0) == 10


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
    assert some.has_enough is is_enough
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
    lonely = of_three(isr=(1,), min_isr=2, synced_counts=synced_counts)
    lonely.on_append(10, 0.0)
    assert lonely.on_synced(10, 0.0) == 0
    lonely.min_isr = 1
    assert lonely.advance(0.0) == 10
    lonely.min_isr = 2
    lonely.on_append(20, 0.0)
    assert lonely.on_synced(20, 0.0) == 10


def test_below_min_isr_what_every_member_has_is_not_committed_either() -> None:
    some = of_three(isr=(1, 2), min_isr=3)
    some.on_append(10, 0.0)
    assert fetch(some, 2, 10) == 0
    assert some.on_metadata((1, 2), (1, 2), 8, 0.0) == 10, "two replicas are all there are"


# A new leader.


def test_a_new_leader_does_not_know_its_watermark_below_the_start_of_its_epoch() -> None:
    new = leader(log_end=10, high_watermark=4)
    assert not new.knows_its_watermark()
    assert new.advance(0.0) == 10
    assert new.knows_its_watermark()


def test_a_new_leader_knows_its_watermark_once_the_members_have_fetched_its_start() -> None:
    new = of_three(log_end=5, high_watermark=2)
    new.on_append(7, 0.0)
    fetch(new, 2, 7)
    assert fetch(new, 3, 4) == 4
    assert not new.knows_its_watermark()
    assert fetch(new, 3, 5) == 5
    assert new.knows_its_watermark()


def test_the_start_of_the_epoch_is_enough_to_know_the_watermark() -> None:
    new = leader(replicas=(1, 2), isr=(1,), min_isr=2, log_end=10, high_watermark=9)
    new.on_append(15, 0.0)
    assert not new.knows_its_watermark()
    new.high_watermark = 10
    assert new.knows_its_watermark()


def test_an_empty_partition_knows_its_watermark() -> None:
    assert leader().knows_its_watermark()


def test_a_new_epoch_begins_with_nothing_known_even_if_the_same_broker_led_before() -> None:
    """Between the two epochs somebody else may have led, and had the followers cut their logs."""
    old = of_three()
    old.on_append(10, 0.0)
    fetch(old, 2, 10)
    new = of_three(epoch=6, now=5.0, isr=(1, 2), log_end=10, high_watermark=old.high_watermark)
    assert new.remotes == {2: Remote(caught_up_at=5.0), 3: Remote(caught_up_at=NEVER)}
    assert (new.remotes[2].log_end, new.remotes[2].broker_epoch) == (UNKNOWN, UNKNOWN)
    assert new.advance(5.0) == 0
    assert fetch(new, 2, 10, 5.0) == 10


# What a fetch and the metadata leave behind.


def test_a_fetch_leaves_what_it_said() -> None:
    some = of_three(log_end=10)
    fetch(some, 2, 4, 3.0, log_start=2, broker_epoch=55)
    assert some.remotes[2] == Remote(
        caught_up_at=0.0,
        log_end=4,
        log_start=2,
        broker_epoch=55,
        fetched_at=3.0,
        end_at_fetch=10,
    )
    assert some.remotes[3] == Remote(caught_up_at=0.0)


def test_newer_metadata_of_the_same_epoch_keeps_what_is_known() -> None:
    some = of_three(log_end=5)
    some.on_append(10, 1.0)
    fetch(some, 2, 8, 2.0)
    before = some.remotes[2]
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 3.0) == 8
    assert some.remotes[2] is before
    assert (some.epoch_start, some.log_end, some.isr, some.partition_epoch) == (5, 10, (1, 2), 8)


@pytest.mark.parametrize("partition_epoch", [0, 6, 7])
def test_metadata_that_is_no_newer_is_ignored(partition_epoch: int) -> None:
    some = of_three()
    some.on_append(10, 0.0)
    assert some.on_metadata((1, 2), (1,), partition_epoch, 0.0) == 0
    assert (some.replicas, some.isr, some.partition_epoch) == ((1, 2, 3), (1, 2, 3), 7)


def test_a_replica_that_leaves_the_assignment_is_forgotten_and_a_new_one_is_met() -> None:
    some = of_three(isr=(1, 2), log_end=10)
    fetch(some, 2, 10)
    fetch(some, 3, 7)
    some.on_metadata((1, 2, 4), (1, 2), 8, 3.0)
    assert some.remotes[2].log_end == 10
    assert some.remotes[4] == Remote(caught_up_at=NEVER)
    some.on_metadata((1, 3, 4), (1, 3), 9, 4.0)
    assert some.remotes == {3: Remote(caught_up_at=4.0), 4: Remote(caught_up_at=NEVER)}


# What cannot be.


def test_a_log_end_that_falls_is_our_own_fault() -> None:
    alone = leader(log_end=10)
    with pytest.raises(AssertionError, match="fell from 10 to 9"):
        alone.on_append(9, 0.0)


def test_more_synced_than_appended_is_our_own_fault() -> None:
    alone = leader(log_end=10)
    with pytest.raises(AssertionError, match="synced 11 above log end 10"):
        alone.on_synced(11, 0.0)


def test_a_leader_that_breaks_its_promises_is_noticed() -> None:
    for name, value in (("high_watermark", 11), ("synced_end", 11), ("replicas", (2, 3))):
        broken = leader(log_end=10)
        setattr(broken, name, value)
        with pytest.raises(AssertionError):
            broken.check_invariants()


# Any history of the only member.


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
@settings(max_examples=tries(300), deadline=None)
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
                told = alone.on_append(end, 0.0)
            case "sync":
                told = alone.on_synced(min(number, end), 0.0)
                synced = max(synced, min(number, end))
            case "min_isr":
                alone.min_isr = number
                told = alone.advance(0.0)
            case _:
                alone.synced_counts = bool(number)
                told = alone.advance(0.0)
        if min(alone.min_isr, len(replicas)) == 1:
            watermark = max(watermark, synced if alone.synced_counts else end)
        assert told == alone.high_watermark == watermark, step
        assert watermark <= end


def test_a_topic_whose_records_need_nobody_is_none() -> None:
    some = of_three()
    some.use(min_isr=1, synced_counts=True)
    with pytest.raises(AssertionError, match=r"min\.insync\.replicas 0"):
        some.use(min_isr=0, synced_counts=True)
    assert some.min_isr == 1
