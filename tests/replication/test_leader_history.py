"""A partition's leader under any events in any order, alone and against a real controller.

Goal: the watermark is what its rule says and never falls; and whatever the network does with
proposals, their answers, metadata and fetches, those whom the controller has in the ISR has all
that is committed, and a calm brings everybody back. Method: two Hypothesis state machines. One
throws any events at a leader and works the watermark out again from everything that happened. The
other lets a leader, followers with real log ends and the controller talk through messages that may
be late, lost, or found again.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from controller_cluster import ControlledCluster
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from test_leader import LAG_S, leader
from tries import tries

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.replication.leader import UNKNOWN, Leader, Proposal

REPLICAS = (1, 2, 3)
others = st.sampled_from(REPLICAS[1:])
isrs = st.sampled_from([(1,), (1, 2), (3, 1), (1, 2, 3)])
few = st.integers(0, 5)
errors = st.sampled_from([None, *ErrorCode, *[ErrorCode.INELIGIBLE_REPLICA] * 20])
moments = st.sampled_from([0.0, 0.5, LAG_S / 2, LAG_S, LAG_S + 1])


class Fetch(NamedTuple):
    """What a replica said, when, and where the leader's log ended then."""

    at: float
    offset: int
    leader_end: int
    broker_epoch: int


class AnyOrder(RuleBasedStateMachine):
    """Events that need not make sense together; what is expected is found in their history."""

    @initialize(
        isr=isrs, start=few, known=few, min_isr=st.integers(1, 4), synced_counts=st.booleans()
    )
    def begin(
        self, isr: tuple[int, ...], start: int, known: int, min_isr: int, synced_counts: bool
    ) -> None:
        self.now = 100.0
        self.watermark = min(start, known)
        self.leader = leader(
            now=self.now,
            replicas=REPLICAS,
            isr=isr,
            log_end=start,
            high_watermark=self.watermark,
            min_isr=min_isr,
            synced_counts=synced_counts,
        )
        self.end = self.synced = self.start = start
        self.isr, self.partition_epoch = isr, 7
        self.active = dict(self.leader.active)
        self.began_with = {*isr}
        self.fetches: dict[int, list[Fetch]] = {2: [], 3: []}
        self.removed_after = {2: 0, 3: 0}
        """How many fetches there had been when the metadata removed it last: what they said of when
        it was caught up is forgotten."""
        self.seen: list[Proposal] = []
        self.may_be_in = {*isr}
        self.suspects: set[int] = set()

    # -- what is expected ------------------------------------------------------------------------

    def caught_up_at(self, broker: int) -> float:
        moments = [100.0] if broker in self.began_with else []
        before = None
        for number, fetch in enumerate(self.fetches[broker]):
            if number >= self.removed_after[broker]:
                if fetch.offset >= fetch.leader_end:
                    moments.append(fetch.at)
                if before is not None and fetch.offset >= before.leader_end:
                    moments.append(before.at)
            before = fetch
        return max(moments, default=float("-inf"))

    def log_end(self, broker: int) -> int:
        return self.fetches[broker][-1].offset if self.fetches[broker] else UNKNOWN

    def lags(self, broker: int) -> bool:
        return self.log_end(broker) != self.end and self.now - self.caught_up_at(broker) > LAG_S

    def may_join(self, broker: int) -> bool:
        epoch = self.active.get(broker)
        said = [fetch.broker_epoch for fetch in self.fetches[broker][-1:]]
        return epoch is not None and said in ([UNKNOWN], [epoch])

    def candidate(self) -> int:
        ends = [self.synced if self.leader.synced_counts else self.end]
        for broker in self.fetches:
            about_to_join = self.may_join(broker) and not self.lags(broker)
            if broker in self.may_be_in or about_to_join:
                ends.append(self.log_end(broker))
        return min(ends)

    def expect(self, told: int) -> None:
        """The watermark after an event, and nothing else that it may not have touched."""
        if len(self.isr) >= min(self.leader.min_isr, len(REPLICAS)):
            self.watermark = max(self.watermark, self.candidate())
        assert told == self.leader.high_watermark == self.watermark
        assert self.watermark <= self.end

    def look(self) -> None:
        """Take note of a new proposal."""
        proposal = self.leader.proposal
        if proposal is not None and not any(proposal is old for old in self.seen):
            assert proposal[2:] == (4, self.partition_epoch)
            assert 1 in proposal.isr
            self.seen.append(proposal)
            self.may_be_in |= {*proposal.isr}

    # -- events ----------------------------------------------------------------------------------

    @rule(more=few)
    def append(self, more: int) -> None:
        self.end += more
        self.expect(self.leader.on_append(self.end, self.now))

    @rule(less=few)
    def sync(self, less: int) -> None:
        told = max(0, self.end - less)
        self.synced = max(self.synced, told)
        self.expect(self.leader.on_synced(told, self.now))

    @rule(broker=others, less=few, said=st.sampled_from([UNKNOWN, 0, 0, 0, 1]))
    def fetch(self, broker: int, less: int, said: int) -> None:
        offset = max(0, self.end - less)
        epoch = said if said == UNKNOWN else 100 + broker + said
        self.fetches[broker].append(Fetch(self.now, offset, self.end, epoch))
        free = self.leader.proposal is None
        joins = (
            free
            and broker not in self.isr
            and self.may_join(broker)
            and offset >= max(self.start, self.watermark)
        )
        told = self.leader.on_fetch(broker, offset, self.now, log_start=0, broker_epoch=epoch)
        proposal = self.leader.proposal
        assert (free and proposal is not None) is joins
        if joins:
            assert proposal is not None
            assert proposal.isr == (*self.isr, broker)
            assert proposal.broker_epochs[-1] == epoch
        self.look()
        self.expect(told)

    @rule(isr=isrs, newer=st.integers(-2, 2))
    def metadata(self, isr: tuple[int, ...], newer: int) -> None:
        if newer > 0:
            self.partition_epoch += newer
            for broker in {*self.isr} - {*isr, 1}:
                self.began_with.discard(broker)
                self.removed_after[broker] = len(self.fetches[broker])
            self.isr, self.may_be_in, self.suspects = isr, {*isr}, set()
        epoch = self.partition_epoch + min(newer, 0)
        before = self.leader.proposal
        told = self.leader.on_metadata(REPLICAS, isr, epoch, self.now)
        assert self.leader.proposal is (None if newer > 0 else before)
        self.expect(told)

    @precondition(lambda self: self.seen)
    @rule(back=st.sampled_from([0, 0, 0, 1, 2]), error=errors, is_only_one=st.booleans())
    def answer(self, back: int, error: ErrorCode | None, is_only_one: bool) -> None:
        """To the proposal that is on its way, or to an older one."""
        of = self.seen[max(0, len(self.seen) - 1 - back)]
        before = self.leader.proposal
        self.leader.on_answer(of, error, is_only_one=is_only_one)
        if of is before and error is ErrorCode.INELIGIBLE_REPLICA:
            if is_only_one:
                assert self.leader.proposal is None
                self.may_be_in = {*self.isr} | self.suspects
            else:
                self.suspects |= self.may_be_in
                assert self.leader.proposal is not None
                assert self.leader.proposal.isr == self.isr
        else:
            assert self.leader.proposal is before
        self.look()
        self.expect(self.leader.advance(self.now))

    @rule()
    def drop(self) -> None:
        free = self.leader.proposal is None
        lagging = [broker for broker in self.isr if broker != 1 and self.lags(broker)]
        assert self.leader.drop_laggards(self.now) is (free and bool(lagging))
        if free and lagging:
            assert self.leader.proposal is not None
            assert self.leader.proposal.isr == tuple(b for b in self.isr if b not in lagging)
        self.look()
        self.expect(self.leader.advance(self.now))

    @rule(seconds=moments)
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.expect(self.leader.advance(self.now))

    @rule(active=st.dictionaries(others, st.sampled_from([0, 0, 1])))
    def brokers(self, active: dict[int, int]) -> None:
        self.active = {broker: 100 + broker + newer for broker, newer in active.items()}
        self.leader.active = self.active
        self.expect(self.leader.advance(self.now))

    @rule(min_isr=st.integers(1, 4), synced_counts=st.booleans())
    def configure(self, min_isr: int, synced_counts: bool) -> None:
        self.leader.min_isr, self.leader.synced_counts = min_isr, synced_counts
        self.expect(self.leader.advance(self.now))

    @invariant()
    def everybody_who_may_be_in_counts(self) -> None:
        assert {*self.leader.maximal_isr} == self.may_be_in
        assert self.leader.isr == self.isr
        assert self.leader.synced_end == self.synced


# With a controller.


class Request:
    """A proposal in the network; `answer` when the controller has handled it."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self.is_handled = False
        self.error: ErrorCode | None = None


class WithController(RuleBasedStateMachine):
    """Broker 1 leads; 2 and 3 follow, restart and lose records, are fenced and come back."""

    @initialize(isr=isrs, pace=st.sampled_from([0.0, LAG_S + 1, LAG_S + 1]))
    def begin(self, isr: tuple[int, ...], pace: float) -> None:
        self.cluster = ControlledCluster(*REPLICAS)
        self.cluster.create("a", assignment=[[*REPLICAS]])
        self.cluster.alter_isr("a", *isr)
        self.states = [self.cluster.partition("a")]
        (first,) = self.states
        self.pace = pace
        """What passes before an append; a replica that lags is not waited for any more."""
        self.now = 0.0
        self.leader: Leader = leader(
            replicas=first.replicas,
            isr=first.isr,
            epoch=first.leader_epoch,
            partition_epoch=first.partition_epoch,
            broker_epoch=self.epoch(1),
            synced_counts=False,
        )
        self.real_end = {2: 0, 3: 0}
        self.known_epochs: dict[int, int] = {}
        self.old_fetches: list[tuple[int, int, int]] = []
        self.request: Request | None = None
        self.lost: list[Request] = []
        self.unanswered: list[Proposal] = []
        self.learn_brokers()

    def epoch(self, broker: int) -> int:
        return self.cluster.image.brokers[broker].epoch

    def changed(self) -> None:
        """The controller may have changed the partition."""
        state = self.cluster.partition("a")
        assert (state.leader, state.leader_epoch) == (1, self.leader.epoch)
        if state != self.states[-1]:
            self.states.append(state)

    # -- records ---------------------------------------------------------------------------------

    @rule(more=few)
    def append(self, more: int) -> None:
        self.now += self.pace
        self.leader.on_append(self.leader.log_end + more, self.now)

    @rule(broker=others, most=st.sampled_from([0, 1, 3, 99]))
    def fetch(self, broker: int, most: int) -> None:
        offset, epoch = self.real_end[broker], self.epoch(broker)
        self.old_fetches.append((broker, offset, epoch))
        self.leader.on_fetch(broker, offset, self.now, log_start=0, broker_epoch=epoch)
        self.real_end[broker] = min(self.leader.log_end, offset + most)

    @precondition(lambda self: self.old_fetches)
    @rule(back=st.integers(0, 9))
    def an_old_fetch_arrives_again(self, back: int) -> None:
        """Perhaps of a process that is no more; it is refused only if the leader knows that."""
        broker, offset, epoch = self.old_fetches[-1 - back % len(self.old_fetches)]
        if epoch >= self.known_epochs[broker]:
            self.leader.on_fetch(broker, offset, self.now, log_start=0, broker_epoch=epoch)

    # -- brokers ---------------------------------------------------------------------------------

    @rule(broker=others, lost=few)
    def restart(self, broker: int, lost: int) -> None:
        self.real_end[broker] = max(0, self.real_end[broker] - lost)
        self.cluster.register(broker)
        self.changed()

    @rule(broker=others)
    def fence(self, broker: int) -> None:
        self.cluster.fence(broker)
        self.changed()

    @rule(broker=others)
    def unfence(self, broker: int) -> None:
        self.cluster.unfence(broker)
        self.changed()

    # -- what the leader learns ------------------------------------------------------------------

    @rule(back=st.sampled_from([0, 0, 0, 1, 2, 5]))
    def learn_partition(self, back: int) -> None:
        state = self.states[max(0, len(self.states) - 1 - back)]
        self.leader.on_metadata(state.replicas, state.isr, state.partition_epoch, self.now)

    @rule()
    def learn_brokers(self) -> None:
        self.known_epochs = {broker: self.epoch(broker) for broker in REPLICAS}
        is_active = self.cluster.image.is_active
        self.leader.active = {b: e for b, e in self.known_epochs.items() if is_active(b)}
        self.leader.advance(self.now)

    @rule(seconds=moments)
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.leader.drop_laggards(self.now)
        self.leader.advance(self.now)

    # -- proposals -------------------------------------------------------------------------------

    @rule(steps=st.sampled_from([1, 2, 2, 3]))
    def send(self, steps: int) -> None:
        """What is to be sent, and perhaps handled and answered at once; a request before it that
        has no answer yet is given up."""
        if self.request is not None:
            self.unanswered.append(self.request.proposal)
            self.lost += [] if self.request.is_handled else [self.request]
            self.request = None
        if self.leader.proposal is not None and not self.leader.is_settled:
            self.request = Request(self.leader.proposal)
            if steps > 1:
                self._decide(self.request)
            if steps > 2:
                self.answer()

    @precondition(lambda self: self.lost)
    @rule(number=few)
    def a_lost_request_is_found(self, number: int) -> None:
        self._decide(self.lost.pop(number % len(self.lost)))

    def _decide(self, request: Request) -> None:
        isr, broker_epochs, leader_epoch, partition_epoch = request.proposal
        result = self.cluster.alter_isr(
            "a",
            *isr,
            broker_epochs=list(broker_epochs),
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
        )
        request.is_handled = True
        request.error = None if result.error is None else ErrorCode(result.error)
        self.changed()

    @precondition(lambda self: self.request is not None and self.request.is_handled)
    @rule()
    def answer(self) -> None:
        request, self.request = self.request, None
        was_lost = any(request.proposal is other for other in self.unanswered)
        self.leader.on_answer(request.proposal, request.error, is_only_one=not was_lost)
        self.leader.advance(self.now)

    # -- promises --------------------------------------------------------------------------------

    @rule(now=st.sampled_from([False] * 9 + [True]))
    def a_calm_brings_everybody_back(self, now: bool) -> None:
        if not now:
            return
        self.cluster.unfence(2, 3)
        self.changed()
        for _ in range(8):
            self.learn_partition(0)
            self.learn_brokers()
            for broker in (2, 2, 3, 3):
                self.fetch(broker, 99)
            self.send(3)
        assert sorted(self.leader.isr) == sorted(self.states[-1].isr) == [1, 2, 3]
        assert self.leader.high_watermark == self.leader.log_end
        assert self.leader.proposal is None

    @invariant()
    def the_leader_knows_everybody_who_may_be_in(self) -> None:
        assert {*self.states[-1].isr} <= {*self.leader.maximal_isr}

    @invariant()
    def whoever_is_in_sync_has_all_that_is_committed(self) -> None:
        for broker in self.states[-1].isr:
            if broker != 1:
                assert self.real_end[broker] >= self.leader.high_watermark


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "examples"), [(AnyOrder, 200), (WithController, 400)])
def test_the_leader_keeps_its_promises_whatever_happens(
    machine: type[RuleBasedStateMachine], examples: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=tries(examples), stateful_step_count=50, deadline=None),
    )
