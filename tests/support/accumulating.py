"""An accumulator in short words, for tests that tell a story of it. No test lives here."""

from hightide.produce.accumulator import Accumulator
from hightide.protocol.columns import to_records
from hightide.protocol.errors import ApiError, ErrorCode
from hightide.protocol.records import parse_header

NEVER = float("inf")
LOST = ApiError(ErrorCode.REQUEST_TIMED_OUT)
REFUSED = ApiError(ErrorCode.INVALID_RECORD)
NO_SEQUENCE = ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


class Story:
    """An accumulator with short words; a record's size is `size`, whatever its value."""

    def __init__(self, **over):
        options = {
            "batch_size": 100,
            "linger_s": 1.0,
            "buffer_memory": 10_000,
            "delivery_timeout_s": 60.0,
            "max_in_flight": 5,
            "codec": "none",
        }
        self.core = Accumulator(**(options | over))
        self.core.producer_id = 7

    def put(self, *values, partition=0, now=0.0, size=10, headers=()):
        for value in values:
            batch, _ = self.core.append("t", partition, None, value, 5, headers, size, now)
        return batch

    def fill(self, *values, partition=0, now=0.0, apart_s=0.001):
        """A full batch of one record for each value, the last one created now."""
        created = [now - apart_s * age for age in reversed(range(len(values)))]
        return [
            self.put(value, partition=partition, now=then, size=100)
            for value, then in zip(values, created, strict=True)
        ]

    def begin(self, *partitions):
        """Have the first batch of each partition, of one record, acknowledged: from now on several
        may be in flight, and the next record has sequence 1."""
        for partition in partitions or (0,):
            (batch,) = self.fill(b"first", partition=partition)
            assert [sent for sent, _ in self.send()] == [batch]
            self.core.succeed(batch, 0)

    def queue(self, partition=0):
        return next(q for q in self.core.active() if q.partition == partition)

    def ready_at(self, *, now=0.0, partition=0):
        return self.core.ready_at(self.queue(partition), now)

    def send(self, *, now=0.0, max_bytes=1 << 20):
        """One request with what is due."""
        due = [q for q in self.core.active() if self.core.ready_at(q, now) <= now]
        return self.core.drain(due, max_bytes=max_bytes)

    def send_all(self, *, now=0.0):
        """Requests until nothing is due."""
        sent = []
        while taken := self.send(now=now):
            sent += taken
        return sent

    def deliver_all(self, *, now=0.0):
        """Requests until nothing is due, each acknowledged before the next one."""
        sent = []
        while taken := self.send(now=now):
            sent += taken
            for batch, _ in taken:
                self.core.succeed(batch, len(sent))
        return sent

    def later(self, batch, *, not_before=0.0):
        self.core.retry(batch, LOST, not_before=not_before)


def header(encoded):
    return parse_header(encoded)


def values(encoded):
    return [record.value for record in to_records(encoded, header(encoded), "t", 0)]


def stored(sent):
    """The values of a list of (batch, bytes), in order."""
    return [value for _, encoded in sent for value in values(encoded)]


def sequences(sent):
    return [(header(data).producer_epoch, header(data).base_sequence) for _, data in sent]
