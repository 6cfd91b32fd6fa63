"""A table whose brokers hear the news one by one; what the stories in `table_story.py` happen on.

Not a test. What the controller decides makes a new version of the metadata, and each broker hears
of it when it is told: late, never, or of the newest alone. Proposals of leaders are judged by the
controller's own rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.records import Buffer
from hightide_broker.core.cluster.image import BrokerState, ClusterImage, PartitionState, TopicState
from hightide_broker.core.cluster.partitions import Partitions
from hightide_broker.core.replication.follower import AskOffsets, Step
from hightide_broker.core.replication.leader import Proposal
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Reply
from hightide_broker.runtime.replication.following import Following, owes_sync, own_log
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.server.fetch_handler import FetchHandler, ParkedFetch
from hightide_broker.simulation.stepped_cluster import TOPIC, TOPIC_ID, Broker, Table, name_of
from hightide_broker.storage.file_slice import FileSlice


class Unable(Exception):
    """What a story wants cannot be done now."""


class Metadata(NamedTuple):
    """One version of what the controller decided."""

    state: PartitionState
    active: dict[int, int]
    """The brokers that may lead and join → their epochs."""
    registered: dict[int, int]
    """All brokers → the epochs of their newest processes."""


@dataclass(slots=True)
class Question:
    """A follower's fetch, and its answer once there is one."""

    follower: int
    leader: str
    part: m.FetchPartition
    broker_epoch: int
    answer: tuple[m.FetchResult, Buffer] | None = None

    def request(self, max_wait_ms: int) -> m.FetchRequest:
        """What the leader hears."""
        return m.FetchRequest(
            replica_id=self.follower,
            replica_epoch=self.broker_epoch,
            max_wait_ms=max_wait_ms,
            partitions=[self.part],
        )


@dataclass(slots=True)
class SentProposal:
    """One sending of a leader's proposal to the controller."""

    leader: str
    proposal: Proposal
    answer: c.AlterPartitionResult | None = None
    is_lost: bool = False


class _Here:
    """What a fetch handler asks of the replicas of its broker, who knows what it has heard."""

    def __init__(self, replica: Replica, heard: Metadata) -> None:
        self._replica = replica
        self._heard = heard

    def get(self, topic: str, partition: int, *, topic_id: str = "") -> Replica:
        return self._replica

    def rack_of(self, broker: int) -> str:
        return ""

    def epoch_of(self, broker: int) -> int:
        return self._heard.registered[broker]

    def mark_proposal(self, replica: Replica) -> None:
        """Proposals are sent when the story says so."""


class NewsTable(Table):
    """A table whose brokers hear of changes one by one."""

    def __init__(self, names: str, *, min_isr: int = 1, flush: str = "synced") -> None:
        self.versions: list[Metadata] = []
        self.heard: dict[int, Metadata] = {}
        self.registered = dict.fromkeys(range(1, len(names) + 1), 0)
        super().__init__(names, min_isr=min_isr, flush=flush)
        self.agenda = Agenda()

    def _learn(self, broker: Broker) -> None:
        """A broker that starts knows what it knew, or what it is told now."""
        if not self.versions:
            self.tell_all()
        self.deliver(broker, self.heard.get(broker.id, self.versions[0]))

    def deliver(self, broker: Broker, version: Metadata) -> None:
        """One broker hears of one version; of its own part as if it were the newest."""
        self.heard[broker.id] = version
        if broker.replica is None:
            return
        broker.replica.update_active(version.active)
        now = self.state, self.active
        self.state, self.active = version.state, version.active
        try:
            super()._learn(broker)
        finally:
            self.state, self.active = now

    def tell_all(self) -> None:
        """A change is decided; nobody has heard of it yet."""
        newest = Metadata(self.state, dict(self.active), dict(self.registered))
        if not self.versions or self.versions[-1] != newest:
            self.versions.append(newest)

    def restart(self, name: str) -> None:
        """A broker registers again, which takes it out of the ISR, and learns all that is known
        before it opens its log."""
        broker = self.broker(name)
        self.registered[broker.id] = broker.epoch + 1
        self.fence(name, lost_data=not self.config.synced)
        self.heard[broker.id] = self.versions[-1]
        super().restart(name)

    def up(self, name: str) -> Replica:
        """The replica of a broker; raises `Unable` while it is down."""
        if name == "nobody" or self.broker(name).replica is None:
            raise Unable(f"{name} is down")
        return self.replica(name)

    # -- fetching --------------------------------------------------------------------------------

    def ask(self, name: str) -> Question:
        """A follower's next question; raises `Unable` if it asks nothing now."""
        replica = self.up(name)
        if replica.follower is None:
            raise Unable(f"{name} follows nobody")
        if not replica.follower.may_fetch(self.now):
            raise Unable(f"{name} waits")
        assert not owes_sync(replica), f"{name} would promise what is not on its disk"
        broker = self.broker(name)
        leader = name_of(replica.follower.leader)
        return Question(broker.id, leader, self.question(name), broker.epoch)

    def hear(self, question: Question, *, max_wait_ms: int = 0) -> Reply | ParkedFetch:
        """Whom the follower follows hears its question."""
        here = _Here(self.up(question.leader), self.heard[self.broker(question.leader).id])
        handler = FetchHandler(here, here, self._broker_config, self.agenda)
        return handler.fetch(question.request(max_wait_ms))

    def answered(self, question: Question, reply: Reply) -> None:
        """The answer is on its way; its bytes are those of this moment."""
        assert isinstance(reply.body, m.FetchResponse)
        data = b"".join(
            each.read() if isinstance(each, FileSlice) else each for each in reply.attachments
        )
        no_news = m.FetchResult(
            topic=TOPIC,
            partition=0,
            high_watermark=question.part.high_watermark,
            log_start_offset=question.part.log_start_offset,
        )
        question.answer = ([*reply.body.partitions, no_news][0], data)

    def take_answer(self, question: Question, *, synced: bool = True) -> Step:
        """The follower makes of the answer what there is to make of it."""
        if question.answer is None:
            raise Unable("there is no answer")
        name = name_of(question.follower)
        replica = self.up(name)
        following = Following(now_ms=lambda: 0, lower_offsets=lambda *_: None)
        step = following.take(replica, question.part, *question.answer, self.now)
        if isinstance(step, AskOffsets) and replica.follower is not None:
            leader = self.up(question.leader)
            leader.require_leader(question.part.current_leader_epoch)
            step = replica.follower.out_of_range(
                question.part, leader.log.log_start, leader.log.log_end, own_log(replica), self.now
            )
            following.carry_out(replica, step, b"", self.now)
        if synced and self.config.synced:
            self.sync(name)
        return step

    # -- the ISR ---------------------------------------------------------------------------------

    def judge(self, letter: SentProposal) -> c.AlterPartitionResult:
        """The controller grants a proposal or refuses it, by its own rules."""
        image = ClusterImage()
        for each in self.brokers.values():
            epoch, fenced = self.registered[each.id], each.id not in self.active
            image.brokers[each.id] = BrokerState(each.id, epoch, "", "", 0, "", (), fenced)
        topic = TopicState(TOPIC, TOPIC_ID, [self.state])
        image.topics[TOPIC] = image.topics_by_id[TOPIC_ID] = topic
        image.configs[("topic", TOPIC)] = {"min.insync.replicas": str(self._min_isr)}
        wish = letter.proposal
        sender = self.broker(letter.leader)
        request = c.AlterPartitionRequest(
            broker=sender.id,
            broker_epoch=sender.epoch,
            partitions=[
                c.AlterPartition(
                    topic_id=TOPIC_ID,
                    partition=0,
                    leader_epoch=wish.leader_epoch,
                    partition_epoch=wish.partition_epoch,
                    isr=list(wish.isr),
                    broker_epochs=list(wish.broker_epochs),
                )
            ],
        )
        changes, (result,) = Partitions(image, {}).alter(request)
        for change in changes:
            self.state = self.state.changed(change)
        self.tell_all()
        self._hear_all()
        return result
