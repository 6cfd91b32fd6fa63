"""Fetch sessions, the follower's end: what goes wrong with a session, and with what is held in it.

Goal: a session of which a request or an answer is missing is none: all that it held is fetched by
itself again, after a pause, and handed over to the next one. Method: that of `test_quiet.py`.
"""

import pytest
from leaderkit import EPOCH, ME, TWO, settled
from quietkit import GATHER_S, PATIENCE_S, PAUSE_S, TRIES_MAX, WAIT_S, There, news, quieted
from replicakit import batch

from hightide.protocol.errors import ErrorCode

TOO_SOON_S, LATER_S = 0.9 * PAUSE_S, 0.2 * PAUSE_S
"""Before the pause ends, and from there past its end."""


async def lose_the_connection(there):
    await there.two.lose()


async def refuse_the_epoch(there):
    there.two.in_session[-1].refuse(ErrorCode.INVALID_FETCH_SESSION_EPOCH)


async def refuse_the_number(there):
    there.two.in_session[-1].refuse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


async def say_nothing(there):
    await there.after(1.5 * WAIT_S + PATIENCE_S)
    for asked in there.two.open:
        asked.is_answered = True


async def leave_records_out(there):
    there.two.in_session[-1].answer(news(1, records=0))


async def send_what_nobody_can_read(there):
    there.two.wires[-1].put(b"\x00\x00\x00\x04GET ")
    await there.two.lose()


TROUBLES = pytest.mark.parametrize(
    "trouble",
    [
        lose_the_connection,
        refuse_the_epoch,
        refuse_the_number,
        say_nothing,
        leave_records_out,
        send_what_nobody_can_read,
    ],
)
BREAKING = (lose_the_connection, say_nothing, leave_records_out, send_what_nobody_can_read)


@TROUBLES
async def test_all_that_a_session_held_is_fetched_by_itself_after_a_pause_and_handed_over_again(
    trouble, mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 3)
    there.two.open[0].answer()
    await settled()
    assert [each.session for each in there.two.open] == [(0, 1)]
    await trouble(there)
    await settled()
    await there.after(TOO_SOON_S)
    assert there.two.by_itself == []
    await there.after(LATER_S)
    (asked,) = there.two.by_itself
    assert asked.offsets == dict.fromkeys(range(3), 0)
    assert len(there.two.wires) == (2 if trouble in BREAKING else 1)
    asked.answer()
    await settled()
    (handed_over,) = there.two.in_session
    assert (handed_over.session, len(handed_over.offsets)) == ((1, 0), 3)


async def two_requests(nursery, mock_clock):
    """What a session of three partitions has open at its leader; one of them joined later."""
    there = await quieted(nursery, mock_clock, 2)
    await there.here.create("onyx", leader=TWO)
    await settled()
    await there.nothing_is_new()
    assert [each.session for each in there.two.open] == [(0, 0), (0, 1)]
    return there


@TROUBLES
async def test_trouble_with_one_of_two_requests_ends_the_session_once(trouble, mock_clock, nursery):
    there = await two_requests(nursery, mock_clock)
    await trouble(there)
    await settled()
    await there.after(PAUSE_S * 1.1)
    (asked,) = there.two.by_itself
    assert len(asked.request.partitions) == 3
    asked.answer()
    await settled()
    assert there.two.in_session[-1].session == (1, 0)


async def test_another_answer_of_a_session_that_is_over_is_not_taken_in(mock_clock, nursery):
    there = await two_requests(nursery, mock_clock)
    first, second = there.two.open
    second.refuse(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    await settled()
    first.answer(news(0, records=0, high_watermark=1), records=[batch(0)])
    await settled()
    assert there.replica().log.log_end == 0
    await there.after(PAUSE_S * 1.1)
    assert [len(each.request.partitions) for each in there.two.open] == [3]


async def test_what_was_named_before_the_records_of_another_are_missing_is_taken_in(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 3)
    there.two.open[0].answer(news(2, records=0), news(1, records=1), records=[batch(0)])
    await settled()
    assert there.replica(2).log.log_end == 1
    await there.after(PAUSE_S * 1.1)
    offsets = {number: at for each in there.two.by_itself for number, at in each.offsets.items()}
    assert offsets == {0: 0, 1: 0, 2: 1}


async def test_a_lost_connection_pauses_longer_each_time(mock_clock, nursery):
    there = await quieted(nursery, mock_clock)
    await there.two.lose()
    await there.after(PAUSE_S * 1.1)
    await there.two.lose()
    await there.after(PAUSE_S * 1.1)
    assert there.two.open == []
    await there.after(PAUSE_S)
    assert [each.offsets for each in there.two.by_itself] == [{0: 0}]


async def test_what_was_held_by_a_leader_that_is_none_any_more_is_not_asked_of_it_again(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 2)
    await there.here.change(leader=ME)
    await there.two.lose()
    await there.after(PAUSE_S * 1.1)
    assert [each.offsets for each in there.two.open] == [{1: 0}]


async def test_a_new_epoch_is_fetched_in_without_a_pause_when_the_connection_is_lost(
    mock_clock, nursery
):
    """The pause is one of the epoch before."""
    there = await quieted(nursery, mock_clock)
    await there.here.change(leader=TWO)
    await there.two.lose()
    (asked,) = there.two.by_itself
    assert asked.request.partitions[0].current_leader_epoch == EPOCH + 1


async def test_what_waits_to_be_handed_over_when_the_session_ends_is_handed_to_the_next(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock)
    for topic in ("onyx", "opal"):
        await there.here.create(topic, leader=TWO)
        await settled()
    for asked in there.two.by_itself:
        asked.answer()
    await settled()
    there.two.in_session[0].refuse(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    await settled()
    await there.after(GATHER_S * 1.1)
    (handed_over,) = there.two.in_session
    assert handed_over.session == (1, 0)
    assert [part.topic for part in handed_over.request.partitions] == ["onyx", "opal"]


async def test_what_falls_quiet_in_the_stretch_in_which_the_session_ends_is_not_forgotten(
    mock_clock, nursery
):
    """The time of the session's request is up while two fetches that found nothing wait for more to
    be handed over with."""
    there = await quieted(nursery, mock_clock, 3)
    there.two.open[0].answer(news(1))
    await settled()
    there.two.in_session[0].answer(news(2))
    await settled()
    (held,) = there.two.in_session
    left = held.request.max_wait_ms / 1000 + PATIENCE_S
    await there.after(left - GATHER_S / 4)
    for asked in there.two.by_itself:
        asked.answer()
    await settled()
    assert there.two.open == [held]
    await there.after(GATHER_S * 1.1)
    await there.after(PAUSE_S * 1.1)
    asked_for = [number for each in there.two.by_itself for number in each.offsets]
    assert sorted(asked_for) == [0, 1, 2]


# --- leaders of an older version ------------------------------------------------------------------


async def test_a_leader_that_keeps_no_sessions_is_fetched_from_as_before_there_were_any(
    mock_clock, nursery
):
    there = await quieted(nursery, mock_clock, 2)
    there.two.open[0].answer(session_id=-1)
    await settled()
    for _ in range(3):
        (asked,) = there.two.open
        assert (asked.session, asked.offsets) == ((-1, 0), {0: 0, 1: 0})
        await there.after(WAIT_S)
        asked.answer(session_id=-1)
        await settled()


async def test_the_news_of_a_leader_that_keeps_no_sessions_are_taken_in(mock_clock, nursery):
    """It took the partitions that were handed over for a fetch like any other."""
    there = await quieted(nursery, mock_clock, 2)
    answer = news(1, records=0, high_watermark=1)
    there.two.open[0].answer(answer, records=[batch(0)], session_id=-1)
    await settled()
    assert there.replica(1).log.log_end == 1
    (asked,) = there.two.open
    assert (asked.session, asked.offsets) == ((-1, 0), {0: 0, 1: 1})


async def test_a_leader_may_keep_sessions_after_its_connection_was_lost(mock_clock, nursery):
    """It was started again, as a newer version."""
    there = await quieted(nursery, mock_clock)
    there.two.open[0].answer(session_id=-1)
    await settled()
    await there.two.lose()
    await there.after(PAUSE_S * 1.1)
    there.two.by_itself[0].answer()
    await settled()
    assert [each.session for each in there.two.open] == [(1, 0)]


# --- what would be right, and is not --------------------------------------------------------------


async def test_a_leader_that_is_down_is_not_connected_to_again_and_again_at_once(
    mock_clock, nursery
):
    """1. Two fetches come back with nothing, and wait for others to be handed over with. 2. The
    leader dies within these 2 ms. 3. What falls quiet then has no connection to be handed over
    on: one is wanted, refused, wanted..."""
    there = There(nursery, mock_clock)
    await there.follow(2)
    there.two.open[0].answer(news(1))
    await settled()
    there.two.in_session[0].answer(news(0))
    await settled()
    for asked in there.two.by_itself:
        asked.answer()
    await settled()
    there.two.is_up = False
    await there.two.lose()
    await there.after(GATHER_S * 1.1)
    assert there.two.tries < TRIES_MAX


@pytest.mark.parametrize("in_session", [True, False])
async def test_a_request_that_cannot_leave_is_made_again_after_a_pause(
    in_session, mock_clock, nursery
):
    """1. Nothing else is on its way. 2. The leader's end is closed, and it is sending that finds
    out. 3. All pause, without anything that looks at them again."""
    there = await quieted(nursery, mock_clock, 2)
    there.two.wires[-1].is_broken = True
    there.two.open[0].answer(*([] if in_session else [news(0), news(1)]))
    await settled()
    assert there.two.open == []
    for _ in range(20):
        await there.after(PAUSE_S)
    assert [each.offsets for each in there.two.by_itself] == [{0: 0, 1: 0}]
