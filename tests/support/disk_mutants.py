"""Bugs planted where disks are lost, rolled back or fail, and where voters change: holes that an
audit found, as they were, and their kin.

Not a test, as with `mutants.py`: each context breaks one rule. `QUORUM` are noticed by worlds of
controllers, `VOTERS` by storms in which they come and go, `REPLICATED` by worlds of partitions;
`test_disk_mutants.py` shows it.
"""

from contextlib import contextmanager
from dataclasses import replace

from mutants import Mutant, planted

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster import brokers, partition_changes
from hightide_broker.core.cluster.brokers import Brokers
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.partition_changes import Forgot, LogEnd
from hightide_broker.core.cluster.partitions import Partitions
from hightide_broker.core.quorum import elections, state_machine, votes
from hightide_broker.core.quorum.membership import Membership
from hightide_broker.runtime.quorum.metadata_log import MetadataLog
from hightide_broker.runtime.replication import housekeeping
from hightide_broker.runtime.replication.checkpoints import Checkpoints
from hightide_broker.runtime.replication.metadata_applier import MetadataApplier
from hightide_broker.runtime.replication.replica_loader import ReplicaLoader
from hightide_broker.simulation import world
from hightide_broker.simulation.disk_syncs import Sync
from hightide_broker.storage import aside, cleaner, log, recovery

QUORUM: dict[str, Mutant] = {}
VOTERS: dict[str, Mutant] = {}
REPLICATED: dict[str, Mutant] = {}


def of_quorum(make: Mutant) -> Mutant:
    QUORUM[make.__name__] = make
    return make


def of_voters(make: Mutant) -> Mutant:
    VOTERS[make.__name__] = make
    return make


def of_replicas(make: Mutant) -> Mutant:
    REPLICATED[make.__name__] = make
    return make


def nothing(*args, **kwargs):
    return None


def no(*args, **kwargs):
    return False


# -- who votes -----------------------------------------------------------------------------------


@of_quorum
def a_vote_is_for_a_node_whatever_its_directory():
    return planted(elections, "check_addressee", nothing)


@of_quorum
def a_directory_that_was_made_again_votes_at_once():
    format_node = world.format_node

    def as_of_a_new_cluster(*args, joining=False, **more):
        return format_node(*args, joining=False, **more)

    look = Membership._look

    def without_directories(self):
        look(self)
        self.is_voter = self._config.node in self.voters

    @contextmanager
    def both():
        with (
            planted(world, "format_node", as_of_a_new_cluster),
            planted(Membership, "_look", without_directories),
            planted(elections, "check_addressee", nothing),
        ):
            yield

    return both()


@of_quorum
def a_snapshot_forgets_who_votes():
    changes = ClusterImage.changes

    def forgets(self):
        return [each for each in changes(self) if type(each).__name__ != "SetVoters"]

    return planted(ClusterImage, "changes", forgets)


@of_quorum
def a_record_of_voters_is_not_looked_for_in_what_a_leader_sends():
    return planted(MetadataLog, "_note_batch", nothing)


# -- how voters come and go ----------------------------------------------------------------------


@of_voters
def a_leader_that_was_removed_votes_for_itself():
    def begin(self, candidate):
        self._votes = {candidate: True}

    return planted(votes.Votes, "begin", begin)


@of_voters
def a_leader_that_was_removed_never_stands_again():
    return planted(elections.Elections, "_may_stand", elections.Elections._is_voter)


@of_voters
def the_next_change_does_not_wait_for_the_last_one():
    def hasty(self):
        self._check_leadership(self.epoch)
        if self.high_watermark <= self.epoch_start:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "this epoch has committed nothing yet")

    return planted(state_machine.Quorum, "_check_changeable", hasty)


@of_voters
def a_new_leader_changes_voters_before_it_knows_what_is_committed():
    def hasty(self):
        self._check_leadership(self.epoch)
        if self.high_watermark < self._log.voters_end:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the last change is not committed yet")

    return planted(state_machine.Quorum, "_check_changeable", hasty)


@of_voters
def whatever_a_voters_node_holds_counts_as_the_voters():
    return planted(Membership, "counts", lambda self, node, directory: node in self.voters)


# -- who may lead --------------------------------------------------------------------------------


@of_replicas
def another_disk_has_forgotten_nothing():
    return planted(Brokers, "_lapse", lambda *args, **kwargs: nothing)


@of_replicas
def an_older_copy_of_a_disk_is_the_disk():
    return planted(brokers, "_is_older_copy", no)


@of_replicas
def the_first_log_leads_instead_of_the_longest():
    return planted(partition_changes, "_longest", lambda candidates, rules: candidates[0])


@of_replicas
def the_shortest_log_is_taken_for_the_longest():
    heard = LogEnd.__new__

    def shorter(cls, last_epoch, log_end):
        return heard(cls, 0, -log_end)

    return planted(LogEnd, "__new__", shorter)


@of_replicas
def a_thawed_process_takes_its_successors_registration_for_its_own():
    see = MetadataApplier._see_brokers

    def seen(self, image):
        self._broker_epoch = self._fetchers.broker_epoch = image.broker_epoch(self._broker)
        see(self, image)

    return planted(MetadataApplier, "_see_brokers", seen)


@of_replicas
def an_offline_replica_is_given_up_even_if_nobody_else_can_lead():
    def given_up(self, broker, offline, is_well):
        changes = []
        for each in offline:
            topic = self._image.topics_by_id.get(each.topic_id)
            state = topic.partitions[each.partition] if topic else None
            if state and broker in (*state.isr, *state.elr):
                change = partition_changes.change_partition(
                    each.topic_id,
                    each.partition,
                    state,
                    self._rules(topic, each.partition, lambda b: b != broker),
                    isr=tuple(b for b in state.isr if b != broker),
                    forgot={broker: Forgot.EVERYTHING},
                )
                changes += [change] if change else []
        return changes

    return planted(Partitions, "lost", given_up)


@of_replicas
def what_was_synced_is_judged_by_todays_setting():
    lapse = Brokers._lapse

    def of_today(self, known, **kwargs):
        forgot = lapse(self, known, **kwargs)
        return lambda topic, state: forgot(replace(topic, synced_since=-1), state)

    return planted(Brokers, "_lapse", of_today)


@of_replicas
def a_watermark_that_was_not_on_disk_must_be_reached():
    create = ReplicaLoader.must_reach

    def as_if_always_so(self, image, topic, number):
        return create(self, image, replace(topic, synced_since=-1), number)

    return planted(ReplicaLoader, "must_reach", as_if_always_so)


# -- what is durable -----------------------------------------------------------------------------


@of_replicas
def epochs_that_are_not_in_their_file_are_missed():
    @contextmanager
    def both():
        with (
            planted(recovery, "catch_up", no),
            planted(log.EpochCache, "is_owed", no),
        ):
            yield

    return both()


@of_replicas
def a_name_is_put_before_an_ending_however_long_it_is():
    def too_long(disk, directory, name, mark):
        path = f"{directory}/{name}.{mark}"
        disk.rename(f"{directory}/{name}", path)
        return path

    return planted(aside, "_rename", too_long)


@of_replicas
def the_names_of_new_files_are_not_made_durable():
    begin = Sync.__init__

    def of_files_only(self, disk, files, directories):
        begin(self, disk, files, [])

    return planted(Sync, "__init__", of_files_only)


@of_replicas
def a_cut_leaves_what_was_called_durable():
    return planted(Checkpoints, "lower_offsets", nothing)


# -- compaction ----------------------------------------------------------------------------------


@of_replicas
def what_is_not_committed_is_compacted():
    plan = housekeeping.plan_cleaning

    def eager(log, **kwargs):
        return plan(log, **{**kwargs, "high_watermark": log.log_end})

    return planted(housekeeping, "plan_cleaning", eager)


@of_replicas
def what_compaction_writes_may_be_larger_than_readers_take():
    return planted(cleaner, "INFLATED_BYTES_MAX", 1 << 40)
