"""What a run tries of what could be tried: some of it from all over, and all of it in the long
runs.

Goal: a change to `tries.py` or to what is left out by it does not leave out everything, or nothing.
"""

from types import SimpleNamespace

import pytest
import tries


@pytest.fixture(params=[False, True], ids=["short", "long"])
def is_long(request, monkeypatch):
    monkeypatch.setattr(tries, "ALL", request.param)
    return request.param


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "a"), (2, "ad"), (3, "ace"), (4, "abde"), (6, "abcdef"), (9, "abcdef")],
)
def test_few_begins_with_the_first_and_goes_over_all(is_long, count, expected):
    assert tries.few("abcdef", count) == [*("abcdef" if is_long else expected)]


def test_every_number_has_some_way_and_all_ways_have_one(is_long):
    found = [tries.some(["a", "b"], number) for number in range(3)]
    assert found == ([["a", "b"]] * 3 if is_long else [["a"], ["b"], ["a"]])


def collected(*words, keyword="", markexpr=""):
    """What is left to run of a long test and of another one, and what is told of the others."""
    told = []
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    config = SimpleNamespace(
        args=words, option=SimpleNamespace(keyword=keyword, markexpr=markexpr), hook=hook
    )
    items = [SimpleNamespace(get_closest_marker={name: name}.get) for name in ("long", "slow")]
    left = [*items]
    tries.leave_out_long(config, left)
    assert [*told, *left] == items
    return len(left)


def test_what_is_long_is_left_out_and_told_of(is_long):
    assert collected("tests") == (2 if is_long else 1)


def test_what_is_asked_for_by_its_name_is_run(is_long):
    assert collected("tests/test_x.py") == collected("tests/test_x.py::test_long") == 2
    assert collected("tests", keyword="long") == 2
    assert collected("tests", markexpr="long and not spark") == 2
