"""What a controller promises across the ends of its terms, and a broker's heartbeats to it.

Goal: nobody is told to ask again for what may have happened, nobody is refused by what may be lost,
a disk without room ends no term, and a late heartbeat brings no broker back. Method: simulated
worlds in which the leader stops, is cut off or has no room; a channel that remembers heartbeats.
"""

import logging

import pytest
import trio
from sim_machines import virtual
from small_worlds import (
    in_world,
    isolate,
    new_topic,
    others,
    outcome,
    registration,
    until,
    until_led,
)

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.config import make_config
from hightide_broker.core.cluster.changes import SetConfig
from hightide_broker.core.cluster.image import CLUSTER
from hightide_broker.core.cluster.topic_keys import MIN_ISR
from hightide_broker.ports import RESERVE_BYTES
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.cluster.broker_lifecycle import STOP_APPLY_S, BrokerLifecycle
from hightide_broker.runtime.cluster.controller import CHANGES_TOLD_MAX

E = ErrorCode
STOP_S = 5.0

# What is told of many changes at once.


def test_of_many_changes_at_once_only_some_are_told_and_how_many_were_not(caplog):
    caplog.set_level(logging.INFO, logger="hightide.controller")
    left_out = 9

    async def body(world):
        leader = await until_led(world)
        controller = leader.node.controller
        (registered, offset) = await controller.submit(registration(7))
        await controller.submit(
            c.BrokerHeartbeatRequest(
                broker=7, broker_epoch=registered.broker_epoch, metadata_offset=offset
            )
        )
        caplog.clear()
        partitions = CHANGES_TOLD_MAX - 1 + left_out  # and the topic itself
        topic = m.NewTopic(topic="t", partitions=partitions, replication_factor=1)
        await controller.submit(m.CreateTopicsRequest(topics=[topic]))
        *told, last = caplog.messages
        assert len(told) == CHANGES_TOLD_MAX
        assert told[0].startswith("topic t is created")
        assert last == f"and {left_out} changes more with these: hightide trace tells of all"

    in_world(body)


# What was appended when the term ends.


async def submitted(machine, request, into):
    """Submit a request to a machine's controller; its outcome goes into a list."""
    into.append(await outcome(machine.node.controller.submit, request))


@pytest.mark.parametrize("way", ["resigns", "is cut off"])
def test_a_change_that_was_appended_when_its_term_ends_may_still_take_effect(way):
    async def body(world):
        leader = await until_led(world)
        log, told = leader.node.metadata, []
        before = log.log_end
        isolate(world, leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submitted, leader, registration(7), told)
            await until(lambda: log.log_end > before)
            assert told == []
            if way == "resigns":
                await leader.node.quorum.resign()
        (refusal,) = told
        assert not leader.node.quorum.core.is_leader
        assert refusal.code is E.REQUEST_TIMED_OUT
        assert "may still take effect" in refusal.message

    in_world(body, request_timeout_ms="20s")


def test_what_was_not_appended_when_a_term_ends_may_be_asked_again():
    async def body(world):
        leader = await until_led(world)
        end, told = leader.node.metadata.log_end, []
        await leader.node.quorum.resign()
        await submitted(leader, registration(7), told)
        assert told[0].code is E.NOT_CONTROLLER
        assert leader.node.metadata.log_end == end

    in_world(body)


def test_what_would_have_changed_nothing_may_be_asked_again():
    async def body(world):
        leader = await until_led(world)
        before, told, looked = leader.node.metadata.log_end, [], []
        isolate(world, leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submitted, leader, registration(7), told)
            await until(lambda: leader.node.metadata.log_end > before)
            nursery.start_soon(submitted, leader, m.ElectLeadersRequest(), looked)
            await trio.sleep(0.1)
            assert looked == [], "it may rest on what is not committed"
            await leader.node.quorum.resign()
        assert looked[0].code is E.NOT_CONTROLLER

    in_world(body)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_client_that_creates_a_topic_once_is_never_told_that_it_exists(seed):
    async def body(world):
        leader = await until_led(world)
        broker, told = world.machines[-1], []
        await until(lambda: broker.node and broker.node.serving.is_set())
        logs = [each.node.metadata for each in others(world, leader)]
        before = leader.node.metadata.log_end

        async def create():
            told.append(await outcome(broker.node.change, new_topic("orders")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await until(lambda: max(log.log_end for log in logs) > before, every_s=0.0001)
            nursery.start_soon(leader.stop)
        await until(lambda: "orders" in broker.node.image.topics)
        (answer,) = told
        if getattr(answer, "code", None) is not E.REQUEST_TIMED_OUT:
            assert [each.error for each in answer.topics] == [None]

    in_world(body, seed=seed, observers=1)


# A refusal is an answer, too.


def stale_beat():
    """A heartbeat of a broker that never registered."""
    return c.BrokerHeartbeatRequest(broker=66, broker_epoch=0, metadata_offset=0)


def test_a_refusal_waits_until_what_it_may_rest_on_is_committed():
    async def body(world):
        leader = await until_led(world)
        log, core = leader.node.metadata, leader.node.quorum.core
        await until(lambda: core.high_watermark == log.log_end)
        before, told, refused = log.log_end, [], []
        isolate(world, leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submitted, leader, registration(7), told)
            await until(lambda: log.log_end > before)
            nursery.start_soon(submitted, leader, stale_beat(), refused)
            await trio.sleep(0.5)
            assert (told, refused, core.high_watermark) == ([], [], before)
            world.network.heal()
        assert refused[0].code is E.BROKER_ID_NOT_REGISTERED
        assert core.high_watermark > before

    in_world(body)


def test_a_refusal_that_rests_on_what_did_not_commit_is_not_told():
    async def body(world):
        leader = await until_led(world)
        before, told, refused = leader.node.metadata.log_end, [], []
        isolate(world, leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submitted, leader, registration(7), told)
            await until(lambda: leader.node.metadata.log_end > before)
            nursery.start_soon(submitted, leader, stale_beat(), refused)
        assert refused[0].code is E.NOT_CONTROLLER, "which another node can be asked again"

    in_world(body, request_timeout_ms="20s")


# A disk without room.


def test_a_broker_that_cannot_be_fenced_for_want_of_room_is_fenced_later():
    async def body(world):
        leader = await until_led(world)
        submit, epoch = leader.node.controller.submit, leader.node.quorum.core.epoch
        reply, offset = await submit(registration(7))
        beat = c.BrokerHeartbeatRequest(
            broker=7, broker_epoch=reply.broker_epoch, metadata_offset=offset
        )
        await submit(beat)
        image = leader.node.image
        await until(lambda: image.is_active(7))
        leader.disk.capacity = leader.disk.used_bytes() - RESERVE_BYTES
        await trio.sleep(10)
        assert leader.node.image.is_active(7), "there was no room to write that it is not"
        assert leader.node.controller.is_active
        leader.disk.capacity = 1 << 40
        await until(lambda: leader.node.image.brokers[7].fenced)
        assert (world.leader(), leader.node.quorum.core.epoch) == (leader, epoch)

    in_world(body, broker_session_timeout_ms="2s")


def unsettled():
    """Nothing says how many have to be in sync: a new controller writes down what its file does."""
    kind, name = CLUSTER
    return [SetConfig(kind=kind, name=name, key=MIN_ISR.name, value=None)]


async def fill_when_leading(machine, after):
    """Take the room on a machine's disk as soon as it leads a new epoch."""
    await machine.node.quorum.led.wait_for(after + 1)
    machine.disk.capacity = machine.disk.used_bytes() - RESERVE_BYTES


def test_a_controller_that_cannot_settle_for_want_of_room_is_active_and_settles_later():
    async def body(world):
        old = await until_led(world)
        epoch = old.node.quorum.core.epoch
        first = old.node.quorum.append(unsettled(), epoch)
        rest = others(world, old)
        await until(lambda: all(each.node.image.offset > first for each in rest))
        async with trio.open_nursery() as nursery:
            for each in rest:
                nursery.start_soon(fill_when_leading, each, epoch)
            await old.crash(power=False)
            new = await until(lambda: (found := world.leader()) is not old and found)
            nursery.cancel_scope.cancel()
        await trio.sleep(3)
        assert MIN_ISR.name not in new.node.image.cluster_config
        assert new.node.controller.is_active
        new.disk.capacity = 1 << 40
        await until(lambda: MIN_ISR.name in new.node.image.cluster_config)
        assert world.leader() is new

    in_world(body)


# Heartbeats.


class Channel:
    """A controller that is slow to answer and lets a broker stop when it says so."""

    def __init__(self, *, slow_s=0.2, leave_after=1, offset=0):
        self.beats = []
        """Whether each one was the last wish of a broker that stops."""
        self.under_way = self.most = 0
        self._slow_s = slow_s
        self._leave_after = leave_after
        self._offset = offset

    async def ask(self, request, *, timeout_s=None):
        self.beats.append(request.want_shut_down)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await trio.sleep(self._slow_s)
        finally:
            self.under_way -= 1
        leaves = sum(self.beats) >= self._leave_after
        reply = c.BrokerHeartbeatResponse(caught_up=True, fenced=leaves, should_shut_down=leaves)
        return reply, self._offset


class Nothing:
    """There is nothing to tell of any replica."""

    news = Watermark()

    def offline(self):
        return []

    def leaderless(self):
        return []


def broker_of(channel):
    config = make_config({"node.id": "1", "broker.heartbeat.interval.ms": "1s"})
    return BrokerLifecycle(channel, Watermark(0), broker=1, config=config, replicas=Nothing())


def stopped_after(pause_s, channel):
    """The heartbeats after a stop has begun, of a broker that has lived for a while."""

    async def body():
        lifecycle = broker_of(channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lifecycle.run)
            await trio.sleep(pause_s)
            before = len(channel.beats)
            await lifecycle.stop(STOP_S)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        return channel.beats[before:]

    return virtual(body)


@pytest.mark.parametrize("pause_s", [0.1, 0.5, 1.3])
@pytest.mark.parametrize("leave_after", [1, 5, 40])
def test_there_is_one_heartbeat_at_a_time(pause_s, leave_after):
    channel = Channel(leave_after=leave_after)
    stopped_after(pause_s, channel)
    assert (channel.most, channel.under_way) == (1, 0)


@pytest.mark.parametrize("pause_s", [0.1, 0.5, 1.3])
@pytest.mark.parametrize("leave_after", [1, 5, 10])
def test_no_ordinary_heartbeat_leaves_once_a_stop_has_begun(pause_s, leave_after):
    after = stopped_after(pause_s, Channel(leave_after=leave_after))
    assert after == [True] * leave_after


@pytest.mark.parametrize("leave_after", [1, 3])
def test_who_may_stop_does_so_though_the_controller_that_said_it_is_gone(leave_after):
    """Three nodes were told to stop at once, and one waited for 10 s, in one of ten tries."""
    channel = Channel(leave_after=leave_after, offset=7)  # which is never heard to be committed

    async def body():
        lifecycle = broker_of(channel)
        began = trio.current_time()
        await lifecycle.stop(STOP_S)
        return trio.current_time() - began

    assert virtual(body) < leave_after * (STOP_APPLY_S + 0.5)
