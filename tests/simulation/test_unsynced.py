"""Where nothing is synced before it is acknowledged and power is lost, no more is lost than has to
be; and planted bugs in who leads then are noticed.

`hightide sim run --world unsynced` runs more seeds. Each mutant names the seed that noticed it
last time, which is tried first.
"""

from functools import partial

import pytest
from election_mutants import MUTANTS
from mutation import chosen, hunt, quiet_logs  # noqa: F401
from test_replicated import SEEDS
from tries import LONG

from hightide_broker.simulation.replicated import run_seed

NOTICED_BY = {
    "who_left_is_let_go_before_the_others_are_heard": 1,
    "leaders_commit_while_others_may_lead": 7,
    "what_was_not_synced_is_taken_for_kept": 10,
    "who_is_back_leads_before_the_others_are": 31,
    "the_first_log_leads_instead_of_the_longest": 4,
    "a_log_is_trusted_after_a_crash": 4,
}

pytestmark = pytest.mark.slow


def test_every_promise_is_kept_and_something_may_be_lost():
    count = -(-SEEDS // 2)
    outcomes = [run_seed(seed, unsynced=True) for seed in range(1, count + 1)]
    assert [outcome.violation for outcome in outcomes] == [""] * count
    # A world that keeps its power loses nothing, too; and what is all lost has nothing to check.
    for name in ("power_losses", "partition_elections"):
        assert sum(outcome.counts[name] for outcome in outcomes) > count, name
    assert any(outcome.counts["lost"] for outcome in outcomes)


@LONG
def test_what_was_decided_before_power_went_may_be_known_after_it():
    """Who may lead was written down before they lost their power, and committed after it: what they
    had not synced by then is lost, and nobody else is asked for it."""
    outcome = run_seed(116, unsynced=True)
    assert (outcome.violation, outcome.counts["lost"] > 0) == ("", True)


@pytest.mark.usefixtures("quiet_logs")
@pytest.mark.parametrize("name", chosen(MUTANTS))
def test_the_mutant_is_noticed(name):
    with MUTANTS[name]():
        hunt(partial(run_seed, unsynced=True), NOTICED_BY[name])
