"""The idempotence window: a batch is stored once, however often it is sent, and nobody is wronged.

Goal: what a leader decides about a producer's batch is Kafka's decision (S30-S38, ID1-ID9), and a
snapshot is Kafka's file, or refused. Method: a list of headers plays the log; the snapshot's bytes
and its checksum are laid out by hand; Hypothesis loses, repeats and delays batches and answers, and
moves the leadership to a replica that saw nothing but the log.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.records import CONTROL, BatchHeader, encode_batch, parse_header
from hightide_broker.core.replication.producers import KnownBatch, Producers, SnapshotDamaged

LAST_SEQUENCE = 2**31 - 1
WINDOW = 5
PID = 7
NOW_MS = 1_700_000_000_000
FENCED, OUT_OF_ORDER = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def batch(
    first: int,
    count: int = 1,
    *,
    pid: int = PID,
    epoch: int = 0,
    offset: int = 0,
    timestamp: int = NOW_MS,
    attributes: int = 0,
) -> BatchHeader:
    encoded = encode_batch(
        b"",
        record_count=count,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        base_offset=offset,
        attributes=attributes,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=first,
    )
    return parse_header(encoded)


class Partition:
    """A log of headers, and the producers of the replica that leads it."""

    def __init__(self) -> None:
        self.log: list[BatchHeader] = []
        self.producers = Producers()

    @property
    def end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    def produce(self, header: BatchHeader, *, now_ms: int = NOW_MS) -> int:
        """A client's batch: the base offset it has in the log, now or already."""
        known = self.producers.check(header)
        return self.store(header, now_ms=now_ms) if known is None else known.base_offset

    def store(self, header: BatchHeader, *, now_ms: int = NOW_MS) -> int:
        """A batch that nobody judges: on a replica, and in recovery."""
        stored = header._replace(base_offset=self.end)
        self.producers.update(stored, now_ms=now_ms)
        self.log.append(stored)
        return stored.base_offset

    def replay(self, *, snapshot: bytes | None = None, start: int = 0) -> None:
        """Forget the producers and learn them from a snapshot and the batches after it."""
        self.producers = Producers()
        if snapshot is not None:
            self.producers.restore(snapshot)
        for header in self.log[start:]:
            self.producers.update(header, now_ms=NOW_MS)


def refusal(partition: Partition, header: BatchHeader) -> ErrorCode:
    """Why a batch is refused; a refusal leaves no trace."""
    log, state = list(partition.log), partition.producers.snapshot()
    with pytest.raises(Refused) as caught:
        partition.produce(header)
    assert (partition.log, partition.producers.snapshot()) == (log, state)
    assert str(header.producer_id) in caught.value.message
    return caught.value.code


def led(*headers: BatchHeader) -> Partition:
    partition = Partition()
    for header in headers:
        partition.produce(header)
    return partition


# What is a duplicate.


def test_a_resent_batch_gets_its_first_offsets_and_is_not_stored_again() -> None:
    partition = led(*(batch(n) for n in range(6)))
    assert [partition.produce(batch(6, 3)) for _ in range(3)] == [6, 6, 6]
    assert partition.end == 9
    known = partition.producers.check(batch(6, 3))
    assert known == KnownBatch(6, 8, 6, 8, NOW_MS)


@pytest.mark.parametrize(("first", "count"), [(7, 2), (6, 2), (5, 4), (7, 5), (8, 1), (6, 4)])
def test_a_batch_that_overlaps_a_stored_one_is_out_of_order(first: int, count: int) -> None:
    partition = led(*(batch(n) for n in range(6)), batch(6, 3))
    assert refusal(partition, batch(first, count)) == OUT_OF_ORDER


def test_five_batches_are_remembered_and_the_sixth_from_the_tail_is_not() -> None:
    partition = led(*(batch(n) for n in range(7)))
    assert [partition.produce(batch(n)) for n in (2, 3, 4, 5, 6)] == [2, 3, 4, 5, 6]
    assert refusal(partition, batch(1)) == OUT_OF_ORDER
    assert partition.end == 7


def test_duplicates_do_not_move_the_window() -> None:
    partition = led(*(batch(n) for n in range(5)))
    for _ in range(WINDOW + 1):
        partition.produce(batch(4))
    assert partition.produce(batch(0)) == 0


def test_a_gap_is_out_of_order_and_the_missing_batch_still_fits() -> None:
    partition = led(batch(0))
    assert refusal(partition, batch(2)) == OUT_OF_ORDER
    assert [partition.produce(batch(n)) for n in (1, 2)] == [1, 2]


def test_producers_do_not_disturb_each_other() -> None:
    partition = led(batch(0, 2, pid=1), batch(0, 3, pid=2))
    assert [partition.produce(batch(0, 2, pid=1)), partition.produce(batch(0, 3, pid=2))] == [0, 2]
    assert partition.produce(batch(2, pid=1)) == 5
    assert len(partition.producers) == 2


def test_a_check_alone_changes_nothing() -> None:
    """The append may still fail: only a stored batch leaves state behind (S37)."""
    partition = led(batch(0))
    before = partition.producers.snapshot()
    assert partition.producers.check(batch(1)) is None
    assert partition.producers.check(batch(0, epoch=1)) is None
    assert partition.producers.check(batch(0, pid=99)) is None
    assert partition.producers.snapshot() == before
    assert partition.produce(batch(1)) == 1


def test_batches_of_nobody_are_stored_as_often_as_they_are_sent_and_leave_no_state() -> None:
    partition = Partition()
    assert [partition.produce(batch(-1, 2, pid=-1, epoch=-1)) for _ in range(3)] == [0, 2, 4]
    assert len(partition.producers) == 0


def test_a_control_batch_leaves_no_state() -> None:
    partition = Partition()
    partition.store(batch(-1, attributes=CONTROL))
    assert len(partition.producers) == 0


# Sequences wrap.


def test_after_the_last_sequence_comes_zero_and_nothing_else() -> None:
    partition = led(batch(LAST_SEQUENCE))
    assert refusal(partition, batch(1)) == OUT_OF_ORDER
    assert partition.produce(batch(0)) == 1
    assert partition.produce(batch(1)) == 2


def test_sequences_wrap_inside_a_batch() -> None:
    partition = led(batch(2**31 - 2, 4))
    assert partition.producers.check(batch(2**31 - 2, 4)) == (2**31 - 2, 1, 0, 3, NOW_MS)
    assert refusal(partition, batch(1)) == OUT_OF_ORDER
    assert refusal(partition, batch(3)) == OUT_OF_ORDER
    assert partition.produce(batch(2)) == 4


# Epochs.


def test_an_older_epoch_is_fenced() -> None:
    partition = led(batch(0, epoch=5))
    assert refusal(partition, batch(1, epoch=4)) == FENCED
    assert refusal(partition, batch(0, epoch=4)) == FENCED


def test_a_newer_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    partition = led(batch(0, epoch=5))
    assert refusal(partition, batch(1, epoch=6)) == OUT_OF_ORDER
    assert partition.produce(batch(0, epoch=6)) == 1
    assert refusal(partition, batch(1, epoch=5)) == FENCED
    assert refusal(partition, batch(0, epoch=5)) == FENCED, "a duplicate of an old epoch"
    assert partition.produce(batch(1, epoch=6)) == 2


def test_a_newer_epoch_forgets_the_batches_of_the_old_one() -> None:
    partition = led(batch(0, epoch=5), batch(1, epoch=5), batch(0, epoch=6))
    assert partition.produce(batch(1, epoch=6)) == 3, "not the duplicate of epoch 5's batch"


# Replicas and recovery.


def test_a_replica_takes_duplicates_and_gaps_as_the_log_has_them() -> None:
    replica = Partition()
    for first in (0, 1, 1, 5, 4):
        replica.store(batch(first))
    assert replica.end == 5
    assert replica.produce(batch(5)) == 3, "as leader it knows the last five"


def test_a_replica_follows_the_log_into_an_older_epoch() -> None:
    """A leader that had forgotten epoch 5 may have stored epoch 4 after it (ID4)."""
    partition = led(batch(0, epoch=5))
    partition.producers.expire(before_ms=NOW_MS + 1)
    partition.produce(batch(3, epoch=4))
    partition.replay()
    assert partition.produce(batch(3, epoch=4)) == 1, "the new leader knows the batch"
    assert partition.produce(batch(4, epoch=4)) == 2, "and what comes after it"


def test_a_batch_that_was_cut_off_is_new_again() -> None:
    partition = led(batch(0), batch(1))
    snapshot = partition.producers.snapshot()
    for first in (2, 3, 4):
        partition.produce(batch(first))
    del partition.log[3:]
    partition.replay(snapshot=snapshot, start=2)
    assert partition.produce(batch(2)) == 2, "it is still stored"
    assert partition.produce(batch(3)) == 3
    assert partition.end == 4, "batch 3 was stored again"


def test_clearing_forgets_everybody() -> None:
    producers = led(batch(0), batch(0, pid=8)).producers
    producers.clear()
    assert len(producers) == 0
    assert producers.check(batch(0)) is None


# Expiry.


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    assert [Partition().produce(batch(first)) for first in (0, 41, LAST_SEQUENCE)] == [0, 0, 0]


def test_an_expired_producer_is_unknown() -> None:
    partition = led(batch(0), batch(1))
    assert refusal(partition, batch(41)) == OUT_OF_ORDER
    assert partition.producers.expire(before_ms=NOW_MS + 1) == 1
    assert len(partition.producers) == 0
    assert partition.produce(batch(41)) == 2


def test_only_those_that_were_silent_expire() -> None:
    partition = Partition()
    for pid, now_ms in ((1, 100), (2, 200), (3, 300), (1, 400)):
        partition.produce(batch(int(now_ms == 400), pid=pid), now_ms=now_ms)
    assert partition.producers.expire(before_ms=200) == 0, "200 is not before 200"
    assert partition.producers.expire(before_ms=301) == 2
    assert partition.produce(batch(1, pid=1)) == 3, "1 wrote at 400 and is known"
    assert len(partition.producers) == 1


def test_a_producer_of_old_records_is_not_an_old_producer() -> None:
    partition = Partition()
    partition.produce(batch(0, timestamp=1), now_ms=NOW_MS)
    assert partition.producers.expire(before_ms=NOW_MS) == 0
    assert partition.produce(batch(0, timestamp=1)) == 0


# Snapshots.


def castagnoli(data: bytes) -> int:
    """CRC-32C bit by bit, by its definition."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def sealed(body: bytes, *, version: int = 1) -> bytes:
    return version.to_bytes(2, "big") + castagnoli(body).to_bytes(4, "big") + body


def sample() -> Producers:
    partition = led(batch(10, 2, pid=0x0102), batch(12, 3, pid=0x0102))
    partition.produce(batch(2**31 - 1, 2, pid=0x0304, epoch=9), now_ms=NOW_MS + 1)
    return partition.producers


ENTRIES = bytes.fromhex(
    "0000000000000102"  # producer id
    "0000"  # epoch
    "0000000b"  # last sequence: 10, 11
    "0000000000000001"  # last offset: 0, 1
    "00000001"  # offset delta
    "0000018bcfe56800"  # timestamp
    "ffffffffffffffffffffffff"  # coordinator epoch, first offset of the current transaction
    "0000000000000102"  # its next batch
    "00000000000e"
    "0000000000000004"
    "00000002"  # 12, 13, 14 at 2, 3, 4
    "0000018bcfe56800"
    "ffffffffffffffffffffffff"
    "0000000000000304"
    "000900000000"  # 2**31 - 1 and, wrapped, 0
    "0000000000000006"
    "00000001"
    "0000018bcfe56801"
    "ffffffffffffffffffffffff"
)


def test_a_snapshot_is_kafkas_file() -> None:
    assert castagnoli(b"123456789") == 0xE306_9283
    assert sample().snapshot() == sealed(bytes.fromhex("00000003") + ENTRIES)
    assert Producers().snapshot() == sealed(bytes(4))


def test_a_snapshot_comes_back_with_the_whole_window() -> None:
    restored = Producers()
    restored.restore(sample().snapshot())
    assert len(restored) == 2
    assert restored.snapshot() == sample().snapshot()
    assert restored.check(batch(10, 2, pid=0x0102)) == (10, 11, 0, 1, NOW_MS)
    assert restored.check(batch(12, 3, pid=0x0102)) == (12, 14, 2, 4, NOW_MS)
    wrapped = restored.check(batch(2**31 - 1, 2, pid=0x0304, epoch=9))
    assert wrapped == (2**31 - 1, 0, 5, 6, NOW_MS + 1)
    assert restored.check(batch(15, pid=0x0102)) is None
    assert restored.check(batch(1, pid=0x0304, epoch=9)) is None
    for header in (batch(8, 2, pid=0x0102), batch(2, pid=0x0304, epoch=9)):
        with pytest.raises(Refused, match=OUT_OF_ORDER):
            restored.check(header)


def test_a_snapshot_replaces_what_was_known() -> None:
    producers = led(batch(0, pid=1), batch(0, pid=2)).producers
    producers.restore(led(batch(7, pid=2)).producers.snapshot())
    assert len(producers) == 1
    assert producers.check(batch(8, pid=2)) is None


def test_a_producer_of_which_only_the_epoch_is_left_may_begin_anywhere() -> None:
    """Kafka writes such an entry when an epoch was raised and nothing has been written since."""
    entry = bytes.fromhex("0000000000000007 0005 ffffffff ffffffffffffffff 00000000") + b"\xff" * 20
    snapshot = sealed(bytes.fromhex("00000001") + entry)
    producers = Producers()
    producers.restore(snapshot)
    assert producers.snapshot() == snapshot
    assert producers.check(batch(41, epoch=5)) is None
    for header, code in ((batch(0, epoch=4), FENCED), (batch(1, epoch=6), OUT_OF_ORDER)):
        with pytest.raises(Refused, match=code):
            producers.check(header)
    assert producers.expire(before_ms=0) == 1


def damaged() -> dict[str, bytes]:
    whole = sealed(bytes.fromhex("00000003") + ENTRIES)
    cases = {f"cut to {size}": whole[:size] for size in range(len(whole))}
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        cases[f"bit {bit}"] = bytes(flipped)
    for count in ("00000001", "00000002", "00000004", "ffffffff", "80000000", "7fffffff"):
        cases[f"count {count}"] = sealed(bytes.fromhex(count) + ENTRIES)
    cases["another version"] = sealed(bytes.fromhex("00000003") + ENTRIES, version=2)
    cases["a tail"] = whole + b"\0"
    cases["a sealed tail"] = sealed(whole[6:] + b"\0")
    return cases


def is_refused(producers: Producers, data: bytes) -> bool:
    try:
        producers.restore(data)
    except SnapshotDamaged:
        return True
    return False


def test_a_damaged_snapshot_is_refused_and_nothing_changes() -> None:
    producers = led(*(batch(n) for n in range(6))).producers
    before = producers.snapshot()
    assert [case for case, data in damaged().items() if not is_refused(producers, data)] == []
    assert producers.snapshot() == before
    assert producers.check(batch(1)) == (1, 1, 1, 1, NOW_MS), "the window is whole as well"


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(0, LAST_SEQUENCE), st.integers(1, 9), st.integers(0, 3)
        ),
        max_size=12,
    )
)
@example([(1, 0, 1, 0), (1, LAST_SEQUENCE, 1, 0)])
def test_a_restored_leader_knows_the_last_batch_of_everybody(
    batches: list[tuple[int, int, int, int]],
) -> None:
    partition = Partition()
    newest: dict[int, BatchHeader] = {}
    # No sequence twice, and rising in each epoch, as in any log that a leader wrote.
    distinct = {(pid, epoch, first): count for pid, first, count, epoch in batches}
    for (pid, epoch, first), count in sorted(distinct.items(), key=lambda one: one[0][1:]):
        partition.store(batch(first, count, pid=pid, epoch=epoch))
        newest[pid] = partition.log[-1]
    partition.replay(snapshot=partition.producers.snapshot(), start=len(distinct))
    assert len(partition.producers) == len(newest)
    for header in newest.values():
        assert partition.produce(header) == header.base_offset
        after = (header.last_sequence + 1) % 2**31  # no real window reaches around
        if (header.producer_id, header.producer_epoch, after) not in distinct:
            end = partition.end
            assert partition.produce(header._replace(base_sequence=after)) == end < partition.end


# The promise: idempotent means once, and no false refusal within the window.


class Client:
    """Sends its batches in order, at most five of them unacknowledged, until all are."""

    def __init__(self, pid: int, first: int, sizes: list[int]) -> None:
        self.batches: list[BatchHeader] = []
        for size in sizes:
            self.batches.append(batch(first, size, pid=pid))
            first = (first + size) % 2**31
        self.stored: list[int] = []
        self.answered: set[int] = set()

    @property
    def in_flight(self) -> range:
        total = len(self.batches)
        oldest = next((n for n in range(total) if n not in self.answered), total)
        return range(oldest, min(oldest + WINDOW, total))

    def send(self, partition: Partition, number: int, *, answer: bool) -> None:
        """One batch reaches the leader; whether its answer comes back is the network's whim."""
        end = partition.end
        if number > len(self.stored):
            assert refusal(partition, self.batches[number]) == OUT_OF_ORDER
            return
        offset = partition.produce(self.batches[number])
        if number == len(self.stored):
            assert offset == end, "a new batch is appended"
            self.stored.append(offset)
        assert offset == self.stored[number], "a known batch keeps its offset"
        if answer:
            self.answered.add(number)


bits = st.lists(st.booleans(), min_size=WINDOW, max_size=WINDOW)
events = st.lists(
    st.tuples(st.integers(0, 1), bits, bits, st.sampled_from(["", "", "fail over", "nobody"])),
    max_size=25,
)
clients = st.tuples(
    st.sampled_from([0, 1, 2**31 - 20, 2**31 - 2, 2**31 - 1]),
    st.lists(st.integers(1, 9), min_size=1, max_size=15),
)


@pytest.mark.slow
@given(clients, clients, events)
@settings(max_examples=tries(200), deadline=None)
def test_a_batch_that_is_retried_in_order_is_stored_once_and_never_refused(
    one: tuple[int, list[int]],
    other: tuple[int, list[int]],
    weather: list[tuple[int, list[bool], list[bool], str]],
) -> None:
    partition = Partition()
    both = [Client(pid, *facts) for pid, facts in ((1, one), (2, other))]
    for client in both:  # until its first batch is stored, a producer may begin anywhere (ID4)
        client.send(partition, 0, answer=False)
    calm = [(number % 2, [True] * WINDOW, [True] * WINDOW, "") for number in range(8)]
    for who, arrives, answers, event in [*weather, *calm]:
        client = both[who]
        for number, sent, answered in zip(client.in_flight, arrives, answers, strict=False):
            if sent:
                client.send(partition, number, answer=answered)
        if event == "fail over":
            partition.replay()
        elif event == "nobody":
            partition.produce(batch(-1, pid=-1, epoch=-1))
    for client in both:
        assert len(client.answered) == len(client.batches), "everything was acknowledged"
        mine = [h for h in partition.log if h.producer_id == client.batches[0].producer_id]
        assert [h._replace(base_offset=0) for h in mine] == client.batches, "each once, in order"
