"""Runs a seed of a replicated world: brokers that copy records, producers, consumers, and faults.

As with the quorum alone, first anything may happen, then everything is healed and has to work:
every partition has all of its replicas in sync again, accepts records, and each reader gets to
its end. Then what clients were told is held against what is there.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import trio

from hightide import Admin, Producer
from hightide.protocol.errors import HightideError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation import group_workload
from hightide_broker.simulation.churn import Churn
from hightide_broker.simulation.faults import Faults
from hightide_broker.simulation.group_workload import GroupLog, GroupMember
from hightide_broker.simulation.impostor import Impostor
from hightide_broker.simulation.keyed import Keyed
from hightide_broker.simulation.operator import operate
from hightide_broker.simulation.rows_workload import RowSending
from hightide_broker.simulation.run import LIVENESS_S, Outcome, outcome_of, violation_of
from hightide_broker.simulation.salvage import give_up_what_is_lost
from hightide_broker.simulation.scheduler import run_seeded
from hightide_broker.simulation.unsynced import Losses
from hightide_broker.simulation.workload import (
    Reading,
    Records,
    Sending,
    Subject,
    bootstrap_of,
)
from hightide_broker.simulation.world import (
    Knobs,
    Machine,
    SimClock,
    World,
    draw_thread_pause,
)

SETUP_S = 30.0
LONG = "-long" * 46
"""What makes a topic's name almost as long as it may be."""
GROUPED = 0.3
"""How many of these worlds have a consumer group."""
CHORES = {
    "log.retention.check.interval.ms": "1s",
    "log.roll.ms": "3s",
    "log.segment.delete.delay.ms": "1s",
    "log.cleaner.min.cleanable.ratio": "0.01",
}
"""Deleted topics go, and what groups committed is compacted, within the life of a world."""
TROUBLE_S = 20.0
"""How long anything may happen: these worlds do more in a second than those of the quorum."""


def draw(seed: int, *, unsynced: bool = False) -> tuple[Knobs, list[Subject]]:
    """The knobs of a seed, and its topics."""
    rng = random.Random(f"replicated-{seed}")
    base = Knobs.draw(rng)
    shape = rng.choice(["three", "three", "three", "four", "split"])
    if unsynced:
        # Controllers that know who is gone decide otherwise than those that are new.
        shape = rng.choice([shape, "split"])
    lag_ms = rng.choice([1500, 5000])
    synced = rng.random() < 0.7 and not unsynced
    knobs = replace(
        base,
        controllers=1 if shape == "four" else 3,
        combined=shape != "split",
        observers={"three": 0, "four": 3, "split": 3}[shape],
        replicated=True,
        loses_power=synced,
        unsynced=unsynced,
        config=base.config
        | {
            "flush": "synced" if synced else "replicated",
            "broker.session.timeout.ms": rng.choice(["2s", "6s"]),
            "broker.heartbeat.interval.ms": "500",
            "replica.lag.time.max.ms": str(lag_ms),
            "replica.fetch.wait.max.ms": rng.choice(["100", "500"]),
            "replica.fetch.max.bytes": rng.choice(["2000", "1MiB"]),
            "replica.socket.timeout.ms": rng.choice(["500", "2s"]),
            "replica.fetch.backoff.ms": "500",
            "replica.high.watermark.checkpoint.interval.ms": "1s",
            "log.flush.offset.checkpoint.interval.ms": rng.choice(["1s", "10s"]),
            "leader.imbalance.check.interval.seconds": rng.choice(["3", "300"]),
            "log.segment.bytes": rng.choice(["1024", "4096", "1GiB"]),
        }
        | group_workload.CONFIG
        | (CHORES if random.Random(f"chores-{seed}").random() < 0.5 else {}),
        think_s=rng.choice([0.1, 0.3, 0.8]),
    )
    return _fated(seed, rng, knobs)


def _fated(seed: int, rng: random.Random, knobs: Knobs) -> tuple[Knobs, list[Subject]]:
    """What may happen to disks and clocks, and topics that survive it."""
    synced, shape_is_three = knobs.loses_power, knobs.combined and knobs.observers == 0
    # One rotten or lost disk is survived where every committed record is on another one, too.
    rots = synced and rng.random() < 0.3
    fate = random.Random(f"fate-{seed}").random()
    loses = synced and not rots and fate < 0.35
    rolls_back = synced and not (rots or loses) and not shape_is_three and fate < 0.7
    freezes_out = synced and not (rots or rolls_back or shape_is_three)
    # In some worlds the only complete disk may go.
    forlorn = freezes_out and random.Random(f"forlorn-{seed}").random() < 0.5
    freezes_out, loses = freezes_out and not forlorn, loses or forlorn
    careful = (rots or loses or rolls_back or freezes_out) and not forlorn
    keeps_flush = careful or forlorn or knobs.unsynced
    alters_flush = not keeps_flush and random.Random(f"flush-{seed}").random() < 0.4
    careful = careful or alters_flush
    topics = [
        Subject(
            f"topic-{number}{LONG if fate > 0.9 else ''}",
            partitions=rng.choice([1, 1, 2]),
            replicas=3 if careful else rng.choice([2, 3, 3, 3]),
            configs=(
                *((("min.insync.replicas", min_isr),) if min_isr else ()),
                ("flush", "synced" if synced else "replicated"),
            ),
        )
        for number in range(rng.choice([1, 1, 2]))
        for min_isr in ["2" if careful else "1" if forlorn else rng.choice("12")[: fate < 0.85]]
    ]
    return replace(
        knobs,
        rots=rots,
        loses_disks=loses,
        rolls_back=rolls_back,
        freezes_out=freezes_out,
        forlorn=forlorn,
        joins_by_itself=fate < 0.1,
        syncs_fail=synced and not rots and fate > 0.3,
        alters=not careful and 0.4 < fate < 0.8,
        alters_flush=alters_flush,
        loses_power=synced or alters_flush or knobs.unsynced,
        thread_pause_s=draw_thread_pause(seed),
        strikes_cut=random.Random(f"cut-{seed}").random() < 0.15,
        clock_jumps=fate > 0.5,
    ), topics


def run_seed(
    seed: int, *, keep_story: bool = False, rows: bool = False, unsynced: bool = False
) -> Outcome:
    """Run one replicated world from its seed to its end; with `rows`, Kafka's batches are written
    in it, too; with `unsynced`, nothing is synced, and power is lost."""
    return run_seeded(seed, partial(_live, seed, keep_story, rows, unsynced))


async def _live(seed: int, keep_story: bool, rows: bool, unsynced: bool) -> Outcome:
    knobs, topics = draw(seed, unsynced=unsynced)
    world = World(seed, keep_story=keep_story, knobs=knobs)
    records, group = Records(), GroupLog()
    replica_checker = world.checker.replica_checker
    replica_checker.flush_changes, replica_checker.rotten = knobs.alters_flush, world.rotten
    if unsynced:
        losses = Losses(world, records)
        world.power_went, replica_checker.on_change = losses.power_went, losses.changed
    world.story.tell(f"{knobs} {topics}")
    violation = await violation_of(world, _two_phases(world, topics, records, group, rows))
    counts = {
        "elections": world.checker.elections,
        "partition_elections": replica_checker.elections,
        "commits": replica_checker.commits,
        "cuts": replica_checker.cuts,
        "blackouts": world.blackouts,
        "power_losses": world.power_losses,
        "lost_disks": world.lost_disks,
        "readmitted": world.readmitted,
        "given_up": world.given_up,
        "lost": replica_checker.losses,
        "sent": records.sent,
        "acknowledged": len(records.acknowledged),
        "acknowledged_in_rows": records.acknowledged_in_rows,
        "read": records.read,
        "group_commits": group.commits,
        "group_rebalances": group.rebalances,
    }
    return outcome_of(world, seed, violation, counts)


async def _two_phases(
    world: World, topics: list[Subject], records: Records, group: GroupLog, rows: bool
) -> None:
    places = [TopicPartition(t.name, number) for t in topics for number in range(t.partitions)]
    address = bootstrap_of(world)
    async with trio.open_nursery() as nursery:
        for machine in world.machines:
            machine.start(nursery)
        keyed = Keyed(world, address, topics[0], writes_rows=rows)
        watched = [*topics, keyed.subject] if keyed.is_on else topics
        await _create(world, watched, address)
        # The third one does not wait for replicas: what is read of it must stay all the same.
        senders = [
            Sending(world, f"producer-{n}", places, records, address, acks=acks)
            for n, acks in ((1, "all"), (2, "all"), (3, "1"))
        ]
        # Nobody reads where what was read may be lost.
        names = [] if world.knobs.may_lose else ["consumer-1", "consumer-2"]
        readers = [Reading(world, name, places, records, address) for name in names]
        async with trio.open_nursery() as working:
            for sender in senders:
                working.start_soon(sender.run)
            for reader in readers:
                nursery.start_soon(reader.run)
            is_grouped = random.Random(f"grouped-{world.seed}").random() < GROUPED
            is_grouped = is_grouped and not world.knobs.may_lose
            for number in range(1, 4 if is_grouped else 1):
                subscribed = [topic.name for topic in topics]
                member = GroupMember(world, f"member-{number}", subscribed, records, group, address)
                nursery.start_soon(member.run)
            nursery.start_soon(operate, world)
            impostor = Impostor(world, places)
            if impostor.is_on:
                nursery.start_soon(impostor.run)
            churn = Churn(world, address, replicas=topics[0].replicas)
            if churn.is_on and not world.knobs.may_lose:
                nursery.start_soon(churn.run)
            kafka = RowSending(world, places, records, address)
            if rows:
                working.start_soon(kafka.run)
            if keyed.is_on:
                working.start_soon(keyed.run)
            await Faults(world, nursery).rage(TROUBLE_S)
            await _become_well(world, topics, records, address)
            if churn.is_on and not world.knobs.may_lose:
                await churn.end(LIVENESS_S)
            for sender in senders:
                sender.rest()
            keyed.rest()
            kafka.rest()
        await _until_read(world, watched, places, readers, group if is_grouped else None)
        await keyed.until_copied(LIVENESS_S)
        _check_end(world, places, records)
        keyed.check_end()
        nursery.cancel_scope.cancel()


async def _create(world: World, topics: list[Subject], address: str) -> None:
    """Before anything goes wrong: all brokers serve, and the topics are made."""
    with trio.fail_after(SETUP_S):
        for machine in world.machines:
            await machine.serves()
        network = world.network.host("admin")
        async with Admin(address, network=network, random=random.Random("admin")) as admin:
            for topic in topics:
                await admin.create_topic(
                    topic.name,
                    partitions=topic.partitions,
                    replication_factor=topic.replicas,
                    configs=dict(topic.configs),
                )


async def _become_well(world: World, topics: list[Subject], records: Records, address: str) -> None:
    """Within a bounded time all replicas are in sync, and every partition accepts records."""
    deadline = trio.current_time() + LIVENESS_S
    network = world.network.host("prober")
    while True:
        for machine in world.machines:
            await _see_to(machine)
        if world.knobs.may_give_up and world.leader() is not None:
            await give_up_what_is_lost(world, records, address)
        unwell = _unwell(world, topics)
        if not unwell:
            break
        world.require(
            trio.current_time() < deadline,
            f"{LIVENESS_S:g} s after everything was healed: {unwell}",
        )
        await trio.sleep(0.2)
    why = ""
    with trio.move_on_at(deadline + LIVENESS_S):
        try:
            async with Producer(
                address,
                acks="all",
                network=network,
                random=random.Random("prober"),
                clock=SimClock(),
            ) as producer:
                for topic in topics:
                    for number in range(topic.partitions):
                        await (await producer.send(topic.name, b"prober 1", partition=number))
                return
        except HightideError as error:
            why = str(error)
    world.require(False, f"records are not accepted after everything was healed: {why}")


async def _see_to(machine: Machine) -> None:
    """Start what is down, and again what has lost a replica to its disk."""
    if machine.node is not None and machine.node.serving.is_set():
        failed = [r.name for r in machine.node.replicas if r.offline and not r.is_damaged]
        if failed:
            await machine.crash(power=False)
    machine.start_again()


def _unwell(world: World, topics: list[Subject]) -> str:
    """What does not work yet; empty if everything does."""
    leader = world.leader()
    if leader is None or leader.node is None:
        return "no controller is active"
    if owing := [machine.name for machine in world.machines if machine.owes_admission]:
        return f"{owing} do not vote"
    for machine in world.machines:
        if machine.node is None or not machine.node.serving.is_set():
            return f"{machine.name} does not serve"
    if ghosts := [machine.name for machine in world.ghosts if machine.is_up]:
        return f"{ghosts} were replaced, and do not end"
    # Who leads may be the last to know, while its disk is stalled.
    image = max((m.node.image for m in world.machines if m.node), key=lambda image: image.offset)
    for topic in topics:
        for number, state in enumerate(image.topics[topic.name].partitions):
            if {*state.isr} != {*state.replicas} or state.leader < 0:
                return f"{topic.name}-{number} is led by {state.leader}, in sync are {state.isr}"
    return ""


async def _until_read(
    world: World,
    topics: list[Subject],
    places: list[TopicPartition],
    readers: list[Reading],
    group: GroupLog | None,
) -> None:
    """Each reader gets to the end, and so does every replica."""
    deadline = trio.current_time() + LIVENESS_S
    while True:
        ends = {tp: _leading(world, tp) for tp in places}
        behind = [
            f"{reader.name} is at {reader.next[tp]} of {tp}, {replica!r}"
            for tp, replica in ends.items()
            for reader in readers
            if replica is None
            or not reader.next[tp] == replica.high_watermark == replica.log.log_end
        ]
        if group is not None and not behind:
            behind = group.behind({w: r.high_watermark for w, r in ends.items() if r is not None})
        if not behind and (unwell := _unwell(world, topics)):
            behind = [unwell]
        # Leaders hear what the controller decided before anybody applies it.
        behind += [f"{replica!r} leads fewer" for replica in ends.values() if _is_short(replica)]
        if not behind:
            return
        world.require(trio.current_time() < deadline, f"the end is not reached: {behind}")
        await trio.sleep(0.1)


def _is_short(replica: Replica | None) -> bool:
    leader = None if replica is None else replica.leader
    return leader is not None and {*leader.isr} != {*leader.replicas}


def _leading(world: World, tp: TopicPartition) -> Replica | None:
    """The leader of a partition, on the newest epoch there is."""
    found = [
        replica
        for machine in world.machines
        if machine.node is not None
        for replica in machine.node.replicas
        if (replica.topic, replica.partition) == tp
        and replica.leader is not None
        and not replica.offline
    ]
    return max(found, key=lambda replica: replica.leader_epoch, default=None)


def _check_end(world: World, places: list[TopicPartition], records: Records) -> None:
    for tp in places:
        replica = _sound(world, tp)
        records.check(tp, replica)
        key = (replica.topic_id, replica.partition)
        world.checker.replica_checker.check_equal(key)


def _sound(world: World, tp: TopicPartition) -> Replica:
    """A replica whose disk does not rot; all of them are in sync by now."""
    return next(
        replica
        for machine in world.machines
        if machine.node is not None and machine.id != world.rotten
        for replica in machine.node.replicas
        if (replica.topic, replica.partition) == tp
    )
