"""A partition's leader: how far everybody is, who is in sync, and so what is committed. Pure.

There is no acknowledgement but the fetch: a replica that asks for records from offset n has
everything below n. The high watermark is the smallest log end over the maximal ISR and over a
replica about to join it; the leader's own end counts only up to what it has synced when the topic
says `flush=synced`. It never falls, and it does not advance while fewer than min.insync.replicas
are in sync, nor while others than the ISR may yet lead. Log ends are *next* offsets; `now` is
monotonic, in seconds.

The maximal ISR is what the controller may have by now: the ISR last seen in the metadata, and
whatever was proposed since. A proposal is given up only when newer metadata arrives or the
controller says that it has not been, and will not be, carried out. Sources: Kafka's Partition;
KIP-497, KIP-841, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted

UNKNOWN = -1
"""The log end of a replica that has not fetched in this leader epoch; its broker epoch, if it does
not say."""
NEVER = float("-inf")
_OVERTAKEN = (
    None,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
)
"""Answers that newer metadata follows, or is here already."""


@dataclass(slots=True)
class Contact:
    """When a follower was last heard of, in all partitions of its fetch session alike."""

    at: float


@dataclass(slots=True)
class Remote:
    """Another replica, by its fetches in this leader epoch."""

    caught_up_at: float
    """When it last had everything that the leader had."""
    log_end: int = UNKNOWN
    log_start: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    fetched_at: float = NEVER
    end_at_fetch: int = UNKNOWN
    """The leader's log end at its last fetch."""
    contact: Contact | None = None
    """Its session, while it waits there for more than `log_end`."""


class Proposal(NamedTuple):
    """An ISR that the controller is asked for, as of these epochs."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(slots=True, kw_only=True)
class Leader:
    """One leader epoch of one partition, as its leader sees it; it begins at `now`, and nothing is
    known of the others, who get a whole lag to show up."""

    now: InitVar[float]
    broker: int
    epoch: int
    replicas: Sequence[int]
    isr: tuple[int, ...]
    """As the metadata has it."""
    partition_epoch: int
    min_isr: int
    synced_counts: bool
    """Whether the own log end counts only up to what is synced."""
    is_contested: bool = False
    """Whether others than the ISR may yet lead: they hold what is committed, so nothing more is."""
    epoch_start: int
    """Where this epoch began; assigned at the log end before any append."""
    log_end: int
    synced_end: int
    high_watermark: int
    lag_max_s: float = 30.0
    """replica.lag.time.max.ms: how long a replica may not have caught up."""
    active: Mapping[int, int] = field(default_factory=dict)
    """The brokers that may join an ISR, neither fenced nor stopping → their epochs."""
    broker_epoch: int = UNKNOWN
    remotes: dict[int, Remote] = field(default_factory=dict)
    proposal: Proposal | None = None
    """On its way, or to be sent."""
    suspects: tuple[int, ...] = ()
    """Who may yet join by an earlier proposal that somebody may still be holding back."""
    is_settled: bool = False
    """Whether the proposal needs no further sending: newer metadata will end it."""

    def __post_init__(self, now: float) -> None:
        self._meet_replicas(now)
        self.check_invariants()

    # -- what is known ---------------------------------------------------------------------------

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, but no more than there are replicas."""
        return min(self.min_isr, len(self.replicas))

    @property
    def has_enough(self) -> bool:
        """Whether enough replicas are in sync."""
        return len(self.isr) >= self.effective_min_isr

    @property
    def may_commit(self) -> bool:
        """Whether the watermark may advance (KIP-966)."""
        return self.has_enough and not self.is_contested

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Everybody who may be in the controller's ISR by now."""
        # Who is proposed is waited for before it is known to be a member. If it were not:
        #   1. the leader, alone in sync, proposes {1, 2}; the controller grants it, and the answer
        #      is lost;
        #   2. the leader commits a record that 2 has not fetched yet, and acknowledges it;
        #   3. the leader dies, 2 leads by the ISR that was granted, and the record is gone.
        proposed = self.proposal.isr if self.proposal else ()
        return tuple(dict.fromkeys((*self.isr, *proposed, *self.suspects)))

    def waits_for(self, offset: int) -> list[int]:
        """The others who keep the watermark below an offset: in sync as far as is known, and not
        there yet."""
        ends = {broker: remote.log_end for broker, remote in self.remotes.items()}
        return [b for b in self.maximal_isr if b != self.broker and ends.get(b, UNKNOWN) < offset]

    def refuse_if_too_few(self) -> None:
        """Raise `Refused` NOT_ENOUGH_REPLICAS when acks=all cannot be kept now."""
        if not self.has_enough:
            raise self.too_few(ErrorCode.NOT_ENOUGH_REPLICAS)

    def too_few(self, code: ErrorCode) -> Refused:
        """The refusal that says how many replicas are missing."""
        return Refused(
            code,
            f"{counted(len(self.isr), 'replica is', 'replicas are')} in sync {list(self.isr)}, "
            f"min.insync.replicas is {self.effective_min_isr}",
        )

    def knows_its_watermark(self) -> bool:
        """Whether consumers may be told the end: the watermark reached this epoch's start
        (KIP-207)."""
        return self.high_watermark >= self.epoch_start

    def is_eligible(self, broker: int) -> bool:
        """Whether a replica may join the ISR: alive, and the process that fetched is the one that
        is registered (KIP-903)."""
        epoch = self.active.get(broker)
        remote = self.remotes.get(broker)
        return epoch is not None and remote is not None and remote.broker_epoch in (UNKNOWN, epoch)

    def low_watermark(self, log_start: int) -> int:
        """Where every live replica's log begins, or below: what lies under it is gone
        everywhere."""
        others = [r.log_start for broker, r in self.remotes.items() if broker in self.active]
        return min([log_start, *others])

    def nearest(self, offset: int, rack: str, rack_of: Callable[[int], str]) -> int:
        """Who should serve a consumer in `rack` that reads from `offset`: this leader or, in its
        place, the replica of that rack that is in sync, holds the offset and is furthest on
        (KIP-392)."""
        if rack_of(self.broker) == rack:
            return self.broker
        there = [
            (remote.log_end, -broker)
            for broker, remote in self.remotes.items()
            if broker in self.isr
            and broker in self.active
            and remote.log_start <= offset <= remote.log_end != UNKNOWN
            and rack_of(broker) == rack
        ]
        return -max(there)[1] if there else self.broker

    def is_caught_up(self, remote: Remote, now: float) -> bool:
        """Whether a replica has everything, or had it not too long ago."""
        return remote.log_end == self.log_end or now - remote.caught_up_at <= self.lag_max_s

    # -- events ----------------------------------------------------------------------------------

    def on_append(self, log_end: int, now: float) -> int:
        """The own log grew; the high watermark after that."""
        assert log_end >= self.log_end, f"log end fell from {self.log_end} to {log_end}"
        # While the end is what it was: who asks for no more has all up to there, and nothing after.
        for remote in self.remotes.values():
            self._believe_contact(remote)
        self.log_end = log_end
        return self.advance(now)

    def on_synced(self, synced_end: int, now: float) -> int:
        """The own log is durable up to there; the high watermark after that."""
        assert synced_end <= self.log_end, f"synced {synced_end} above log end {self.log_end}"
        self.synced_end = max(self.synced_end, synced_end)
        return self.advance(now)

    def on_fetch(
        self,
        broker: int,
        offset: int,
        now: float,
        *,
        log_start: int,
        broker_epoch: int,
        contact: Contact | None = None,
    ) -> int:
        """A replica fetched from `offset` in this epoch, by itself or as a part of its session, and
        its log agrees with this one up to there; the high watermark after that. May leave a
        proposal."""
        assert offset <= self.log_end, f"{broker} fetched from {offset}, above the end: {self}"
        remote = self.remotes[broker]
        # Who reaches by now what was the end at its fetch before had everything at that moment,
        # though under steady appends no fetch ever reaches the end of its own time.
        if offset >= self.log_end:
            remote.caught_up_at = now
        elif offset >= remote.end_at_fetch != UNKNOWN:
            remote.caught_up_at = max(remote.caught_up_at, remote.fetched_at)
        remote.log_end, remote.log_start, remote.broker_epoch = offset, log_start, broker_epoch
        remote.fetched_at, remote.end_at_fetch, remote.contact = now, self.log_end, contact
        self._expand(broker, remote)
        return self.advance(now)

    def forget_contact(self, contact: Contact) -> None:
        """A session has let go of this partition."""
        for remote in self.remotes.values():
            if remote.contact is contact:
                self._believe_contact(remote)
                remote.contact = None
        self.check_invariants()

    def _believe_contact(self, remote: Remote) -> None:
        """Who has everything and asks for no more has had it until it was last heard of."""
        if remote.contact is not None and remote.log_end == self.log_end:
            remote.caught_up_at = max(remote.caught_up_at, remote.contact.at)

    def use(self, *, min_isr: int, synced_counts: bool) -> None:
        """The topic's settings are others now; `advance` follows."""
        assert min_isr > 0, f"min.insync.replicas {min_isr}: {self}"
        self.min_isr, self.synced_counts = min_isr, synced_counts

    def on_brokers(self, active: Mapping[int, int]) -> None:
        """Others may join an ISR now, and others are waited for; `advance` follows."""
        assert UNKNOWN not in active.values(), f"who is active has an epoch: {active}"
        self.active = active

    def on_metadata(
        self,
        replicas: Sequence[int],
        isr: tuple[int, ...],
        partition_epoch: int,
        now: float,
        *,
        is_contested: bool = False,
    ) -> int:
        """The same leader epoch by newer metadata; the high watermark after that."""
        if partition_epoch > self.partition_epoch:
            for broker in self.isr:
                if broker not in isr and broker in self.remotes:
                    # It need not be about to join again: its replica may be offline.
                    self.remotes[broker].caught_up_at = NEVER
                    self.remotes[broker].contact = None
            self.replicas, self.isr, self.partition_epoch = replicas, isr, partition_epoch
            self.is_contested = is_contested
            self.proposal, self.suspects, self.is_settled = None, (), False
            self._meet_replicas(now)
        return self.advance(now)

    def on_answer(self, proposal: Proposal, error: ErrorCode | None, *, is_only_one: bool) -> None:
        """The controller answered a proposal, with yes (None) or an error.

        A yes is not carried out here: it comes back as metadata, and so does what overtook a
        proposal. When a member is refused, the proposal is off, but only if it was sent once
        (`is_only_one`): otherwise the lost one may be found and carried out later. Then the present
        ISR is proposed, which, once granted, makes all earlier proposals too old. After any other
        error the proposal is to be sent again.
        """
        if proposal is not self.proposal:
            return
        if error is ErrorCode.INELIGIBLE_REPLICA and is_only_one:
            self.proposal = None
        elif error is ErrorCode.INELIGIBLE_REPLICA:
            self.suspects = self.maximal_isr
            self._propose(self.isr)
        elif error in _OVERTAKEN:
            self.is_settled = True
        self.check_invariants()

    def drop_laggards(self, now: float) -> bool:
        """Propose an ISR without the members that have not caught up for too long; whether there
        are any."""
        if self.proposal is not None:
            return False
        lagging = [
            b for b in self.isr if b != self.broker and not self.is_caught_up(self.remotes[b], now)
        ]
        if lagging:
            self._propose(tuple(b for b in self.isr if b not in lagging))
        return bool(lagging)

    # -- consequences ----------------------------------------------------------------------------

    def advance(self, now: float) -> int:
        """Recompute the high watermark; it only rises."""
        if self.may_commit:
            maximal = self.maximal_isr
            ends = [self.synced_end if self.synced_counts else self.log_end]
            for broker, remote in self.remotes.items():
                if broker in maximal or self._is_joining(broker, remote, now):
                    ends.append(remote.log_end)
            self.high_watermark = max(self.high_watermark, min(ends))
        self.check_invariants()
        return self.high_watermark

    def _is_joining(self, broker: int, remote: Remote, now: float) -> bool:
        """Whether it is about to join: it is waited for, so that it need not chase the
        watermark."""
        is_known = remote.log_end != UNKNOWN
        return is_known and self.is_caught_up(remote, now) and self.is_eligible(broker)

    def _expand(self, broker: int, remote: Remote) -> None:
        """Propose a replica that has all that is committed, and all that earlier leaders left."""
        # The start of this epoch, too: a new leader's watermark may lie below what the last one
        # had committed, and who joins below that could lead next without it.
        has_all = remote.log_end >= max(self.high_watermark, self.epoch_start)
        if (
            has_all
            and self.proposal is None
            and broker not in self.isr
            and self.is_eligible(broker)
        ):
            self._propose((*self.isr, broker))

    def _propose(self, isr: tuple[int, ...]) -> None:
        epochs = [
            self.broker_epoch if b == self.broker else self.remotes[b].broker_epoch for b in isr
        ]
        self.proposal = Proposal(isr, tuple(epochs), self.epoch, self.partition_epoch)
        self.is_settled = False
        self.check_invariants()

    def _meet_replicas(self, now: float) -> None:
        """Keep a `Remote` for each other replica; new ones in the ISR count as caught up."""
        # Known of this epoch alone: each epoch has a `Leader` of its own. What a follower had in an
        # earlier one it may have cut since, under another leader in between, and a watermark that
        # counted it would rise over records that it lacks.
        known = self.remotes
        self.remotes = {
            b: known.get(b) or Remote(caught_up_at=now if b in self.isr else NEVER)
            for b in self.replicas
            if b != self.broker
        }

    def check_invariants(self) -> None:
        """Assert what this module's docstring promises."""
        assert self.high_watermark <= self.log_end, f"watermark above the log end: {self}"
        assert self.synced_end <= self.log_end, f"synced above the log end: {self}"
        assert self.broker in self.replicas, f"leader is no replica: {self}"
        assert self.broker in self.isr, f"leader is not in sync with itself: {self}"
        proposed = self.proposal.isr if self.proposal else self.isr
        assert self.broker in proposed, f"leader proposes to leave: {self}"
        assert len({*proposed}) == len(proposed), f"somebody is proposed twice: {self}"
