"""Runs a seed: first anything may happen, then everything is healed and has to work again."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial

import trio

from hightide_broker.simulation.clients import Client, History
from hightide_broker.simulation.faults import Faults, heal
from hightide_broker.simulation.operator import operate
from hightide_broker.simulation.quorum_checker import Violation
from hightide_broker.simulation.scheduler import run_seeded
from hightide_broker.simulation.world import Machine, World

SAFETY_S = 40.0
LIVENESS_S = 20.0
"""How long a healed world may take until everything works."""
ISOLATION_S = 6.0
FOLLOW_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed."""

    seed: int
    violation: str
    """Empty if every promise was kept."""
    fingerprint: str
    virtual_s: float
    counts: dict[str, int]
    """How much happened, by kind."""
    story: tuple[str, ...] = ()
    trace: bytes = b""
    """What its nodes told, as lines; kept where the story is."""


def outcome_of(world: World, seed: int, violation: str, counts: dict[str, int]) -> Outcome:
    """A world that has come to its end."""
    network = world.network
    world.story.note(f"network {network.messages} {network.fingerprint}")
    counts = {"events": world.story.events, "messages": network.messages, **counts}
    return Outcome(
        seed,
        violation,
        world.story.fingerprint,
        trio.current_time(),
        counts,
        tuple(world.story.lines),
        b"".join(world.book.lines),
    )


def run_seed(seed: int, *, keep_story: bool = False) -> Outcome:
    """Run one world from its seed to its end."""
    return run_seeded(seed, partial(_live, seed, keep_story))


async def _live(seed: int, keep_story: bool) -> Outcome:
    world = World(seed, keep_story=keep_story)
    history = History()
    world.story.tell(f"{world.knobs}")
    violation = await violation_of(world, _two_phases(world, history))
    checker = world.checker
    counts = {
        "elections": checker.elections,
        "commits": checker.commits,
        "snapshots_loaded": checker.snapshots_loaded,
        "power_losses": world.power_losses,
        "lost_disks": world.lost_disks,
        "readmitted": world.readmitted,
        "asked": history.asked,
        "answered": history.answered,
    }
    return outcome_of(world, seed, violation, counts)


async def violation_of(world: World, life: Awaitable[None]) -> str:
    """Live a world's life; the promise that was broken, empty if none was."""
    violation = ""
    try:
        await life
    except* AssertionError as group:
        violation = _first_of(group)
        world.story.tell(f"VIOLATION {violation}")
    return violation


def _first_of(group: BaseExceptionGroup[BaseException]) -> str:
    """Some violation of a group."""
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _first_of(error)
    kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
    return f"{kind}{error}"


async def _two_phases(world: World, history: History) -> None:
    async with trio.open_nursery() as nursery:
        for machine in world.machines:
            machine.start(nursery)
        clients = [Client(world, n, history) for n in range(1, world.knobs.clients + 1)]
        for client in clients:
            await nursery.start(client.run)
        nursery.start_soon(operate, world)
        await Faults(world, nursery).rage(SAFETY_S)
        await _become_well(world, clients[0])
        if len(world.voters) > 1:
            await _isolate_a_follower(world)
        for client in clients:
            client.rest()
        await _become_well(world, clients[0])
        await _become_equal(world)
        _check_end(world, history)
        nursery.cancel_scope.cancel()


async def _become_well(world: World, client: Client) -> None:
    """Within a bounded time there is a leader, it commits, and everybody follows."""
    deadline = trio.current_time() + LIVENESS_S
    while not await _works(world, client):
        world.require(
            trio.current_time() < deadline,
            f"nothing works {LIVENESS_S:g} s after everything was healed",
        )
        await trio.sleep(0.2)


async def _become_equal(world: World) -> None:
    """What was committed last reaches everybody."""
    deadline = trio.current_time() + LIVENESS_S
    while not all(_follows(m, world.checker.committed_end) for m in world.machines):
        world.require(trio.current_time() < deadline, "somebody does not follow any more")
        await trio.sleep(0.1)


async def _works(world: World, client: Client) -> bool:
    for machine in world.machines:
        machine.start_again()
    if any(machine.owes_admission for machine in world.machines):
        return False
    before = world.checker.committed_end
    answer = await client.register_again()
    leader = world.leader()
    if answer is None or leader is None or leader.node is None:
        return False
    end = leader.node.quorum.core.high_watermark
    for _ in range(FOLLOW_LOOKS):
        if all(_follows(machine, end) for machine in world.machines):
            return end > before
        await trio.sleep(0.1)
    return False


def _follows(machine: Machine, end: int) -> bool:
    return machine.node is not None and machine.node.metadata_loader.applied.value >= end


async def _isolate_a_follower(world: World) -> None:
    """A voter that was cut off and comes back must not depose a healthy leader."""
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    epoch = leader.node.quorum.core.epoch
    lonely = world.rng.choice([machine for machine in world.voters if machine is not leader])
    world.story.tell(f"{lonely.name} is isolated while {leader.name} leads epoch {epoch}")
    for other in world.machines:
        if other is not lonely:
            world.network.cut(lonely.name, other.name)
            world.network.cut(other.name, lonely.name)
    await trio.sleep(ISOLATION_S)
    heal(world)
    await trio.sleep(ISOLATION_S)
    now = world.leader()
    world.require(
        now is leader and leader.node.quorum.core.epoch == epoch,
        f"{lonely.name} came back and deposed {leader.name}, who led epoch {epoch}",
    )


def _check_end(world: World, history: History) -> None:
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    topics = {name: topic.topic_id for name, topic in leader.node.image.topics.items()}
    history.check(world, topics)
    for machine in world.machines:
        if machine.node is not None:
            world.checker.check_holds(machine.node.quorum, machine.name)
