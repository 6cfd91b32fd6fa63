"""Planted bugs do not survive: each one is noticed by some seed of the simulation.

The seed that is tried first is the one that noticed the mutant last time.
"""

import pytest
from mutants import MUTANTS
from mutation import chosen, hunt, quiet_logs  # noqa: F401
from test_simulation import SEEDS
from tries import LONG, few

from hightide_broker.simulation.run import run_seed

NOTICED_BY = {
    "votes_and_epochs_are_not_kept_on_disk": 1,
    "votes_are_forgotten_at_a_restart": 9897,
    "a_voter_votes_for_everybody": 2,
    "the_longer_log_counts_instead_of_the_later_epoch": 285,
    "any_log_may_lead": 12,
    "there_is_no_pre_vote": 4,
    "one_copy_is_enough": 1,
    "a_leader_counts_what_it_has_not_synced": 5,
    "a_follower_acknowledges_what_it_has_not_synced": 1,
    "an_entry_of_an_old_epoch_is_committed_by_counting": 19,
    "a_log_that_differs_is_not_cut": 4,
    "divergence_goes_unnoticed": 4,
    "a_leader_does_what_a_late_answer_says": 1,
    "a_leader_goes_on_in_its_epoch_after_a_restart": 54,
    "the_controller_answers_before_commit": 9,
    "a_snapshot_forgets_who_is_fenced": 9,
    "the_disk_lies_about_syncs": 5,
}


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_logs")
@pytest.mark.parametrize("name", chosen(MUTANTS))
def test_the_mutant_is_noticed(name):
    with MUTANTS[name]():
        hunt(run_seed, NOTICED_BY[name])


@LONG
@pytest.mark.slow
def test_without_a_mutant_the_same_seeds_keep_every_promise():
    """Those that `test_simulation.py` does not run anyway."""
    noticing = {NOTICED_BY[name] for name in chosen(MUTANTS)}
    for seed in few(sorted(noticing - {*range(1, SEEDS + 1)}), 3):
        outcome = run_seed(seed)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
