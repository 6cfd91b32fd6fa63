"""Who hunts planted bugs is not taken in.

Goal: a bug counts as noticed by a broken promise or a crash of a node, and by nothing else.
Method: seeds that end as told, and bugs that would crash by themselves.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from mutants import planted
from mutation import SEEDS, hunt

from hightide_broker.core.quorum.ready import Ready
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.watermark import Watermark

CLEAN, BROKEN = SimpleNamespace(violation=None), SimpleNamespace(violation="a record is gone")


def crash_of_a_node():
    Watermark(5).advance(4)


def crash_of_a_node_below_what_was_planted():
    crash_of_a_node()


def a_name_that_is_gone():
    return CLEAN.leader


def a_field_that_is_gone():
    return replace(Ready(), gone=True)


def words_that_are_not_known():
    Agenda().now(lambda more: None)


def crashing(crash):
    try:
        crash()
    except (AssertionError, AttributeError, TypeError) as error:
        raise ExceptionGroup("a world", [ExceptionGroup("a node", [error])]) from None
    return CLEAN


def test_a_broken_promise_and_a_crash_of_a_node_are_notices():
    tried = []
    hunt(lambda seed: tried.append(seed) or BROKEN, 7)
    hunt(lambda seed: tried.append(seed) or crashing(crash_of_a_node), 8)
    hunt(lambda seed: tried.append(seed) or crashing(crash_of_a_node_below_what_was_planted), 9)
    assert tried == [7, 8, 9]


def test_the_seeds_after_the_noted_one_are_tried_in_turn():
    tried = []
    hunt(lambda seed: tried.append(seed) or (BROKEN if len(tried) == 3 else CLEAN), 99)
    assert tried == [99, SEEDS[0], SEEDS[1]]


def test_what_no_seed_notices_has_survived():
    with pytest.raises(pytest.fail.Exception, match="it survived"):
        hunt(lambda _: CLEAN, 1)


@pytest.mark.parametrize(
    "crash", [a_name_that_is_gone, a_field_that_is_gone, words_that_are_not_known]
)
def test_what_crashes_itself_is_not_noticed(crash):
    with pytest.raises(ExceptionGroup):
        hunt(lambda _: crashing(crash), 1)


@pytest.mark.parametrize(
    "stale", [lambda self: None, lambda self, value, more: None, lambda self, *, value: None]
)
def test_what_does_not_take_what_it_is_given_is_not_planted(stale):
    before = Watermark.advance
    with pytest.raises(TypeError), planted(Watermark, "advance", stale):
        pass
    assert Watermark.advance is before
    with planted(Watermark, "advance", lambda *_: None):
        assert Watermark(5).advance(4) is None
