"""The checker of replicas: what was ever committed, and what every replica must make of it.

It is told of each replica after each change, knows the newest metadata that any node has applied,
and raises `Violation` on the first step that breaks a promise:

* one leader per partition and epoch; leader epochs and watermarks never fall on a replica;
* what a leader commits is on every member of the controller's ISR, at its offset, with its bytes,
  and on disk where the topic says so; it never changes;
* a leader that is elected has everything that was ever committed;
* a leader of the controller's epoch reckons with at least the controller's ISR;
* nobody in sync cuts anything that is committed; nobody takes more for committed than leaders do;
* no replica takes what is stored for damaged, but where a disk rots, or where a topic has the name
  of one that was deleted, whose directory says nothing else than one with a flipped bit would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hightide.protocol.records import BatchHeader
from hightide_broker.core.cluster.image import ClusterImage, PartitionState
from hightide_broker.core.cluster.partition_changes import LogEnd
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import SegmentDamage

Key = tuple[str, int]
"""(topic id, partition)."""


class StoredBatch(NamedTuple):
    """What is committed at an offset."""

    next_offset: int
    epoch: int
    crc: int

    @classmethod
    def of(cls, header: BatchHeader) -> StoredBatch:
        return cls(header.next_offset, header.leader_epoch, header.crc)


@dataclass(slots=True)
class _Committed:
    """What is known to be committed of one partition."""

    end: int = 0
    batches: dict[int, StoredBatch] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    """Leader epoch → the machine that leads it."""
    ends: dict[int, int] = field(default_factory=dict)
    """Leader epoch → how far its leader committed."""
    top: int = 0
    """How far it was ever committed, before some of it was lost."""
    lost_with: int = -1
    """The leader epoch of that time: who led until then and goes on knows of nothing lost."""

    def held(self, by: Iterable[BatchHeader]) -> dict[int, StoredBatch]:
        """What of it is held."""
        left = {(header.base_offset, StoredBatch.of(header)) for header in by}
        return {base: each for base, each in self.batches.items() if (base, each) in left}

    def keep(self, held: Iterable[BatchHeader]) -> int:
        """Nothing else is committed any more; where what is ends."""
        self.batches = self.held(held)
        self.end = max((each.next_offset for each in self.batches.values()), default=0)
        self.ends = {epoch: min(end, self.end) for epoch, end in self.ends.items()}
        return self.end

    def before(self, epoch: int) -> int:
        """What the leaders before an epoch committed. An old leader that hears late of its election
        need not have what later ones did."""
        return max((end for older, end in self.ends.items() if older < epoch), default=0)


@dataclass(slots=True)
class _Seen:
    """A replica as it was told of last."""

    replica: Replica
    leader_epoch: int = -1
    log_end: int = 0
    watermark: int = 0


class ReplicaChecker:
    """The partitions of one world."""

    def __init__(self, check: Callable[[bool, str], None]) -> None:
        self.commits = 0
        self.losses = 0
        """How often committed records were lost, as may be."""
        self.elections = 0
        self.cuts = 0
        self.flush_changes = False
        """Whether what had to be on disk when it was acknowledged is not known."""
        self.rotten = -1
        """The node whose disk rots."""
        self.on_change: Callable[[Key, int], None] = lambda key, since: None
        """Called with a partition that another state is known of than at this metadata offset."""
        self._check = check
        self._offset = -1
        self._truth: dict[Key, PartitionState] = {}
        self._committed: dict[Key, _Committed] = {}
        self._seen: dict[tuple[int, Key], _Seen] = {}
        self._given_up: dict[Key, LogEnd] = {}
        self._ids: dict[str, str] = {}
        """Topic → the first one of the name, by id."""

    def metadata(self, image: ClusterImage) -> None:
        """Some node has applied the metadata up to here."""
        if image.offset > self._offset:
            before, since, self._offset = self._truth, self._offset, image.offset
            for name, topic in image.topics.items():
                self._ids.setdefault(name, topic.topic_id)
            self._truth = {
                (topic.topic_id, number): state
                for topic in image.topics.values()
                for number, state in enumerate(topic.partitions)
            }
            for key, state in self._truth.items():
                if key in before and state != before[key]:
                    self.on_change(key, since)
                    self._check_joined(key, {*state.isr} - {*before[key].isr})

    def _check_joined(self, key: Key, members: set[int]) -> None:
        """A broker that has just become a member of the ISR has all that is committed."""
        committed = self._committed.get(key)
        for member in sorted(members):
            seen = self._seen.get((member, key))
            if committed and seen and not seen.replica.offline:
                end = seen.replica.log.log_end
                self._check(
                    end >= committed.end,
                    f"{member} joins the ISR of {seen.replica!r} with {end} of {committed.end}",
                )

    def give_up(self, key: Key, left: list[Log]) -> int:
        """An operator will elect uncleanly: only what one of these logs has is committed now, and
        the next leader has the longest of them. Where what is committed ends."""
        self._given_up[key] = max(map(_end_of, left), default=LogEnd(-1, 0))
        headers = (header for log in left for header in log.headers(0))
        return self._committed.setdefault(key, _Committed()).keep(headers)

    def lose(self, key: Key, held: Iterable[BatchHeader]) -> tuple[int, int]:
        """Nobody who may lead holds more than this any more: what else was committed is lost, from
        the first offset returned up to the second."""
        committed = self._committed.setdefault(key, _Committed())
        top, end = committed.end, committed.keep(held)
        if end < top:
            self.losses += 1
            committed.top = max(committed.top, top)
            committed.lost_with = self._truth[key].leader_epoch
        return end, top

    def holds_all(self, key: Key, held: Iterable[BatchHeader]) -> bool:
        """Whether these are all that is committed of a partition, and more or not."""
        committed = self._committed.get(key)
        return committed is None or len(committed.held(held)) == len(committed.batches)

    def partitions(self) -> list[Key]:
        """Those there are, by the newest metadata."""
        return [*self._truth]

    def may_lead(self, key: Key) -> tuple[str, set[int]]:
        """The name of a partition's topic, and who may lead it by the newest metadata."""
        state = self._truth[key]
        (name,) = (name for name, topic_id in self._ids.items() if topic_id == key[0])
        return name, {*state.isr, *state.elr, *state.last_known_elr}

    def isr(self, key: Key) -> set[int]:
        """Who is in sync by the newest metadata."""
        return {*self._truth[key].isr} if key in self._truth else set()

    def committed_end(self, key: Key) -> int:
        """Before which offset everything is committed."""
        return self._committed[key].end if key in self._committed else 0

    def died(self, node: int) -> None:
        """A node's process is gone, and its replicas with it."""
        for place in [place for place in self._seen if place[0] == node]:
            del self._seen[place]

    def ghost_changed(self, machine: str, replica: Replica) -> None:
        """A replica of a process that was replaced: it may not lead an epoch of its successor's.
        What it commits is committed, as with every leader that hears late of the next one.
        """
        if replica.leader is not None and not replica.offline:
            key, who = (replica.topic_id, replica.partition), f"{replica!r} on {machine}"
            committed = self._committed.setdefault(key, _Committed())
            self._check_alone(machine, replica, committed, who)
            if replica.high_watermark > committed.end:
                self._commit(key, replica, committed, who)

    def _check_alone(self, machine: str, replica: Replica, committed: _Committed, who: str) -> None:
        first = committed.leaders.setdefault(replica.leader_epoch, machine)
        self._check(first == machine, f"{who}: {first} leads epoch {replica.leader_epoch}")

    def replica_changed(self, node: int, replica: Replica, machine: str) -> None:
        """A replica of the node that runs on this machine has another role or another offset."""
        key = (replica.topic_id, replica.partition)
        seen = self._seen.get((node, key))
        if seen is None or seen.replica is not replica:
            seen = self._seen[(node, key)] = _Seen(replica)
        who = f"{replica!r} on node {node}"
        if replica.offline:
            is_remade = self._ids.get(replica.topic, replica.topic_id) != replica.topic_id
            is_right = not replica.is_damaged or node == self.rotten or is_remade
            self._check(is_right, f"{who} is called damaged: {replica.offline}")
            return
        committed = self._committed.setdefault(key, _Committed())
        self._check_steps(node, seen, committed, who)
        if replica.leader is not None:
            self._check_alone(machine, replica, committed, who)
            self._check_leader(replica, seen, committed, who)
        else:
            self._check(
                replica.high_watermark <= max(committed.end, committed.top),
                f"{who}: only {committed.end} is committed",
            )
        seen.leader_epoch, seen.log_end = replica.leader_epoch, replica.log.log_end
        seen.watermark = replica.high_watermark

    def _check_steps(self, node: int, seen: _Seen, committed: _Committed, who: str) -> None:
        """A replica against what it was before."""
        replica = seen.replica
        log_end = replica.log.log_end
        self._check(
            replica.leader_epoch >= seen.leader_epoch,
            f"{who}: leader epoch was {seen.leader_epoch}",
        )
        if log_end < seen.log_end:
            self.cuts += 1
            in_sync = node in self.isr((replica.topic_id, replica.partition))
            self._check(
                not in_sync or log_end >= committed.end,
                f"{who} was cut below {committed.end}, which is committed, while it is in sync",
            )
        else:
            self._check(
                replica.high_watermark >= seen.watermark, f"{who}: watermark was {seen.watermark}"
            )

    def _check_leader(self, replica: Replica, seen: _Seen, committed: _Committed, who: str) -> None:
        leader = replica.leader
        assert leader is not None
        if seen.leader_epoch != leader.epoch:
            self.elections += 1
            best = self._given_up.pop((replica.topic_id, replica.partition), LogEnd(-1, 0))
            self._check(_end_of(replica.log) >= best, f"{who} is elected, {best} was there")
            end, log_end = committed.before(leader.epoch), replica.log.log_end
            self._check_holds(replica, committed, f"{who}, elected,", log_end, end=end)
        key = (replica.topic_id, replica.partition)
        state = self._truth.get(key)
        if state is not None and state.leader_epoch == leader.epoch:
            missing = {*state.isr} - {*leader.maximal_isr}
            self._check(
                not missing, f"{who} does not reckon with {sorted(missing)} of ISR {state.isr}"
            )
        if replica.high_watermark > seen.watermark:
            self._check(leader.has_enough, f"{who} commits with ISR {leader.isr}")
            knows = state is not None and state.partition_epoch == leader.partition_epoch
            may_lead = (*state.elr, *state.last_known_elr) if state is not None and knows else ()
            self._check(not may_lead, f"{who} commits, and {may_lead} may yet lead")
        if replica.high_watermark > committed.end and leader.epoch > committed.lost_with:
            self._commit(key, replica, committed, who)

    def _commit(self, key: Key, replica: Replica, committed: _Committed, who: str) -> None:
        """A leader commits more: note it, and look whether those in sync have it."""
        start, end = committed.end, replica.high_watermark
        for header in replica.log.headers(start):
            if header.next_offset > end:
                break
            batch = StoredBatch.of(header)
            known = committed.batches.setdefault(header.base_offset, batch)
            self._check(known == batch, f"{who} commits {batch}, it was {known}")
        committed.end = end
        assert replica.leader is not None
        committed.ends[replica.leader.epoch] = end
        self.commits += 1
        for member in sorted(self.isr(key)):
            other = self._seen.get((member, key))
            if other is not None and not other.replica.offline:
                whose = f"{who} commits {end}, and {member}"
                ends = self._promised(other.replica)
                self._check_holds(other.replica, committed, whose, ends, start=start)

    def _check_holds(
        self,
        replica: Replica,
        committed: _Committed,
        who: str,
        counted_end: int,
        *,
        start: int = 0,
        end: int | None = None,
    ) -> None:
        """A replica has everything from `start` to `end` that is committed, below what counts."""
        log = replica.log
        start, end = max(start, log.log_start), committed.end if end is None else end
        self._check(counted_end >= end, f"{who} has only {counted_end} of {end}: {log}")
        if replica.config.is_compacted:
            return  # its batches may be rewritten; its readers look at what they say
        try:
            held = {header.base_offset: StoredBatch.of(header) for header in log.headers(start)}
        except SegmentDamage:
            return  # a rotten disk: it is the replica's to find that out, when it reads
        for base in reversed(committed.batches):
            batch = committed.batches[base]
            if batch.next_offset <= start:
                break
            if log.log_start <= base < end:
                found = held.get(base)
                same = found == batch or (found is not None and _is_rotten(log, base))
                self._check(same, f"{who} has {found} at {base}, not {batch}")

    def _promised(self, replica: Replica) -> int:
        """What a replica in sync has acknowledged: on disk, or in the page cache."""
        is_synced = replica.config.synced and not self.flush_changes
        return replica.log.synced_end if is_synced else replica.log.log_end

    # -- the end ---------------------------------------------------------------------------------

    def check_equal(self, key: Key) -> None:
        """All replicas that run have what is committed, and epochs that agree with it; but for
        that on the `rotten` node, which may have damage that nobody has met yet."""
        found = [
            (node, seen.replica)
            for (node, of), seen in sorted(self._seen.items())
            if of == key and node != self.rotten
        ]
        committed = self._committed[key]
        for node, replica in found:
            who = f"at the end {replica!r} on node {node}"
            self._check_holds(replica, committed, who, self._promised(replica))
            held = list(replica.log.headers(replica.log.log_start))
            spans = [(header.base_offset, header.next_offset) for header in held]
            epochs = [replica.log.epochs.epoch_for_offset(base) for base, _ in spans]
            self._check(
                epochs == [header.leader_epoch for header in held],
                f"{replica!r} on node {node}: epochs {replica.log.epochs} of batches {spans}",
            )
            replica.log.check_invariants()


def _end_of(log: Log) -> LogEnd:
    return LogEnd(log.epochs.epoch_for_offset(log.log_end - 1), log.log_end)


def _is_rotten(log: Log, offset: int) -> bool:
    """Whether a batch says what its checksum denies: the replica notices when it reads it."""
    try:
        log.read(offset, max_bytes=1)
    except SegmentDamage:
        return True
    return False
