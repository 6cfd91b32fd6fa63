"""How much of what could be tried is tried here, and all of it in the long runs.

No test lives here. `HIGHTIDE_TRIES=all`, as `deploy/evidence.sh` and `deploy/mutation.sh` have it.
"""

import os

import pytest

ALL = os.environ.get("HIGHTIDE_TRIES") == "all"
PART = 8
LONG = pytest.mark.long
"""Of a test that the long runs alone have, and who asks for it or its file by name."""


def tries(count):
    """Of so many examples, seeds or ways those of this run."""
    return count if ALL else -(-count // PART)


def some(ways, number):
    """All of the ways, or one: another one for each number."""
    return ways if ALL else [ways[number % len(ways)]]


def few(ways, count):
    """All of the ways, or so many: the first one, and others from all over them."""
    ways = [*ways]
    count = min(count, len(ways))
    return ways if ALL else [ways[number * len(ways) // count] for number in range(count)]


def leave_out_long(config, items):
    """Leave out what the long runs alone have, and tell of it."""
    option = config.option
    named = option.keyword or LONG.name in option.markexpr
    if ALL or named or any(".py" in word for word in config.args):
        return
    long = [item for item in items if item.get_closest_marker(LONG.name)]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
