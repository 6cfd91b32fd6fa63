"""The producer's memory against a broker that keeps KIP-98's rules, whatever goes wrong.

Goal: with idempotence every partition's records are stored in the order of their `append`, none of
them twice; what is acknowledged is stored where it was said, what was refused for good is not
stored; every batch ends with an outcome and its memory comes back. Method: a Hypothesis state
machine. Requests reach the broker in the order in which they were sent; it stores or refuses, its
answers arrive in any order, late, or not at all, and the client gives up waiting whenever it likes.
"""

from __future__ import annotations

from accumulating import header, values
from fake_broker import SequenceCheck
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tries import tries

from hightide.produce.accumulator import EPOCH_MAX, Accumulator
from hightide.protocol.batch_builder import Batch
from hightide.protocol.errors import (
    ApiError,
    DeliveryTimeout,
    ErrorCode,
    HightideError,
    RequestTimedOut,
)

MEMORY = 10_000
RECORD_BYTES = 10
BATCH_BYTES = 20
LINGER_S = 1.0
DELIVERY_S = 30.0
BACKOFF_S = 0.5
PARTITIONS = 2

STORE, REFUSE, STORE_AND_REFUSE, REFUSE_FOR_GOOD, TOO_LARGE, DENY = (
    "store",
    "refuse",
    "store and refuse",
    "refuse for good",
    "too large",
    "deny",
)
MOODS = [STORE, STORE, REFUSE, STORE_AND_REFUSE, REFUSE_FOR_GOOD, TOO_LARGE, DENY]
LATER = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
DENIED = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""Said before anybody looks whether the batch is stored already."""
OUT_OF_ORDER = ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


class Sent:
    """A batch on its way; `answer` is what the broker said, an offset or an error's name."""

    def __init__(self, batch: Batch, data: bytes | bytearray) -> None:
        self.batch = batch
        self.header = header(data)
        self.values = values(data)
        self.answer: int | ErrorCode | None = None

    @property
    def name(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self.header.producer_id, self.header.producer_epoch

    def __repr__(self) -> str:
        number = f"{self.header.producer_epoch}.{self.header.base_sequence}"
        return f"<{self.batch.partition} {number} {self.values} {self.answer}>"


class Partition:
    """What was appended, what was sent, and what the broker holds."""

    def __init__(self) -> None:
        self.check = SequenceCheck()
        self.appended = 0
        self.sequences: dict[tuple[int, int, int], bytes | None] = {}
        self.stored: list[bytes | None] = []
        self.acknowledged: set[tuple[int, int]] = set()
        """The ids and epochs of which the client knows that a batch is stored."""

    def judge(self, sent: Sent) -> int | ErrorCode | None:
        verdict = self.check.judge(sent.header)
        if verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self.stored:
            # Who has never heard of a producer takes whatever comes first for its beginning.
            return None
        return verdict

    def store(self, sent: Sent) -> int:
        self.check.note(sent.header, len(self.stored))
        self.stored += sent.values
        return len(self.stored) - len(sent.values)


class Machine(RuleBasedStateMachine):
    """The sender's part is played as `sender.py` does."""

    @initialize(limit=st.integers(1, 5), epoch_max=st.sampled_from([1, 2, EPOCH_MAX]))
    def begin(self, limit: int, epoch_max: int) -> None:
        self.core = Accumulator(
            batch_size=BATCH_BYTES,
            linger_s=LINGER_S,
            buffer_memory=MEMORY,
            delivery_timeout_s=DELIVERY_S,
            max_in_flight=limit,
            codec="none",
        )
        self.core.producer_id = 7
        self.core.epoch_max = epoch_max
        self.limit = limit
        self.now = 0.0
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.batches: dict[Batch, None] = {}
        self.wire: list[Sent] = []
        self.waiting: list[Sent] = []

    # -- the user --------------------------------------------------------------------------------

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 15))
    def append(self, partition: int, count: int) -> None:
        told = self.partitions[partition]
        for _ in range(count):
            value = b"%d" % told.appended
            told.appended += 1
            batch, _ = self.core.append("t", partition, None, value, 5, (), RECORD_BYTES, self.now)
            assert batch.values[-1] == value
            self.batches[batch] = None

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 5.0, DELIVERY_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(on=st.booleans())
    def flush(self, on: bool) -> None:
        self.core.flushing = int(on)

    # -- the sender ------------------------------------------------------------------------------

    @rule(max_bytes=st.sampled_from([1, 1 << 20]), count=st.integers(1, 5))
    def send(self, max_bytes: int, count: int) -> None:
        for _ in range(count):
            self._send_one(max_bytes)

    def _send_one(self, max_bytes: int) -> None:
        due = []
        if self.core.wants_id:
            self.core.producer_id += 1
        for queue in self.core.active():
            ready_at = self.core.ready_at(queue, self.now)
            first = queue.pending[0] if queue.pending else None
            if first is not None and len(queue.pending) == 1 and not first.attempts:
                full = first.size >= self.core.batch_size("t") or self.core.flushing
                assert full or ready_at >= first.created_at + LINGER_S
            if ready_at <= self.now:
                due.append(queue)
        for queue in due:
            for batch in self.core.shrink(queue):
                self.batches.update(dict.fromkeys(batch.parts))
        for batch, data in self.core.drain(due, max_bytes=max_bytes):
            sent = Sent(batch, data)
            assert sent.values == batch.values
            self._note_sequences(sent)
            self.wire.append(sent)
            self.waiting.append(sent)
            self._check_goes_alone(sent)

    def _check_goes_alone(self, sent: Sent) -> None:
        """Nothing else is in flight until something of the epoch is known to be stored."""
        partition = sent.batch.partition
        in_flight = [other for other in self.waiting if other.batch.partition == partition]
        known = sent.name in self.partitions[partition].acknowledged
        assert known or in_flight == [sent]

    def _note_sequences(self, sent: Sent) -> None:
        known = self.partitions[sent.batch.partition].sequences
        for number, value in enumerate(sent.values, sent.header.base_sequence):
            place = (*sent.name, number)
            assert known.setdefault(place, value) == value, "the sequence was used for other data"

    @rule()
    def expire(self) -> None:
        in_flight = [sent.batch for sent in self.waiting]
        for batch in self.core.expire(self.now):
            assert batch not in in_flight
            assert batch.created_at + DELIVERY_S <= self.now
            self.core.abandon(batch, DeliveryTimeout("late"))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up_waiting(self, data: st.DataObject) -> None:
        self._again(data.draw(st.sampled_from(self.waiting)), RequestTimedOut("silence"))

    @rule(rounds=st.integers(1, 8))
    def later_requests_go_well(self, rounds: int) -> None:
        """What is unanswered stays so, while others are sent, stored and answered."""
        stuck = list(self.waiting)
        for _ in range(rounds):
            self._send_one(1 << 20)
            while self.wire:
                self._broker_takes(self.wire.pop(0), STORE)
            for sent in [sent for sent in self.waiting if sent not in stuck]:
                self._take(sent)

    @rule(data=st.data())
    def lose_the_connection(self, data: st.DataObject) -> None:
        self.wire.clear()
        for sent in data.draw(st.permutations(self.waiting)):
            self._again(sent, RequestTimedOut("gone"))

    def _again(self, sent: Sent, error: HightideError) -> None:
        self.waiting.remove(sent)
        self.core.retry(sent.batch, error, not_before=self.now + BACKOFF_S)

    # -- the broker ------------------------------------------------------------------------------

    @precondition(lambda self: self.wire)
    @rule(moods=st.lists(st.sampled_from(MOODS), min_size=1, max_size=5))
    def broker_takes_requests(self, moods: list[str]) -> None:
        for mood in moods[: len(self.wire)]:
            self._broker_takes(self.wire.pop(0), mood)

    def _broker_takes(self, sent: Sent, mood: str) -> None:
        told = self.partitions[sent.batch.partition]
        if mood == DENY:
            sent.answer = DENIED.code
            return
        verdict = told.judge(sent)
        if isinstance(verdict, ErrorCode) or mood == REFUSE:
            sent.answer = LATER.code if mood == REFUSE else verdict
        elif verdict is not None:
            sent.answer = verdict
        elif mood in (STORE, STORE_AND_REFUSE) or (mood == TOO_LARGE and len(sent.batch) == 1):
            sent.answer = told.store(sent)
        else:
            sent.answer = {
                REFUSE_FOR_GOOD: ErrorCode.INVALID_RECORD,
                TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
            }[mood]
        if mood == STORE_AND_REFUSE:
            sent.answer = LATER.code

    @precondition(lambda self: any(sent.answer is not None for sent in self.waiting))
    @rule(data=st.data())
    def answers_arrive(self, data: st.DataObject) -> None:
        answered = [sent for sent in self.waiting if sent.answer is not None]
        arriving = st.lists(st.sampled_from(answered), unique=True, min_size=1)
        for sent in data.draw(arriving):
            self._take(sent)

    def _take(self, sent: Sent) -> None:
        batch, answer = sent.batch, sent.answer
        if answer is LATER.code:
            self._again(sent, LATER)
            return
        self.waiting.remove(sent)
        if isinstance(answer, int):
            self.core.succeed(batch, answer)
            self.partitions[batch.partition].acknowledged.add(sent.name)
        elif answer is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            refuse = self.core.is_first_outstanding(batch)
            again = self.core.refuse_sequence if refuse else self.core.retry
            again(batch, OUT_OF_ORDER, not_before=self.now + BACKOFF_S)
        elif answer is ErrorCode.MESSAGE_TOO_LARGE:
            self.batches.update(dict.fromkeys(self.core.split(batch)))
        else:
            self.core.fail(batch, ApiError(answer))

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def stored_in_order_and_once(self) -> None:
        for told in self.partitions:
            numbers = [int(value) for value in told.stored]
            assert numbers == sorted(set(numbers))

    @invariant()
    def outcomes_are_true(self) -> None:
        for batch in self.batches:
            if not batch.is_done or batch.parts:
                continue
            stored = self.partitions[batch.partition].stored
            if batch.error is None:
                at = batch.base_offset
                assert stored[at : at + len(batch)] == batch.values
            elif isinstance(batch.error, ApiError) and (
                batch.error.code is not DENIED.code or batch.attempts == 1
            ):
                assert not set(stored) & set(batch.values)

    @invariant()
    def memory_adds_up(self) -> None:
        open_batches = [batch for batch in self.batches if not batch.is_done]
        assert self.core.free_bytes == MEMORY - sum(batch.size for batch in open_batches)
        assert {*self.core.unfinished()} == {*open_batches}

    @invariant()
    def not_too_many_are_in_flight(self) -> None:
        for queue in self.core.active():
            assert len(queue.in_flight) <= self.limit

    def calm_comes(self) -> None:
        """Everything works again: every batch gets its outcome."""
        self.core.flushing = 1
        for _ in range(200):
            if not self.core.unfinished():
                break
            self.now += BACKOFF_S
            self.expire()
            self._send_one(1 << 20)
            while self.wire:
                self._broker_takes(self.wire.pop(0), STORE)
            for sent in list(self.waiting):
                self._take(sent) if sent.answer is not None else self._again(sent, LATER)
            self.stored_in_order_and_once()
        self.core.flushing = 0
        assert self.core.unfinished() == []
        assert self.core.free_bytes == MEMORY
        assert list(self.core.active()) == []

    def teardown(self) -> None:
        if hasattr(self, "core"):
            self.calm_comes()
            self.outcomes_are_true()


TestAccumulator = Machine.TestCase
TestAccumulator.settings = settings(
    max_examples=tries(300), stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
