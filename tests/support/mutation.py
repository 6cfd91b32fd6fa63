"""How planted bugs are hunted: seed after seed of a simulation, until one ends badly.

No test lives here. A mutant that survives means that the checker, the faults or the clients of the
simulated world have become too kind.
"""

import logging
import os
import traceback
from pathlib import Path

import pytest

import hightide
import hightide_broker

TESTS = Path(__file__).parents[1]
PROJECT = [TESTS, *(Path(each.__file__).parent for each in (hightide, hightide_broker))]
SEEDS = range(1, 501)
LONG = {
    "a_cut_leaves_what_was_called_durable",
    "a_deposed_leader_acknowledges_what_it_has",
    "a_follower_does_not_name_its_epoch",
    "a_follower_learns_nothing_of_producers",
    "a_group_forgets_what_it_committed",
    "a_group_is_told_before_it_is_kept",
    "a_held_partition_does_not_wait_for_records",
    "a_held_partition_outlives_its_epoch",
    "a_leader_does_what_a_late_answer_says",
    "a_log_is_trusted_after_a_crash",
    "a_log_that_differs_is_not_cut",
    "a_lost_session_takes_along_what_it_held",
    "a_name_is_put_before_an_ending_however_long_it_is",
    "a_new_coordinator_begins_without_groups",
    "a_new_coordinator_reads_nothing",
    "a_node_may_acknowledge_metadata_for_another",
    "a_node_may_say_that_another_one_leads",
    "a_node_may_say_who_is_in_sync_with_another",
    "a_node_may_stand_in_anothers_name",
    "a_proposed_member_is_not_counted",
    "a_thawed_process_takes_its_successors_registration_for_its_own",
    "a_watermark_that_was_not_on_disk_must_be_reached",
    "an_epoch_begins_behind_its_first_batch",
    "an_offline_replica_is_given_up_even_if_nobody_else_can_lead",
    "an_older_copy_of_a_disk_is_the_disk",
    "divergence_goes_unnoticed",
    "epochs_that_are_not_in_their_file_are_missed",
    "news_between_two_requests_of_a_session_are_forgotten",
    "of_several_news_all_but_one_are_dropped",
    "producers_are_forgotten_at_a_restart",
    "the_controller_answers_before_commit",
    "the_disk_lies_about_syncs_of_partitions",
    "the_longer_log_counts_instead_of_the_later_epoch",
    "the_names_of_new_files_are_not_made_durable",
    "what_a_lost_session_held_is_taken_for_held_by_the_next",
    "what_compaction_writes_may_be_larger_than_readers_take",
    "what_is_not_committed_is_compacted",
    "what_was_synced_is_judged_by_todays_setting",
    "whatever_a_voters_node_holds_counts_as_the_voters",
    "who_left_is_let_go_before_the_others_are_heard",
}
"""Those that no seed is known to notice within a second or so: planted where `HIGHTIDE_MUTANTS`
asks for all of them, as `deploy/evidence.sh` does."""


def chosen(mutants):
    """The names of those that are planted in this run."""
    return [name for name in mutants if name not in LONG or os.environ.get("HIGHTIDE_MUTANTS")]


@pytest.fixture
def quiet_logs():
    """What a broken world says of itself is not worth reading."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def hunt(run_seed, first):
    """Fail if no seed ends with a broken promise, or with a node that crashes; `first` is the one
    that noticed the bug last time. What was planted may not crash itself: it would be noticed in
    each seed, and say nothing."""
    for seed in (first, *SEEDS):
        try:
            if run_seed(seed).violation:
                return
        except ExceptionGroup as group:
            if any(is_of_the_planting(error) for error in leaves(group)):
                raise
            return
    pytest.fail(f"it survived {len(SEEDS)} seeds")


def leaves(error):
    """What is in a group, and in the groups in it."""
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [leaf for each in inside for leaf in leaves(each)] or [error]


def is_of_the_planting(error):
    """Whether the last code of ours that met it is the tests', or called what is theirs with words
    that it does not know."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [file for file in files if any(place in file.parents for place in PROJECT)]
    is_misfit = isinstance(error, TypeError) and "<locals>" in str(error)
    return is_misfit or any(TESTS in file.parents for file in ours[-1:])
