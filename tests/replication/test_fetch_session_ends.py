"""Fetch sessions, the leader's end: what is refused, and how a session ends.

Goal: a partition is held exactly while its follower takes it for held. So a request that is not the
next one of a session ends it, a session that has ended is not gone on with, and holds nothing: no
waker of it is left at any watermark. Method: that of `test_fetch_sessions.py`.
"""

import pytest
from leaderkit import THREE, part, settled
from sessionkit import TOPICS, Session, leading, live_wakers, same

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.runtime.server.fetch_sessions import SESSIONS_MAX

UNKNOWN, WRONG_EPOCH = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)


async def holding(nursery):
    """Broker 2 has handed over all topics; its request waits."""
    here = await leading()
    here.run_agenda(nursery)
    session = Session(here)
    waiting = session.ask(*map(same, TOPICS))
    assert waiting.is_waiting
    assert held(here) == 2 * len(TOPICS)
    return here, session, waiting


def held(here):
    """So many wakers: two for each partition that is held."""
    return live_wakers(*here.replicas)


def refusal_of(session, *parts, **over):
    """What the follower hears; the request counts for none."""
    with pytest.raises(Refused) as refused:
        session.ask(*parts, **over)
    return refused.value.code, refused.value.message


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [2, 3, -1, 1 << 40])
async def test_a_request_of_another_epoch_than_the_next_ends_the_session(
    epoch, mock_clock, nursery
):
    here, session, waiting = await holding(nursery)
    assert refusal_of(session, session_epoch=epoch) == (
        WRONG_EPOCH,
        f"session 7 of broker 2 is asked in epoch {epoch}, expected 1",
    )
    assert (waiting.named, held(here)) == ([], 0)
    assert refusal_of(session) == (UNKNOWN, "session 7 of broker 2 is not known here")


async def test_the_epoch_of_a_request_that_came_before_is_not_the_next(mock_clock, nursery):
    here, session, _ = await holding(nursery)
    session.ask()
    assert refusal_of(session, session_epoch=1)[0] == WRONG_EPOCH
    assert held(here) == 0


async def test_a_session_that_never_began_is_not_gone_on_with():
    here = await leading()
    session = Session(here)
    for number, epoch in ((7, 1), (0, 5)):
        assert refusal_of(session, session_id=number, session_epoch=epoch) == (
            UNKNOWN,
            f"session {number} of broker 2 is not known here",
        )
    assert held(here) == 0
    assert session.ask(same()).is_waiting, "it may begin all the same"


async def test_only_the_number_that_the_session_has_goes_on_with_it(mock_clock, nursery):
    _, session, _ = await holding(nursery)
    assert refusal_of(session, session_id=8) == (
        UNKNOWN,
        "session 8 of broker 2 is not known here",
    )


async def test_the_session_of_another_broker_is_not_gone_on_with(mock_clock, nursery):
    here, _, waiting = await holding(nursery)
    stranger = Session(here, by=THREE)
    assert refusal_of(stranger, session_epoch=1)[0] == UNKNOWN
    assert waiting.is_waiting
    here.append()
    await settled()
    assert waiting.named == ["jade"]


async def test_a_consumer_has_no_session():
    here = await leading()
    consumer = Session(here, by=-1)
    assert refusal_of(consumer, part(0)) == (
        ErrorCode.INVALID_REQUEST,
        "only replicas have sessions, -1 is none",
    )
    assert held(here) == 0


async def test_a_request_that_names_a_partition_twice_is_refused_and_counts_for_none(
    mock_clock, nursery
):
    here, session, waiting = await holding(nursery)
    assert refusal_of(session, same(), same("onyx"), same()) == (
        ErrorCode.INVALID_REQUEST,
        "a fetch of 3 partitions, 2 of them different: name each once",
    )
    assert waiting.is_waiting
    assert session.ask().is_waiting
    assert held(here) == 2 * len(TOPICS)


# --- how a session ends ---------------------------------------------------------------------------


async def test_a_new_session_of_a_broker_ends_the_one_before_it(mock_clock, nursery):
    here, _, waiting = await holding(nursery)
    after = Session(here, number=8)
    present = after.ask(same("onyx"))
    assert (waiting.named, waiting.session_id) == ([], 7)
    assert held(here) == 2, "of the new one"
    here.append()
    here.append(topic="onyx")
    await settled()
    assert present.named == ["onyx"]
    assert after.ask().is_waiting


async def test_a_session_that_begins_again_with_the_same_number_holds_nothing_of_before(
    mock_clock, nursery
):
    """The follower's process was started again, and counts its sessions from the beginning."""
    here, _, waiting = await holding(nursery)
    present = Session(here).ask(same("opal"))
    assert (waiting.named, held(here)) == ([], 2)
    here.append(topic="onyx")
    await settled()
    assert present.is_waiting


async def test_the_sessions_of_two_brokers_are_nothing_to_each_other(mock_clock, nursery):
    here, _, waiting = await holding(nursery)
    other = Session(here, by=THREE)
    assert other.ask(same(offset=3)).named == ["jade"]
    assert waiting.is_waiting
    assert refusal_of(other, session_epoch=9)[0] == WRONG_EPOCH
    assert waiting.is_waiting
    assert held(here) == 2 * len(TOPICS)


async def test_a_connection_that_is_lost_takes_the_session_with_it(mock_clock, nursery):
    here, _, waiting = await holding(nursery)
    waiting.parked.drop()
    assert held(here) == 0
    for topic in TOPICS:
        here.append(topic=topic)
    mock_clock.jump(10)
    await settled()
    assert waiting.is_waiting, "nobody is there to be answered"
    assert Session(here, number=8).ask().is_waiting


async def test_a_request_that_was_answered_takes_no_session_with_it(mock_clock, nursery):
    here, session, first = await holding(nursery)
    second = session.ask()
    first.parked.drop()
    assert held(here) == 2 * len(TOPICS)
    here.append()
    await settled()
    assert second.named == ["jade"]
    second.parked.drop()
    assert held(here) == 2 * (len(TOPICS) - 1)
    assert session.ask().is_waiting


async def test_what_fails_while_news_are_looked_at_ends_who_asked(mock_clock, nursery):
    """And nobody else: its connection is closed for it, which ends the session."""
    here, _, waiting = await holding(nursery)
    failed = []

    def work(act):
        try:
            act()
        except OSError as failure:
            failed.append(failure)
            waiting.parked.drop()

    def fail(*_, **__):
        raise OSError("this file cannot be read")

    waiting.parked._asker.work = work
    here.replicas.get("jade", 0).read = fail
    here.append()
    await settled()
    assert len(failed) == 1
    assert held(here) == 0


async def test_of_too_many_sessions_the_one_that_was_heard_of_least_lately_ends(
    mock_clock, nursery
):
    here, session, waiting = await holding(nursery)
    other = Session(here, by=THREE)
    others = other.ask()
    for broker in range(10, 8 + SESSIONS_MAX):
        Session(here, by=broker).ask(wait_ms=0)
    assert waiting.is_waiting, "as many as there may be"
    again = session.ask()
    Session(here, by=5000).ask(wait_ms=0)
    assert (others.named, others.session_id) == ([], 7)
    assert refusal_of(other)[0] == UNKNOWN
    assert again.is_waiting
    Session(here, by=5001).ask(wait_ms=0)
    assert again.is_waiting, "the next one is a broker that said nothing for longer"
    assert session.ask().is_waiting


async def test_to_hold_again_and_again_leaves_nothing_behind(mock_clock, nursery):
    here, session, _ = await holding(nursery)
    replica = here.replicas.get("jade", 0)
    for _ in range(500):
        assert session.ask(same()).is_waiting
    assert live_wakers(replica) == 2
    assert len(replica.committed._heap) < 100
    assert len(replica.leadership.appended._heap) < 100


async def test_a_session_is_gone_on_with_or_holds_nothing_any_more(mock_clock, nursery):
    """1. The follower's connection breaks while a request of session 6 lies in it, unread. 2. It
    begins session 7 on another one. 3. The request of 6 is read."""
    here, session, _ = await holding(nursery)
    late = Session(here, number=6)
    late.epoch = 9
    assert refusal_of(late)[0] == UNKNOWN
    try:
        session.ask()
    except Refused:
        assert held(here) == 0
    else:
        assert held(here) == 2 * len(TOPICS)


async def test_a_session_whose_connection_was_lost_is_not_gone_on_with(mock_clock, nursery):
    _, session, waiting = await holding(nursery)
    waiting.parked.drop()
    assert refusal_of(session)[0] == UNKNOWN
