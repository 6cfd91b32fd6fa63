"""Who hunts planted bugs is not taken in.

Goal: a bug counts as noticed by a broken promise or a crash of a node, and by nothing else.
Method: seeds that end as told.
"""

from types import SimpleNamespace

import pytest
from mutation import SEEDS, hunt

from hightide_broker.runtime.base.watermark import Watermark

CLEAN, BROKEN = SimpleNamespace(violation=None), SimpleNamespace(violation="a record is gone")


def crash_of_a_node():
    Watermark(5).advance(4)


def crash_of_what_was_planted():
    CLEAN.leader  # noqa: B018 - a name that is gone


def crashing(crash):
    try:
        crash()
    except (AssertionError, AttributeError) as error:
        raise ExceptionGroup("a world", [ExceptionGroup("a node", [error])]) from None


def test_a_broken_promise_and_a_crash_of_a_node_are_notices():
    tried = []
    hunt(lambda seed: tried.append(seed) or BROKEN, 7)
    hunt(lambda seed: tried.append(seed) or crashing(crash_of_a_node), 8)
    assert tried == [7, 8]


def test_the_seeds_after_the_noted_one_are_tried_in_turn():
    tried = []
    hunt(lambda seed: tried.append(seed) or (BROKEN if len(tried) == 3 else CLEAN), 99)
    assert tried == [99, SEEDS[0], SEEDS[1]]


def test_what_no_seed_notices_has_survived():
    with pytest.raises(pytest.fail.Exception, match="it survived"):
        hunt(lambda _: CLEAN, 1)


def test_what_crashes_itself_is_not_noticed():
    with pytest.raises(ExceptionGroup) as raised:
        hunt(lambda _: crashing(crash_of_what_was_planted), 1)
    assert raised.group_contains(AttributeError, depth=2)
