"""Bugs planted in who leads after power was lost that nothing was synced against.

Not a test, as with `mutants.py`: each context breaks one rule, and `test_unsynced.py` shows that
worlds in which nothing is synced notice it.
"""

import msgspec
from disk_mutants import the_first_log_leads_instead_of_the_longest
from mutants import Mutant, planted
from replication_mutants import a_log_is_trusted_after_a_crash

from hightide_broker.core.cluster import partition_changes, partitions
from hightide_broker.core.cluster.brokers import Brokers
from hightide_broker.core.cluster.partition_changes import Forgot
from hightide_broker.core.replication.leader import Leader

ALSO_HERE = (the_first_log_leads_instead_of_the_longest, a_log_is_trusted_after_a_crash)
"""Planted elsewhere, too; noticed soon where power is lost."""
MUTANTS: dict[str, Mutant] = {make.__name__: make for make in ALSO_HERE}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


@mutant
def who_left_is_let_go_before_the_others_are_heard():
    """As it was, and as Kafka does it: who stays may be without power, too."""
    change_partition = partitions.change_partition

    def hasty(topic_id, number, old, rules, **wish):
        change = change_partition(topic_id, number, old, rules, **wish)
        if change is None or len(old.changed(change).isr) < rules.min_isr:
            return change
        return msgspec.structs.replace(change, elr=(), last_known_elr=())

    return planted(partitions, "change_partition", hasty)


@mutant
def leaders_commit_while_others_may_lead():
    return planted(Leader, "may_commit", property(lambda self: self.has_enough))


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
