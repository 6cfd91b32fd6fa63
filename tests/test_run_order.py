"""The order in which files of tests are run: none is lost, and what takes long begins early."""

from collections import Counter
from itertools import pairwise

from house_rules import REPOSITORY
from run_order import BUSY, TOGETHER, WAITING, in_order

FILES = sorted((REPOSITORY / "tests").rglob("test_*.py"))
NAMES = [path.name for path in FILES]
NAMED = [*(name for group in TOGETHER for name in group), *BUSY, *WAITING]


def test_names_of_files_are_unique_as_the_order_goes_by_them():
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []


def test_every_file_that_has_a_place_is_there_and_has_one():
    assert [name for name in NAMED if name not in NAMES] == []
    assert len({*NAMED}) == len(NAMED)


def test_each_file_is_run_once_and_only_those_that_were_asked_for():
    assert sorted(in_order(NAMES)) == sorted(NAMES)
    some = [*NAMES[::3], *NAMES[::3]]
    assert sorted(in_order(some)) == sorted(NAMES[::3])
    assert in_order([]) == []
    short, long, computes = "test_transcripts.py", WAITING[-1], BUSY[-1]
    assert in_order([short, computes, long]) == [long, computes, short], "whatever else there is"
    assert in_order([short, *BUSY]) == [*BUSY, short]


def test_what_waits_begins_beside_what_computes_and_the_longest_first():
    order = in_order(NAMES)
    places = [order.index(name) for name in WAITING]
    assert places == sorted(places)
    gaps = {later - earlier for earlier, later in pairwise(places)}
    assert min(gaps) >= 2, "never two in a row"
    assert places[-1] < len(order) * 3 / 4, "what is left at the end is short"
