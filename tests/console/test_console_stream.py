"""News to browsers, and the one look that all of them share.

Goal: the newest state and every event once, whoever comes back, and nobody who does not read costs
anything; method: a fake cluster, browsers without sockets, virtual time.
"""

from itertools import pairwise

import pytest
import trio
from consolekit import Browser, FakeAdmin, began, session_of
from trio.testing import wait_all_tasks_blocked

from hightide import HightideError
from hightide_broker.trace.lines import read_lines
from hightide_console import eye as module_of_eye
from hightide_console import stream as module
from hightide_console.eye import ANSWER_S, DISKS_S, LOOK_S, PAUSE_S, SILENCE_S, UNTOLD
from hightide_console.stream import EVENTS_AT_ONCE, KEEP_ALIVE_S, SEND_S, Stream, Streams


@pytest.fixture
def admin():
    return FakeAdmin()


@pytest.fixture
def session(admin):
    return session_of(admin)


@pytest.fixture
def eye(session):
    return session.eye


def tell(eye, *numbers):
    """Events happen, and are learned at once."""
    eye.history.learn(read_lines([began(number) for number in numbers]))
    eye.tell()


@pytest.fixture
def opened(session, nursery):
    streams = Streams()

    async def open_one(topic="", last=""):
        browser = Browser(Stream(streams, session, topic, last))
        nursery.start_soon(browser.run)
        await wait_all_tasks_blocked()
        return browser

    open_one.streams = streams
    return open_one


async def test_a_slow_browser_gets_the_newest_state_and_no_queue_of_old_ones(opened, eye):
    browser = await opened()
    browser.reads = trio.Event()
    for number in range(50):
        eye.cluster = {"n": number}
        eye.tell()
        await wait_all_tasks_blocked()
    browser.reads.set()
    await wait_all_tasks_blocked()
    assert [state["cluster"] for state in browser.states()[1:]] == [{"n": 0}, {"n": 49}]


async def test_who_comes_back_goes_on_where_it_was_without_loss_or_doubles(opened, eye):
    tell(eye, 1, 2, 3)
    browser = await opened()
    tell(eye, 4)
    await wait_all_tasks_blocked()
    browser.leave()
    await browser.ended.wait()
    tell(eye, 5, 6)
    again = await opened(last=browser.last_id)
    tell(eye, 7)
    await wait_all_tasks_blocked()
    assert browser.numbers() == [1, 2, 3, 4]
    assert again.numbers() == [5, 6, 7]


@pytest.mark.parametrize("last", ["", "x", "2", "another.2", "{life}.99", "{life}.-1", "{life}."])
async def test_by_a_place_that_is_none_it_begins_with_the_newest(opened, eye, last):
    tell(eye, *range(1, 6))
    browser = await opened(last=last.format(life=eye.life))
    assert browser.numbers() == [1, 2, 3, 4, 5]


async def test_of_too_much_that_happened_the_newest_is_told(opened, eye):
    browser = await opened()
    tell(eye, *range(1, EVENTS_AT_ONCE + 11))
    await wait_all_tasks_blocked()
    assert browser.numbers() == list(range(11, EVENTS_AT_ONCE + 11))


async def test_a_browser_that_takes_nothing_is_closed(opened, eye, autojump_clock):
    browser = await opened()
    browser.reads = trio.Event()
    began_at = trio.current_time()
    eye.tell()
    with trio.fail_after(10 * SEND_S):
        await browser.ended.wait()
    assert trio.current_time() - began_at == pytest.approx(SEND_S)
    assert opened.streams.open == 0


async def test_while_nothing_happens_a_line_keeps_the_connection(opened, autojump_clock):
    browser = await opened()
    said = len(browser.said)
    await trio.sleep(KEEP_ALIVE_S + 1)
    assert browser.said[said:] == [b": nothing new\n\n"]


async def test_a_page_that_is_open_uses_its_session(opened, session, autojump_clock):
    await opened()
    await trio.sleep(100 * KEEP_ALIVE_S)
    assert trio.current_time() - session.used_at < 2 * KEEP_ALIVE_S


async def test_the_end_of_a_session_ends_its_streams_at_once(opened, session, eye, autojump_clock):
    browser = await opened("orders")
    session.ended.set()
    with trio.fail_after(KEEP_ALIVE_S):
        await browser.ended.wait()
    assert opened.streams.open == eye._watchers == len(eye._watched) == 0


async def test_one_stream_too_many_is_told_so_and_leaves_the_others(opened, monkeypatch):
    monkeypatch.setattr(module, "STREAMS_MAX", 2)
    first, second, third = [await opened() for _ in range(3)]
    assert [each.status for each in (first, second, third)] == [200, 200, 503]
    first.leave()
    await first.ended.wait()
    assert (await opened()).status == 200
    assert not second.ended.is_set()


# -- the eye ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("takes_s", "apart_s"), [(0.0, LOOK_S), (0.4, LOOK_S), (2.0, 2.0 + PAUSE_S)]
)
async def test_looks_begin_at_one_distance_or_with_a_pause_behind_a_long_one(
    opened, eye, nursery, autojump_clock, monkeypatch, takes_s, apart_s
):
    began_at = []

    async def look():
        began_at.append(trio.current_time())
        await trio.sleep(takes_s)

    monkeypatch.setattr(eye, "look", look)
    nursery.start_soon(eye.run)
    await opened("orders")
    await trio.sleep(3.5 * apart_s)
    assert [later - one for one, later in pairwise(began_at)] == pytest.approx([apart_s] * 3)


async def test_ten_that_look_cost_what_one_does_and_nobody_costs_nothing(
    opened, eye, admin, nursery, autojump_clock
):
    nursery.start_soon(eye.run)
    await trio.sleep(10 * LOOK_S)
    assert admin.asked == []
    one = await opened("orders")
    await trio.sleep(10.5 * LOOK_S)
    alone, admin.asked = admin.asked, []
    one.leave()
    await one.ended.wait()
    await trio.sleep(2 * LOOK_S)
    admin.asked.clear()
    for _ in range(10):
        await opened("orders")
    await trio.sleep(10.5 * LOOK_S)
    assert admin.asked.count("topics") <= alone.count("topics") == 11
    assert len(admin.asked) <= len(alone) * 1.1


async def test_a_broker_that_hangs_is_old_and_holds_up_nobody(
    opened, eye, admin, nursery, autojump_clock
):
    nursery.start_soon(eye.run)
    browser = await opened("orders")
    await trio.sleep(2.5 * LOOK_S)
    admin.hanging.add(2)
    admin.log_end = 99
    await trio.sleep(5)
    lanes = browser.states()[-1]["topic"]["partitions"][0]["lanes"]
    assert [(lane["broker"], lane["log_end"], lane["stale"]) for lane in lanes] == [
        (1, 99, False),
        (2, 10, True),
        (3, 99, False),
    ]
    admin.hanging.clear()
    await trio.sleep(5)
    lanes = browser.states()[-1]["topic"]["partitions"][0]["lanes"]
    assert [lane["stale"] for lane in lanes] == [False] * 3


async def test_controllers_of_their_own_tell_what_happened_unless_they_let_nobody_in(
    opened, eye, admin, nursery, autojump_clock
):
    admin.voters, admin.turns_away = [1, 101, 102], {102}
    nursery.start_soon(eye.run)
    await opened()
    await trio.sleep(3.5 * LOOK_S)
    asked = [each[1] for each in admin.asked if each[0] == "trace" and each[2] == "events"]
    assert sorted({*asked}) == [1, 2, 3, 101]
    assert [each[0] for each in admin.asked if each[1:2] == (102,)] == ["log"], "it is left alone"
    assert asked.count(101) == asked.count(1) > 1


async def test_the_quorums_lanes_are_what_each_node_says_or_else_what_its_leader_does(
    opened, eye, admin, nursery, autojump_clock
):
    admin.voters, admin.turns_away = [1, 2, 3, 101, 102], {102}
    nursery.start_soon(eye.run)
    browser = await opened()
    await trio.sleep(3.5 * LOOK_S)
    lanes = browser.states()[-1]["cluster"]["quorum"]["lanes"]
    assert [(lane["broker"], lane["log_end"], lane["synced"]) for lane in lanes] == [
        (1, 7, 6),
        (2, 7, 6),
        (3, 7, 6),
        (101, 7, 6),
        (102, 1, -1),
    ]
    admin.hanging.add(101)
    await trio.sleep(2 * LOOK_S + ANSWER_S)
    lane = browser.states()[-1]["cluster"]["quorum"]["lanes"][3]
    assert (lane["log_end"], lane["synced"], lane["epoch"]) == (1, -1, 3)
    assert lane["stale"]


async def test_a_controller_that_hangs_is_silent_and_holds_up_no_other_look(
    opened, eye, admin, nursery, autojump_clock
):
    admin.voters = [1, 2, 3, 101]
    nursery.start_soon(eye.run)
    browser = await opened()
    await trio.sleep(2.5 * LOOK_S)
    admin.hanging.add(101)
    await trio.sleep(2 * LOOK_S + ANSWER_S)
    assert [each["stale"] for each in _quorum_lanes(browser)] == [False] * 3 + [True]
    admin.asked.clear()
    await trio.sleep(10.5 * LOOK_S)
    assert admin.asked.count("topics") >= 9
    admin.hanging.clear()
    await trio.sleep(DISKS_S + 2 * LOOK_S)
    assert [each["stale"] for each in _quorum_lanes(browser)] == [False] * 4


def _quorum_lanes(browser):
    return browser.states()[-1]["cluster"]["quorum"]["lanes"]


async def test_a_broker_that_hangs_holds_up_few_looks_however_many_topics_are_watched(
    opened, eye, admin, nursery, autojump_clock
):
    nursery.start_soon(eye.run)
    pages = [await opened(name) for name in ("orders", "other", "third")]
    admin.hanging.add(2)
    await trio.sleep(DISKS_S + 3)
    admin.asked.clear()
    said = [len(page.states()) for page in pages]
    await trio.sleep(2 * DISKS_S)
    assert admin.asked.count("topics") >= 12, "twice in that time all is waited for"
    for page, before in zip(pages, said, strict=True):
        assert not any(state["cluster"]["error"] for state in page.states()[before:])
        (part,) = page.states()[-1]["topic"]["partitions"]
        assert [lane["stale"] for lane in part["lanes"]] == [False, True, False]


async def test_a_broker_is_silent_no_longer_than_it_does_not_answer(
    opened, eye, admin, nursery, autojump_clock
):
    nursery.start_soon(eye.run)
    browser = await opened()
    admin.hanging.add(2)
    await trio.sleep(DISKS_S + 3)
    assert [each["silent"] for each in browser.states()[-1]["cluster"]["brokers"]] == [
        False,
        True,
        False,
    ]
    admin.hanging.clear()
    await trio.sleep(2 * LOOK_S + ANSWER_S)
    assert not any(each["silent"] for each in browser.states()[-1]["cluster"]["brokers"])


async def test_a_look_that_comes_to_no_end_is_told_of_and_what_was_seen_stays(
    opened, eye, admin, nursery, autojump_clock
):
    nursery.start_soon(eye.run)
    browser = await opened()
    await trio.sleep(2.5 * LOOK_S)
    admin.quorum_s = 4.0
    await trio.sleep(LOOK_S + SILENCE_S + 1)
    cluster = browser.states()[-1]["cluster"]
    assert "what is shown is old" in cluster["error"]
    assert len(cluster["brokers"]) == 3


@pytest.mark.parametrize("was_led", [True, False])
async def test_where_nobody_leads_it_looks_as_often_as_ever_and_says_so(
    opened, eye, admin, nursery, autojump_clock, was_led
):
    admin.voters = [1, 2, 3]
    admin.controller, admin.quorum_s = (1, 0.0) if was_led else (-1, 3.0)
    nursery.start_soon(eye.run)
    browser = await opened("orders")
    await trio.sleep(2.5 * LOOK_S if was_led else 5)
    admin.asked.clear()
    admin.controller, admin.quorum_s = -1, 3.0
    await trio.sleep(10 * LOOK_S)
    assert admin.asked.count("topics") >= 9
    assert "quorum" not in admin.asked
    cluster = browser.states()[-1]["cluster"]
    assert "no controller is active" in cluster["error"]
    assert cluster["controller"] == cluster["quorum"]["leader"] == -1
    assert [each["broker"] for each in cluster["quorum"]["lanes"]] == [1, 2, 3]
    admin.controller, admin.quorum_s = 1, 0.0
    await trio.sleep(2 * LOOK_S + ANSWER_S)
    cluster = browser.states()[-1]["cluster"]
    assert (cluster["error"], cluster["quorum"]["leader"]) == ("", 1)


async def test_voters_that_are_gone_are_silent_though_nobody_listens_to_them(
    opened, eye, admin, nursery, autojump_clock
):
    admin.voters = [1, 2, 3]
    nursery.start_soon(eye.run)
    browser = await opened()
    await trio.sleep(2.5 * LOOK_S)
    admin.controller = -1
    admin.hanging.update((1, 2))
    await trio.sleep(DISKS_S + 3)
    lanes = browser.states()[-1]["cluster"]["quorum"]["lanes"]
    assert [(each["broker"], each["stale"]) for each in lanes] == [
        (1, True),
        (2, True),
        (3, False),
    ]


async def test_a_broker_that_does_not_tell_this_user_is_not_taken_for_one_that_does_not_answer(
    opened, eye, admin, nursery, autojump_clock
):
    admin.may_describe, admin.lines = False, [began(1)]
    nursery.start_soon(eye.run)
    browser = await opened("orders")
    await trio.sleep(DISKS_S + 3)
    state = browser.states()[-1]
    assert [each["silent"] for each in state["cluster"]["brokers"]] == [False] * 3
    assert [each["size_bytes"] for each in state["cluster"]["brokers"]] == [-1] * 3
    (part,) = state["topic"]["partitions"]
    assert [(lane["stale"], lane["log_end"]) for lane in part["lanes"]] == [(False, -1)] * 3
    assert part["why"] == UNTOLD
    assert "may not DESCRIBE" in state["untraced"]
    admin.may_describe = True
    await trio.sleep(2 * LOOK_S)
    assert browser.states()[-1]["untraced"] == ""
    assert browser.numbers() == [1]
    (part,) = browser.states()[-1]["topic"]["partitions"]
    assert [lane["log_end"] for lane in part["lanes"]] == [10] * 3
    admin.may_describe = False
    await trio.sleep(2 * LOOK_S)
    (part,) = browser.states()[-1]["topic"]["partitions"]
    assert [lane["log_end"] for lane in part["lanes"]] == [-1] * 3, "what was told before is old"


async def test_events_are_learned_once_and_numbered(opened, eye, admin, nursery, autojump_clock):
    nursery.start_soon(eye.run)
    browser = await opened("orders")
    admin.lines = [began(1), b"torn\n", began(2, log_end=7, epoch=4)]
    await trio.sleep(3 * LOOK_S)
    assert browser.numbers() == [1, 2]
    starts = browser.states()[-1]["topic"]["partitions"][0]["starts"]
    assert starts == [[3, 0], [4, 7]]


async def test_what_all_want_at_the_same_time_is_asked_for_once(eye, autojump_clock):
    asked = []

    async def ask():
        asked.append(trio.current_time())
        await trio.sleep(0.5)
        return {"n": len(asked)}

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(eye.once, "what", ask)
    assert len(asked) == 1
    await trio.sleep(1)
    assert await eye.once("what", ask) == {"n": 2}


async def test_what_cannot_be_answered_is_not_kept_for_ever(eye, monkeypatch):
    monkeypatch.setattr(module_of_eye, "KEPT_MAX", 5)

    async def ask():
        raise HightideError("no such group")

    for number in range(100):
        with pytest.raises(HightideError):
            await eye.once(f"group {number}", ask)
    assert len(eye._asking) <= 6
