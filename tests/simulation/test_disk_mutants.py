"""Planted bugs about disks and voters do not survive: each one is noticed by some seed.

As with `test_mutants.py`, the seed that is tried first is the one that noticed it last time.
"""

import pytest
from disk_mutants import QUORUM, REPLICATED, VOTERS
from mutation import chosen, hunt, quiet_logs  # noqa: F401
from quorum_storm import survive

from hightide_broker.simulation import replicated, run

NOTICED_BY = {
    "a_vote_is_for_a_node_whatever_its_directory": 12,
    "a_directory_that_was_made_again_votes_at_once": 12,
    "a_snapshot_forgets_who_votes": 94,
    "a_record_of_voters_is_not_looked_for_in_what_a_leader_sends": 47,
    "another_disk_has_forgotten_nothing": 121,
    "an_older_copy_of_a_disk_is_the_disk": 227,
    "the_first_log_leads_instead_of_the_longest": 33,
    "the_shortest_log_is_taken_for_the_longest": 1,
    "a_thawed_process_takes_its_successors_registration_for_its_own": 24,
    "an_offline_replica_is_given_up_even_if_nobody_else_can_lead": 154,
    "a_name_is_put_before_an_ending_however_long_it_is": 13,
    "the_names_of_new_files_are_not_made_durable": 71,
    "epochs_that_are_not_in_their_file_are_missed": 2,
    "what_was_synced_is_judged_by_todays_setting": 456,
    "a_watermark_that_was_not_on_disk_must_be_reached": 269,
    "a_cut_leaves_what_was_called_durable": 40,
    "what_is_not_committed_is_compacted": 185,
    "what_compaction_writes_may_be_larger_than_readers_take": 168,
}


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_logs")
@pytest.mark.parametrize("name", chosen(QUORUM))
def test_the_mutant_is_noticed_by_controllers(name):
    with QUORUM[name]():
        hunt(run.run_seed, NOTICED_BY[name])


def come_and_go():
    for voters in (2, 3, 4):
        survive(300, voters=voters, observers=1, operated=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(VOTERS))
def test_the_mutant_is_noticed_by_voters_that_come_and_go(name):
    with VOTERS[name](), pytest.raises(AssertionError):
        come_and_go()


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_logs")
@pytest.mark.parametrize("name", chosen(REPLICATED))
def test_the_mutant_is_noticed_by_replicas(name):
    with REPLICATED[name]():
        hunt(replicated.run_seed, NOTICED_BY[name])
