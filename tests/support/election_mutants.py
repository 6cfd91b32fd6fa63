"""Bugs planted in who leads after power was lost that nothing was synced against.

Not a test, as with `mutants.py`: each context breaks one rule, and `test_unsynced.py` shows that
worlds in which nothing is synced notice it.
"""

from disk_mutants import the_first_log_leads_instead_of_the_longest
from mutants import Mutant, planted
from replication_mutants import a_log_is_trusted_after_a_crash

from hightide_broker.core.cluster import partition_changes
from hightide_broker.core.cluster.brokers import Brokers
from hightide_broker.core.cluster.partition_changes import Forgot

ALSO_HERE = (the_first_log_leads_instead_of_the_longest, a_log_is_trusted_after_a_crash)
"""Planted elsewhere, too; noticed soon where power is lost."""
MUTANTS: dict[str, Mutant] = {make.__name__: make for make in ALSO_HERE}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


@mutant
def who_is_registered_is_taken_for_alive():
    """As it was: after all power was lost, the first who was back had another one elected."""
    return planted(Brokers, "who_is_well", lambda self, now: lambda broker: True)


@mutant
def what_was_not_synced_is_taken_for_kept():
    lapse = Brokers._lapse

    def kind(self, *args, **kwargs):
        forgot = lapse(self, *args, **kwargs)

        def kept(topic, state):
            what = forgot(topic, state)
            return None if what is Forgot.UNSYNCED else what

        return kept

    return planted(Brokers, "_lapse", kind)


@mutant
def who_is_back_leads_before_the_others_are():
    def any_is_back(partition, is_active, ends):
        known = partition.last_known_elr
        waits = not (partition.isr or partition.elr)
        return waits and any(is_active(broker) and broker in ends for broker in known)

    return planted(partition_changes, "are_back", any_is_back)
