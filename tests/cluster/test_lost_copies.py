"""What a controller concludes from silence, lost files and records that are not there.

Goal: nobody leads, or counts as whole, because something was missing that would have said
otherwise. Method: a small cluster commits each decision at once; a quorum is told step by step.
"""

from __future__ import annotations

import pytest
from controller_cluster import NONE, SESSION_S, cluster_of, nobody_leads, who
from quorum_story import QuorumStory, tell

from hightide.protocol import controller_messages as c
from hightide_broker.core.cluster.changes import CreatePartition, CreateTopic, SetConfig
from hightide_broker.core.cluster.image import ClusterImage

# --- silence --------------------------------------------------------------------------------------


def test_who_was_not_heard_of_lately_is_not_given_what_a_silent_broker_led():
    """They may all be gone, one heartbeat apart: the first to come back has all there is."""
    cluster = nobody_leads()
    cluster.heartbeat(2)
    cluster.join(0)
    assert who(cluster)[0] != NONE


def test_who_was_heard_of_leads_on_for_a_silent_broker():
    cluster = cluster_of(0, 1, 2)
    cluster.take_over()
    cluster.now += SESSION_S
    cluster.heartbeat(2)
    assert cluster.fence_silent() == [0, 1]
    assert who(cluster) == (2, (2,), ())


# --- a directory's list of its processes ----------------------------------------------------------


@pytest.mark.parametrize("controller", ["the same", "another"])
def test_a_directory_that_lost_its_list_is_not_taken_for_what_it_was(controller):
    """Broker 0 was the last in the ISR; an older version of a directory has no list, either."""
    cluster = cluster_of(0, 1)
    cluster.fence(1)
    cluster.register(0, runs=[cluster.image.brokers[0].incarnation])
    cluster.unfence(0)
    assert who(cluster) == (0, (0,), ())
    snapshot = ClusterImage.of_snapshot(cluster.image.changes(), cluster.image.offset)
    assert snapshot == cluster.image
    if controller == "another":
        cluster.take_over()
    cluster.register(0, runs=None)
    cluster.heartbeat(0)
    assert who(cluster) == (NONE, (), ())


# --- settings -------------------------------------------------------------------------------------


def test_a_replica_counts_as_synced_only_since_the_metadata_says_so():
    """Before there was a record each node went by its own file, which may have said otherwise."""
    image = ClusterImage()
    facts = {"replicas": (0, 1), "isr": (0, 1), "leader": 0, "leader_epoch": 0}
    image.replay(CreateTopic(topic="a", topic_id="id-1"), 0)
    image.replay(CreatePartition(topic_id="id-1", partition=0, **facts), 1)
    image.replay(SetConfig(kind="cluster", name="", key="flush", value="synced"), 2)
    assert image.topics["a"].synced_since == 2


def test_nobody_is_waited_for_who_is_not_needed_by_a_lower_minimum():
    """Broker 1 stopped uncleanly, and may lack what was committed. From now on 0 commits without
    it: how far its log reaches says nothing any more."""
    cluster = cluster_of(0, 1, min_isr=2, flush="replicated")
    cluster.register(1)
    state = cluster.partition("a")
    assert (state.isr, state.elr, state.last_known_elr) == ((0,), (), (1,))
    cluster.alter("a", min_insync_replicas="1")
    assert cluster.partition("a").last_known_elr == ()


# --- the pieces of a snapshot ---------------------------------------------------------------------


def test_who_fetches_a_snapshot_says_for_which_disk():
    """A leader stays in office by it only if that disk is a voter's."""
    story = tell(
        QuorumStory(),
        "voters 1a 2a 3a pieces=10",
        "start 1",
        "start 3",
        "elect 1 3",
        "settle 1 3",
        "snapshot 1 1 forget=yes",
        "start 2",
        "hear 2 begin from=1 epoch=1 to=2a",
        "ask 2>1 fetch",
    )
    (asked,) = (each for each in story.world.asked if each.asker == 2)
    assert isinstance(asked.request, c.FetchSnapshotRequest)
    assert asked.request.replica_directory == "2a"
