"""The controller under any requests in any order: what may never happen to the image.

Goal: whatever up to three brokers, their users, time and a change of controllers do, leaders are
members of their ISR, epochs only rise, names stay apart, ids are given once, and the log tells it
all. Method: a Hypothesis state machine; after each request the image is held against its invariants
and against a replay of the whole log.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_cluster import NONE, SESSION_S, ControlledCluster, refusal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tries import tries

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.image import CLUSTER, PartitionState
from hightide_broker.core.cluster.topic_config import check_topic_configs
from hightide_broker.core.cluster.topic_keys import MIN_ISR


def new_topic(*, is_manual: bool, **facts: Any) -> m.NewTopic:
    assignment = facts.pop("assignment")
    return m.NewTopic(**facts, assignment=assignment if is_manual else None)


brokers = st.integers(1, 3)
names = st.sampled_from(["c", "c", "c", "a.b", "a_b", "a-b", "d", "e", "e f"])
configs = st.sampled_from(
    [
        {},
        {"flush": "replicated"},
        {"retention.ms": "1", "flush": "synced"},
        {"min.insync.replicas": "2"},
        {"min.insync.replicas": "3"},
        {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
        {"index.interval.bytes": "9"},
        {"segment.ms": "0"},
        {"flsh": "synced"},
    ]
)
new_topics = st.builds(
    new_topic,
    topic=names,
    partitions=st.sampled_from([-1, -1, 1, 3, 0]),
    replication_factor=st.sampled_from([-1, -1, 1, 2, 3, 0]),
    configs=configs,
    is_manual=st.sampled_from([False, False, True]),
    assignment=st.lists(st.permutations([1, 2, 3]).map(lambda p: p[:2]), max_size=3),
)
config_changes = st.builds(
    m.ConfigChange,
    kind=st.sampled_from(["topic", "topic", "topic", "broker"]),
    name=names,
    set=configs,
    unset=st.lists(
        st.sampled_from(["flush", "retention.ms", "min.insync.replicas", "flsh"]), max_size=2
    ),
)
wants = st.sampled_from([{}, {}, {}, {"want_fence": True}, {"want_shut_down": True}])


class Requests(RuleBasedStateMachine):
    """Up to three brokers, a handful of topics, and a controller that is replaced at times."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ControlledCluster(1, 2, 3, partitions=2, replication=2)
        everywhere = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        self.cluster.create("c", assignment=everywhere, configs={"min.insync.replicas": "2"})
        self.given: set[int] = set()
        self.known: dict[tuple[str, int], PartitionState] = {}
        self.broker_epochs: dict[int, int] = {}

    @rule(broker=brokers, is_clean=st.booleans(), new_disk=st.sampled_from([False, False, True]))
    def register(self, broker, is_clean, new_disk):
        state = self.cluster.image.brokers.get(broker)
        previous = state.epoch if state is not None and is_clean else NONE
        directory = f"disk-{broker}-of-{len(self.cluster.log)}" if new_disk else state.directory
        if new_disk and not state.fenced:
            self.cluster.fence(broker)
        epoch = self.cluster.register(broker, previous=previous, directory=directory)
        assert self.cluster.changes[-1].broker == broker
        assert epoch > (NONE if state is None else state.epoch)
        assert not self.cluster.image.is_active(broker)

    @rule(broker=brokers, wish=wants, seen=st.sampled_from([None, None, None, 0]))
    def heartbeat(self, broker, wish, seen):
        if broker in self.cluster.image.brokers:
            led_by_nobody = self.cluster.leaderless(broker, (0, broker))
            reply = self.cluster.heartbeat(broker, seen=seen, leaderless=led_by_nobody, **wish)
            state = self.cluster.image.brokers[broker]
            assert reply.fenced is state.fenced
            assert not (wish and self.cluster.image.is_active(broker)), "it gets nothing new"
            assert reply.should_shut_down == (state.fenced and "want_shut_down" in wish)
            if reply.should_shut_down:
                assert not self.cluster.controller.partitions.led_by(broker)

    @rule(number=st.integers(0, 2), isr=st.sets(brokers, min_size=1))
    def alter_isr(self, number, isr):
        cluster = self.cluster
        for name in list(cluster.image.topics)[number : number + 1]:
            state = cluster.partition(name)
            if state.leader == NONE:
                continue
            result = cluster.alter_isr(name, *isr)
            may = isr <= {*state.replicas} and all(cluster.image.is_active(b) for b in isr)
            assert (result.error is None) == (may and state.leader in isr)
            after = cluster.partition(name)
            assert (after.leader, after.leader_epoch) == (state.leader, state.leader_epoch)
            assert set(after.isr) == (isr if result.error is None else {*state.isr})

    @rule(unclean=st.booleans())
    def elect(self, unclean):
        results = self.cluster.elect(unclean=unclean)
        for result in results:
            assert result.error or self.cluster.image.is_active(result.leader)

    @rule()
    def rebalance(self):
        self.cluster.rebalance()
        for topic in self.cluster.image.topics.values():
            for partition in topic.partitions:
                preferred = partition.replicas[0]
                assert partition.leader == preferred or preferred not in partition.isr

    @rule(seconds=st.sampled_from([1.0, SESSION_S / 2, SESSION_S]))
    def time_passes(self, seconds):
        """All silent brokers are fenced in one run, and nobody else."""
        self.cluster.now += seconds
        before = {b: s for b, s in self.cluster.image.brokers.items() if not s.fenced}
        fenced = self.cluster.fence_silent()
        assert {*fenced} <= before.keys()
        assert self.cluster.fence_silent() == []

    @rule(broker=brokers, older=st.integers(1, 5))
    def stale_heartbeat(self, broker, older):
        if broker in self.cluster.image.brokers:
            epoch = self.cluster.image.brokers[broker].epoch - older
            code = refusal(self.cluster.heartbeat, broker, epoch=epoch, want_fence=True)
            assert code == ErrorCode.STALE_BROKER_EPOCH

    @rule(topics=st.lists(new_topics, max_size=3), dry=st.booleans(), shift=st.integers(0, 2))
    def create(self, topics, dry, shift):
        before, self.cluster.shift = set(self.cluster.image.topics), shift
        results = self.cluster.create_all(*topics, validate_only=dry)
        assert [result.topic for result in results] == [topic.topic for topic in topics]
        made = [result for result in results if result.error is None]
        new = set() if dry else {result.topic for result in made}
        assert before.isdisjoint(new)
        assert set(self.cluster.image.topics) == before | new
        assert all(len(self.cluster.partitions(r.topic)) == r.partitions for r in made if not dry)

    @rule(topics=st.lists(names.filter(lambda name: name != "c"), min_size=1, max_size=2))
    def delete(self, topics):
        self.cluster.delete(*topics)
        assert self.cluster.image.topics.keys().isdisjoint(topics)

    @rule(
        # A name that comes twice has its own test.
        wishes=st.lists(st.tuples(names, st.integers(0, 5)), max_size=3, unique_by=lambda w: w[0]),
        dry=st.booleans(),
    )
    def more(self, wishes, dry):
        before = {name: len(topic.partitions) for name, topic in self.cluster.image.topics.items()}
        results = self.cluster.more_all(*wishes, validate_only=dry)
        done = {result.topic: result.partitions for result in results if result.error is None}
        assert all(count > before[name] for name, count in done.items())
        for name, topic in self.cluster.image.topics.items():
            assert len(topic.partitions) == (before if dry else {**before, **done})[name]

    @rule(changes=st.lists(config_changes, max_size=3), dry=st.booleans())
    def alter(self, changes, dry):
        before = self.cluster.replayed().configs
        results = self.cluster.alter_all(*changes, validate_only=dry)
        for change, result in zip(changes, results, strict=True):
            if result.error is not None or dry:
                continue
            expected = {k: v for k, v in change.set.items() if k not in change.unset}
            if [c.name for c in changes].count(change.name) == 1:
                old = before.get(("topic", change.name), {})
                left = {k: v for k, v in old.items() if k not in change.unset}
                assert self.cluster.image.topic_config(change.name) == {**left, **expected}

    @rule(broker=brokers)
    def allocate(self, broker):
        if self.cluster.image.is_active(broker):
            block = self.cluster.allocate(broker)
            assert self.given.isdisjoint(block)
            self.given.update(block)

    @rule()
    def take_over(self):
        self.cluster.take_over()

    @invariant()
    def topics_are_whole(self):
        image = self.cluster.image
        merged = [name.replace(".", "_") for name in image.topics]
        assert len(set(merged)) == len(merged)
        assert {t.topic_id: t for t in image.topics.values()} == image.topics_by_id
        assert all(name == topic.name for name, topic in image.topics.items())
        for (kind, name), entries in image.configs.items():
            assert (kind, name) == CLUSTER or (kind, name in image.topics) == ("topic", True)
            check_topic_configs(entries)

    @invariant()
    def partitions_are_led_by_a_member_of_the_isr_or_have_none(self):
        image = self.cluster.image
        for topic in image.topics.values():
            assert len({len(p.replicas) for p in topic.partitions}) == 1
            for partition in topic.partitions:
                assert set(partition.isr) <= set(partition.replicas) <= image.brokers.keys()
                assert len(set(partition.isr)) == len(partition.isr)
                assert all(image.is_active(b) for b in partition.isr)
                if partition.isr:
                    assert partition.leader in partition.isr
                else:
                    assert partition.leader == NONE

    @invariant()
    def who_is_eligible_is_known_only_while_the_isr_is_too_small(self):
        """KIP-966; and a replica that is eligible would lead if it could."""
        image = self.cluster.image
        for topic in image.topics.values():
            min_isr = image.setting(topic.name, MIN_ISR)
            for partition in topic.partitions:
                assert set(partition.elr) <= set(partition.replicas) - set(partition.isr)
                assert len(set(partition.elr)) == len(partition.elr)
                enough = min(min_isr, len(partition.replicas))
                assert not partition.elr or len(partition.isr) < enough
                assert (partition.last_leader == NONE) == bool(partition.isr)
                assert not {*partition.last_known_elr} & {*partition.isr, *partition.elr}
                assert not partition.last_known_elr or len(partition.isr) < enough
                if not partition.isr:
                    assert not any(self.is_well(b) for b in partition.elr)

    def is_well(self, broker: int) -> bool:
        """Whether the controller has heard of a broker lately: others may be gone, and lead nothing
        when somebody who waited for them comes back."""
        sessions = self.cluster.controller.brokers._sessions
        return self.cluster.image.is_active(broker) and sessions.is_recent(broker, self.cluster.now)

    @invariant()
    def epochs_only_rise(self):
        image = self.cluster.image
        for broker, state in image.brokers.items():
            assert state.epoch >= self.broker_epochs.get(broker, 0)
            self.broker_epochs[broker] = state.epoch
        for topic in image.topics.values():
            for number, new in enumerate(topic.partitions):
                old = self.known.get((topic.topic_id, number), new)
                assert new.replicas == old.replicas
                assert new.leader_epoch >= old.leader_epoch + (new.leader != old.leader)
                assert new.partition_epoch >= old.partition_epoch + (new != old)
                self.known[topic.topic_id, number] = new

    @invariant()
    def a_replay_from_scratch_gives_the_same_image(self):
        image, again = self.cluster.image, self.cluster.replayed()
        assert image == again
        for ours, theirs in (
            (image.brokers, again.brokers),
            (image.topics, again.topics),
            (image.configs, again.configs),
        ):
            assert list(ours) == list(theirs), "the order is part of the state"


@pytest.mark.slow
def test_any_requests_in_any_order_leave_an_image_that_keeps_its_invariants() -> None:
    run_state_machine_as_test(
        Requests, settings=settings(max_examples=tries(100), stateful_step_count=40, deadline=None)
    )
