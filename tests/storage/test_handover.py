"""What worker threads have ended is told in the event loop: each once, whatever it failed with, and
together with what ended beside it."""

from __future__ import annotations

import threading

import trio
from outcome import Value

from hightide_broker.runtime.base import handover
from hightide_broker.runtime.base.handover import begin_in_thread


class Listener:
    """Notes what it is told, and how often."""

    def __init__(self) -> None:
        self.calls = []
        self.news = trio.Event()

    def __call__(self, outcomes) -> None:
        self.calls.append(outcomes)
        self.news.set()

    @property
    def outcomes(self):
        return [outcome for call in self.calls for outcome in call]

    async def heard(self, count) -> None:
        while len(self.outcomes) < count:
            self.news = trio.Event()
            await self.news.wait()


async def test_each_end_is_told_once_with_what_failed():
    told, others = Listener(), Listener()

    def work(number) -> None:
        if number % 3 == 0:
            raise OSError(number)

    for number in range(60):
        begin_in_thread(lambda number=number: work(number), number, others if number > 49 else told)
    await told.heard(50)
    await others.heard(10)
    for listener, numbers in ((told, range(50)), (others, range(50, 60))):
        errors = dict(listener.outcomes)
        assert len(listener.outcomes) == len(errors)
        assert sorted(errors) == list(numbers)
        assert all((error is not None) == (number % 3 == 0) for number, error in errors.items())
        assert all(error.args == (number,) for number, error in errors.items() if error)


async def test_what_ends_while_the_loop_is_at_work_is_told_at_once():
    told, first = Listener(), Listener()
    begin_in_thread(lambda: None, "first", first)
    await first.heard(1)
    of_this_run = handover._of_this_run.get()
    for number in range(8):  # as threads do that end now
        of_this_run.put(told, number, Value(None))
    assert told.calls == []
    await told.heard(8)
    assert told.calls == [[(number, None) for number in range(8)]]


def test_nobody_is_told_once_the_loop_has_ended_and_the_next_one_hears_its_own():
    told, may_end = Listener(), threading.Event()

    async def leave_behind() -> None:
        begin_in_thread(may_end.wait, "late", told)

    async def hear() -> None:
        begin_in_thread(lambda: None, "own", told)
        await told.heard(1)

    for _ in range(3):
        trio.run(leave_behind)
    may_end.set()
    trio.run(hear)
    assert [what for what, _ in told.outcomes] == ["own"]
