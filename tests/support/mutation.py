"""How planted bugs are hunted: seed after seed of a simulation, until one ends badly.

No test lives here. A mutant that survives means that the judge, the faults or the clients of the
simulated world have become too kind.
"""

import logging

import pytest

SEEDS = range(1, 501)


@pytest.fixture
def quiet_logs():
    """What a broken world says of itself is not worth reading."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def hunt(run_seed, first):
    """Fail if no seed ends with a broken promise, or with a node that crashes; `first` is the one
    that noticed the bug last time."""
    for seed in (first, *SEEDS):
        try:
            if run_seed(seed).violation:
                return
        except ExceptionGroup:
            return
    pytest.fail(f"it survived {len(SEEDS)} seeds")
