"""Bugs planted where disks are lost, rolled back or fail, and where voters change: holes that an
audit found, as they were, and their kin.

Not a test, as with `mutants.py`: each context breaks one rule. `QUORUM` are noticed by worlds of
controllers, `REPLICATED` by worlds of replicated partitions; `test_disk_mutants.py` shows it.
"""

from contextlib import contextmanager

from mutants import Mutant, planted

from hightide_broker.core import brokers, elector, partition_changes
from hightide_broker.core.brokers import Brokers
from hightide_broker.core.image import ClusterImage
from hightide_broker.core.membership import Membership
from hightide_broker.core.partition_changes import LogEnd
from hightide_broker.runtime.metadata_log import MetadataLog
from hightide_broker.simulation import world
from hightide_broker.storage import log, recovery

QUORUM: dict[str, Mutant] = {}
REPLICATED: dict[str, Mutant] = {}


def of_quorum(make: Mutant) -> Mutant:
    QUORUM[make.__name__] = make
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
    return planted(elector, "check_addressee", nothing)


@of_quorum
def a_directory_that_was_made_anew_votes_at_once():
    format_node = world.format_node

    def as_of_a_new_cluster(*args, joining):
        return format_node(*args, joining=False)

    look = Membership._look

    def without_directories(self):
        look(self)
        self.is_voter = self._config.node in self.voters

    @contextmanager
    def both():
        with (
            planted(world, "format_node", as_of_a_new_cluster),
            planted(Membership, "_look", without_directories),
            planted(elector, "check_addressee", nothing),
        ):
            yield

    return both()


@of_quorum
def a_snapshot_forgets_who_votes():
    changes = ClusterImage.changes

    def forgetful(self):
        return [each for each in changes(self) if type(each).__name__ != "SetVoters"]

    return planted(ClusterImage, "changes", forgetful)


@of_quorum
def a_record_of_voters_is_not_looked_for_in_what_a_leader_sends():
    return planted(MetadataLog, "_note_batch", nothing)


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


# -- what is durable -----------------------------------------------------------------------------


@of_replicas
def epochs_that_are_not_in_their_file_are_missed():
    @contextmanager
    def both():
        with (
            planted(recovery, "catch_up", no),
            planted(log.EpochCache, "is_ahead", property(no)),
        ):
            yield

    return both()
