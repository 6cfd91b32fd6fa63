"""Bugs planted in the replication of partitions: its leaders, followers, producers and controller.

Not a test, as with `mutants.py`: each context breaks one rule, and `test_replication_mutants.py`
shows that the simulation notices it.
"""

from contextlib import contextmanager

import msgspec
from mutants import Mutant, planted

from hightide_broker.core import partition_changes
from hightide_broker.core.brokers import Brokers
from hightide_broker.core.follower import Follower, Truncate
from hightide_broker.core.leader import Leader
from hightide_broker.core.partitions import Partitions
from hightide_broker.core.producers import Producers
from hightide_broker.runtime import fetch_handler, fetcher, following
from hightide_broker.runtime.fetch_handler import FetchHandler
from hightide_broker.runtime.following import Following
from hightide_broker.runtime.handlers import RecordHandlers
from hightide_broker.runtime.isr import IsrChanges
from hightide_broker.runtime.replica import Replica
from hightide_broker.runtime.replicas import Replicas
from hightide_broker.simulation.disk import SimDisk
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


# -- followers -----------------------------------------------------------------------------------


@mutant
def a_follower_that_differs_cuts_at_its_watermark():
    on_result = Follower.on_result

    def at_watermark(self, asked, result, log, now):
        step = on_result(self, asked, result, log, now)
        return Truncate(asked.high_watermark) if isinstance(step, Truncate) else step

    return planted(Follower, "on_result", at_watermark)


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
def a_late_answer_is_applied():
    return planted(Follower, "_is_stale", lambda self, asked, log: False)


@mutant
def an_answer_from_an_older_epoch_is_applied():
    def by_offset(self, asked, log):
        return asked.fetch_offset != log.log_end

    return planted(Follower, "_is_stale", by_offset)


@mutant
def an_answer_is_applied_though_the_log_end_moved():
    def by_epoch(self, asked, log):
        return asked.current_leader_epoch != self.epoch

    return planted(Follower, "_is_stale", by_epoch)


@mutant
def a_follower_acknowledges_what_it_has_not_synced():
    return planted(fetcher, "owes_sync", lambda replica: False)


@mutant
def a_follower_takes_over_a_watermark_above_its_end():
    append = Following._append

    def believing_it(self, replica, step, data, now):
        done = append(self, replica, step, data, now)
        replica.committed.advance(max(replica.committed.value, step.high_watermark))
        return done

    return planted(Following, "_append", believing_it)


@mutant
def batches_of_a_newer_epoch_are_taken():
    checked = following._checked
    return planted(following, "_checked", lambda data, leader_epoch: checked(data, 1 << 30))


@mutant
def a_cut_does_not_lower_the_watermark():
    return planted(Replica, "lower_watermark", nothing)


@mutant
def a_cut_does_not_lower_the_recovery_point():
    return planted(Replicas, "lower_recovery_point", lambda self, replica, offset: True)


@mutant
def epochs_are_not_cut_with_the_log():
    return planted(EpochCache, "truncate_from_end", lambda self, end_offset: False)


@mutant
def a_sync_that_a_cut_overtook_counts():
    finish = Log.finish_sync

    def forgetful(self, job):
        return finish(self, job._replace(cuts=self._cuts))

    return planted(Log, "finish_sync", forgetful)


# -- leaders -------------------------------------------------------------------------------------


@mutant
def no_leader_epoch_is_checked():
    return planted(Replica, "check_epoch", lambda self, current_leader_epoch: self.log and None)


@mutant
def divergence_goes_unnoticed():
    return planted(fetch_handler, "_divergence", nothing)


@mutant
def a_fetch_counts_although_the_logs_differ():
    check = FetchHandler._check_follower

    def counting(self, request, part, replica):
        check(self, request, part, replica)
        self._acknowledge(request, part, replica)

    return planted(FetchHandler, "_check_follower", counting)


@mutant
def log_ends_of_an_older_epoch_count():
    become, resign = Replica.become_leader, Replica.resign

    def keeping(self, leader_epoch, why):
        if self.leader is not None:
            self.remembered = self.leader.remotes
        resign(self, leader_epoch, why)

    def remembering(self, state, **kwargs):
        become(self, state, **kwargs)
        for broker, remote in getattr(self, "remembered", {}).items():
            if broker in self.leader.remotes:
                self.leader.remotes[broker].log_end = remote.log_end
        self.recompute()
        self.tell(self)

    return both(planted(Replica, "resign", keeping), planted(Replica, "become_leader", remembering))


@mutant
def one_copy_is_enough():
    def alone(self, now):
        self.high_watermark = max(self.high_watermark, self.synced_end)
        return self.high_watermark

    return planted(Leader, "advance", alone)


@mutant
def a_proposed_member_is_not_counted():
    return planted(Leader, "maximal_isr", property(lambda self: self.isr))


@mutant
def a_proposed_shrink_is_acted_upon():
    def at_once(self):
        return self.proposal.isr if self.proposal else self.isr

    return planted(Leader, "maximal_isr", property(at_once))


@mutant
def a_proposal_without_an_answer_is_dropped():
    send = IsrChanges._send

    async def giving_up(self, proposed):
        granted = await send(self, proposed)
        for replica, proposal in proposed:
            is_lost = self._unanswered.pop(replica, None) is proposal
            if is_lost and replica.leader is not None and replica.leader.proposal is proposal:
                replica.leader.proposal = None
                replica.recompute()
        return granted

    return planted(IsrChanges, "_send", giving_up)


@mutant
def a_refused_proposal_is_dropped_though_it_was_sent_before():
    on_answer = Leader.on_answer

    def forgetful(self, proposal, error, *, is_only_one):
        on_answer(self, proposal, error, is_only_one=True)

    return planted(Leader, "on_answer", forgetful)


@mutant
def a_replica_joins_without_what_earlier_leaders_left():
    return believing(Leader, "_expand", epoch_start=0)


@mutant
def a_replica_joins_with_whatever_it_has():
    return believing(Leader, "_expand", epoch_start=0, high_watermark=0)


@mutant
def records_commit_with_too_few_in_sync():
    return believing(Leader, "advance", min_isr=1)


@mutant
def a_leader_counts_what_it_has_not_synced():
    return believing(Leader, "advance", synced_counts=False)


@mutant
def an_epoch_begins_nowhere():
    return meanwhile(Replica, "become_leader", EpochCache, "assign", nothing)


@mutant
def an_epoch_begins_behind_its_first_batch():
    append, assign = Log._append, EpochCache.assign

    def late(self, batch, header, now_ms):
        before = self.epochs.latest_epoch
        with planted(EpochCache, "assign", nothing):
            append(self, batch, header, now_ms)
        if header.leader_epoch > before:
            assign(self.epochs, header.leader_epoch, self.log_end)

    return both(an_epoch_begins_nowhere(), planted(Log, "_append", late))


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
def producers_are_not_rebuilt_after_a_cut():
    return meanwhile(Following, "_cut", Replica, "rebuild_producers", nothing)


@mutant
def producers_are_forgotten_at_a_restart():
    rebuild = Replica.rebuild_producers

    def forgetful(self, *, now_ms):
        if self.leader_epoch >= 0:
            rebuild(self, now_ms=now_ms)

    return planted(Replica, "rebuild_producers", forgetful)


@mutant
def a_snapshot_holds_only_the_last_batch_of_a_producer():
    snapshot = Producers.snapshot

    def short(self):
        kept = Producers()
        for producer_id, known in self._by_id.items():
            last = type(known)(known.epoch)
            last.batches.extend([*known.batches][-1:])
            kept._by_id[producer_id] = last
        return snapshot(kept)

    return planted(Producers, "snapshot", short)


@mutant
def a_snapshot_says_more_than_lies_below_it():
    rolled = Replica.rolled

    def early(self, log, stored):
        self.producers.update(stored, now_ms=0)
        rolled(self, log, stored)

    return planted(Replica, "rolled", early)


# -- the controller ------------------------------------------------------------------------------


@mutant
def anybody_alive_may_lead():
    rules = Partitions._rules

    def unclean(self, *args):
        return rules(self, *args)._replace(unclean=True)

    return planted(Partitions, "_rules", unclean)


@mutant
def whoever_was_eligible_stays_so():
    settle = partition_changes._settle

    def generous(old, rules, isr, forgetful):
        return settle(old, rules._replace(min_isr=99), isr, forgetful)

    return planted(partition_changes, "_settle", generous)


@mutant
def a_broker_that_comes_back_goes_on_as_before():
    return meanwhile(Brokers, "register", Partitions, "leaving", lambda *args: [])


@mutant
def an_unclean_restart_keeps_its_eligibility():
    leaving = Partitions.leaving
    return planted(Partitions, "leaving", lambda self, broker, forgets=None: leaving(self, broker))


@mutant
def partition_epochs_are_not_checked():
    grant = Partitions._grant

    def careless(self, sender, wish):
        topic = self._image.topics_by_id[wish.topic_id]
        epoch = topic.partitions[wish.partition].partition_epoch
        return grant(self, sender, msgspec.structs.replace(wish, partition_epoch=epoch))

    return planted(Partitions, "_grant", careless)


@mutant
def members_need_not_be_alive():
    return planted(Partitions, "_check_isr", nothing)


# -- the disk ------------------------------------------------------------------------------------


@mutant
def a_log_is_trusted_after_a_crash():
    load = log_module.load

    def trusting(*args, clean, **kwargs):
        return load(*args, clean=True, **kwargs)

    return planted(log_module, "load", trusting)


@mutant
def what_a_scan_found_counts_as_synced():
    open_log = Replicas._open_log

    def trusting(self, *args):
        opened, why = open_log(self, *args)
        if opened is not None:
            opened.synced_end = opened.log_end
        return opened, why

    return planted(Replicas, "_open_log", trusting)


@mutant
def the_disk_lies_about_syncs_of_partitions():
    sync = SimDisk.sync

    async def lazy(self, files, directories=()):
        files = [file for file in files if "/topic-" not in file.path]
        await sync(self, files, directories)

    return planted(SimDisk, "sync", lazy)
