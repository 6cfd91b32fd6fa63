"""Planted bugs in replication do not survive: each one is noticed by some seed of the simulation.

As with `test_mutants.py`, the seed that is tried first is the one that noticed it last time.
"""

import pytest
from mutation import chosen, hunt, quiet_logs  # noqa: F401
from replication_mutants import MUTANTS

from hightide_broker.simulation.replicated import run_seed

NOTICED_BY = {
    "a_new_follower_cuts_at_its_watermark": 7,
    "a_follower_does_not_name_its_epoch": 1,
    "a_follower_acknowledges_what_it_has_not_synced": 2,
    "news_between_two_requests_of_a_session_are_forgotten": 45,
    "a_held_partition_does_not_wait_for_records": 91,
    "of_several_news_all_but_one_are_dropped": 24,
    "a_held_partition_outlives_its_epoch": 134,
    "a_lost_session_takes_along_what_it_held": 1,
    "what_a_lost_session_held_is_taken_for_held_by_the_next": 1,
    "a_follower_hands_over_what_it_has_not_synced": 2,
    "divergence_goes_unnoticed": 4,
    "one_copy_is_enough": 1,
    "a_majority_is_enough": 1,
    "who_has_not_fetched_yet_is_not_waited_for": 4,
    "a_proposed_member_is_not_counted": 4,
    "a_proposed_shrink_is_acted_upon": 4,
    "a_leader_counts_what_it_has_not_synced": 6,
    "an_epoch_begins_behind_its_first_batch": 20,
    "acks_all_is_answered_at_append": 4,
    "a_deposed_leader_acknowledges_what_it_has": 7,
    "a_consumer_reads_up_to_the_log_end": 3,
    "duplicates_are_not_recognised": 39,
    "a_follower_learns_nothing_of_producers": 361,
    "producers_are_forgotten_at_a_restart": 6,
    "a_log_is_trusted_after_a_crash": 21,
    "the_disk_lies_about_syncs_of_partitions": 18,
    "a_group_is_told_before_it_is_kept": 44,
    "a_new_coordinator_begins_without_groups": 24,
    "a_new_coordinator_reads_nothing": 24,
    "a_group_forgets_what_it_committed": 16,
    "whoever_says_so_is_a_node": 8,
    "a_node_may_speak_for_another": 12,
    "a_node_may_stand_in_anothers_name": 138,
    "a_node_may_say_that_another_one_leads": 8,
    "a_node_may_acknowledge_metadata_for_another": 164,
    "a_node_may_register_another_one": 8,
    "a_node_may_say_who_is_in_sync_with_another": 115,
}


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_logs")
@pytest.mark.parametrize("name", chosen(MUTANTS))
def test_the_mutant_is_noticed(name):
    with MUTANTS[name]():
        hunt(run_seed, NOTICED_BY[name])
