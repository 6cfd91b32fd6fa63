"""How much of what could be tried is tried here, and all of it in the long runs.

No test lives here. `HIGHTIDE_TRIES=all`, as `deploy/evidence.sh` and `deploy/mutation.sh` have it.
"""

import os

import pytest

ALL = os.environ.get("HIGHTIDE_TRIES") == "all"
PART = 8
LONG = pytest.mark.long
"""Of a test that the long runs alone have, unless it is asked for by its name."""


def tries(count):
    """Of so many examples, seeds or ways those of this run."""
    return count if ALL else -(-count // PART)


def some(ways, number):
    """All of the ways, or one: another one for each number."""
    return ways if ALL else [ways[number % len(ways)]]


def few(ways, count):
    """All of the ways, or so many: the first one, and others from all over them."""
    ways = [*ways]
    return ways if ALL else [ways[number * len(ways) // count] for number in range(count)]
