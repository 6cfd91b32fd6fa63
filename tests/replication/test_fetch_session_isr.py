"""Fetch sessions, the leader's end: what it means for the ISR that a partition is held.

Goal: to be held is no acknowledgement, but each request says that the follower is there; what it
is not in sync for is not held, so that each fetch may be the one by which it joins. Method: that of
`test_fetch_sessions.py`; what a leader makes of it is `test_leader_contact.py`'s.
"""

import pytest
from brokers import NOW_MS, FakeClock
from leaderkit import ME, THREE, TWO, Here, broker_epoch, settled
from sessionkit import COMMITTED, END, Session, leading, live_wakers, remote_of, same

from hightide_broker.core.cluster.changes import UnfenceBroker
from hightide_broker.runtime.replication.housekeeping import Housekeeping

LAG_S = 30.0
"""replica.lag.time.max.ms"""


async def holding(nursery, **facts):
    """All are in sync; broker 2 has handed `jade` over at 0 s, and its request waits."""
    here = await leading("jade", **facts)
    return await handed_over(here, nursery)


async def handed_over(here, nursery):
    here.run_agenda(nursery)
    nursery.start_soon(here.isr_changes.run, here.replicas)
    session = Session(here)
    assert session.ask(same()).is_waiting
    await settled()
    return here, session


async def outside():
    """Broker 2 is not in sync, and may not join before it is unfenced."""
    here = Here()
    await here.fence(TWO)
    await here.create(isr=(ME, THREE))
    here.append(3)
    here.fetch_one(3, by=THREE)
    here.append()
    return here, Session(here)


async def unfence(here):
    await here.apply(UnfenceBroker(broker=TWO, broker_epoch=broker_epoch(TWO)))


async def ask_once_more(session, mock_clock):
    """A second later."""
    mock_clock.jump(1)
    asked = session.ask()
    await settled()
    return asked


def proposed(here):
    """The ISRs that the controller was asked for."""
    return [isr for request in here.controller.wishes for _, isr in request]


# --- who is in sync -------------------------------------------------------------------------------


async def test_to_be_held_in_sync_is_no_further_acknowledgement(mock_clock, nursery):
    here, session = await holding(nursery)
    replica = here.replicas.get("jade", 0)
    told = []
    for _ in range(5):
        await ask_once_more(session, mock_clock)
        remote = remote_of(here)
        told.append((remote.fetched_at, remote.caught_up_at, remote.log_end, remote.contact.at))
    assert told == [(0.0, 0.0, END, float(at)) for at in (1, 2, 3, 4, 5)]
    assert replica.leader.proposal is None


async def test_looking_for_news_is_no_acknowledgement(mock_clock, nursery):
    here, _ = await holding(nursery)
    mock_clock.jump(2)
    here.append()
    await settled()
    assert (remote_of(here).fetched_at, remote_of(here).log_end) == (0.0, END)


async def test_a_follower_that_falls_behind_has_a_whole_lag_since_its_last_request(
    mock_clock, nursery
):
    here, session = await holding(nursery)
    leader = here.replicas.get("jade", 0).leader
    mock_clock.jump(100)
    session.ask()
    mock_clock.jump(7)
    here.append()
    here.fetch_one(END + 1, by=THREE)
    assert not leader.drop_laggards(100 + LAG_S)
    assert leader.drop_laggards(100 + LAG_S + 0.001)
    assert leader.proposal.isr == (ME, THREE)


async def test_a_follower_whose_session_has_ended_is_not_taken_to_be_there(mock_clock, nursery):
    here, session = await holding(nursery)
    mock_clock.jump(5)
    waiting = session.ask()
    waiting.parked.drop()
    mock_clock.jump(20)
    other = Session(here, number=8)
    other.ask()
    here.append()
    assert remote_of(here).caught_up_at == 5.0


async def test_a_fetch_by_itself_is_not_vouched_for_by_the_session(mock_clock, nursery):
    here, session = await holding(nursery)
    here.append()
    await settled()
    mock_clock.jump(5)
    here.fetch_one(END + 1, high_watermark=3)
    mock_clock.jump(20)
    session.ask()
    here.append()
    assert remote_of(here).caught_up_at == 5.0


async def test_what_is_handed_over_with_records_unread_is_not_taken_for_caught_up(
    mock_clock, nursery
):
    here = await leading("onyx", "jade")
    session = Session(here)
    asked = session.ask(same("onyx", offset=3), same("jade", offset=3), max_bytes=1)
    assert asked.named == ["onyx"]
    mock_clock.jump(9)
    session.ask(wait_ms=0)
    here.append()
    assert remote_of(here).caught_up_at == 0.0, "when there were three"


# --- who is not -----------------------------------------------------------------------------------


async def test_what_a_follower_is_not_in_sync_for_is_named_and_not_held(mock_clock):
    here, session = await outside()
    asked = session.ask(same())
    assert (asked.named, asked.only.offsets, asked.only.error) == (["jade"], [], None)
    assert remote_of(here).fetched_at == 0.0, "it was a fetch all the same"
    assert remote_of(here).contact is None
    assert live_wakers(here.replicas.get("jade", 0)) == 0


async def test_nobody_acknowledges_for_a_follower_that_may_have_lost_what_it_had(
    mock_clock, nursery
):
    """1. The follower has all four batches and is held. 2. Its replica meets damage, and is taken
    out of the ISR; it is cut at 1, and fetches from there. 3. The session, which goes on for other
    partitions, asks. Who counted it for what it had would propose a replica with one batch."""
    here, session = await holding(nursery)
    await here.change(isr=(ME, THREE))
    await settled()
    assert here.fetch_one(1, high_watermark=0).offsets == [1, 2, 3]
    await ask_once_more(session, mock_clock)
    assert remote_of(here).log_end == 1
    assert here.replicas.get("jade", 0).leader.proposal is None
    assert proposed(here) == []


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_a_follower_that_was_taken_out_is_told_to_fetch_and_comes_back(
    is_waiting, mock_clock, nursery
):
    here, session = await holding(nursery)
    told = session.ask()
    if not is_waiting:
        mock_clock.jump(9.1)
        await settled()
    await here.change(isr=(ME, THREE))
    await settled()
    told = told if is_waiting else session.ask()
    assert told.named == ["jade"]
    assert proposed(here) == []
    here.fetch_one(END, high_watermark=COMMITTED)
    await settled()
    assert proposed(here) == [[ME, THREE, TWO]]


async def test_that_another_follower_was_taken_out_makes_no_acknowledgement(mock_clock, nursery):
    here, session = await holding(nursery)
    await here.change(isr=(ME, TWO))
    await settled()
    for _ in range(2):
        assert (await ask_once_more(session, mock_clock)).is_waiting
    assert remote_of(here).fetched_at == 0.0


async def test_a_follower_that_joins_has_nobody_looked_at_again(mock_clock, nursery):
    here, _ = await holding(nursery)
    await here.change(isr=(ME, TWO))
    await settled()
    here.replicas.get("jade", 0).read = None  # who looks fails
    await here.change(isr=(ME, TWO, THREE))
    await settled()


async def test_who_was_taken_out_is_not_waited_for_because_its_session_goes_on(mock_clock, nursery):
    """1. It is held. 2. Its replica goes offline: the controller takes it out of the ISR. 3. A
    record comes before the next request. Nobody fetches it there, and acks=all waits for a lag."""
    here, _ = await holding(nursery)
    replica = here.replicas.get("jade", 0)
    here.fetch_one(END, by=THREE)
    mock_clock.jump(5)
    await here.change(isr=(ME, THREE))
    here.append()
    here.fetch_one(END + 1, by=THREE)
    assert replica.high_watermark == END + 1


async def test_a_held_follower_hears_of_what_retention_deleted(mock_clock, nursery):
    """A follower deletes what its leader has deleted, and decides nothing."""
    here = await leading("jade", retention_ms="1000")
    here.fetch_one(END, by=THREE)
    here.run_agenda(nursery)
    session = Session(here)
    here.fetch_one(END)
    waiting = session.ask(same(high_watermark=END))
    clock = FakeClock(NOW_MS + 3_600_000)
    chores = Housekeeping(
        here.replicas, here.pending_deletes, config=here.config, disk=here.disk, clock=clock
    )
    assert chores.apply_retention(here.replicas.get("jade", 0)) == 1
    mock_clock.jump(9.1)
    await settled()
    asked = waiting if waiting.answer else session.ask()
    assert asked.only.result.log_start_offset == END
