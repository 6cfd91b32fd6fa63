"""Replicated worlds keep their promises, seed by seed, and repeat exactly.

`hightide sim run --world replicated` runs more seeds; here are as many as a change should not be
allowed to break.
"""

import json
import os
import subprocess
import sys

import pytest
from tries import ALL, few, some

from hightide_broker.simulation.replicated import run_seed

SEEDS = int(os.environ.get("HIGHTIDE_SEEDS", 6 if ALL else 3))
QUICK = 2
"""Like the next one."""


@pytest.mark.slow
def test_every_promise_is_kept():
    command = [sys.executable, "-m", "hightide_cli.main", "sim", "run", "--world", "replicated"]
    command += ["--seeds", f"1..{SEEDS}", "--jobs", "2", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    # A world in which nothing happens keeps every promise, too.
    for name in ("partition_elections", "commits", "cuts", "acknowledged", "read", "group_commits"):
        assert outcome[name] > SEEDS / 2, outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", few([501027, 502455, 502656, 503722, 510051, 520284], 1))
def test_what_was_called_a_loss_and_was_none(seed):
    """Holes within a page; what a replaced leader commits; who has all, and a failed sync; two that
    end a process; a process that was registered and never opened its logs."""
    assert run_seed(seed).violation == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", some([1, 2, 25], 0))
def test_rows_of_kafkas_are_held_to_the_same_promises(seed):
    outcome = run_seed(seed, rows=True)
    assert outcome.violation == ""
    assert outcome.counts["acknowledged_in_rows"] > 5


@pytest.mark.slow
def test_a_seed_has_one_history_and_no_rows_that_nobody_asked_for():
    """Whether it is traced or not."""
    plain, traced = run_seed(QUICK), run_seed(QUICK, keep_story=True)
    other = run_seed(QUICK + 1)
    assert plain.fingerprint == traced.fingerprint != other.fingerprint
    assert (plain.trace, other.trace) == (b"", b"")
    assert len(traced.trace.splitlines()) > 100
    assert {each.counts["acknowledged_in_rows"] for each in (plain, traced, other)} == {0}
