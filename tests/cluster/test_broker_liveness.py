"""Lines from a controller to every broker: who is gone for certain, and who is only silent.

Goal: a broker whose process ended is known to be gone within moments and is fenced; one that is
cut off, without power, or was never within reach is not, and neither is a process for the end of
the one before it. Method: real lines on the simulated network to processes that only listen; the
controller's decision alone; small simulated worlds with both.
"""

import pytest
import trio
from controller_cluster import NONE, ControlledCluster, epochs, leaders
from sim_machines import CALM, LONG_S, PORT, network_of, receive, virtual
from small_worlds import in_world, isolate, until, until_led

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import FenceBroker
from hightide_broker.core.cluster.controller import Decision
from hightide_broker.core.cluster.image import BrokerState, ClusterImage
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.cluster.broker_liveness import (
    CONNECT_TIMEOUT_S,
    RETRY_MAX_S,
    RETRY_S,
    STOOD_S,
    BrokerLiveness,
)
from hightide_broker.simulation.network import Weather

CONTROLLER, CONTROLLER_NODE = "controller", 9
MOMENTS_S = 2 * STOOD_S
SESSION_S = 9.0


class Process:
    """A broker's process, which does nothing but listen and hold what connects."""

    def __init__(self, world, name):
        self.name = name
        self.accepted = 0
        self.open = 0
        self.takes = True
        """Whether it holds on to a connection, or closes it at once."""
        self._world = world
        self._scope = trio.CancelScope()

    async def run(self):
        with self._scope:
            host = self._world.network.host(self.name)
            listener = await host.listen(self.name, PORT)
            async with trio.open_nursery() as nursery:
                while True:
                    stream = await listener.accept()
                    self.accepted += 1
                    if self.takes:
                        nursery.start_soon(self._hold, stream)
                    else:
                        await stream.aclose()

    async def _hold(self, stream):
        self.open += 1
        try:
            assert await receive(stream) == b"", "nothing is said on a line"
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1

    async def kill(self, *, power=False):
        """Its end; with `power`, nothing tells of it."""
        self._world.network.drop(self.name, silently=power)
        self._scope.cancel()
        await trio.sleep(0)


class Told:
    """A controller's lines, the metadata that they follow, and the processes at their ends."""

    def __init__(self, nursery, weather=CALM):
        self.network = network_of(weather)
        self.image = ClusterImage()
        self.applied = Watermark()
        self.lines = BrokerLiveness(self.network.host(CONTROLLER), node=CONTROLLER_NODE)
        self.nursery = nursery
        nursery.start_soon(self.lines.run, self)

    def listen(self, broker):
        """Start a broker's process."""
        self.network.boot(f"b{broker}")
        process = Process(self, f"b{broker}")
        self.nursery.start_soon(process.run)
        return process

    def announce(self, broker, epoch, *, fenced=False):
        """The metadata has a registration, and whether it serves."""
        self.image.brokers[broker] = BrokerState(
            *(broker, epoch, f"run-{epoch}", f"b{broker}", PORT, "", ()), fenced=fenced
        )
        self.applied.advance(self.applied.value + 1)

    def forget(self, broker):
        del self.image.brokers[broker]
        self.applied.advance(self.applied.value + 1)

    async def serving(self, broker, epoch):
        """A process that is registered, and to which a line stands."""
        process = self.listen(broker)
        self.announce(broker, epoch)
        await trio.sleep(1)
        assert (process.accepted, process.open) == (1, 1)
        return process

    def cut(self, broker):
        for one, other in ((CONTROLLER, f"b{broker}"), (f"b{broker}", CONTROLLER)):
            self.network.cut(one, other)

    @property
    def gone(self):
        return self.lines.gone


def with_lines(body, **facts):
    """Run `body(told)` on virtual time."""

    async def main():
        async with trio.open_nursery() as nursery:
            await body(Told(nursery, **facts))
            nursery.cancel_scope.cancel()

    virtual(main)


# --- who is gone ----------------------------------------------------------------------------------


def test_a_killed_broker_is_gone_within_moments():
    async def body(told):
        process, other = await told.serving(1, 11), await told.serving(2, 12)
        assert (told.gone, told.lines.losses.value) == ({}, 0)
        await process.kill()
        await trio.sleep(MOMENTS_S)
        assert (told.gone, told.lines.losses.value) == ({1: 11}, 1)
        await trio.sleep(LONG_S)
        assert (told.gone, told.lines.losses.value) == ({1: 11}, 1)
        assert (other.accepted, other.open) == (1, 1), "one line, for as long as it lives"

    with_lines(body)


def test_all_that_are_killed_at_once_are_gone():
    async def body(told):
        processes = [await told.serving(broker, 10 + broker) for broker in (1, 2, 3)]
        for process in processes:
            await process.kill()
        await trio.sleep(MOMENTS_S)
        assert (told.gone, told.lines.losses.value) == ({1: 11, 2: 12, 3: 13}, 3)

    with_lines(body)


def test_a_bad_network_makes_a_loss_late_and_no_more():
    async def body(told):
        processes = [told.listen(1), told.listen(2)]
        for broker in (1, 2):
            told.announce(broker, 10 + broker)
        await trio.sleep(30)
        for _ in range(20):
            told.network.reset(CONTROLLER, "b2")
            await trio.sleep(5)
        assert told.gone == {}
        await processes[0].kill()
        await trio.sleep(20)
        assert told.gone == {1: 11}

    with_lines(body, weather=Weather(latency_s=0.1, jitter_s=0.3, loss=0.3))


# --- who is only silent ---------------------------------------------------------------------------


def test_a_broker_that_is_cut_off_is_not_gone_and_the_line_outlives_the_cut():
    async def body(told):
        process = await told.serving(1, 11)
        told.cut(1)
        await trio.sleep(LONG_S)
        assert told.gone == {}
        told.network.heal()
        await trio.sleep(1)
        assert (told.gone, process.open) == ({}, 1)
        await process.kill()
        await trio.sleep(MOMENTS_S)
        assert told.gone == {1: 11}

    with_lines(body)


@pytest.mark.parametrize("directions", [[0], [1], [0, 1]])
def test_a_line_that_breaks_behind_a_cut_does_not_mean_that_the_broker_is_gone(directions):
    async def body(told):
        process = await told.serving(1, 11)
        ends = (CONTROLLER, "b1")
        for direction in directions:
            told.network.cut(ends[direction], ends[1 - direction])
        told.network.reset(*ends)
        await trio.sleep(LONG_S)
        assert (told.gone, process.open) == ({}, 0)
        told.network.heal()
        await trio.sleep(RETRY_MAX_S + CONNECT_TIMEOUT_S)
        assert (told.gone, process.open) == ({}, 1)

    with_lines(body)


def test_a_broker_that_dies_behind_a_cut_is_gone_when_the_cut_heals():
    async def body(told):
        process = await told.serving(1, 11)
        told.cut(1)
        await process.kill()
        await trio.sleep(LONG_S)
        assert told.gone == {}
        told.network.heal()
        await trio.sleep(RETRY_MAX_S + CONNECT_TIMEOUT_S)
        assert told.gone == {1: 11}

    with_lines(body)


def test_a_machine_without_power_says_nothing_until_it_is_back():
    async def body(told):
        process = await told.serving(1, 11)
        await process.kill(power=True)
        await trio.sleep(LONG_S)
        assert told.gone == {}
        told.network.boot("b1")
        await trio.sleep(RETRY_MAX_S + CONNECT_TIMEOUT_S)
        assert told.gone == {1: 11}, "the machine says that nobody listens"

    with_lines(body)


def test_a_broken_connection_to_a_broker_that_lives_is_replaced():
    async def body(told):
        process = await told.serving(1, 11)
        for number in range(20):
            told.network.reset(CONTROLLER, "b1")
            await trio.sleep(MOMENTS_S)
            assert (told.gone, process.accepted, process.open) == ({}, number + 2, 1)

    with_lines(body)


@pytest.mark.parametrize("is_there", [False, True])
def test_an_address_that_was_never_reached_tells_nothing(is_there):
    async def body(told):
        if is_there:
            told.listen(1)
            told.cut(1)
        told.announce(1, 11)
        await trio.sleep(LONG_S)
        assert (told.gone, told.lines.losses.value) == ({}, 0)
        process = None if is_there else told.listen(1)
        told.network.heal()
        await trio.sleep(RETRY_MAX_S + CONNECT_TIMEOUT_S)
        assert told.gone == {}
        if process is not None:
            assert process.open == 1
            await process.kill()
            await trio.sleep(MOMENTS_S)
            assert told.gone == {1: 11}, "it was reached after all"

    with_lines(body)


def test_a_connection_that_never_comes_about_is_tried_again():
    class Hangs:
        """The network of a controller whose first connection hangs for ever."""

        def __init__(self, inner):
            self._inner = inner
            self._tries = 0

        async def connect(self, host, port):
            self._tries += 1
            if self._tries == 1:
                await trio.sleep_forever()
            return await self._inner.connect(host, port)

    async def body(told):
        lines = BrokerLiveness(Hangs(told.network.host("other")), node=CONTROLLER_NODE)
        told.nursery.start_soon(lines.run, told)
        process = await told.serving(1, 11)
        await trio.sleep(CONNECT_TIMEOUT_S + RETRY_S)
        assert process.open == 2
        await process.kill()
        await trio.sleep(MOMENTS_S)
        assert lines.gone == told.gone == {1: 11}

    with_lines(body)


# --- one process after the other ------------------------------------------------------------------


def test_a_broker_that_comes_back_gets_a_new_line_that_knows_its_new_epoch():
    async def body(told):
        process = await told.serving(1, 11)
        for epoch in (21, 31):
            await process.kill()
            await trio.sleep(MOMENTS_S)
            told.announce(1, told.image.brokers[1].epoch, fenced=True)
            process = told.listen(1)
            told.announce(1, epoch, fenced=True)
            await trio.sleep(LONG_S)
            assert process.accepted == 0, "it does not serve yet"
            told.announce(1, epoch)
            await trio.sleep(1)
            assert (told.gone, process.open) == ({}, 1)
        await process.kill()
        await trio.sleep(MOMENTS_S)
        assert (told.gone, told.lines.losses.value) == ({1: 31}, 3)

    with_lines(body)


def test_a_restart_that_is_over_before_anybody_looked_costs_nobody_anything():
    async def body(told):
        process = await told.serving(1, 11)
        await process.kill()
        again = told.listen(1)
        await trio.sleep(MOMENTS_S)
        assert (told.gone, again.open) == ({}, 1)
        told.announce(1, 21)
        await trio.sleep(1)
        assert (told.gone, again.accepted, again.open) == ({}, 2, 1), "a line of its own"
        await again.kill()
        await trio.sleep(MOMENTS_S)
        assert told.gone == {1: 21}

    with_lines(body)


def test_the_line_of_an_older_process_tells_nothing_of_the_newer_one():
    """The new process is registered before the old one's end is noticed, and is not up yet."""

    async def body(told):
        process = await told.serving(1, 11)
        told.cut(1)
        await process.kill()
        told.announce(1, 21)
        told.network.heal()
        await trio.sleep(LONG_S)
        assert told.gone == {}

    with_lines(body)


@pytest.mark.parametrize("how", ["fenced", "forgotten"])
def test_a_broker_that_does_not_serve_has_no_line(how):
    async def body(told):
        process = await told.serving(1, 11)
        if how == "fenced":
            told.announce(1, 11, fenced=True)
        else:
            told.forget(1)
        await trio.sleep(1)
        assert (process.accepted, process.open) == (1, 0)
        await process.kill()
        await trio.sleep(LONG_S)
        assert told.gone == {}

    with_lines(body)


def test_a_line_follows_registrations_and_not_every_change_of_the_metadata():
    async def body(told):
        process = await told.serving(1, 11)
        for _ in range(50):
            told.announce(2, 12, fenced=True)
            told.announce(1, 11)
            await trio.sleep(0.1)
        assert (process.accepted, process.open) == (1, 1)

    with_lines(body)


def test_a_node_needs_no_line_to_itself():
    async def body(told):
        process = told.listen(CONTROLLER_NODE)
        told.announce(CONTROLLER_NODE, 19)
        await trio.sleep(LONG_S)
        assert process.accepted == 0

    with_lines(body)


# --- what the controller makes of it --------------------------------------------------------------


def three_brokers():
    """Each of the three leads one partition and follows in the others."""
    cluster = ControlledCluster(1, 2, 3)
    cluster.create("a", assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    return cluster, {broker: cluster.image.brokers[broker].epoch for broker in (1, 2, 3)}


def fence_gone(cluster, gone):
    """Whom the controller fences for that."""
    cluster.commit(Decision(cluster.controller.brokers.fence_gone(gone, cluster.now), m.Message()))
    return [change.broker for change in cluster.changes if isinstance(change, FenceBroker)]


def test_a_broker_that_is_gone_is_fenced_and_others_lead_in_one_decision():
    cluster, epoch = three_brokers()
    assert fence_gone(cluster, {2: epoch[2]}) == [2]
    assert cluster.image.brokers[2].fenced
    assert leaders(cluster, "a") == [1, 3, 3]
    assert epochs(cluster, "a") == [(0, 2), (1, 2), (0, 2)]


def test_brokers_that_are_gone_are_fenced_together_each_once():
    cluster, epoch = three_brokers()
    gone = {3: epoch[3], 1: epoch[1], 2: epoch[2]}
    assert [fence_gone(cluster, gone) for _ in range(2)] == [[3, 1, 2], []]
    assert leaders(cluster, "a") == [NONE] * 3


@pytest.mark.parametrize("off", [-1, 1])
def test_a_loss_of_another_process_fences_nobody(off):
    cluster, epoch = three_brokers()
    assert fence_gone(cluster, {2: epoch[2] + off}) == []
    assert cluster.image.is_active(2)


def test_neither_a_stranger_nor_a_new_process_nor_one_that_is_fenced_is_fenced():
    cluster, epoch = three_brokers()
    cluster.fence(1)
    cluster.join(2)
    gone = {7: 1, 1: epoch[1], 2: epoch[2]}
    assert fence_gone(cluster, gone) == []
    assert fence_gone(cluster, gone | {3: epoch[3]}) == [3], "they hide nobody behind them"


# --- whole nodes ----------------------------------------------------------------------------------


async def until_fenced(world, *brokers):
    """How long the active controller takes to fence these brokers."""
    began = trio.current_time()

    def are_fenced():
        leader = world.leader()
        if leader is None:
            return False
        known = leader.node.image.brokers
        return all(broker.id in known and known[broker.id].fenced for broker in brokers)

    await until(are_fenced)
    return trio.current_time() - began


async def served_by(world, count):
    """The brokers, when all of them serve and the lines to them stand."""
    brokers = [machine for machine in world.machines if machine.is_broker]
    assert len(brokers) == count
    await until(lambda: all(each.node and each.node.serving.is_set() for each in brokers))
    await until_led(world)
    await trio.sleep(2)
    return brokers


def test_a_killed_broker_is_fenced_long_before_its_session_ends():
    async def body(world):
        broker, _ = await served_by(world, 2)
        await broker.crash(power=False)
        assert await until_fenced(world, broker) < 1.5

    in_world(body, controllers=1, observers=2)


@pytest.mark.parametrize("how", ["power", "cut"])
def test_a_silent_broker_is_fenced_by_the_end_of_its_session(how):
    async def body(world):
        broker, _ = await served_by(world, 2)
        if how == "cut":
            isolate(world, broker)
        else:
            await broker.crash(power=True)
        took = await until_fenced(world, broker)
        assert SESSION_S / 2 < took < SESSION_S + 1

    in_world(body, controllers=1, observers=2)


def test_a_new_controller_knows_who_died_with_the_old_one():
    async def body(world):
        broker, _ = await served_by(world, 2)
        await broker.crash(power=False)
        await (await until_led(world)).crash(power=False)
        assert await until_fenced(world, broker) < SESSION_S - 1, "and gives it no new session"

    in_world(body, controllers=3, observers=2)
