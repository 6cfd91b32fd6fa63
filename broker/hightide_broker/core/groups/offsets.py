"""The committed offsets of one consumer group. Pure.

An offset counts once its record is committed; of two for one partition the later record does, as
they are told in the order of the log. Those of a topic that was deleted count no more, even if
another one has its name now. Of what was forgotten nothing is kept: groups come and go.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.groups.records import OffsetValue


class GroupOffsets:
    """Partition → what is committed."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, OffsetValue] = {}
        self._newest: dict[TopicPartition, tuple[str, int]] = {}
        """Who committed each partition last, as far as this coordinator was asked, and the number
        of that commit."""

    def take_turn(self, tp: TopicPartition, sender: str, number: int) -> bool:
        """Whether a commit comes in its turn: one that its sender has given up, and that waited
        meanwhile, must not undo a later one. Who does not say who it is, is not counted."""
        last_sender, last = self._newest.get(tp, ("", -1))
        if sender and sender == last_sender and number < last:
            return False
        self._newest[tp] = (sender, number)
        return True

    def __bool__(self) -> bool:
        return bool(self._known)

    def __iter__(self) -> Iterator[TopicPartition]:
        """The partitions that anything is kept for, deleted ones too."""
        return iter([*self._known])

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known of any partition, nor on its way."""
        return not (self._known or self._newest)

    def commit(self, tp: TopicPartition, value: OffsetValue | None) -> None:
        """A record is committed; None: a tombstone."""
        if value is not None:
            self._known[tp] = value
        else:
            self._known.pop(tp, None)
            self._newest.pop(tp, None)

    def get(self, tp: TopicPartition, topic_ids: Mapping[str, str]) -> OffsetValue | None:
        """What is committed for a partition of the topic that has this name now."""
        value = self._known.get(tp)
        return value if value is not None and value.topic_id == topic_ids.get(tp[0]) else None

    def all(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, OffsetValue]:
        """Everything that counts."""
        found = {tp: self.get(tp, topic_ids) for tp in sorted(self._known)}
        return {tp: value for tp, value in found.items() if value is not None}

    def expired(
        self,
        topic_ids: Mapping[str, str],
        *,
        now_ms: int,
        retention_ms: int,
        empty_since_ms: int,
        read: Container[str] | None,
    ) -> list[TopicPartition]:
        """What is to be forgotten: deleted topics' at once; others' a retention after the group
        became empty (`read` is None) or, of topics that nobody reads, after the commit."""
        found = []
        for tp, value in self._known.items():
            if value.topic_id != topic_ids.get(tp[0]):
                found.append(tp)
            elif read is None:
                since = max(empty_since_ms, value.commit_time_ms)
                if now_ms - since >= retention_ms:
                    found.append(tp)
            elif tp[0] not in read and now_ms - value.commit_time_ms >= retention_ms:
                found.append(tp)
        return found
