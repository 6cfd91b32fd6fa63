"""The controller and what is on disks: who is in sync, eligible or leads has all that is committed.

Goal: that claim, after every decision, whatever is fenced, stopped, lost, rolled back, altered or
silent meanwhile; only where all who held it stopped uncleanly and were not told to sync, records
may go, and then the longest log that is back leads. Method: a Hypothesis state machine beside a
model in which each broker's log is a number and a leader commits with its ISR, as far as it may.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, SESSION_S, ControlledCluster
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tries import tries

from hightide.protocol import controller_messages as c
from hightide_broker.core.cluster.image import PartitionState
from hightide_broker.core.cluster.topic_keys import FLUSH, MIN_ISR

BROKERS = (1, 2, 3)
brokers = st.sampled_from(BROKERS)


class Disks(RuleBasedStateMachine):
    """One partition on three brokers, and how far each one's log reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ControlledCluster(*BROKERS)
        self.cluster.create("a", assignment=[[*BROKERS]])
        self.ends = dict.fromkeys(BROKERS, 0)
        self.synced = dict.fromkeys(BROKERS, 0)
        """What each disk holds for certain: all of it, where the topic syncs."""
        self.committed = 0
        self.made = 0
        """Disks; each has an id of its own."""
        self.disks = {broker: f"disk-{broker}" for broker in BROKERS}
        self.run_of = {broker: self.incarnation(broker) for broker in BROKERS}

    @property
    def state(self) -> PartitionState:
        return self.cluster.partition("a")

    def incarnation(self, broker: int) -> str:
        return self.cluster.image.brokers[broker].incarnation

    @property
    def is_synced(self) -> bool:
        return self.cluster.image.setting("a", FLUSH) == "synced"

    # -- the leader --------------------------------------------------------------------------------

    @rule()
    def commit(self):
        """A record more, unless somebody else may yet lead: on every member of the ISR, and on its
        disk if the topic says so."""
        state = self.state
        if state.leader == NONE or state.is_contested:
            return
        min_isr = self.cluster.image.setting("a", MIN_ISR)
        if len(state.isr) >= min(min_isr, len(BROKERS)):
            self.committed += 1
            for broker in state.isr:
                self.ends[broker] = self.committed
                if self.is_synced:
                    self.synced[broker] = self.committed

    @rule(isr=st.sets(brokers, min_size=1))
    def alter_isr(self, isr):
        """A replica that joins has fetched everything before."""
        state = self.state
        if state.leader in isr:
            joining = isr - {*state.isr}
            if self.cluster.alter_isr("a", *isr).error is None:
                for broker in joining:
                    self.ends[broker] = self.ends[state.leader]
                    if self.is_synced:
                        self.synced[broker] = self.ends[broker]

    # -- brokers -----------------------------------------------------------------------------------

    def start(self, broker: int, *, epoch: int, runs: list[str] | None) -> None:
        """A new process, from whatever is on its disk."""
        self.cluster.register(broker, previous=epoch, directory=self.disks[broker], runs=runs)
        self.run_of[broker] = self.incarnation(broker)

    @rule(broker=brokers)
    def stop_and_start(self, broker):
        """In order: all of it is synced."""
        self.synced[broker] = self.ends[broker]
        epoch = self.cluster.image.brokers[broker].epoch
        self.start(broker, epoch=epoch, runs=[self.run_of[broker]])

    @rule(broker=brokers, loses_power=st.booleans())
    def die_and_start(self, broker, loses_power):
        if loses_power:
            self.ends[broker] = self.synced[broker]
        self.start(broker, epoch=NONE, runs=[self.run_of[broker]])

    @rule(broker=brokers)
    def lose_disk(self, broker):
        self.made += 1
        self.cluster.fence(broker) if not self.cluster.image.brokers[broker].fenced else None
        self.disks[broker] = f"made-{self.made}"
        self.ends[broker] = self.synced[broker] = 0
        self.start(broker, epoch=NONE, runs=["-"])

    @rule(broker=brokers, had=st.integers(0, 3))
    def roll_back(self, broker, had):
        """To a copy from before the process that served last."""
        self.ends[broker] = self.synced[broker] = min(had, self.synced[broker])
        self.start(broker, epoch=NONE, runs=["a process before"])

    @rule(broker=brokers, wish=st.sampled_from([{}, {}, {}, {"want_fence": True}]))
    def heartbeat(self, broker, wish):
        told = self.cluster.leaderless(broker, (0, self.ends[broker]))
        self.decide(lambda: self.cluster.heartbeat(broker, leaderless=told, **wish))

    @rule(broker=brokers)
    def report_offline(self, broker):
        offline = [c.OfflineReplica(topic_id="id-1", partition=0)]
        self.decide(lambda: self.cluster.heartbeat(broker, offline=offline))

    @rule(seconds=st.sampled_from([1.0, SESSION_S / 2, SESSION_S]))
    def time_passes(self, seconds):
        self.cluster.now += seconds
        self.decide(self.cluster.fence_silent)

    # -- the controller ----------------------------------------------------------------------------

    @rule()
    def take_over(self):
        self.cluster.take_over()

    @rule()
    def rebalance(self):
        self.decide(self.cluster.rebalance)

    @rule(change=st.sampled_from([("min_insync_replicas", "1"), ("min_insync_replicas", "2")]))
    def alter(self, change):
        self.cluster.alter("a", **dict([change]))

    @rule(flush=st.sampled_from(["synced", "synced", "replicated"]))
    def alter_flush(self, flush):
        """Who is registered hears of it, and syncs what it has - if it lives so long."""
        self.cluster.alter("a", flush=flush)

    def decide(self, do: Any) -> None:
        """Something that may elect; when all who held what is committed had stopped uncleanly,
        whatever the longest log has is what is left."""
        before = self.state
        do()
        after = self.state
        recovers = before.leader == NONE and before.last_known_elr and not before.elr
        if recovers and after.leader != NONE and self.ends[after.leader] < self.committed:
            waited_for = max(self.ends[broker] for broker in before.last_known_elr)
            assert self.ends[after.leader] >= waited_for, "the longest log that is back leads"
            self.committed = self.ends[after.leader]
            self.ends = {b: min(end, self.committed) for b, end in self.ends.items()}
            self.synced = {b: min(end, self.committed) for b, end in self.synced.items()}

    @invariant()
    def who_is_in_sync_or_eligible_or_leads_has_all_that_is_committed(self):
        state = self.state
        claims = {*state.isr, *state.elr} | ({state.leader} - {NONE})
        short = {broker: self.ends[broker] for broker in claims}
        assert all(end >= self.committed for end in short.values()), (
            f"{state}: logs end at {short}, {self.committed} is committed"
        )

    @invariant()
    def what_nobody_leads_says_who_is_waited_for_or_who_held_it_last(self):
        state = self.state
        if state.leader == NONE:
            assert not state.isr
            assert state.elr or state.last_known_elr or state.last_leader in BROKERS


@pytest.mark.slow
def test_a_claim_is_never_more_than_what_a_disk_holds() -> None:
    run_state_machine_as_test(
        Disks, settings=settings(max_examples=tries(300), stateful_step_count=40, deadline=None)
    )


def test_who_left_is_not_let_go_for_a_member_whose_replica_is_offline():
    """As one run found: the leader has seen all of a replica that failed just then, and takes it in
    for another one."""
    disks = Disks()
    disks.alter(("min_insync_replicas", "2"))
    disks.report_offline(1)
    disks.alter_isr({1, 2})
    assert (disks.state.isr, disks.state.elr, disks.state.is_contested) == ((1, 2), (3,), True)
    disks.commit()
    disks.who_is_in_sync_or_eligible_or_leads_has_all_that_is_committed()
