"""Carries leaders' ISR proposals to the controller, and looks for replicas that lag.

One request at a time carries all that is proposed. A proposal is sent again until the controller
answers it or newer metadata overtakes it; what it changed comes back as metadata, not here. Lagging
members are looked for every half `replica.lag.time.max.ms`, so one is dropped after 1 to 1.5 times
that. Sources: KIP-497, KIP-841.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

import trio

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import Refused, error_code
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.replication.leader import Leader, Proposal
from hightide_broker.runtime.cluster.controller_channel import ControllerChannel
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replica_events import proposed, refused
from hightide_broker.trace.events import Tell, tell_nobody

log = logging.getLogger("hightide.isr")

RESEND_S = 0.05
PARTITIONS_MAX = 1000
"""Proposals in one request."""
SLICE = 256
"""Replicas that are looked at before it is the turn of others."""
_Sent = tuple[Replica, Proposal]


class IsrChanges:
    """The proposals of one broker's leaders."""

    def __init__(
        self,
        channel: ControllerChannel,
        *,
        broker: int,
        config: BrokerConfig,
        tell: Tell = tell_nobody,
    ) -> None:
        self.refused: Counter[str] = Counter()
        """How often the controller did not grant it, by its reason."""
        self._tell = tell
        self._told: dict[Replica, Proposal] = {}
        self._channel = channel
        self._broker = broker
        self._timeout_s = config.seconds(keys.CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS)
        self._lag_s = config.seconds(keys.REPLICA_LAG_TIME_MAX_MS)
        self._marked: dict[Replica, None] = {}
        self._wake = trio.Event()
        self._unanswered: dict[Replica, Proposal] = {}
        """Proposals that were sent, and perhaps carried out, without an answer."""

    def mark(self, replica: Replica) -> None:
        """A leader may have a proposal to send."""
        if replica not in self._marked:
            self._marked[replica] = None
            self._wake.set()

    async def run(self, replicas: Iterable[Replica]) -> None:
        """Until cancelled; `replicas` are those of this broker, whenever they are gone through."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_for_laggards, replicas)
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                while proposed := self._take():
                    if not await self._send(proposed):
                        await trio.sleep(RESEND_S)

    async def _look_for_laggards(self, replicas: Iterable[Replica]) -> None:
        while True:
            await trio.sleep(self._lag_s / 2)
            for number, replica in enumerate(replicas):
                if number % SLICE == 0:
                    await trio.lowlevel.checkpoint()
                if replica.leader is not None and not replica.offline:
                    if replica.leader.drop_laggards(trio.current_time()):
                        self.mark(replica)
                    replica.recompute()

    def _take(self) -> list[_Sent]:
        """The next proposals to send; what needs no sending any more is forgotten."""
        found: list[_Sent] = []
        for replica in list(self._marked):
            leader = replica.leader
            if leader is None or leader.proposal is None or leader.is_settled:
                del self._marked[replica]
                self._unanswered.pop(replica, None)
                self._told.pop(replica, None)
            elif len(found) < PARTITIONS_MAX:
                found.append((replica, leader.proposal))
                self._tell_once(replica, leader, leader.proposal)
        return found

    def _tell_once(self, replica: Replica, leader: Leader, proposal: Proposal) -> None:
        """It is sent until it is answered, and told when it is sent first."""
        if self._told.get(replica) is not proposal:
            self._told[replica] = proposal
            for event in proposed(replica, leader, proposal, trio.current_time()):
                self._tell(event)

    async def _send(self, proposed: list[_Sent]) -> bool:
        """Whether every one of these was granted."""
        epochs = {r.leader.broker_epoch for r, _ in proposed if r.leader is not None}
        request = c.AlterPartitionRequest(
            broker=self._broker,
            broker_epoch=max(epochs),  # they are one: this process's registration
            partitions=[_wish(replica, proposal) for replica, proposal in proposed],
        )
        try:
            answer, _ = await self._channel.ask(request, timeout_s=self._timeout_s)
        except Refused as refusal:
            log.warning("%d ISR changes were not answered: %s", len(proposed), refusal)
            self._unanswered.update(proposed)
            return False
        assert isinstance(answer, c.AlterPartitionResponse)
        results = {(r.topic_id, r.partition): r for r in answer.partitions}
        for replica, proposal in proposed:
            result = results.get((replica.topic_id, replica.partition))
            if result is not None:
                self._settle(replica, proposal, result)
        return len(results) == len(proposed) and all(r.error is None for r in results.values())

    def _settle(self, replica: Replica, proposal: Proposal, result: c.AlterPartitionResult) -> None:
        """Tell a leader what became of its proposal."""
        if result.error:
            self.refused[result.error] += 1
            log.info("%s: ISR %s was refused: %s", replica.name, proposal.isr, result.message)
            self._tell(refused(replica, proposal, result.error, result.message))
        if replica.leader is not None:
            replica.leader.on_answer(
                proposal,
                None if result.error is None else error_code(result.error),
                is_only_one=self._unanswered.get(replica) is not proposal,
            )
            replica.recompute()


def _wish(replica: Replica, proposal: Proposal) -> c.AlterPartition:
    return c.AlterPartition(
        topic_id=replica.topic_id,
        partition=replica.partition,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        isr=list(proposal.isr),
        broker_epochs=list(proposal.broker_epochs),
    )
