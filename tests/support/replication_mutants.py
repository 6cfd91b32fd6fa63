"""Bugs planted in the replication of partitions: its leaders, followers, producers and disks.

Not a test, as with `mutants.py`: each context breaks one rule, and `test_replication_mutants.py`
shows that the simulation notices it.
"""

from contextlib import contextmanager

import msgspec
from mutants import Mutant, planted

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.groups.group import Group
from hightide_broker.core.replication.follower import Follower, Truncate
from hightide_broker.core.replication.leader import Leader
from hightide_broker.core.replication.producers import Producers
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.cluster import controller_channel
from hightide_broker.runtime.groups import coordinator
from hightide_broker.runtime.replication import fetcher
from hightide_broker.runtime.replication.fetcher import LeaderFetcher
from hightide_broker.runtime.replication.following import Following
from hightide_broker.runtime.replication.quiet import Quiet
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.server import fetch_handler, fetch_sessions, routes, table
from hightide_broker.runtime.server.record_handlers import RecordHandlers
from hightide_broker.simulation.disk_syncs import Sync
from hightide_broker.storage import log as log_module
from hightide_broker.storage.epochs import EpochCache
from hightide_broker.storage.log import Log

MUTANTS: dict[str, Mutant] = {}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


@contextmanager
def both(one, other):
    """Two changes that make one bug."""
    with one, other:
        yield


def believing(owner, name, **beliefs):
    """The method `owner.name` sees other values in these attributes of its object."""
    method = getattr(owner, name)

    def misled(self, *args, **kwargs):
        before = {attribute: getattr(self, attribute) for attribute in beliefs}
        for attribute, value in beliefs.items():
            setattr(self, attribute, value)
        try:
            return method(self, *args, **kwargs)
        finally:
            for attribute, value in before.items():
                setattr(self, attribute, value)

    return planted(owner, name, misled)


def meanwhile(owner, name, there, what, value):
    """While the method `owner.name` runs, `there.what` is `value`."""
    method = getattr(owner, name)

    def surrounded(self, *args, **kwargs):
        with planted(there, what, value):
            return method(self, *args, **kwargs)

    return planted(owner, name, surrounded)


def nothing(*args, **kwargs):
    return None


# -- who speaks ----------------------------------------------------------------------------------


@mutant
def whoever_says_so_is_a_node():
    """A fetch in a follower's name is its acknowledgement, whoever sends it."""
    return planted(routes, "check_node", lambda call: None)


@mutant
def a_node_may_speak_for_another():
    """It proves that it is a node, and says which."""
    return planted(routes, "check_sender", lambda request, node, **_: None)


def unquestioned(there, kind, fits=lambda request: True):
    """A node may send such requests in another one's name."""
    check = there.check_sender

    def lenient(request, node, **more):
        if not (isinstance(request, kind) and fits(request)):
            check(request, node, **more)

    return planted(there, "check_sender", lenient)


@mutant
def a_node_may_stand_in_anothers_name():
    return unquestioned(routes, c.VoteRequest)


@mutant
def a_node_may_say_that_another_one_leads():
    return unquestioned(routes, c.BeginQuorumEpochRequest)


@mutant
def a_node_may_acknowledge_metadata_for_another():
    return unquestioned(routes, m.FetchRequest, table._is_of_metadata)


@mutant
def a_node_may_register_another_one():
    return unquestioned(controller_channel, c.RegisterBrokerRequest)


@mutant
def a_node_may_say_who_is_in_sync_with_another():
    return unquestioned(controller_channel, c.AlterPartitionRequest)


# -- followers -----------------------------------------------------------------------------------


@mutant
def a_new_follower_cuts_at_its_watermark():
    on_result = Follower.on_result

    def at_watermark(self, asked, result, log, now):
        fresh = log.latest_epoch < self.epoch and log.log_end > asked.high_watermark
        if fresh and not self._is_stale(asked, log):
            return Truncate(asked.high_watermark)
        return on_result(self, asked, result, log, now)

    return planted(Follower, "on_result", at_watermark)


@mutant
def a_follower_does_not_name_its_epoch():
    next_fetch = fetcher.next_fetch

    def silent(*args, **kwargs):
        return msgspec.structs.replace(next_fetch(*args, **kwargs), last_fetched_epoch=-1)

    return planted(fetcher, "next_fetch", silent)


@mutant
def a_follower_acknowledges_what_it_has_not_synced():
    return planted(fetcher, "owes_sync", lambda replica: False)


@mutant
def news_between_two_requests_of_a_session_are_forgotten():
    has_news = fetch_sessions._Session.has_news

    def only_if_somebody_waits(self, held):
        if self._parked is not None:
            has_news(self, held)

    return planted(fetch_sessions._Session, "has_news", only_if_somebody_waits)


@mutant
def a_held_partition_does_not_wait_for_records():
    hold = fetch_sessions._Session._hold

    def for_commits(self, part, seen):
        return hold(self, part, seen[1:])

    return planted(fetch_sessions._Session, "_hold", for_commits)


@mutant
def of_several_news_all_but_one_are_dropped():
    look_for_news = fetch_sessions._Session._look_for_news

    def hasty(self, request, look):
        self._news = dict(list(self._news.items())[:1])
        look_for_news(self, request, look)

    return planted(fetch_sessions._Session, "_look_for_news", hasty)


@mutant
def a_held_partition_outlives_its_epoch():
    close = Watermark.close

    def quietly(self, error):
        self._heap = [
            entry for entry in self._heap if not isinstance(entry[2], fetch_sessions._Held)
        ]
        close(self, error)

    return planted(Watermark, "close", quietly)


@mutant
def a_lost_session_takes_along_what_it_held():
    end = Quiet.end
    return planted(Quiet, "end", lambda self: (end(self)[0], []))


@mutant
def what_a_lost_session_held_is_taken_for_held_by_the_next():
    end = Quiet.end

    def inherited(self):
        following, _ = end(self)
        following._held = dict(self._held)
        return following, []

    return planted(Quiet, "end", inherited)


@mutant
def a_follower_hands_over_what_it_has_not_synced():
    def at_once(self, replica):
        if replica.needs_sync:
            self._fetchers.syncer.mark(replica)
        with planted(fetcher, "owes_sync", owes_nothing):
            self._fell_quiet(replica)

    def owes_nothing(_):
        return False

    handed_over = meanwhile(LeaderFetcher, "_listen", fetcher, "owes_sync", owes_nothing)
    return both(planted(LeaderFetcher, "_served", at_once), handed_over)


# -- leaders -------------------------------------------------------------------------------------


@mutant
def divergence_goes_unnoticed():
    return planted(fetch_handler, "diverging", nothing)


@mutant
def one_copy_is_enough():
    def alone(self, now):
        self.high_watermark = max(self.high_watermark, self.synced_end)
        return self.high_watermark

    return planted(Leader, "advance", alone)


@mutant
def a_majority_is_enough():
    advance = Leader.advance

    def without_the_slowest(self, now):
        known = self.remotes
        by_end = sorted(known, key=lambda broker: known[broker].log_end)
        self.remotes = {b: known[b] for b in by_end[(len(known) + 1) // 2 :]}
        try:
            return advance(self, now)
        finally:
            self.remotes = known

    return planted(Leader, "advance", without_the_slowest)


@mutant
def who_has_not_fetched_yet_is_not_waited_for():
    advance = Leader.advance

    def impatient(self, now):
        known = self.remotes
        self.remotes = {b: remote for b, remote in known.items() if remote.log_end >= 0}
        try:
            return advance(self, now)
        finally:
            self.remotes = known

    return planted(Leader, "advance", impatient)


@mutant
def a_proposed_member_is_not_counted():
    return planted(Leader, "maximal_isr", property(lambda self: self.isr))


@mutant
def a_proposed_shrink_is_acted_upon():
    def at_once(self):
        return self.proposal.isr if self.proposal else self.isr

    return planted(Leader, "maximal_isr", property(at_once))


@mutant
def a_leader_counts_what_it_has_not_synced():
    return believing(Leader, "advance", synced_counts=False)


@mutant
def an_epoch_begins_behind_its_first_batch():
    append, assign = Log._append, EpochCache.assign

    def late(self, batch, header, now_ms):
        before = self.epochs.latest_epoch
        with planted(EpochCache, "assign", nothing):
            append(self, batch, header, now_ms)
        if header.leader_epoch > before:
            assign(self.epochs, header.leader_epoch, self.log_end)

    at_election = meanwhile(Replica, "become_leader", EpochCache, "assign", nothing)
    return both(at_election, planted(Log, "_append", late))


@mutant
def acks_all_is_answered_at_append():
    append = RecordHandlers._append

    def hasty(self, *args):
        return append(self, *args)[0], None

    return planted(RecordHandlers, "_append", hasty)


@mutant
def a_deposed_leader_acknowledges_what_it_has():
    let_go = Replica._let_go

    def generous(self, why):
        old = self.committed
        let_go(self, why)
        old.value = 1 << 60

    return planted(Replica, "_let_go", generous)


@mutant
def a_consumer_reads_up_to_the_log_end():
    read = Replica.read

    def further(self, offset, *, limit, **kwargs):
        return read(self, offset, limit=self.log.log_end, **kwargs)

    return planted(Replica, "read", further)


# -- producers -----------------------------------------------------------------------------------


@mutant
def duplicates_are_not_recognised():
    return planted(Producers, "check", nothing)


@mutant
def a_follower_learns_nothing_of_producers():
    return meanwhile(Following, "_store", Producers, "update", nothing)


@mutant
def producers_are_forgotten_at_a_restart():
    rebuild = Replica.rebuild_producers

    def forgets(self, *, now_ms):
        if self.leader_epoch >= 0:
            rebuild(self, now_ms=now_ms)

    return planted(Replica, "rebuild_producers", forgets)


# -- the disk ------------------------------------------------------------------------------------


@mutant
def a_log_is_trusted_after_a_crash():
    load = log_module.load

    def trusting(*args, clean, **kwargs):
        return load(*args, clean=True, **kwargs)

    return planted(log_module, "load", trusting)


@mutant
def the_disk_lies_about_syncs_of_partitions():
    begin = Sync.__init__

    def lazy(self, disk, files, directories=()):
        begin(self, disk, [file for file in files if "/topic-" not in file.path], directories)

    return planted(Sync, "__init__", lazy)


# -- groups --------------------------------------------------------------------------------------


@mutant
def a_group_is_told_before_it_is_kept():
    async def at_once(_):
        """Whatever becomes of the records."""

    return planted(coordinator.Appending, "committed", at_once)


@mutant
def a_new_coordinator_begins_without_groups():
    return planted(Group, "restore", lambda *_: None)


@mutant
def a_new_coordinator_reads_nothing():
    async def nothing(_):
        """What others kept."""

    return planted(coordinator.Coordinator, "_load", nothing)


@mutant
def a_group_forgets_what_it_committed():
    return planted(coordinator.Coordinator, "keep_offsets", lambda *_: None)
