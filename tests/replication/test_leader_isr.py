"""A partition's leader asks for another ISR, and waits for all who may be in it by now.

Goal: a replica joins only with all that is committed, and leaves only after a whole lag; what was
proposed counts until newer metadata arrives or the controller has certainly not done it (KIP-497,
KIP-841, KIP-903). Method: the leader is driven by hand; a follower's broker epoch is 100 + its id.
"""

from __future__ import annotations

import pytest
from test_leader import LAG_S, fetch, leader, of_three

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.replication.leader import UNKNOWN, Leader, Proposal

E = ErrorCode
OVERTAKEN = (
    None,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNKNOWN_TOPIC_ID,
    E.FENCED_LEADER_EPOCH,
    E.INVALID_UPDATE_VERSION,
    E.INVALID_REQUEST,
)
TO_BE_SENT_AGAIN = [code for code in E if code not in (*OVERTAKEN, E.INELIGIBLE_REPLICA)]


def proposing(**facts: object) -> Leader:
    """All 10 records are committed by 1 and 2; 3 has them too and is proposed."""
    some = of_three(**{"isr": (1, 2), **facts})
    some.on_append(10, 0.0)
    fetch(some, 2, 10)
    fetch(some, 3, 10)
    assert some.proposal is not None
    assert some.proposal.isr == (1, 2, 3)
    return some


# Who may join.


@pytest.mark.parametrize(
    ("epoch_start", "watermark", "least"), [(5, 2, 5), (5, 5, 5), (0, 6, 6), (3, 6, 6)]
)
def test_a_replica_is_proposed_with_all_that_is_committed_and_that_the_epoch_began_with(
    epoch_start: int, watermark: int, least: int
) -> None:
    """A new leader's watermark may be old: only the start of its epoch tells what was committed
    before it."""
    some = of_three(isr=(1,), log_end=7, min_isr=2, epoch_start=epoch_start)
    some.high_watermark = watermark
    for offset in (0, least - 1):
        fetch(some, 3, offset)
        assert some.proposal is None, offset
    fetch(some, 3, least)
    assert some.proposal is not None
    assert (some.proposal.isr, some.isr, some.maximal_isr) == ((1, 3), (1,), (1, 3))


def test_the_watermark_that_a_joining_replica_needs_is_the_one_before_its_fetch() -> None:
    """Nobody had looked since it lagged too long to be waited for: it is in time."""
    some = of_three(isr=(1, 2))
    some.on_append(10, 0.0)
    assert fetch(some, 2, 10) == 10
    fetch(some, 3, 5)
    some.on_append(20, 0.0)
    assert fetch(some, 2, 20) == 20
    assert fetch(some, 3, 15) == 20, "it has what there was at its last fetch"
    some.on_append(30, 0.0)
    assert fetch(some, 2, 30, LAG_S) == 20
    assert some.maximal_isr == (1, 2)
    assert fetch(some, 3, 25, LAG_S + 1) == 25
    assert some.maximal_isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("active", "said", "may_join"),
    [
        ({1: 101, 2: 102, 3: 103}, 103, True),
        ({1: 101, 2: 102, 3: 103}, UNKNOWN, True),
        ({1: 101, 2: 102, 3: 103}, 102, False),
        ({1: 101, 2: 102, 3: 103}, 104, False),
        ({1: 101, 2: 102}, 103, False),
        ({1: 101, 2: 102}, UNKNOWN, False),
    ],
)
def test_only_the_registered_process_of_an_active_broker_joins(
    active: dict[int, int], said: int, may_join: bool
) -> None:
    some = of_three(isr=(1, 2), active=active, log_end=10)
    assert not some.is_eligible(3) or 3 in active
    fetch(some, 3, 10, broker_epoch=said)
    assert some.is_eligible(3) is may_join
    assert (some.proposal is not None) is may_join
    assert some.maximal_isr == ((1, 2, 3) if may_join else (1, 2))


def test_who_is_no_other_replica_is_not_eligible() -> None:
    some = of_three()
    assert [some.is_eligible(broker) for broker in (1, 2, 3, 4)] == [False, True, True, False]


def test_a_member_is_not_proposed_again() -> None:
    some = of_three(log_end=10)
    fetch(some, 2, 10)
    fetch(some, 3, 10)
    assert some.proposal is None


def test_a_proposal_names_processes_and_the_epochs_that_it_is_based_on() -> None:
    some = of_three(isr=(2, 1), partition_epoch=7, log_end=10)
    fetch(some, 2, 3, broker_epoch=88)
    fetch(some, 3, 10)
    assert some.proposal == Proposal((2, 1, 3), (88, 101, 103), 4, 7)
    assert not some.is_settled


def test_a_proposal_does_not_know_the_process_of_a_member_that_has_not_fetched() -> None:
    some = of_three(isr=(1, 2), log_end=10)
    fetch(some, 3, 10)
    assert some.proposal == Proposal((1, 2, 3), (101, UNKNOWN, 103), 4, 7)


def test_there_is_one_proposal_at_a_time() -> None:
    some = of_three(isr=(1,), log_end=10)
    fetch(some, 3, 10)
    first = some.proposal
    fetch(some, 2, 10)
    assert some.proposal is first
    assert some.maximal_isr == (1, 3)
    some.on_metadata((1, 2, 3), (1, 3), 8, 0.0)
    assert some.proposal is None
    fetch(some, 2, 10)
    assert some.proposal == Proposal((1, 3, 2), (101, 103, 102), 4, 8)


# While it is on its way.


def test_a_proposed_replica_is_waited_for_at_once() -> None:
    """The controller may have granted it already."""
    some = proposing()
    some.active = {1: 101, 2: 102}
    some.on_append(20, LAG_S * 2)
    assert fetch(some, 2, 20, LAG_S * 2) == 10
    assert fetch(some, 3, 15, LAG_S * 2) == 15


def test_what_the_only_member_appends_waits_for_whom_it_has_proposed() -> None:
    some = of_three(isr=(1,), log_end=5, active={2: 102})
    fetch(some, 2, 5)
    assert some.on_append(6, LAG_S * 2) == 5
    assert some.on_metadata((1, 2, 3), (1, 2), 8, LAG_S * 2) == 5
    assert fetch(some, 2, 6, LAG_S * 2) == 6


def test_a_proposed_replica_is_not_yet_one_of_enough() -> None:
    some = of_three(isr=(1, 2), min_isr=3)
    some.on_append(10, 0.0)
    assert [fetch(some, broker, 10) for broker in (2, 3)] == [0, 0]
    assert (some.maximal_isr, some.has_enough) == ((1, 2, 3), False)
    assert some.on_metadata((1, 2, 3), (1, 2, 3), 8, 0.0) == 10


def test_a_proposed_removal_counts_only_when_the_controller_has_granted_it() -> None:
    some = of_three()
    some.on_append(10, 0.0)
    fetch(some, 2, 10, LAG_S)
    assert fetch(some, 3, 0, LAG_S) == 0
    assert some.drop_laggards(LAG_S + 1)
    assert (some.isr, some.maximal_isr) == ((1, 2, 3), (1, 2, 3))
    assert some.advance(LAG_S + 1) == 0
    assert some.on_append(12, LAG_S + 1) == 0
    assert fetch(some, 2, 12, LAG_S + 1) == 0
    assert some.on_metadata((1, 2, 3), (1, 2), 8, LAG_S + 1) == 12


def test_the_removal_of_too_many_commits_nothing() -> None:
    some = of_three(min_isr=3)
    some.on_append(10, 0.0)
    fetch(some, 2, 10)
    some.drop_laggards(LAG_S + 1)
    assert some.on_metadata((1, 2, 3), (1, 2), 8, LAG_S + 1) == 0


@pytest.mark.parametrize("isr", [(1,), (1, 2), (1, 2, 3), (1, 3)])
def test_newer_metadata_ends_a_proposal_whatever_it_says(isr: tuple[int, ...]) -> None:
    some = proposing()
    some.on_metadata((1, 2, 3), isr, 8, 0.0)
    assert (some.proposal, some.isr, some.maximal_isr) == (None, isr, isr)


def test_metadata_that_is_no_newer_ends_no_proposal() -> None:
    """A replica that the controller has let in meanwhile would be forgotten."""
    some = proposing()
    sent = some.proposal
    for partition_epoch in (6, 7):
        some.on_metadata((1, 2, 3), (1, 2), partition_epoch, 0.0)
        assert some.proposal is sent
        assert some.maximal_isr == (1, 2, 3)


def test_nothing_but_an_answer_or_metadata_ends_a_proposal() -> None:
    some = proposing()
    sent = some.proposal
    some.active = {}
    some.on_append(20, 1000 * LAG_S)
    fetch(some, 2, 20, 1000 * LAG_S)
    fetch(some, 3, 0, 1000 * LAG_S)
    assert not some.drop_laggards(2000 * LAG_S)
    assert some.advance(2000 * LAG_S) == 10
    assert (some.proposal, some.is_settled) == (sent, False)


# Answers.


@pytest.mark.parametrize("is_only_one", [True, False])
@pytest.mark.parametrize("error", OVERTAKEN)
def test_what_metadata_follows_is_waited_for_and_not_sent_again(
    error: ErrorCode | None, is_only_one: bool
) -> None:
    some = proposing()
    sent = some.proposal
    some.on_answer(sent, error, is_only_one=is_only_one)
    assert some.is_settled
    assert (some.proposal, some.isr, some.maximal_isr) == (sent, (1, 2), (1, 2, 3))
    some.active = {}
    some.on_append(20, 9 * LAG_S)
    assert fetch(some, 2, 20, 9 * LAG_S) == 10
    fetch(some, 3, 15, 9 * LAG_S)
    assert not some.drop_laggards(99 * LAG_S)
    assert some.proposal is sent
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 99 * LAG_S) == 20
    assert (some.proposal, some.is_settled) == (None, False)


@pytest.mark.parametrize("is_only_one", [True, False])
@pytest.mark.parametrize("error", TO_BE_SENT_AGAIN)
def test_any_other_error_has_the_same_proposal_sent_again(
    error: ErrorCode, is_only_one: bool
) -> None:
    some = proposing()
    sent = some.proposal
    some.on_answer(sent, error, is_only_one=is_only_one)
    assert some.proposal is sent
    assert (some.is_settled, some.suspects, some.maximal_isr) == (False, (), (1, 2, 3))


def test_a_refused_member_is_given_up_when_the_proposal_was_sent_once() -> None:
    some = proposing()
    refused = some.proposal
    some.active = {1: 101, 2: 102}
    some.on_answer(refused, E.INELIGIBLE_REPLICA, is_only_one=True)
    assert (some.proposal, some.suspects, some.maximal_isr) == (None, (), (1, 2))
    some.on_append(20, 1.0)
    assert fetch(some, 2, 20, 1.0) == 20
    # Back again, and with everything.
    some.active = {1: 101, 2: 102, 3: 203}
    fetch(some, 3, 20, 2.0, broker_epoch=203)
    assert some.proposal == Proposal((1, 2, 3), (101, 102, 203), 4, 7)


def test_a_refused_removal_is_proposed_again_by_the_next_look() -> None:
    some = of_three(log_end=10, high_watermark=10)
    fetch(some, 2, 10)
    fetch(some, 3, 4)
    assert some.drop_laggards(LAG_S + 1)
    some.on_answer(some.proposal, E.INELIGIBLE_REPLICA, is_only_one=True)
    assert (some.proposal, some.maximal_isr) == (None, (1, 2, 3))
    assert some.drop_laggards(LAG_S + 2)
    assert some.proposal == Proposal((1, 2), (101, 102), 4, 7)


def test_a_refused_member_is_waited_for_while_a_lost_proposal_may_yet_be_found() -> None:
    """The lost one may be carried out later: the present ISR, once granted, makes it too old."""
    some = proposing()
    some.active = {1: 101, 2: 102}
    some.on_answer(some.proposal, E.INELIGIBLE_REPLICA, is_only_one=False)
    assert some.proposal == Proposal((1, 2), (101, 102), 4, 7)
    assert (some.is_settled, some.isr) == (False, (1, 2))
    assert (some.suspects, some.maximal_isr) == ((1, 2, 3), (1, 2, 3))
    some.on_append(20, 9 * LAG_S)
    assert fetch(some, 2, 20, 9 * LAG_S) == 10
    some.on_answer(some.proposal, None, is_only_one=True)
    assert some.advance(9 * LAG_S) == 10
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 9 * LAG_S) == 20
    assert (some.proposal, some.suspects, some.maximal_isr) == (None, (), (1, 2))


def test_the_lost_proposal_may_be_what_the_metadata_brings() -> None:
    some = proposing()
    some.on_answer(some.proposal, E.INELIGIBLE_REPLICA, is_only_one=False)
    some.on_append(20, 9 * LAG_S)
    fetch(some, 2, 20, 9 * LAG_S)
    some.on_answer(some.proposal, E.INVALID_UPDATE_VERSION, is_only_one=True)
    assert some.is_settled
    assert some.on_metadata((1, 2, 3), (1, 2, 3), 8, 9 * LAG_S) == 10
    assert fetch(some, 3, 20, 9 * LAG_S) == 20


def test_suspects_stay_whatever_becomes_of_the_proposals_after_theirs() -> None:
    some = of_three(isr=(1, 2), replicas=(1, 2, 3, 4), log_end=10)
    fetch(some, 3, 10)
    some.on_answer(some.proposal, E.INELIGIBLE_REPLICA, is_only_one=False)
    for is_only_one in (False, True):
        some.on_answer(some.proposal, E.INELIGIBLE_REPLICA, is_only_one=is_only_one)
        assert some.maximal_isr == (1, 2, 3)
    assert some.proposal is None
    fetch(some, 4, 10)
    assert some.maximal_isr == (1, 2, 4, 3)
    some.on_answer(some.proposal, E.INELIGIBLE_REPLICA, is_only_one=False)
    assert some.proposal == Proposal((1, 2), (101, UNKNOWN), 4, 7)
    assert set(some.maximal_isr) == {1, 2, 3, 4}
    some.on_metadata((1, 2, 3, 4), (1,), 8, 0.0)
    assert some.maximal_isr == (1,)


def test_the_settlement_of_one_proposal_says_nothing_of_the_next() -> None:
    some = proposing()
    some.on_answer(some.proposal, None, is_only_one=True)
    some.on_metadata((1, 2, 3), (1, 2), 8, 0.0)
    fetch(some, 3, 10)
    assert some.proposal is not None
    assert not some.is_settled


def test_what_takes_the_place_of_a_settled_proposal_is_to_be_sent() -> None:
    some = proposing()
    some.on_answer(some.proposal, None, is_only_one=False)
    some.on_answer(some.proposal, E.INELIGIBLE_REPLICA, is_only_one=False)
    assert some.proposal is not None
    assert (some.proposal.isr, some.is_settled) == ((1, 2), False)


@pytest.mark.parametrize("is_only_one", [True, False])
@pytest.mark.parametrize("error", [None, E.INVALID_UPDATE_VERSION, E.INELIGIBLE_REPLICA])
def test_an_answer_to_an_older_proposal_says_nothing_of_an_equal_one(
    error: ErrorCode | None, is_only_one: bool
) -> None:
    some = proposing()
    older = some.proposal
    some.on_answer(older, E.INELIGIBLE_REPLICA, is_only_one=True)
    fetch(some, 3, 10)
    present = some.proposal
    assert present == older
    assert present is not older
    some.on_answer(older, error, is_only_one=is_only_one)
    assert some.proposal is present
    assert (some.is_settled, some.suspects) == (False, ())


def test_an_answer_that_metadata_overtook_changes_nothing() -> None:
    some = proposing()
    older = some.proposal
    some.on_metadata((1, 2, 3), (1, 2, 3), 8, 0.0)
    for error in (None, E.INELIGIBLE_REPLICA):
        some.on_answer(older, error, is_only_one=False)
        assert (some.proposal, some.suspects, some.is_settled) == (None, (), False)


# Who has to leave.


def test_a_member_is_dropped_when_it_has_not_caught_up_for_more_than_the_lag() -> None:
    some = of_three(log_end=10)
    fetch(some, 2, 10, 5.0)
    fetch(some, 3, 0, 5.0)
    assert not some.drop_laggards(LAG_S)
    assert some.proposal is None
    assert some.drop_laggards(LAG_S + 0.001)
    assert some.proposal == Proposal((1, 2), (101, 102), 4, 7)


def test_all_laggards_leave_at_once_and_the_leader_never() -> None:
    some = leader(replicas=(3, 1, 4, 2), log_end=10)
    fetch(some, 4, 10)
    fetch(some, 2, 9)
    assert some.drop_laggards(LAG_S + 1)
    assert some.proposal is not None
    assert some.proposal.isr == (1, 4)
    alone = of_three(log_end=10)
    assert alone.drop_laggards(LAG_S + 1)
    assert alone.proposal == Proposal((1,), (101,), 4, 7)


def test_members_get_a_whole_lag_to_show_up_after_the_epoch_began() -> None:
    some = of_three(now=1000.0, log_end=10)
    assert not some.drop_laggards(1000.0 + LAG_S)
    assert some.drop_laggards(1000.0 + LAG_S + 0.001)


def test_an_idle_member_with_everything_is_never_dropped() -> None:
    some = of_three(log_end=10)
    for broker in (2, 3):
        fetch(some, broker, 10)
    assert not some.drop_laggards(1000 * LAG_S)
    some.on_append(11, 1000 * LAG_S)
    fetch(some, 2, 11, 1000 * LAG_S)
    assert some.drop_laggards(1000 * LAG_S)
    assert some.proposal is not None
    assert some.proposal.isr == (1, 2)


def test_a_follower_that_always_has_what_there_was_a_fetch_ago_is_caught_up() -> None:
    """It never sees the end of a log that grows all the time."""
    some = leader(replicas=(1, 2), log_end=10)
    fetch(some, 2, 5, 5.0)
    some.on_append(15, 10.0)
    fetch(some, 2, 10, 10.001)
    assert some.remotes[2].caught_up_at == 5.0
    assert not some.drop_laggards(5.0 + LAG_S)
    fetch(some, 2, 14, 14.0)
    assert some.remotes[2].caught_up_at == 5.0, "there were 15 at the fetch before"
    assert some.drop_laggards(5.0 + LAG_S + 0.001)


def test_the_first_fetch_catches_up_only_at_the_log_end() -> None:
    some = leader(replicas=(1, 2), log_end=10)
    fetch(some, 2, 9, 3.0)
    assert some.remotes[2].caught_up_at == 0.0
    fetch(some, 2, 10, 4.0)
    assert some.remotes[2].caught_up_at == 4.0


def test_a_follower_that_is_caught_up_now_does_not_go_back_to_its_fetch_before() -> None:
    some = leader(replicas=(1, 2), log_end=10)
    fetch(some, 2, 10, 3.0)
    fetch(some, 2, 10, 6.0)
    assert some.remotes[2].caught_up_at == 6.0
    some.on_append(20, 7.0)
    fetch(some, 2, 10, 8.0)
    assert some.remotes[2].caught_up_at == 6.0


def test_nobody_is_dropped_while_a_proposal_is_on_its_way() -> None:
    some = proposing()
    sent = some.proposal
    some.on_append(20, 1.0)
    assert not some.drop_laggards(9 * LAG_S)
    assert some.proposal is sent
    some.on_metadata((1, 2, 3), (1, 2, 3), 8, 9 * LAG_S)
    assert some.drop_laggards(9 * LAG_S)
    assert some.proposal == Proposal((1,), (101,), 4, 8)


def test_a_removal_that_metadata_overtook_is_proposed_as_of_that() -> None:
    some = of_three(log_end=10)
    fetch(some, 2, 10)
    assert some.drop_laggards(LAG_S + 1)
    older = some.proposal
    some.on_metadata((1, 2, 3), (1, 3), 8, LAG_S + 1)
    assert (some.proposal, some.maximal_isr) == (None, (1, 3))
    assert some.drop_laggards(LAG_S + 1)
    present = some.proposal
    assert present == Proposal((1,), (101,), 4, 8)
    some.on_answer(older, E.INVALID_UPDATE_VERSION, is_only_one=True)
    assert some.proposal is present
    assert not some.is_settled


def test_a_laggard_that_is_being_removed_is_not_proposed_by_its_next_fetch() -> None:
    some = of_three(log_end=10)
    fetch(some, 2, 10)
    some.drop_laggards(LAG_S + 1)
    sent = some.proposal
    fetch(some, 3, 10, LAG_S + 2)
    assert some.proposal is sent
    some.on_metadata((1, 2, 3), (1, 2), 8, LAG_S + 2)
    fetch(some, 3, 10, LAG_S + 3)
    assert some.proposal == Proposal((1, 2, 3), (101, 102, 103), 4, 8)


def test_a_laggard_that_is_no_member_is_not_dropped() -> None:
    some = of_three(isr=(1, 2), log_end=10)
    fetch(some, 2, 10)
    fetch(some, 3, 0)
    assert not some.drop_laggards(1000 * LAG_S)
    assert some.proposal is None


# Others may lead.


@pytest.mark.parametrize("synced_counts", [True, False])
def test_nothing_is_committed_while_others_than_the_isr_may_lead(synced_counts: bool) -> None:
    """They hold what is committed, and would miss it."""
    some = of_three(isr=(1, 2), min_isr=1, is_contested=True, synced_counts=synced_counts)
    some.on_append(10, 0.0)
    some.on_synced(10, 0.0)
    assert fetch(some, 2, 10) == 0
    some.refuse_if_too_few()
    assert some.on_metadata((1, 2, 3), (1, 2), 8, 0.0) == 10
    assert some.on_metadata((1, 2, 3), (1,), 9, 0.0, is_contested=True) == 10
    some.on_append(20, 0.0)
    assert some.on_synced(20, 0.0) == 10
    assert some.on_metadata((1, 2, 3), (1,), 9, 0.0) == 10, "that is no newer"
    assert some.on_metadata((1, 2, 3), (1,), 10, 0.0) == 20
