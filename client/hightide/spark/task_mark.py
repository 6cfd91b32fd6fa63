"""What one task finds in the mark of its sink, and keeps there before it stores anything: where the
rows of its batch begin, and where those of earlier runs end.

The first task of a job looks where logs end, and the others go by that. A mark is what arrived
last, though, which may be words of a dead run: so each task tells its driver, too, what it went by.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hightide.protocol.errors import ApiError, ErrorCode
from hightide.spark.attempts import Attempt
from hightide.spark.client import BlockingClient
from hightide.spark.earlier import Earlier, earlier_rows
from hightide.spark.marks import Mark, TopicMark, Writing, ends_of
from hightide.spark.stored import LayoutChanged


class TaskMark:
    """The mark of a sink, as one of its tasks reads and writes it."""

    def __init__(
        self,
        client: BlockingClient,
        attempt: Attempt,
        writing: Writing,
        *,
        may_duplicate: bool,
        timeout_s: float,
    ) -> None:
        self.done: Mark | None = None
        """The one that said that all of the batch is there."""
        self._client, self._attempt, self._writing = client, attempt, writing
        self._may_duplicate, self._timeout_s = may_duplicate, timeout_s
        self._mark = Mark()

    def begin(self) -> tuple[dict[str, TopicMark], Earlier]:
        """The topics of the batch so far, and what others stored there before this job began it;
        nothing if it is done. Raises `SinkClash`, or `LayoutChanged`."""
        client, attempt, timeout_s = self._client, self._attempt, self._timeout_s
        if self._finds_it_done():
            return {}, Earlier()
        if self._mark.refused and not self._may_duplicate:
            raise LayoutChanged(self._mark.refused)
        job = self._writing.job
        if any(each.at_work != job for each in self._mark.topics.values()):
            # Where logs end is looked at before the mark is: nothing of this run lies below.
            now = ends_of(client, self._mark.topics, timeout_s=timeout_s, gone_ok=True)
            if self._finds_it_done():
                return {}, Earlier()
            kept = self._mark
            new = {
                topic: replace(each, ends=now[topic].starts, at_work=job)
                for topic, each in kept.topics.items()
                if topic in now and each.is_of(now[topic].topic_id) and each.at_work != job
            }
            self._mark = replace(kept, topics={**kept.topics, **new})
            self._mark.write(client, attempt.sink, new, timeout_s=timeout_s)
        begun = {topic: each for topic, each in self._mark.topics.items() if each.at_work == job}
        return begun, earlier_rows(client, attempt, self._mark, job, timeout_s=timeout_s)

    def learn(self, topics: Collection[str]) -> dict[str, TopicMark]:
        """Topics that the batch comes to now, for this task; nothing if it is done. Raises
        `ApiError` if it should have looked at them when it began."""
        client, attempt, timeout_s = self._client, self._attempt, self._timeout_s
        # Looked at before the mark: nothing of this batch lies below, no matter who keeps it.
        now = ends_of(client, topics, timeout_s=timeout_s)
        if self._finds_it_done():
            return {}
        marks, job = self._mark.topics, self._writing.job
        kept = {t: marks[t] for t in topics if t in marks and marks[t].is_of(now[t].topic_id)}
        for topic, each in kept.items():
            if each.at_work != job:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic!r} holds what earlier runs wrote, at which this task has not "
                    "looked: a broker that is behind called it gone, or words of a dead run came "
                    "late. The task is to begin again",
                )
        new = {
            topic: replace(each, ends=each.starts, at_work=job)
            for topic, each in now.items()
            if topic not in kept
        }
        before = replace(self._mark.before, checkpoint=self._writing.checkpoint)
        Mark(attempt.batch, new, before).write(client, attempt.sink, new, timeout_s=timeout_s)
        return {**new, **kept}

    def _finds_it_done(self) -> bool:
        """Read the mark; each time anew, as a driver's last request may arrive after it has died,
        and then it is not told any more where the batch began."""
        attempt = self._attempt
        self._mark = Mark.read(self._client, attempt.sink, timeout_s=self._timeout_s)
        self._mark.check(attempt.sink, attempt.batch, self._writing)
        self.done = self._mark if attempt.batch < self._mark.next_batch else None
        return self.done is not None
