"""Proposals of leaders on their way to the controller, and replicas that lag.

Goal: a proposal is sent until it is answered or overtaken, one request at a time carries all of
them, a lost request is never taken for one that had no effect, and nobody stays in sync that is
not. Method: a real broker's leaders, whose followers' fetches are made by hand; a controller that
answers as the test says; virtual time.
"""

from itertools import pairwise

import pytest
import trio
from leaderkit import (
    EPOCH,
    ME,
    THREE,
    TWO,
    FakeController,
    Here,
    broker_epoch,
    granted,
    saying,
    settled,
    unanswered,
)
from replicakit import write

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.changes import ChangePartition
from hightide_broker.core.cluster.image import PartitionState
from hightide_broker.runtime.replication.isr import PARTITIONS_MAX, RESEND_S
from hightide_broker.runtime.replication.replica import Replica

LAG_S = 30.0
TOPIC_ID = "id-of-jade"


def here_with(nursery, *script, **facts):
    """A broker whose proposals are being carried to a controller that answers by this script."""
    here = Here(FakeController(*(script or (granted,)), **facts))
    nursery.start_soon(here.isr_changes.run, here.replicas)
    return here


async def leading(here, *, partitions=1, records=3, isr=(ME, TWO)):
    """Broker 1 leads; broker 2 is in sync, broker 3 is not."""
    replica = await here.create(partitions=partitions, isr=isr)
    for number in range(partitions):
        if records:
            here.append(records, partition=number)
    return replica


def propose(here, partition=0, *, end=3, by=THREE):
    """Broker 3 fetches at the log end, and so is to join."""
    assert here.fetch_one(end, by=by, partition=partition).error is None
    assert here.replicas.get("jade", partition).leader.proposal is not None


async def overtake(here, partition=0, **facts):
    """Newer metadata of the same leader epoch."""
    await here.apply(
        ChangePartition(topic_id=TOPIC_ID, partition=partition, **{"isr": (ME, TWO), **facts})
    )


# --- requests -------------------------------------------------------------------------------------


async def test_a_proposal_says_what_it_is_and_on_what_it_is_based(nursery, autojump_clock):
    here = here_with(nursery)
    replica = await leading(here)
    propose(here)
    await trio.sleep(1)
    wish = c.AlterPartition(
        topic_id=TOPIC_ID,
        partition=0,
        leader_epoch=EPOCH,
        partition_epoch=0,
        isr=[ME, TWO, THREE],
        broker_epochs=[broker_epoch(ME), -1, broker_epoch(THREE)],
    )
    request = c.AlterPartitionRequest(broker=ME, broker_epoch=broker_epoch(ME), partitions=[wish])
    assert here.controller.requests == [request]
    assert replica.leader.isr == (ME, TWO), "what was granted comes as metadata"
    assert replica.leader.maximal_isr == (ME, TWO, THREE)


async def test_who_leaves_and_joins_is_counted_as_the_metadata_says_it(nursery, autojump_clock):
    here = here_with(nursery)
    await leading(here)
    moves = here.replicas.isr_moves
    for isr, shrinks, expands in (
        ((ME, TWO, THREE), 0, 1),
        ((ME, TWO, THREE), 0, 1),
        ((ME,), 1, 1),
        ((ME, TWO), 1, 2),
        ((ME, THREE), 2, 3),
    ):
        await overtake(here, isr=isr)
        assert (moves["shrink"], moves["expand"]) == (shrinks, expands)


async def test_one_request_carries_all_that_is_proposed(nursery, autojump_clock):
    here = here_with(nursery)
    await leading(here, partitions=4)
    for number in (2, 0, 3):
        propose(here, number)
        propose(here, number)
    await trio.sleep(1)
    assert here.controller.wishes == [[(n, [ME, TWO, THREE]) for n in (2, 0, 3)]]


async def test_what_is_proposed_meanwhile_waits_for_the_answer(nursery, autojump_clock):
    here = here_with(nursery, takes_s=1.0)
    await leading(here, partitions=3)
    propose(here, 0)
    await trio.sleep(0.5)
    propose(here, 1)
    propose(here, 2)
    await trio.sleep(5)
    assert [[n for n, _ in each] for each in here.controller.wishes] == [[0], [1, 2]]
    assert here.controller.most_at_work == 1


async def test_what_is_too_much_for_one_request_goes_in_the_next(nursery, autojump_clock):
    here = here_with(nursery)
    first = await leading(here)
    led = PartitionState((ME, TWO), (ME,), ME, EPOCH, 0)
    for number in range(PARTITIONS_MAX + 1):
        replica = Replica(
            *("jade", TOPIC_ID, number),
            config=first.config,
            log=first.log,
            high_watermark=0,
            inflated_max=1,
        )
        replica.become_leader(led, broker=ME, active={TWO: 0})
        replica.leader.on_fetch(TWO, 3, 0.0, log_start=0, broker_epoch=0)
        here.isr_changes.mark(replica)
    await trio.sleep(1)
    sent = [[n for n, _ in each] for each in here.controller.wishes]
    assert sent == [list(range(PARTITIONS_MAX)), [PARTITIONS_MAX]]


async def test_a_broker_without_proposals_says_nothing(nursery, autojump_clock):
    here = here_with(nursery)
    replica = await leading(here)
    await here.create("followed", leader=TWO)
    here.fetch_one(3)
    here.fetch_one(1, by=THREE)
    here.isr_changes.mark(replica)
    here.isr_changes.mark(here.replicas.get("followed", 0))
    await trio.sleep(1)
    assert here.controller.requests == []


# --- answers that do not come ---------------------------------------------------------------------


async def test_a_request_without_an_answer_is_sent_again_after_a_pause(nursery, autojump_clock):
    here = here_with(nursery, *[unanswered] * 4, granted, takes_s=2.0)
    await leading(here)
    propose(here)
    await trio.sleep(60)
    requests, times = here.controller.requests, here.controller.times
    assert requests == [requests[0]] * 5
    assert [b - a for a, b in pairwise(times)] == pytest.approx([2.0 + RESEND_S] * 4)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR],
)
async def test_a_request_that_was_refused_whole_is_sent_again(code, nursery, autojump_clock):
    def refuse(request):
        raise Refused(code, "not now")

    here = here_with(nursery, refuse, refuse, granted)
    await leading(here)
    propose(here)
    await trio.sleep(5)
    assert len(here.controller.requests) == 3


async def test_what_is_proposed_in_the_pause_goes_with_what_is_sent_again(nursery, autojump_clock):
    here = here_with(nursery, unanswered, granted)
    await leading(here, partitions=2)
    propose(here, 0)
    await trio.sleep(RESEND_S / 2)
    propose(here, 1)
    await trio.sleep(5)
    assert [[n for n, _ in each] for each in here.controller.wishes] == [[0], [0, 1]]


async def test_while_nobody_answers_the_proposed_replica_is_waited_for(nursery, autojump_clock):
    here = here_with(nursery, unanswered)
    replica = await leading(here)
    propose(here)
    here.append()
    here.fetch_one(4)
    await trio.sleep(1.1 * LAG_S)
    assert replica.leader.maximal_isr == (ME, TWO, THREE)
    assert replica.high_watermark == 3, "broker 3 may have been let in"


# --- refusals -------------------------------------------------------------------------------------

INELIGIBLE = saying(ErrorCode.INELIGIBLE_REPLICA)


async def test_a_member_refused_at_the_first_sending_is_given_up(nursery, autojump_clock):
    here = here_with(nursery, INELIGIBLE)
    replica = await leading(here)
    propose(here)
    await trio.sleep(5)
    assert here.controller.wishes == [[(0, [ME, TWO, THREE])]]
    assert replica.leader.proposal is None
    assert replica.leader.maximal_isr == (ME, TWO)


async def test_a_member_refused_at_a_later_sending_may_still_be_let_in_by_the_first(
    nursery, autojump_clock
):
    here = here_with(nursery, unanswered, INELIGIBLE, granted)
    replica = await leading(here)
    propose(here)
    await trio.sleep(5)
    assert here.controller.wishes == [[(0, [ME, TWO, THREE])]] * 2 + [[(0, [ME, TWO])]]
    assert replica.leader.maximal_isr == (ME, TWO, THREE), "until the metadata says otherwise"
    await overtake(here)
    assert replica.leader.maximal_isr == (ME, TWO)


async def test_one_lost_request_casts_no_doubt_on_later_proposals(nursery, autojump_clock):
    here = here_with(nursery, unanswered, INELIGIBLE)
    replica = await leading(here)
    propose(here)
    await trio.sleep(RESEND_S / 2)
    await overtake(here)
    propose(here)
    await trio.sleep(1)
    assert len(here.controller.requests) == 2
    assert (replica.leader.proposal, replica.leader.maximal_isr) == (None, (ME, TWO))


async def test_one_partitions_lost_request_casts_no_doubt_on_another(nursery, autojump_clock):
    here = here_with(nursery, unanswered, INELIGIBLE)
    await leading(here, partitions=2)
    propose(here, 0)
    await trio.sleep(RESEND_S / 2)
    propose(here, 1)
    await trio.sleep(RESEND_S)
    found = [here.replicas.get("jade", number).leader.maximal_isr for number in range(2)]
    assert found == [(ME, TWO, THREE), (ME, TWO)]


async def test_a_refusal_lets_the_watermark_go_on_without_whom_it_concerns(nursery, autojump_clock):
    here = here_with(nursery, INELIGIBLE, takes_s=1.0)
    replica = await leading(here)
    propose(here)
    here.append()
    here.fetch_one(4)
    await here.fence(THREE)
    assert replica.high_watermark == 3
    await trio.sleep(1.5)
    assert replica.high_watermark == 4


async def test_a_refused_replica_that_asks_again_and_again_is_proposed_after_pauses(
    nursery, autojump_clock
):
    here = here_with(nursery, INELIGIBLE)
    await leading(here)
    for _ in range(100):
        propose(here)
        await trio.sleep(RESEND_S / 10)
    times = here.controller.times
    assert 9 <= len(times) <= 11
    assert min(b - a for a, b in pairwise(times)) >= RESEND_S * 0.99


async def test_an_error_that_may_pass_has_the_same_proposal_sent_again(nursery, autojump_clock):
    busy = saying(ErrorCode.NOT_CONTROLLER, 1)
    here = here_with(nursery, busy, busy, granted)
    await leading(here, partitions=3)
    for number in range(3):
        propose(here, number)
    await trio.sleep(5)
    assert [[n for n, _ in each] for each in here.controller.wishes] == [[0, 1, 2], [1], [1]]
    assert here.controller.times[-1] - here.controller.times[0] == pytest.approx(
        2 * RESEND_S, abs=0.01
    )


# --- newer metadata -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
    ],
)
async def test_what_newer_metadata_will_end_is_not_sent_again_and_waited_for_until_then(
    code, nursery, autojump_clock
):
    here = here_with(nursery, saying(code))
    replica = await leading(here)
    propose(here)
    await trio.sleep(5)
    propose(here)
    await trio.sleep(5)
    assert len(here.controller.requests) == 1
    assert replica.leader.maximal_isr == (ME, TWO, THREE)
    await overtake(here)
    propose(here)
    await trio.sleep(5)
    assert [each.partitions[0].partition_epoch for each in here.controller.requests] == [0, 1]


async def move(here):
    await here.change(leader=TWO)


async def win_again(here):
    await here.change(leader=TWO)
    await here.change(leader=ME)


@pytest.mark.parametrize("happens", [overtake, move, win_again])
async def test_nothing_is_sent_again_once_metadata_overtakes_it(happens, nursery, autojump_clock):
    here = here_with(nursery, unanswered, takes_s=2.0)
    await leading(here)
    propose(here)
    await trio.sleep(1)
    await happens(here)
    await trio.sleep(20)
    assert len(here.controller.requests) == 1


async def test_the_answer_to_an_overtaken_proposal_says_nothing_of_the_next(
    nursery, autojump_clock
):
    here = here_with(nursery, INELIGIBLE, granted, takes_s=2.0)
    replica = await leading(here)
    propose(here)
    await trio.sleep(1)
    await overtake(here)
    propose(here)
    second = replica.leader.proposal
    await trio.sleep(1.01)
    assert replica.leader.proposal is second
    await trio.sleep(20)
    epochs = [each.partitions[0].partition_epoch for each in here.controller.requests]
    assert epochs == [0, 1]


async def test_a_leader_that_is_deposed_while_it_waits_has_no_use_for_the_answer(
    nursery, autojump_clock
):
    here = here_with(nursery, INELIGIBLE, takes_s=2.0)
    replica = await leading(here)
    propose(here)
    await trio.sleep(1)
    await here.change(leader=TWO)
    await trio.sleep(5)
    assert (replica.leader, len(here.controller.requests)) == (None, 1)


# --- laggards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start_s", [0.5, 5.0, 14.9])
async def test_a_member_that_does_not_fetch_is_dropped_after_1_to_1_5_lags(
    start_s, nursery, autojump_clock
):
    here = here_with(nursery)
    await trio.sleep(start_s)
    began = trio.current_time()
    replica = await leading(here, isr=(ME, TWO, THREE))
    for _ in range(60):
        here.append()
        here.fetch_one(replica.log.log_end)
        await trio.sleep(1)
    assert here.controller.wishes == [[(0, [ME, TWO])]]
    assert LAG_S < here.controller.times[0] - began <= 1.5 * LAG_S
    assert replica.high_watermark == 0, "it counts until the controller lets it go"
    await overtake(here)
    assert replica.high_watermark == replica.log.log_end


async def test_all_who_lag_go_in_one_proposal(nursery, autojump_clock):
    here = here_with(nursery)
    await leading(here, partitions=2, isr=(ME, TWO, THREE))
    await trio.sleep(2 * LAG_S)
    assert here.controller.wishes == [[(0, [ME]), (1, [ME])]]


async def test_who_keeps_up_or_is_idle_with_everything_stays(nursery, autojump_clock):
    here = here_with(nursery)
    replica = await leading(here, isr=(ME, TWO, THREE))
    for _ in range(200):
        # Always a record behind at its fetch, but never behind what there was a fetch ago.
        here.fetch_one(replica.log.log_end)
        here.append()
        here.fetch_one(replica.log.log_end - 1, by=THREE)
        await trio.sleep(1)
    for broker in (TWO, THREE):
        here.fetch_one(replica.log.log_end, by=broker)
    await trio.sleep(100 * LAG_S)
    assert here.controller.requests == []


async def test_a_replica_that_was_about_to_join_holds_nothing_up_once_it_lags(
    nursery, autojump_clock
):
    here = here_with(nursery, INELIGIBLE)
    replica = await leading(here)
    propose(here)
    await trio.sleep(1)
    here.append()
    here.fetch_one(4)
    assert replica.high_watermark == 3, "it is waited for, though it is no member"
    await trio.sleep(1.5 * LAG_S)
    assert replica.high_watermark == 4, "though nobody fetched since"


async def test_only_leaders_with_a_log_look_for_laggards(nursery, autojump_clock):
    here = here_with(nursery)
    replica = await leading(here, partitions=2, isr=(ME, TWO, THREE))
    replica.go_offline("its disk broke")
    followed = await here.create("followed", leader=TWO)
    write(followed.log, (EPOCH, 1))
    await trio.sleep(2 * LAG_S)
    assert here.controller.wishes == [[(1, [ME])]]


async def test_a_removal_that_is_refused_is_proposed_by_the_next_look(nursery, autojump_clock):
    here = here_with(nursery, INELIGIBLE, granted)
    await leading(here, isr=(ME, TWO, THREE))
    await trio.sleep(3 * LAG_S)
    assert here.controller.wishes == [[(0, [ME])]] * 2
    first, second = here.controller.times
    assert second - first == pytest.approx(LAG_S / 2, abs=0.01)


async def test_the_lag_is_the_configured_one(nursery, autojump_clock):
    here = Here(FakeController(granted), replica_lag_time_max_ms="2s")
    nursery.start_soon(here.isr_changes.run, here.replicas)
    await settled()
    began = trio.current_time()
    await leading(here, isr=(ME, TWO, THREE))
    await trio.sleep(10)
    (at,) = here.controller.times
    assert 2 < at - began <= 3
