"""What is done at the end of a stretch, and what is done at a time.

Whatever a stretch sets off is done after it, in order, and before anything else of the event loop;
what fails in it is raised by the agenda's own task, and nothing after it is lost with it.
"""

import gc
import random

import pytest
import trio

from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.watermark import Callback, Watermark


class Said(list):
    """What was done, by name."""

    def __call__(self, name):
        return lambda: self.append(name)


def test_what_a_stretch_sets_off_is_done_at_its_end_and_in_order():
    agenda, said = Agenda(), Said()

    def first():
        said.append("first")
        agenda.soon(said("third"))
        agenda.now(said("fourth"))
        said.append("end of first")

    with agenda.stretch():
        agenda.soon(first)
        with agenda.stretch():
            agenda.soon(said("second"))
        agenda.now(said("also now"))
        said.append("the stretch itself")
    assert said == [
        *("the stretch itself", "first", "end of first", "second", "also now", "third", "fourth")
    ]


def test_outside_of_a_stretch_now_is_a_stretch_of_its_own():
    agenda, said = Agenda(), Said()
    agenda.now(said("at once"))
    assert said == ["at once"]


def scopes():
    """How many of trio's cancel scopes there are: those that somebody left, too, as long as trio
    remembers when their time comes."""
    gc.collect()
    return sum(type(each) is trio.CancelScope for each in gc.get_objects())


async def test_much_news_leaves_nothing_behind(autojump_clock, nursery):
    """Connections come and go, and each would be closed if it were idle for ten minutes."""
    agenda, said = Agenda(), Said()
    nursery.start_soon(agenda.run)
    agenda.at(trio.current_time() + 600, said("at last"))
    await trio.sleep(1)
    before = scopes()
    for number in range(100):
        agenda.soon(said(number))
        agenda.at(trio.current_time() + 600, said("never")).take_back()
        await trio.sleep(1)
    assert scopes() <= before
    assert len(agenda._timed) < 10
    await trio.sleep(500)
    assert said == [*range(100), "at last"]


async def test_what_is_taken_back_is_not_done_though_it_is_due(autojump_clock, nursery):
    agenda, said = Agenda(), Said()
    nursery.start_soon(agenda.run)
    due = trio.current_time() + 1
    agenda.at(due, lambda: second.take_back())
    second = agenda.at(due, said("second"))
    agenda.at(due, said("third"))
    later = agenda.at(due + 1, said("later"))
    await trio.sleep(1.5)
    second.take_back()
    assert said == ["third"]
    assert agenda._stale == 0
    later.take_back()
    assert agenda._stale == 1
    await trio.sleep(1)
    assert said == ["third"]
    assert (agenda._timed, agenda._stale) == ([], 0)


async def test_what_is_written_down_outside_of_a_stretch_is_done_by_the_task(
    autojump_clock, nursery
):
    agenda, said = Agenda(), Said()
    agenda.soon(said("before it runs"))
    nursery.start_soon(agenda.run)
    await trio.sleep(1)
    agenda.soon(said("while it runs"))
    assert said == ["before it runs"]
    await trio.sleep(1)
    assert said == ["before it runs", "while it runs"]


async def test_what_is_due_is_done_at_its_time_and_in_order(autojump_clock, nursery):
    agenda, done = Agenda(), []
    nursery.start_soon(agenda.run)
    start = trio.current_time()

    def note(name):
        return lambda: done.append((name, round(trio.current_time() - start, 3)))

    agenda.at(start + 5, note("five"))
    agenda.at(start + 5, note("five, too"))
    await trio.sleep(1)
    agenda.at(start + 3, note("three, though five was waited for"))
    agenda.at(start + 4, note("never")).take_back()
    agenda.at(start - 1, note("overdue"))
    await trio.sleep(9)
    assert done == [
        ("overdue", 1),
        ("three, though five was waited for", 3),
        ("five", 5),
        ("five, too", 5),
    ]


async def test_entries_that_were_taken_back_do_not_pile_up(autojump_clock, nursery):
    """A busy broker makes one for each request, and takes it back a moment later."""
    agenda, done, dice = Agenda(), [], random.Random(1)
    nursery.start_soon(agenda.run)
    start = trio.current_time()
    kept = []
    for number in range(5_000):
        at = start + dice.uniform(1, 60)
        entry = agenda.at(at, lambda at=at: done.append(at))
        if number % 100:
            entry.take_back()
            entry.take_back()
        else:
            kept.append(at)
    assert len(agenda._timed) < 300
    await trio.sleep(61)
    assert done == sorted(kept)
    assert agenda._timed == []


async def test_what_fails_is_raised_by_the_task_and_the_block_that_set_it_off_goes_on(
    autojump_clock,
):
    agenda, said = Agenda(), Said()

    async def block():
        await trio.sleep(1)
        with agenda.stretch():
            agenda.soon(lambda: 1 / 0)
            agenda.soon(said("what came after"))
        said.append("the block's end")
        await trio.sleep(1)
        said.append("never")

    with pytest.RaisesGroup(ZeroDivisionError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agenda.run)
            nursery.start_soon(block)
    assert said == ["what came after", "the block's end"]


def test_what_fails_while_nobody_runs_the_agenda_is_raised_at_once():
    agenda, said = Agenda(), Said()

    def block():
        with agenda.stretch():
            agenda.soon(lambda: 1 / 0)
            agenda.soon(said("later"))

    with pytest.raises(ZeroDivisionError):
        block()
    with agenda.stretch():
        said.append("the next")
    assert said == ["the next", "later"]


async def test_a_block_that_fails_does_not_take_with_it_what_it_had_set_off(
    autojump_clock, nursery
):
    agenda, said = Agenda(), Said()
    nursery.start_soon(agenda.run)
    await trio.sleep(1)

    def block():
        with agenda.stretch():
            agenda.soon(said("it was due"))
            raise KeyError

    with pytest.raises(KeyError):
        block()
    assert said == []
    await trio.sleep(1)
    assert said == ["it was due"]


def test_a_callback_is_called_once_and_not_in_the_middle_of_a_stretch():
    agenda, said = Agenda(), Said()
    one, other = Watermark(), Watermark()
    callback = Callback(agenda, said("called"))
    one.wake_at(3, callback)
    other.wake_at(1, callback)
    with agenda.stretch():
        one.advance(2)
        assert not callback.is_set
        one.advance(3)
        other.advance(7)
        assert callback.is_set
        assert said == []
    assert said == ["called"]


def test_a_callback_that_was_dropped_is_not_called():
    agenda, said = Agenda(), Said()
    mark, callback = Watermark(), Callback(agenda, said("called"))
    mark.wake_at(1, callback)
    callback.drop()
    assert callback.is_set
    with agenda.stretch():
        mark.advance(1)
    assert said == []
