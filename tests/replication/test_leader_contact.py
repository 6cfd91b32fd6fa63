"""A partition's leader, and followers that wait in a fetch session for more than they have.

Goal: who asks no more for what it has is in sync for as long as it is heard of: when it gets
behind, it has a whole lag since its last contact to catch up. Without a session, or after a fetch
by itself, only fetches count. Method: the leader is driven by hand, and the contact moved by hand.
"""

from __future__ import annotations

import pytest
from test_leader import LAG_S, fetch, leader, of_three

from hightide_broker.core.replication.leader import NEVER, UNKNOWN, Contact, Leader

BEHIND_AT = 58.0
"""When a record comes that broker 3 does not fetch."""
HEARD_AT = 50.0
"""When it was heard of last before that."""


def hold(some: Leader, broker: int, offset: int, now: float, contact: Contact) -> int:
    """The watermark after a fetch by which a partition is handed over to a session."""
    return some.on_fetch(
        broker, offset, now, log_start=0, broker_epoch=100 + broker, contact=contact
    )


def holding(**facts: object) -> tuple[Leader, Contact]:
    """All have 10 records; broker 3 waits in its session since 1 s, and was heard of at 50 s."""
    some = of_three(**{"log_end": 10, **facts})
    fetch(some, 2, 10, 1.0)
    contact = Contact(1.0)
    hold(some, 3, 10, 1.0, contact)
    contact.at = HEARD_AT
    return some, contact


def test_who_is_held_has_a_whole_lag_since_its_last_contact_when_it_gets_behind() -> None:
    some, _ = holding()
    some.on_append(11, BEHIND_AT)
    fetch(some, 2, 11, BEHIND_AT)
    assert some.remotes[3].caught_up_at == HEARD_AT
    assert not some.drop_laggards(HEARD_AT + LAG_S)
    assert some.drop_laggards(HEARD_AT + LAG_S + 0.001)
    assert some.proposal is not None
    assert some.proposal.isr == (1, 2)


def test_who_is_not_held_has_a_lag_since_the_fetch_that_found_the_end() -> None:
    some = of_three(log_end=10)
    fetch(some, 2, 10, 1.0)
    fetch(some, 3, 10, 1.0)
    some.on_append(11, BEHIND_AT)
    fetch(some, 2, 11, BEHIND_AT)
    assert some.remotes[3].caught_up_at == 1.0
    assert some.drop_laggards(BEHIND_AT)


def test_handing_over_is_a_fetch_like_any_other() -> None:
    some = of_three(isr=(1, 2))
    some.on_append(10, 0.0)
    assert fetch(some, 2, 10) == 10
    fetch(some, 3, 6)
    assert some.proposal is None
    assert hold(some, 3, 10, 2.0, Contact(2.0)) == 10
    remote = some.remotes[3]
    assert (remote.log_end, remote.fetched_at, remote.end_at_fetch) == (10, 2.0, 10)
    assert (remote.caught_up_at, remote.broker_epoch) == (2.0, 103)
    assert some.proposal is not None
    assert some.proposal.isr == (1, 2, 3)


def test_records_after_the_first_say_nothing_of_who_is_behind_already() -> None:
    """The session goes on for other partitions; this one is not fetched."""
    some, contact = holding()
    some.on_append(11, BEHIND_AT)
    contact.at = BEHIND_AT + 1
    some.on_append(12, BEHIND_AT + 2)
    some.on_append(12, BEHIND_AT + 3)
    assert some.remotes[3].caught_up_at == HEARD_AT


def test_who_handed_over_with_records_unread_is_not_caught_up_by_its_contact() -> None:
    """There was no room for them in the answer."""
    some = of_three(log_end=10)
    contact = Contact(1.0)
    hold(some, 3, 8, 1.0, contact)
    contact.at = HEARD_AT
    some.on_append(11, BEHIND_AT)
    assert some.remotes[3].caught_up_at == 0.0


def test_a_contact_that_is_older_than_the_last_catching_up_takes_nothing_away() -> None:
    some, contact = holding()
    hold(some, 3, 10, HEARD_AT + 5, contact)
    some.on_append(11, BEHIND_AT)
    assert some.remotes[3].caught_up_at == HEARD_AT + 5


def test_a_fetch_by_itself_ends_the_contact() -> None:
    some, contact = holding()
    fetch(some, 3, 10, HEARD_AT + 1)
    contact.at = HEARD_AT + 6
    some.on_append(11, BEHIND_AT)
    assert some.remotes[3].caught_up_at == HEARD_AT + 1


def test_a_fetch_by_itself_after_a_record_ends_the_contact_too() -> None:
    some, contact = holding()
    some.on_append(11, BEHIND_AT)
    fetch(some, 3, 10, BEHIND_AT + 1)
    assert some.remotes[3].caught_up_at == HEARD_AT, "there were 10 at its fetch before"
    contact.at = BEHIND_AT + 3
    fetch(some, 3, 11, BEHIND_AT + 2)
    some.on_append(12, BEHIND_AT + 4)
    assert some.remotes[3].caught_up_at == BEHIND_AT + 2


def test_the_contact_of_one_follower_says_nothing_of_another() -> None:
    some, _ = holding()
    some.on_append(11, BEHIND_AT)
    assert some.remotes[2].caught_up_at == 1.0
    assert some.drop_laggards(BEHIND_AT)
    assert some.proposal is not None
    assert some.proposal.isr == (1, 3)


def test_one_contact_speaks_for_all_partitions_of_a_session() -> None:
    contact = Contact(1.0)
    all_of_them = [of_three(log_end=end) for end in (3, 10)]
    for some in all_of_them:
        hold(some, 3, some.log_end, 1.0, contact)
    contact.at = HEARD_AT
    for some in all_of_them:
        some.on_append(some.log_end + 1, BEHIND_AT)
    assert [some.remotes[3].caught_up_at for some in all_of_them] == [HEARD_AT] * 2


def test_the_next_session_vouches_only_for_what_is_handed_over_to_it() -> None:
    some, _ = holding()
    after = Contact(HEARD_AT + 5)
    some.on_append(11, BEHIND_AT)
    assert some.remotes[3].caught_up_at == HEARD_AT
    hold(some, 3, 11, BEHIND_AT + 1, after)
    after.at = BEHIND_AT + 8
    some.on_append(12, BEHIND_AT + 9)
    assert some.remotes[3].caught_up_at == BEHIND_AT + 8


def test_a_new_epoch_has_heard_of_nobody() -> None:
    some = of_three(log_end=10, now=BEHIND_AT)
    assert [remote.contact for remote in some.remotes.values()] == [None, None]
    some.on_append(11, BEHIND_AT + 1)
    assert [remote.caught_up_at for remote in some.remotes.values()] == [BEHIND_AT] * 2


@pytest.mark.parametrize(("now", "watermark"), [(HEARD_AT + LAG_S, 10), (99.0, 11)])
def test_who_may_join_and_is_heard_of_is_waited_for_a_whole_lag(now: float, watermark: int) -> None:
    """It was not in sync, and had everything when it was heard of."""
    some, _ = holding(isr=(1, 2), active={1: 101, 2: 102})
    assert (some.proposal, some.remotes[3].log_end) == (None, 10)
    some.active = {1: 101, 2: 102, 3: 103}
    some.on_append(11, BEHIND_AT)
    assert fetch(some, 2, 11, BEHIND_AT) == 10
    assert some.advance(now) == watermark


def test_a_member_that_is_held_is_waited_for_whenever_it_was_heard_of() -> None:
    some, _ = holding()
    some.on_append(11, BEHIND_AT + 100 * LAG_S)
    assert fetch(some, 2, 11, BEHIND_AT + 100 * LAG_S) == 10
    assert fetch(some, 3, 11, BEHIND_AT + 100 * LAG_S) == 11


def test_an_idle_member_that_is_held_is_never_dropped() -> None:
    some, _ = holding()
    assert not some.drop_laggards(1000 * LAG_S)


def test_of_two_replicas_the_one_that_was_never_heard_of_has_no_contact() -> None:
    some = leader(replicas=(1, 2), isr=(1,), log_end=10)
    some.on_append(11, BEHIND_AT)
    remote = some.remotes[2]
    assert (remote.log_end, remote.caught_up_at) == (UNKNOWN, NEVER)


def test_who_was_taken_out_is_not_waited_for_because_its_session_goes_on() -> None:
    """It need not be about to join again: its replica may be offline."""
    some, contact = holding()
    some.on_metadata((1, 2, 3), (1, 2), 8, HEARD_AT + 1)
    contact.at = HEARD_AT + 2
    some.on_append(11, BEHIND_AT)
    assert fetch(some, 2, 11, BEHIND_AT) == 11
