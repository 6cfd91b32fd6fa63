"""How often what goes by chance is tried: a part of it here, all of it in the long runs.

No test lives here. `HIGHTIDE_TRIES=all`, as `deploy/evidence.sh` and `deploy/mutation.sh` have it.
"""

import os

ALL = os.environ.get("HIGHTIDE_TRIES") == "all"
PART = 8


def tries(count):
    """Of so many examples, seeds or ways those of this run."""
    return count if ALL else -(-count // PART)


def some(ways, number):
    """All of the ways, or one: another one for each number."""
    return ways if ALL else [ways[number % len(ways)]]
