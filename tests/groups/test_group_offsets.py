"""The committed offsets of one group: which record counts, and what is forgotten when.

Goal: of two records for a partition the later one counts; offsets of a topic that is gone count no
more; old ones are forgotten by Kafka's rules. Method: `GroupOffsets` alone, with times given.
"""

import pytest

from hightide_broker.core.groups.offsets import GroupOffsets
from hightide_broker.core.groups.records import OffsetValue

IDS = {"t": "id-t", "u": "id-u"}
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
RETENTION_MS = 1000


def value(offset=1, *, topic="t", at_ms=0, topic_id=None):
    return OffsetValue(offset=offset, topic_id=topic_id or IDS[topic], commit_time_ms=at_ms)


def known(offsets, ids=IDS):
    return {where: found.offset for where, found in offsets.all(ids).items()}


def expired(offsets, now_ms, *, ids=IDS, empty_since_ms=-1, read=None):
    found = offsets.expired(
        ids, now_ms=now_ms, retention_ms=RETENTION_MS, empty_since_ms=empty_since_ms, read=read
    )
    return sorted(found)


# --- which record counts --------------------------------------------------------------------------


def test_nothing_is_committed_at_first():
    offsets = GroupOffsets()
    assert (bool(offsets), offsets.get(T0, IDS), offsets.all(IDS)) == (False, None, {})


def test_partitions_are_apart_and_in_order():
    offsets = GroupOffsets()
    for at, where in enumerate((U0, T1, T0)):
        offsets.commit(where, value(at, topic=where[0]))
    assert list(offsets.all(IDS)) == [T0, T1, U0]
    assert known(offsets) == {T0: 2, T1: 1, U0: 0}
    assert offsets.get(T1, IDS).offset == 1


def test_an_offset_may_go_back():
    offsets = GroupOffsets()
    offsets.commit(T0, value(9))
    offsets.commit(T0, value(2))
    assert known(offsets) == {T0: 2}


def test_a_tombstone_forgets_and_what_comes_later_counts():
    offsets = GroupOffsets()
    offsets.commit(T0, None)
    offsets.commit(T0, value(5))
    offsets.commit(T0, None)
    assert (bool(offsets), known(offsets)) == (False, {})
    offsets.commit(T0, value(6))
    assert known(offsets) == {T0: 6}


def test_of_what_was_forgotten_nothing_is_kept():
    """Groups come and go for years, and so do topics."""
    offsets = GroupOffsets()
    assert offsets.is_idle
    assert offsets.take_turn(T0, "me", 1)
    assert not offsets.is_idle, "a commit is under way"
    offsets.commit(T0, value(5))
    offsets.commit(T1, value(5))
    offsets.commit(T0, None)
    assert not offsets.is_idle
    offsets.commit(T1, None)
    assert offsets.is_idle


# --- topics that are gone -------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [{"u": "id-u"}, {"t": "another", "u": "id-u"}])
def test_offsets_of_a_topic_that_is_gone_or_was_made_again_do_not_count(ids):
    offsets = GroupOffsets()
    offsets.commit(T0, value(5))
    offsets.commit(U0, value(6, topic="u"))
    assert offsets.get(T0, ids) is None
    assert known(offsets, ids) == {U0: 6}
    assert expired(offsets, 0, ids=ids, read={"t", "u"}) == [T0]
    assert expired(offsets, 0, ids=ids) == [T0]


def test_a_topic_that_was_made_again_has_offsets_of_its_own():
    offsets, ids = GroupOffsets(), {"t": "another"}
    offsets.commit(T0, value(5))
    offsets.commit(T0, value(1, topic_id="another"))
    assert known(offsets, ids) == {T0: 1}
    assert known(offsets) == {}


def test_an_offset_without_a_topic_id_counts_for_no_topic():
    offsets = GroupOffsets()
    offsets.commit(T0, OffsetValue(offset=5))
    assert known(offsets) == {}
    assert expired(offsets, 0) == [T0]


# --- what is forgotten ----------------------------------------------------------------------------


@pytest.mark.parametrize(("now_ms", "gone"), [(1499, []), (1500, [T0]), (9999, [T0])])
def test_of_a_group_that_never_had_members_time_counts_from_the_commit(now_ms, gone):
    offsets = GroupOffsets()
    offsets.commit(T0, value(at_ms=500))
    assert expired(offsets, now_ms) == gone


@pytest.mark.parametrize(("now_ms", "gone"), [(2999, []), (3000, [T0, T1])])
def test_of_an_empty_group_time_counts_from_when_it_became_empty(now_ms, gone):
    offsets = GroupOffsets()
    offsets.commit(T0, value(at_ms=100))
    offsets.commit(T1, value(at_ms=1900))
    assert expired(offsets, now_ms, empty_since_ms=2000) == gone


def test_what_was_committed_for_an_empty_group_stays_for_as_long_as_any_other():
    offsets = GroupOffsets()
    offsets.commit(T0, value(at_ms=100))
    offsets.commit(T1, value(at_ms=2500))
    assert expired(offsets, 3499, empty_since_ms=2000) == [T0]
    assert expired(offsets, 3500, empty_since_ms=2000) == [T0, T1]


def test_of_a_group_with_members_only_topics_that_nobody_reads_and_only_after_the_commit():
    offsets = GroupOffsets()
    offsets.commit(T0, value(at_ms=0))
    offsets.commit(U0, value(topic="u", at_ms=500))
    assert expired(offsets, 1499, read={"t"}) == []
    assert expired(offsets, 1500, read={"t"}) == [U0]
    assert expired(offsets, 1 << 50, read={"t", "u"}) == []
    # When it was empty last does not matter.
    assert expired(offsets, 1500, read={"t"}, empty_since_ms=1400) == [U0]


def test_a_commit_begins_the_time_again():
    offsets = GroupOffsets()
    offsets.commit(T0, value(at_ms=0))
    offsets.commit(T0, value(at_ms=900))
    assert expired(offsets, 1800) == []
    assert expired(offsets, 1900) == [T0]


def test_looking_for_what_is_old_forgets_nothing_by_itself():
    offsets = GroupOffsets()
    offsets.commit(T0, value())
    assert expired(offsets, 1 << 50) == [T0]
    assert known(offsets) == {T0: 1}


def test_what_is_deleted_does_not_hide_what_comes_after_it():
    offsets = GroupOffsets()
    offsets.commit(T0, value())
    offsets.commit(T1, value())
    offsets.commit(T0, None)
    assert expired(offsets, 1 << 50) == [T1]
