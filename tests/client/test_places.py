"""Places that threads take and give back: none is lost, and no lock stays held, wherever Ctrl-C
strikes.

Goal: the docstring of `Places`. Method: an exception at each point in turn where Python looks for
signals, which is after a call, where a function begins, and where a loop goes round.
"""

import sys
import threading

import pytest
from striking import struck

from hightide.net import turns
from hightide.net.turns import Places

COUNT = 10


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for a lock that nobody gives back"


def nobody_waits():
    pytest.fail("there are places")


def take(places):
    mine = []
    try:
        places.take(nobody_waits, every_s=60, count=4, into=mine)
        places.take_now(3, mine)
    finally:
        sys.settrace(None)  # Ctrl-C strikes once
        places.leave(mine)


def give_back(places):
    mine = []
    sys.settrace(None)
    assert places.take_now(COUNT, mine)
    sys.settrace(places.trace)
    try:
        places.leave(mine)
    finally:
        sys.settrace(None)
        places.leave(mine)  # what has been given back is not there any more


def wait(places):
    """Somebody else has all of them, and gives them back when this one looks."""
    mine, all_of_them = [], []
    sys.settrace(None)
    assert places.take_now(COUNT, all_of_them)
    sys.settrace(places.trace)
    try:
        places.take(lambda: places.leave(all_of_them), every_s=0.001, count=4, into=mine)
    finally:
        sys.settrace(None)
        places.leave(mine)
        places.leave(all_of_them)


def serve_another(places):
    """A thread waits for what this one gives back; it looks again by itself soon after."""
    mine, here = [], threading.Event()

    def ask():
        its = []
        places.take(here.set, every_s=0.1, count=4, into=its)
        places.leave(its)

    sys.settrace(None)
    assert places.take_now(COUNT, mine)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert here.wait(60)
    sys.settrace(places.trace)
    try:
        places.leave(mine)
    finally:
        sys.settrace(None)
        places.leave(mine)
        thread.join(60)
        assert not thread.is_alive(), "it was forgotten"


def is_whole_after(number, work):
    """Whether somebody else may have all places once that point was struck; and whether it was."""
    places, found = Places(COUNT), []

    def traced():
        places.trace = sys.gettrace()
        work(places)

    was_struck = struck(number, traced, turns)
    in_thread(lambda: found.append(places.take_now(COUNT, [])))
    return found == [True], was_struck


@pytest.mark.parametrize("work", [take, give_back, wait, serve_another])
def test_an_interruption_at_any_point_loses_no_place_and_leaves_no_lock(work):
    number, was_struck = 0, True
    while was_struck:
        number += 1
        is_whole, was_struck = is_whole_after(number, work)
        assert is_whole, f"struck at point {number}"
    assert number > 10, "the points were not found"
