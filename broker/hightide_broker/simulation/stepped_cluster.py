"""Replicas on a table: real logs, leaders and followers, moved by hand one step at a time.

Brokers are called A, B, C; their disks are simulated, and nobody waits: a fetch happens when it is
asked for, a metadata change when it is made, time when it passes. The controller is the real rule
of who may lead. For lessons (`lab_scenarios.py`) and for tests of sequences.

`old_rule` is what Kafka did before leader epochs (KIP-101): a follower cuts its log at its own high
watermark, and compares nothing when it fetches. It exists here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec

from hightide.protocol import messages as m
from hightide.protocol.columns import batch_at, to_records
from hightide.protocol.records import Buffer, iter_batches
from hightide_broker.config import BrokerConfig, make_config
from hightide_broker.core.cluster.change_events import became
from hightide_broker.core.cluster.image import NO_LEADER, PartitionState
from hightide_broker.core.cluster.partition_changes import (
    NOBODY_FORGOT,
    Election,
    Forgot,
    LogEnd,
    Rules,
    change_partition,
    let_go,
)
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication.follower import AskOffsets, Step, next_fetch
from hightide_broker.core.replication.text import Held, show_replica
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Reply
from hightide_broker.runtime.replication.following import Following, own_log
from hightide_broker.runtime.replication.log_loader import log_config
from hightide_broker.runtime.replication.replica import Appended, Replica
from hightide_broker.runtime.replication.replica_events import followed, led
from hightide_broker.runtime.server.fetch_handler import FetchHandler
from hightide_broker.runtime.server.record_handlers import require_watermark
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.file_slice import FileSlice
from hightide_broker.storage.log import Log
from hightide_broker.trace.events import Event

CONTROLLER = 0
"""Who decides; it is none of the brokers."""
TOPIC, TOPIC_ID, DIRECTORY = "lesson", "lesson-topic-id", "data/lesson-0"
LAG_MAX_S = 30.0


@dataclass(slots=True)
class Broker:
    """One broker's part of the table."""

    id: int
    disk: SimDisk
    replica: Replica | None = None
    """None while it is down."""
    checkpoint: int = 0
    """The high watermark that it would find after a restart."""
    epoch: int = 0
    """Of its registration: it rises with each restart."""

    @property
    def name(self) -> str:
        return name_of(self.id)


def name_of(broker: int) -> str:
    """1 is A, 2 is B; nobody is none."""
    return "nobody" if broker == NO_LEADER else chr(ord("A") + broker - 1)


class Lane(NamedTuple):
    """How far one replica is; -1: it is down."""

    broker: str
    role: str
    epoch: int
    high_watermark: int
    log_end: int
    starts: list[tuple[int, int]]
    """Where its leader epochs begin, (epoch, offset)."""
    values: list[str]


class _OneReplica:
    """What a fetch handler asks of the replicas of its broker: there is one."""

    def __init__(self, table: Table, replica: Replica) -> None:
        self._table = table
        self._replica = replica

    def get(self, topic: str, partition: int, *, topic_id: str = "") -> Replica:
        return self._replica

    def epoch_of(self, broker: int) -> int:
        return self._table.brokers[broker].epoch

    def rack_of(self, broker: int) -> str:
        return ""

    def mark_proposal(self, replica: Replica) -> None:
        """Proposals are carried out by hand."""


class Table:
    """One partition on a few brokers; the first one leads epoch 0, and all are in sync."""

    def __init__(
        self,
        names: str,
        *,
        min_isr: int = 1,
        flush: str = "synced",
        old_rule: bool = False,
    ) -> None:
        ids = tuple(range(1, len(names) + 1))
        self.now = 0.0
        self.told: list[tuple[int, Event]] = []
        """What the nodes of a cluster would trace of it, with who tells; whoever reads it may empty
        it. That the old rule cuts is told by nobody: no cluster does it."""
        self.old_rule = old_rule
        self.state = PartitionState(ids, ids, ids[0], 0, 0)
        self.active = dict.fromkeys(ids, 0)
        self.config = TopicConfig.of({"flush": flush, "min.insync.replicas": str(min_isr)}, {})
        self._broker_config: BrokerConfig = make_config({})
        self._min_isr = min_isr
        self.brokers = {number: Broker(number, SimDisk()) for number in ids}
        for broker in self.brokers.values():
            log = Log.create(
                broker.disk, DIRECTORY, topic_id=TOPIC_ID, config=log_config(self.config)
            )
            self._set_up(broker, log)

    # -- brokers ---------------------------------------------------------------------------------

    def broker(self, name: str) -> Broker:
        """A broker by its letter."""
        return self.brokers[ord(name) - ord("A") + 1]

    def replica(self, name: str) -> Replica:
        """The replica of a broker that is up."""
        found = self.broker(name).replica
        assert found is not None, f"{name} is down"
        return found

    @property
    def leader(self) -> str:
        """Who leads by the newest metadata."""
        return name_of(self.state.leader)

    def _set_up(self, broker: Broker, log: Log) -> None:
        broker.replica = Replica(
            TOPIC,
            TOPIC_ID,
            0,
            config=self.config,
            log=log,
            high_watermark=broker.checkpoint,
            inflated_max=1 << 20,
            now=lambda: self.now,
        )
        broker.replica.rebuild_producers(now_ms=0)
        self._learn(broker)

    def _learn(self, broker: Broker) -> None:
        """A broker hears of the newest metadata."""
        replica, state = broker.replica, self.state
        if replica is None:
            return
        if state.leader == broker.id and state.leader_epoch > replica.leader_epoch:
            replica.become_leader(
                state,
                broker=broker.id,
                broker_epoch=broker.epoch,
                active=self.active,
                lag_max_s=LAG_MAX_S,
            )
            self._tell(broker.id, led(replica))
            self.sync(broker.name)
        elif state.leader == broker.id:
            replica.update_active(self.active)
            replica.update_leader(state)
        elif state.leader_epoch > replica.leader_epoch:
            replica.become_follower(state)
            self._tell(broker.id, followed(replica))
            if self.old_rule:
                replica.log.truncate_to(replica.high_watermark)

    def _tell(self, node: int, what: Event) -> None:
        self.told.append((node, what))

    def sync(self, name: str) -> None:
        """What a broker has written reaches its disk."""
        replica = self.replica(name)
        job = replica.begin_sync()
        if job is not None:
            self.broker(name).disk.sync_now(job.files, job.directories)
            replica.finish_sync(job)

    def keep_watermark(self, name: str) -> None:
        """A broker writes its high watermark checkpoint."""
        self.broker(name).checkpoint = self.replica(name).high_watermark

    def crash(self, name: str, *, power: bool = False) -> None:
        """A broker is gone; with `power`, so is what it has not synced."""
        broker = self.broker(name)
        broker.replica = None
        if power:
            broker.disk.crash(_KeepsNothing())
        else:
            broker.disk.kill()

    def restart(self, name: str) -> None:
        """A broker comes back with what its disk kept, and learns of the newest metadata."""
        broker = self.broker(name)
        assert broker.replica is None, f"{name} is up"
        broker.epoch += 1
        log = Log.open(
            broker.disk,
            DIRECTORY,
            topic_id=TOPIC_ID,
            config=log_config(self.config),
            log_start=0,
            recovery_point=0,
            clean=False,
        )
        self._set_up(broker, log)
        self.sync(name)

    # -- metadata --------------------------------------------------------------------------------

    def fence(self, name: str, *, lost_data: bool = False) -> None:
        """The controller takes a broker out of service; `lost_data`: it may have lost records."""
        gone = self.broker(name).id
        self.active = {b: epoch for b, epoch in self.active.items() if b != gone}
        isr = tuple(b for b in self.state.isr if b != gone)
        self.change(isr, forgot={gone: Forgot.UNSYNCED} if lost_data else NOBODY_FORGOT)

    def unfence(self, name: str) -> None:
        """A broker serves again; it may lead what waits for it."""
        broker = self.broker(name)
        self.active = {**self.active, broker.id: broker.epoch}
        self.change(self.state.isr)

    def change(
        self,
        isr: tuple[int, ...],
        *,
        forgot: Mapping[int, Forgot] = NOBODY_FORGOT,
        election: Election = Election.ONLINE,
    ) -> None:
        """The controller changes the partition by its rules, and all that are up hear of it."""
        rules = Rules(lambda b: b in self.active, self._min_isr, ends=self._log_ends())
        change = change_partition(
            TOPIC_ID, 0, self.state, rules, isr=isr, election=election, forgot=forgot
        )
        if change is not None:
            self._decide(self.state.changed(change))
        self.tell_all()
        self._hear_all()

    def _hear_all(self) -> None:
        """The controller hears of all that are up, and may let go of who else is eligible."""
        up = [b for b in self.state.isr if self.brokers[b].replica is not None]
        change = let_go(TOPIC_ID, 0, self.state, self._min_isr, up)
        if change is not None:
            self._decide(self.state.changed(change))
            self.tell_all()

    def _log_ends(self) -> dict[int, LogEnd]:
        """What those that serve say of their logs, while nobody leads."""
        if self.state.leader != NO_LEADER:
            return {}
        up = [b for b in self.active if self.brokers[b].replica is not None]
        logs = {b: self.replica(name_of(b)).log for b in up}
        return {b: LogEnd(log.epochs.latest_epoch, log.log_end) for b, log in logs.items()}

    def lose_power(self, names: str) -> None:
        """Brokers are gone at one time with what they had not synced, and the controller knows."""
        gone = [self.broker(name).id for name in names]
        for name in names:
            self.crash(name, power=True)
        self.active = {b: epoch for b, epoch in self.active.items() if b not in gone}
        isr = tuple(b for b in self.state.isr if b not in gone)
        self.change(isr, forgot=dict.fromkeys(gone, Forgot.UNSYNCED))

    def elect(self, name: str, isr: str) -> None:
        """Somebody leads a new epoch, by decree; all that are up hear of it."""
        members = tuple(self.broker(each).id for each in isr)
        self._decide(
            replace(
                self.state,
                leader=self.broker(name).id,
                isr=members,
                leader_epoch=self.state.leader_epoch + 1,
                partition_epoch=self.state.partition_epoch + 1,
            )
        )
        self.tell_all()

    def _decide(self, state: PartitionState) -> None:
        """The metadata says so from now on."""
        before, self.state = self.state, state
        what = became(TOPIC, 0, before, state, offset=state.partition_epoch)
        self._tell(CONTROLLER, what)

    def tell_all(self) -> None:
        """All that are up hear of the newest metadata."""
        for broker in self.brokers.values():
            self._learn(broker)

    def grant(self) -> str:
        """The controller grants the leader's ISR proposal; what it was, empty if there is none."""
        leader = self.replica(self.leader).leader
        if leader is None or leader.proposal is None:
            return ""
        self.change(leader.proposal.isr)
        return ",".join(name_of(b) for b in self.state.isr)

    # -- records ---------------------------------------------------------------------------------

    def produce(self, value: str, *, to: str = "") -> Appended:
        """A producer sends a record with acks=all; `Refused` if it is refused at once."""
        batch = batch_at(0, [value.encode()])
        name = to or self.leader
        appended = self.replica(name).append(memoryview(batch), acks_all=True, now_ms=0)
        if self.config.synced:
            self.sync(name)
        return appended

    def is_acknowledged(self, appended: Appended, *, by: str = "") -> bool:
        """Whether the producer has been told yes by now."""
        return self.replica(by or self.leader).high_watermark >= appended.end_offset

    def values(self, name: str, *, committed: bool = False) -> list[str]:
        """What a replica holds, or what a consumer may read of it."""
        replica = self.replica(name)
        end = replica.high_watermark if committed else replica.log.log_end
        return [
            (record.value or b"").decode()
            for header, batch in replica.log.batches(replica.log.log_start)
            if header.next_offset <= end
            for record in to_records(batch, header, TOPIC, 0)
        ]

    def held(self, name: str) -> dict[int, Held]:
        """What a replica holds, by offset."""
        log = self.replica(name).log
        headers = [header for header, _ in log.batches(log.log_start)]
        pairs = zip(headers, self.values(name), strict=True)
        return {head.base_offset: Held(value, head.leader_epoch) for head, value in pairs}

    def show(self, name: str) -> str:
        """What a replica that is up does, and has."""
        replica = self.replica(name)
        role = "leads" if replica.leader else "idles in"
        if replica.follower is not None:
            role = f"follows {name_of(replica.follower.leader)} in"
        held, start = self.held(name).values(), replica.log.log_start
        return show_replica(role, replica.leader_epoch, start, held, replica.high_watermark)

    # -- fetching --------------------------------------------------------------------------------

    def question(self, name: str) -> m.FetchPartition:
        """What a follower asks now."""
        replica = self.replica(name)
        assert replica.follower is not None, f"{name} follows nobody"
        part = next_fetch(
            TOPIC,
            TOPIC_ID,
            0,
            replica.follower,
            own_log(replica),
            high_watermark=replica.high_watermark,
            max_bytes=1 << 20,
        )
        return msgspec.structs.replace(part, last_fetched_epoch=-1) if self.old_rule else part

    def answer(
        self, leader: str, name: str, part: m.FetchPartition
    ) -> tuple[m.FetchResult, Buffer]:
        """What the leader answers a follower, without waiting."""
        replica, follower = self.replica(leader), self.broker(name)
        here = _OneReplica(self, replica)
        handler = FetchHandler(here, here, self._broker_config, Agenda())
        request = m.FetchRequest(
            replica_id=follower.id, replica_epoch=follower.epoch, max_wait_ms=0, partitions=[part]
        )
        reply = handler.fetch(request)
        assert isinstance(reply, Reply)
        assert isinstance(reply.body, m.FetchResponse)
        data = b"".join(
            each.read() if isinstance(each, FileSlice) else each for each in reply.attachments
        )
        if not reply.body.partitions:
            return m.FetchResult(
                topic=TOPIC, partition=0, high_watermark=part.high_watermark, log_start_offset=0
            ), b""
        return reply.body.partitions[0], data

    def take(
        self,
        name: str,
        part: m.FetchPartition,
        result: m.FetchResult,
        data: Buffer,
        *,
        synced: bool = True,
    ) -> Step:
        """A follower makes of an answer what there is to make of it."""
        replica = self.replica(name)
        if self.old_rule:
            # What it did not say, it knows nevertheless.
            latest = replica.log.epochs.latest_epoch
            part = msgspec.structs.replace(part, last_fetched_epoch=latest)
        following = Following(
            now_ms=lambda: 0,
            lower_offsets=lambda *_: None,
            tell=partial(self._tell, self.broker(name).id),
        )
        step = following.take(replica, part, result, data, self.now)
        if isinstance(step, AskOffsets) and replica.follower is not None:
            log = self.replica(self.leader).log
            step = replica.follower.out_of_range(
                part, log.log_start, log.log_end, own_log(replica), self.now
            )
            following.carry_out(replica, step, b"", self.now)
        if synced and self.config.synced:
            self.sync(name)
        return step

    def latest(self, name: str) -> int:
        """What a broker tells a consumer about the end of the partition; raises `Refused`."""
        replica = self.replica(name)
        require_watermark(replica, replica.require_leader())
        return replica.high_watermark

    def fetch(self, name: str, *, lost_answer: bool = False) -> tuple[m.FetchResult, Step | None]:
        """One whole fetch of a follower; with `lost_answer` only the leader hears of it."""
        follower = self.replica(name).follower
        assert follower is not None, f"{name} follows nobody"
        part = self.question(name)
        result, data = self.answer(name_of(follower.leader), name, part)
        return result, None if lost_answer else self.take(name, part, result, data)

    def records_in(self, data: Buffer) -> list[str]:
        """The values in an answer's batches."""
        return [
            (record.value or b"").decode()
            for header, batch in iter_batches(data)
            for record in to_records(batch, header, TOPIC, 0)
        ]

    def pass_time(self, seconds: float) -> None:
        """Time passes; nothing else does."""
        self.now += seconds


def lanes_of(table: Table) -> list[Lane]:
    """Every replica, as it is now."""
    return [_lane(table, broker) for broker in table.brokers.values()]


def _lane(table: Table, broker: Broker) -> Lane:
    replica = broker.replica
    if replica is None:
        return Lane(broker.name, "down", -1, -1, -1, [], [])
    role = "leader" if replica.leader else "follower" if replica.follower else "idle"
    starts = [(epoch, start) for epoch, start in replica.log.epochs.entries]
    at = replica.leader_epoch, replica.high_watermark, replica.log.log_end
    return Lane(broker.name, role, *at, starts, table.values(broker.name))


class _KeepsNothing:
    """The luck of a crash that loses everything that was not synced."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int, /) -> int:
        return 0

    def randbytes(self, n: int, /) -> bytes:
        return bytes(n)
