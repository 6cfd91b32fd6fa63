"""What keeps the replicas of this broker from serving. Said in the log as it begins and as it ends,
once; and counted, for those who tell the controller of it at once."""

from __future__ import annotations

import logging

from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.storage.segment import SegmentDamage
from hightide_broker.trace.events import ReplicaOffline, Tell, tell_nobody

log = logging.getLogger("hightide.replicas")

NAMES_SHOWN = 10


class Troubles:
    """The troubles of all replicas of one broker."""

    def __init__(self, tell: Tell = tell_nobody) -> None:
        self.count = Watermark()
        """How often the controller had something to hear at once."""
        self._tell = tell
        self._full: set[TopicPartition] = set()
        self._leaderless: dict[str, None] = {}
        self._lost: list[str] = []
        """Those of them that are not told yet."""
        self._led_again: list[str] = []

    def offline(self, tp: TopicPartition, leader_epoch: int, why: str, *, damaged: bool) -> None:
        """A replica serves nobody any more."""
        log.error("%s is offline: %s", tp, why)
        self._tell(
            ReplicaOffline(
                topic=tp.topic,
                partition=tp.partition,
                leader_epoch=leader_epoch,
                why=why,
                is_damaged=damaged,
            )
        )
        self._count()

    def leaderless(self, name: str) -> None:
        """Nobody leads a partition any more; `tell_leaderless` says so, of all at once."""
        if name not in self._leaderless:
            self._leaderless[name] = None
            self._lost.append(name)
        self._count()

    def contested(self) -> None:
        """Others than those in sync, of which this broker is one, may yet lead a partition: nothing
        commits there before the controller has heard of enough that are in sync."""
        self._count()

    def led(self, name: str) -> None:
        """A partition has a leader."""
        if self._leaderless and name in self._leaderless:
            del self._leaderless[name]
            self._led_again.append(name)

    def tell_leaderless(self) -> None:
        """The metadata at hand is carried out: say what nobody leads by now, and what is led
        again."""
        lost, self._lost = self._lost, []
        again, self._led_again = self._led_again, []
        if lost:
            log.warning("nobody leads %s", _some(lost))
        if again:
            log.info(
                "somebody leads %s again", _some(again), extra={"event": "troubles.tell_led_again"}
            )

    def no_room(self, tp: TopicPartition, error: Exception) -> None:
        """The disk is too full for what a replica has to write."""
        if tp not in self._full:
            self._full.add(tp)
            log.error("%s waits for room on the disk: %s", tp, error)

    def has_room(self, tp: TopicPartition) -> None:
        """A replica has written what it had to; asked with every batch."""
        if self._full and tp in self._full:
            self._full.remove(tp)
            log.info("%s has room on the disk again", tp)

    def waits_for_room(self, tp: TopicPartition) -> bool:
        """Whether the disk was too full for what a replica had to write last."""
        return tp in self._full

    def forget(self, tp: TopicPartition) -> None:
        """A replica is no more."""
        self._full.discard(tp)
        self._leaderless.pop(str(tp), None)

    def _count(self) -> None:
        self.count.advance(self.count.value + 1)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def advice(damage: SegmentDamage) -> str:
    """Why a replica is offline, and what to do about it."""
    return f"{damage}; `hightide log verify` lists the damage"
