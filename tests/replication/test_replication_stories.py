"""Replication as stories in `scenarios/replication`: sequences that lose records under other rules.

Goal: whatever order news, questions and answers come in, no acknowledged record is missing from a
replica that may lead, and what one watermark has passed never changes (KIP-101, KIP-279, KIP-320,
KIP-497, KIP-841, KIP-903, KIP-966). Method: transcripts told to real replicas; `TableStory` checks
its invariants after each step, and every story ends with what is acknowledged and who has it. Then
each rule is broken, and the story that is about it has to notice that records are missing.
"""

from __future__ import annotations

import shutil

import msgspec
import pytest
import transcripts
from mutants import planted
from table_story import TableStory

from hightide_broker.core.cluster.partitions import Partitions
from hightide_broker.core.replication.follower import Follower
from hightide_broker.core.replication.leader import Leader
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.server import fetch_handler


@pytest.mark.parametrize("path", transcripts.stories("replication"), ids=lambda path: path.stem)
def test_nothing_acknowledged_is_lost_in_the_story(path, rewrite):
    story = TableStory()
    transcripts.play(path, story, rewrite=rewrite)
    assert story.has_ended, f"{path.name} does not say how it ends"


# --- every rule is needed -----------------------------------------------------------------------


def whoever_asks_from_the_watermark_joins():
    expand = Leader._expand

    def hasty(self, broker, remote):
        epoch_start, self.epoch_start = self.epoch_start, 0
        expand(self, broker, remote)
        self.epoch_start = epoch_start

    return planted(Leader, "_expand", hasty)


def log_ends_are_remembered_in_the_next_epoch():
    become_leader = Replica.become_leader

    def remembering(self, state, **options):
        before = self.leader
        become_leader(self, state, **options)
        if before is not None:
            self.leader.remotes.update(before.remotes)
            self.recompute()

    return planted(Replica, "become_leader", remembering)


def only_the_isr_of_the_metadata_counts():
    return planted(Leader, "maximal_isr", property(lambda self: self.isr))


def a_proposal_counts_as_if_it_were_granted():
    proposed = property(lambda self: self.proposal.isr if self.proposal else self.isr)
    return planted(Leader, "maximal_isr", proposed)


def any_answer_ends_a_proposal():
    def forgets(self, proposal, error, *, is_only_one):
        self.proposal = None

    return planted(Leader, "on_answer", forgets)


def older_metadata_is_believed():
    on_metadata = Leader.on_metadata

    def credulous(self, *args, **facts):
        self.partition_epoch = -1
        return on_metadata(self, *args, **facts)

    return planted(Leader, "on_metadata", credulous)


def a_proposal_is_granted_whatever_it_is_about():
    grant = Partitions._grant

    def lenient(self, sender, wish):
        now = self._image.topics_by_id[wish.topic_id].partitions[wish.partition]
        newest = {"partition_epoch": now.partition_epoch, "leader_epoch": now.leader_epoch}
        return grant(self, sender, msgspec.structs.replace(wish, **newest))

    return planted(Partitions, "_grant", lenient)


def questions_of_any_epoch_are_answered():
    return planted(Replica, "check_epoch", lambda self, current_leader_epoch: None)


def answers_of_any_epoch_are_taken():
    def by_offset(self, asked, log):
        return asked.fetch_offset != log.log_end

    return planted(Follower, "_is_stale", by_offset)


def a_new_follower_cuts_at_its_watermark():
    become_follower = Replica.become_follower

    def cutting(self, state, **options):
        become_follower(self, state, **options)
        self.log.truncate_to(self.high_watermark)

    return planted(Replica, "become_follower", cutting)


def logs_are_not_compared():
    return planted(fetch_handler, "diverging", lambda *_, **__: None)


def one_is_enough():
    return planted(Leader, "may_commit", property(lambda self: True))


BROKEN = (
    (a_new_follower_cuts_at_its_watermark, "01_a_watermark_cuts_nothing"),
    (a_new_follower_cuts_at_its_watermark, "02_a_new_leader_with_an_old_watermark"),
    (a_new_follower_cuts_at_its_watermark, "03_a_follower_restarts_then_its_leader_dies"),
    (logs_are_not_compared, "04_an_epoch_that_the_leader_never_had"),
    (questions_of_any_epoch_are_answered, "05_a_follower_of_an_epoch_that_is_over"),
    (questions_of_any_epoch_are_answered, "06_a_leader_of_an_epoch_that_is_over"),
    (whoever_asks_from_the_watermark_joins, "07_no_one_joins_below_the_start_of_an_epoch"),
    (log_ends_are_remembered_in_the_next_epoch, "08_log_ends_of_an_older_epoch_do_not_count"),
    (only_the_isr_of_the_metadata_counts, "09_who_may_have_joined_is_waited_for"),
    (a_proposal_counts_as_if_it_were_granted, "10_who_is_to_leave_is_waited_for"),
    (any_answer_ends_a_proposal, "11_a_proposal_is_not_forgotten"),
    (a_proposal_is_granted_whatever_it_is_about, "12_a_proposal_of_older_metadata"),
    (older_metadata_is_believed, "13_older_news_after_newer_news"),
    (logs_are_not_compared, "14_nothing_in_common"),
    (logs_are_not_compared, "15_as_many_cuts_as_needed"),
    (answers_of_any_epoch_are_taken, "16_the_epoch_changes_while_a_question_is_out"),
    (logs_are_not_compared, "19_a_question_that_differs_counts_nothing"),
    (one_is_enough, "22_fewer_than_min_insync_replicas"),
)


@pytest.mark.parametrize(("bug", "story"), BROKEN)
def test_records_are_missing_when_the_rule_of_the_story_is_broken(bug, story, tmp_path):
    copy = tmp_path / f"{story}.txt"
    shutil.copy(transcripts.SCENARIOS / "replication" / copy.name, copy)
    missing = "which lacks it|may lead, and has|commits .* it was|is lost"
    with bug(), pytest.raises(AssertionError, match=missing):
        transcripts.play(copy, TableStory(), rewrite=True)
