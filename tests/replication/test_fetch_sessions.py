"""Fetch sessions, the leader's end: what is held, and what is told of it (KIP-227).

Goal: a partition is named exactly when it has news, and leaves the session then; no news is lost
between requests or behind a full answer; and what has none costs no answer. Method: a real broker's
replicas on the simulated disk, a follower's requests made by hand, and a clock that moves only when
a test moves it. How sessions end is `test_fetch_session_ends.py`'s, what being held means for the
ISR `test_fetch_session_isr.py`'s.
"""

from functools import partial

import pytest
from leaderkit import EPOCH, ME, THREE, TWO, Here, part, settled
from sessionkit import COMMITTED, END, TOPICS, Session, leading, live_wakers, remote_of, same

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import ChangePartition, RemoveTopic

FENCED = "FENCED_LEADER_EPOCH"


async def holding(nursery, *topics, **facts):
    """Broker 2 has handed over all topics; its request waits."""
    here = await leading(*topics, **facts)
    here.run_agenda(nursery)
    session = Session(here)
    waiting = session.ask(*map(same, topics or TOPICS))
    await settled()
    assert waiting.is_waiting
    return here, session, waiting


# --- handing over ---------------------------------------------------------------------------------


async def test_handing_over_acknowledges_once_and_waits(mock_clock, nursery):
    here = await leading()
    here.run_agenda(nursery)
    session = Session(here)
    mock_clock.jump(1)
    assert session.ask(same()).is_waiting
    remote = remote_of(here)
    assert (remote.log_end, remote.fetched_at, remote.end_at_fetch) == (END, 1.0, END)
    assert remote_of(here, "onyx").log_end == COMMITTED, "it was not handed over"
    for _ in range(3):
        mock_clock.jump(1)
        assert session.ask().is_waiting
        await settled()
    assert (remote.fetched_at, remote.caught_up_at) == (1.0, 1.0)
    assert remote.contact.at == 4.0


async def test_handing_over_commits_what_only_it_was_waited_for(mock_clock, nursery):
    here = await leading()
    here.fetch_one(END, by=THREE)
    asked = Session(here).ask(same(), same("onyx"))
    assert asked.named == ["jade"]
    assert asked.only.result.high_watermark == END


async def test_nothing_is_named_while_there_is_nothing_new_of_what_is_held(mock_clock, nursery):
    here, _, waiting = await holding(nursery, "jade", "onyx")
    await here.create("opal")
    here.append(3, topic="opal")
    here.fetch_one(3, by=THREE)
    here.fetch_one(3, by=THREE, topic="onyx")
    here.fetch_one(0, by=-1)
    mock_clock.jump(8.9)
    await settled()
    assert waiting.is_waiting


async def test_what_has_news_when_it_is_handed_over_is_named_at_once_and_not_held(
    mock_clock, nursery
):
    here = await leading()
    here.run_agenda(nursery)
    session = Session(here)
    fenced, behind = same("opal", current_leader_epoch=EPOCH - 1), same("onyx", offset=COMMITTED)
    asked = session.ask(same(), behind, fenced)
    assert asked.named == ["onyx", "opal"]
    assert asked.answer["onyx", 0].offsets == [COMMITTED]
    assert asked.answer["opal", 0].error == FENCED
    held, *rest = (here.replicas.get(topic, 0) for topic in TOPICS)
    assert (live_wakers(held), live_wakers(*rest)) == (2, 0)
    waiting = session.ask()
    here.append(topic="onyx")
    await settled()
    assert waiting.is_waiting
    here.append()
    await settled()
    assert waiting.named == ["jade"]


async def test_a_log_that_parts_from_the_followers_is_told_when_it_is_handed_over():
    here = await leading()
    asked = Session(here).ask(same(offset=END + 5, last_fetched_epoch=EPOCH), same("onyx"))
    assert asked.named == ["jade"]
    assert asked.only.result.diverging_epoch == m.EpochEnd(epoch=EPOCH, end_offset=END)
    assert remote_of(here).log_end == COMMITTED, "it acknowledged nothing"


async def test_each_answer_says_which_session_it_is_of(mock_clock, nursery):
    here = await leading()
    here.run_agenda(nursery)
    session = Session(here, number=31)
    told = [session.ask(same(offset=COMMITTED)), session.ask(same("onyx")), session.ask(wait_ms=0)]
    assert [asked.session_id for asked in told] == [31, 31, 31]
    assert [asked.named for asked in told] == [["jade"], [], []]


async def test_a_fetch_outside_of_sessions_says_that_it_is_of_none():
    here = await leading()
    assert Session(here).ask(same(offset=COMMITTED), session_id=-1).session_id == -1


# --- news -----------------------------------------------------------------------------------------


async def append(here, topic):
    here.append(topic=topic)


async def commit(here, topic):
    here.fetch_one(END, by=THREE, topic=topic)


async def delete(here, topic):
    here.replicas.get(topic, 0).delete_records(2)


async def lose_leadership(here, topic):
    await here.change(topic, leader=TWO)


async def lose_it_to_nobody(here, topic):
    await here.change(topic, leader=-1)


async def lose_and_win_it_again(here, topic):
    """Both in one step of the metadata: this broker has led all the time, in two epochs."""
    moves = [ChangePartition(topic_id=f"id-of-{topic}", partition=0, leader=b) for b in (TWO, ME)]
    await here.apply(*moves)
    assert here.replicas.get(topic, 0).leader is not None


async def lose_the_topic(here, topic):
    await here.apply(RemoveTopic(topic_id=f"id-of-{topic}"))


async def lose_the_disk(here, topic):
    here.replicas.get(topic, 0).go_offline("its disk broke")


NEWS = pytest.mark.parametrize(
    ("happen", "error", "offsets", "watermark", "log_start"),
    [
        (append, None, [END], COMMITTED, 0),
        (commit, None, [], END, 0),
        (delete, None, [], COMMITTED, 2),
        (lose_leadership, FENCED, [], -1, -1),
        (lose_it_to_nobody, FENCED, [], -1, -1),
        (lose_and_win_it_again, FENCED, [], -1, -1),
        (lose_the_topic, "UNKNOWN_TOPIC_OR_PARTITION", [], -1, -1),
        (lose_the_disk, "KAFKA_STORAGE_ERROR", [], -1, -1),
    ],
)


def said(found):
    result = found.result
    return found.error, found.offsets, result.high_watermark, result.log_start_offset


@NEWS
async def test_news_name_exactly_the_partition_that_has_them_and_it_leaves_the_session(
    happen, error, offsets, watermark, log_start, mock_clock, nursery
):
    here, session, waiting = await holding(nursery)
    replica = here.replicas.get("onyx", 0)
    await happen(here, "onyx")
    await settled()
    assert waiting.named == ["onyx"]
    assert said(waiting.only) == (error, offsets, watermark, log_start)
    assert live_wakers(replica) == 0
    again = session.ask()
    if error is None:
        here.append(2, topic="onyx")
    await settled()
    assert again.is_waiting, "it is not in the session any more"
    here.append(topic="opal")
    await settled()
    assert again.named == ["opal"]


@NEWS
async def test_news_that_come_between_two_requests_are_in_the_next_answer(
    happen, error, offsets, watermark, log_start, mock_clock, nursery
):
    here, session, waiting = await holding(nursery)
    mock_clock.jump(9.1)
    await settled()
    assert waiting.named == []
    await happen(here, "onyx")
    await settled()
    asked = session.ask()
    assert asked.named == ["onyx"], "at once"
    assert said(asked.only) == (error, offsets, watermark, log_start)
    assert session.ask().is_waiting


async def test_news_that_come_between_two_requests_are_told_with_those_of_a_handing_over(
    mock_clock, nursery
):
    here, session, _ = await holding(nursery, "jade", "onyx")
    mock_clock.jump(9.1)
    await settled()
    here.append()
    await here.create("opal")
    here.append(topic="opal")
    assert session.ask(part(0, topic="opal")).named == ["opal", "jade"]
    assert session.ask().is_waiting


async def test_what_left_the_session_is_held_again_when_it_is_handed_over_again(
    mock_clock, nursery
):
    here, session, waiting = await holding(nursery)
    here.append()
    await settled()
    assert waiting.named == ["jade"]
    waiting = session.ask(same(offset=END + 1))
    assert waiting.is_waiting
    here.append()
    await settled()
    assert (waiting.named, waiting.only.offsets) == (["jade"], [END + 1])


async def test_the_partitions_of_one_topic_are_told_apart(mock_clock, nursery):
    here = Here()
    here.run_agenda(nursery)
    await here.create(partitions=3)
    session = Session(here)
    fresh = [same(offset=0, partition=number, high_watermark=0) for number in range(3)]
    waiting = session.ask(*fresh)
    here.append(partition=1)
    await settled()
    assert list(waiting.answer) == [("jade", 1)]
    waiting = session.ask()
    here.append(partition=2)
    here.append(partition=0)
    here.append(partition=1)
    await settled()
    assert sorted(waiting.answer) == [("jade", 0), ("jade", 2)]


async def test_a_watermark_that_a_follower_knows_already_is_no_news(mock_clock, nursery):
    """It followed another leader before, which had told it more."""
    here = await leading()
    here.run_agenda(nursery)
    waiting = Session(here).ask(same(high_watermark=END))
    here.fetch_one(END, by=THREE)
    await settled()
    assert here.replicas.get("jade", 0).high_watermark == END
    assert waiting.is_waiting
    here.append()
    await settled()
    assert waiting.only.offsets == [END], "it was still held"


async def test_what_is_held_is_held_on_when_too_few_are_in_sync(mock_clock, nursery):
    """Those who wait for the watermark are let go then, and a session's partitions with them."""
    here, _, waiting = await holding(nursery, min_insync_replicas="3")
    await here.change("onyx", isr=(ME, TWO))
    await settled()
    assert waiting.is_waiting
    await here.change("onyx", isr=(ME, TWO, THREE))
    here.fetch_one(END, by=THREE, topic="onyx")
    await settled()
    assert (waiting.named, waiting.only.result.high_watermark) == (["onyx"], END)


async def test_news_of_one_stretch_come_in_one_answer(mock_clock, nursery):
    here, session, waiting = await holding(nursery)
    with here.agenda.stretch():
        here.append(topic="opal")
        here.append()
        here.append()
        assert waiting.is_waiting, "not in the middle of a stretch"
    assert sorted(waiting.named) == ["jade", "opal"]
    assert waiting.answer["jade", 0].offsets == [END, END + 1]
    assert session.ask().is_waiting


async def test_news_of_what_was_named_meanwhile_are_no_second_news(mock_clock, nursery):
    """The end and the watermark of one log rise in one stretch: both would wake it."""
    here, session, waiting = await holding(nursery)
    with here.agenda.stretch():
        here.append()
        here.fetch_one(END, by=THREE)
    assert (waiting.named, waiting.only.offsets) == (["jade"], [END])
    assert waiting.only.result.high_watermark == END
    assert session.ask().is_waiting


async def test_what_has_no_news_is_not_looked_at(mock_clock, nursery):
    """However much of it there is."""
    here, session, waiting = await holding(nursery)
    looked_at = []
    for topic in TOPICS:
        replica = here.replicas.get(topic, 0)
        replica.read = partial(read_and_tell, looked_at, replica.read, topic)
    here.append(topic="onyx")
    await settled()
    assert waiting.named == ["onyx"]
    mock_clock.jump(1)
    session.ask()
    await settled()
    assert looked_at == ["onyx"]


def read_and_tell(looked_at, read, topic, *args, **kwargs):
    looked_at.append(topic)
    return read(*args, **kwargs)


# --- one request at a time ------------------------------------------------------------------------


async def test_a_request_takes_the_place_of_one_that_waits_which_is_answered_with_nothing(
    mock_clock, nursery
):
    here, session, first = await holding(nursery, "jade", "onyx")
    await here.create("opal")
    second = session.ask(part(0, topic="opal", high_watermark=0, log_start_offset=0))
    assert (first.named, first.session_id) == ([], session.number)
    assert second.is_waiting
    for topic in TOPICS:
        here.append(topic=topic)
    await settled()
    assert second.named == list(TOPICS), "what the first one handed over is held, too"


async def test_a_request_that_is_answered_at_once_takes_the_place_of_one_that_waits(
    mock_clock, nursery
):
    here, session, first = await holding(nursery, "jade", "onyx")
    here_and_now = session.ask(wait_ms=0)
    assert (first.named, here_and_now.named) == ([], [])
    here.append()
    assert session.ask().named == ["jade"]


async def test_a_request_whose_place_was_taken_is_not_answered_again(mock_clock, nursery):
    here, session, first = await holding(nursery)
    mock_clock.jump(5)
    second = session.ask()
    mock_clock.jump(5)
    await settled()
    assert first.named == []
    assert second.is_waiting, "the time of the first one is not its own"
    first.parked.drop()
    here.append()
    await settled()
    assert second.named == ["jade"], "the session went on without the first one"


async def test_a_request_is_answered_with_nothing_when_its_time_is_up_and_the_session_goes_on(
    mock_clock, nursery
):
    here, session, waiting = await holding(nursery)
    for _ in range(3):
        mock_clock.jump(8.9)
        await settled()
        assert waiting.is_waiting
        mock_clock.jump(0.2)
        await settled()
        assert (waiting.named, waiting.session_id) == ([], session.number)
        waiting = session.ask()
    here.append(topic="opal")
    await settled()
    assert waiting.named == ["opal"]


async def test_nobody_waits_for_more_than_a_minute(mock_clock, nursery):
    here = await leading()
    here.run_agenda(nursery)
    waiting = Session(here).ask(same(), wait_ms=1 << 40)
    mock_clock.jump(60.1)
    await settled()
    assert waiting.named == []


# --- full answers ---------------------------------------------------------------------------------


async def test_what_a_full_answer_has_no_room_for_comes_with_the_next_ones(mock_clock, nursery):
    here, session, waiting = await holding(nursery)
    mock_clock.jump(9.1)
    await settled()
    assert not waiting.is_waiting
    for topic in TOPICS:
        here.append(topic=topic)
    told = []
    for _ in TOPICS:
        asked = session.ask(max_bytes=1)
        told.append((asked.named, asked.only.offsets))
    assert sorted(told) == [([topic], [END]) for topic in TOPICS]
    assert session.ask(max_bytes=1).is_waiting


async def test_what_a_full_answer_has_no_room_for_when_it_is_handed_over_is_held(
    mock_clock, nursery
):
    here = await leading()
    session = Session(here)
    behind = [same(topic, offset=COMMITTED) for topic in TOPICS]
    told = [session.ask(*behind, max_bytes=1).named]
    told += [session.ask(max_bytes=1).named for _ in TOPICS[1:]]
    assert sorted(told) == [[topic] for topic in TOPICS]
    assert session.ask().is_waiting
    assert all(remote_of(here, topic).log_end == COMMITTED for topic in TOPICS)


async def test_what_a_full_answer_has_no_room_for_may_grow_commit_or_be_lost_meanwhile(
    mock_clock, nursery
):
    here = await leading()
    here.run_agenda(nursery)
    session = Session(here)
    behind = [same(topic, offset=COMMITTED) for topic in TOPICS]
    assert session.ask(*behind, max_bytes=1).named == ["jade"]
    here.append(topic="onyx")
    await lose_leadership(here, "opal")
    await settled()
    asked = session.ask()
    assert sorted(asked.named) == ["onyx", "opal"]
    assert asked.answer["onyx", 0].offsets == [COMMITTED, END]
    assert asked.answer["opal", 0].error == FENCED


async def test_a_full_answer_tells_of_watermarks_all_the_same(mock_clock, nursery):
    here = await leading("jade", "onyx")
    here.fetch_one(END, by=THREE, topic="onyx")
    behind = same("onyx", offset=COMMITTED, high_watermark=1)
    asked = Session(here).ask(same(offset=COMMITTED), behind, max_bytes=1)
    assert asked.named == ["jade", "onyx"]
    assert asked.answer["onyx", 0].offsets == []
    assert asked.answer["onyx", 0].result.high_watermark == COMMITTED
