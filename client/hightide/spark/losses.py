"""Whether the cluster still holds what a query has read, and what it is to read next.

What is gone is a `DataLoss` that names it and says why; with `failOnDataLoss=false` the log says
it, with a count, and the query goes on behind it. What is gone of a range that was planned is found
by who reads it (`fetch.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted
from hightide.spark.offsets import Place, Position, lost
from hightide.spark.planner import Planner


class Losses:
    """Looks for them before each batch; one for each run of a query."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._is_first_look = True
        self._told: set[str] = set()
        """What the log has said already: Spark asks again and again from the same position."""
        self._whole: dict[TopicPartition, int] = {}
        """The leader epoch in which a partition's log was last seen to be whole."""

    def checked(self, begin: Position) -> Position:
        """A position without topics that are gone, or were made again, and partitions that are not
        read any more; raises `DataLoss`."""
        ids = self._planner.refresh(gone_ok=True, known=begin.topic_ids)
        gone = [topic for topic in begin.topic_ids if topic not in ids]
        for topic in gone:
            self._lost(f"{topic}: the topic is gone, or no longer subscribed")
        again = begin.made_again(ids)
        for topic in again:
            self._lost(
                f"{topic}: the topic was deleted and made again "
                f"(id {begin.topic_ids[topic]} became {ids[topic]})"
            )
        begin = begin.without([*gone, *again])
        if self._is_first_look:
            self._check_checkpoint(begin)
            self._is_first_look = False
        reads = self._planner.options.reads
        return begin._replace(places={tp: at for tp, at in begin.places.items() if reads(*tp)})

    def _check_checkpoint(self, begin: Position) -> None:
        """What may have become of partitions while the query did not run."""
        reads = self._planner.options.reads
        first = self._planner.starts(tp for tp in begin.places if reads(*tp))
        for tp, place in begin.places.items():
            if tp not in first:
                self._lost_at(tp, place, "the partition is no longer assigned")
            elif place.offset < first[tp]:
                count = first[tp] - place.offset
                gone = counted(count, "offset was deleted", "offsets were deleted")
                why = f"the log begins at offset {first[tp]}: {gone}"
                self._lost_at(tp, place, why)

    def check_new(self, first: Mapping[TopicPartition, int]) -> None:
        """Partitions that the query has not read before, and where they begin by now: what lies
        before that was never read. Raises `DataLoss`."""
        for (topic, partition), offset in first.items():
            if offset > 0:
                gone = counted(offset, "offset was deleted", "offsets were deleted")
                why = f"the log begins at offset {offset}: {gone}"
                self._lost(f"{topic}-{partition}: it is new to the query, but {why}")

    def cuts(
        self, begin: Position, heads: Position, *, is_read: bool = True
    ) -> dict[TopicPartition, Place]:
        """Where logs end that were cut below what was read of them, as an unclean election does;
        what comes there is to be read again. Raises `DataLoss`. `is_read` False: it is about to be
        read once more, and is looked at again afterwards.

        A log is cut only when its leader epoch changes, so it is only then asked about."""
        found = {}
        for tp, place in begin.places.items():
            head = heads.places.get(tp)
            if head is None or head.leader_epoch < place.leader_epoch:
                continue  # not read any more; or the word of who led before
            is_whole = head.leader_epoch == self._whole.get(tp, place.leader_epoch)
            if is_whole and head.offset >= place.offset:
                continue
            end = self._end_of_what_was_read(tp, place, head)
            if end < place.offset:
                why = f"the log ends at offset {end}"
                if place.leader_epoch >= 0:
                    gone = counted(place.offset - end, "offset is gone", "offsets are gone")
                    why = f"the log was cut at offset {end}: {gone}"
                self._lost_at(tp, place, why)
                found[tp] = Place(end, head.leader_epoch)
            if is_read:
                self._whole[tp] = head.leader_epoch
        return found

    def _end_of_what_was_read(self, tp: TopicPartition, place: Place, head: Place) -> int:
        """Where the log and the one that was read part, or end."""
        if place.leader_epoch < 0:  # an offset that the user gave
            return head.offset
        timeout_s = self._planner.options.look_up_timeout_s
        end = self._planner.client.epoch_end(*tp, place.leader_epoch, timeout_s=timeout_s)
        return head.offset if end.end_offset < 0 else min(end.end_offset, head.offset)

    def _lost_at(self, tp: TopicPartition, place: Place, why: str) -> None:
        self._lost(f"{tp[0]}-{tp[1]}: the query is at offset {place.offset}, but {why}")

    def _lost(self, what: str) -> None:
        if what not in self._told:
            lost(what, fail=self._planner.options.fail_on_data_loss)
            self._told.add(what)
