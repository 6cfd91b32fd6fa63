"""Targets: a batch as a producer sends it, in rows and in columns, and everything that opens one.

Held of each: what a broker would store, every reader can open, with numpy and without, and it says
the same in the other form; what is refused is refused in the words that the checks declare; nothing
inflates beyond its bound. No test lives here.
"""

from contextlib import contextmanager, suppress

from kafka_records import JUDGES
from sealing import CONVERTED, JUDGED, WITH_ARROW, batch_in

from hightide.arrow.to_arrow import join_arrow
from hightide.protocol import rows
from hightide.protocol.codecs import at_once
from hightide.protocol.columns import (
    encode_columns,
    headers_of,
    keys_of,
    offsets_of,
    open_batch,
    payload_of,
    timestamps_of,
    values_of,
)
from hightide.protocol.conversion import to_rows
from hightide.protocol.errors import CorruptBatch, Refused
from hightide.protocol.records import (
    CODEC_MASK,
    MAGIC,
    ROWS_MAGIC,
    check_crc,
    encode_batch,
    iter_batches,
    parse_header,
)
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication import validation
from hightide_broker.storage.cleaner import _clean_batch

INFLATED_MAX = 128 << 10
NOW_MS = 1_700_000_000_000
ANY_TIME = str((1 << 63) - 1)
CONFIG = TopicConfig.of(
    {"message.timestamp.before.max.ms": ANY_TIME, "message.timestamp.after.max.ms": ANY_TIME}, {}
)
ALWAYS, NEVER = 1, 1 << 30
"""From how many records on numpy reads them."""

rows.make_ready()


def row_batch(data):
    """Kafka's rows, as a produce request brings them."""
    flags, batch = batch_in(data, ROWS_MAGIC)
    facts = None
    with suppress(Refused):
        sent = memoryview(batch)
        looking = validation.looking_at(sent, CONFIG, lambda _: False, inflated_max=INFLATED_MAX)
        facts = at_once(looking)
    header = sound(batch)
    if header is None:
        assert facts is None, "a batch was accepted that no reader looks into"
        return
    columns = opened(batch, header, NEVER)
    assert columns == opened(batch, header, ALWAYS), "numpy reads something else"
    read(batch, header, columns, facts, flags)


def column_batch(data):
    """Columns, as a client of ours sends them."""
    flags, batch = batch_in(data, MAGIC)
    facts = None
    with suppress(Refused):
        header = validation.check_sent(memoryview(batch))
        facts = validation.look_at_once(memoryview(batch), header, inflated_max=INFLATED_MAX)
    header = sound(batch)
    if header is None:
        assert facts is None, "a batch was accepted that no reader looks into"
        return
    columns = opened(batch, header, NEVER)
    in_rows = None
    with suppress(CorruptBatch):
        in_rows = to_rows(batch, header)
    if columns is None:
        assert in_rows is None, "Kafka's clients are given what is refused here"
    else:
        assert in_rows is not None, "Kafka's clients are not given what is read here"
        assert records_in(in_rows) == records_of(columns, header)
    read(batch, header, columns, facts, flags)


def sound(batch):
    """The header of a batch whose checksum holds; None: nobody looks into it."""
    with suppress(CorruptBatch):
        for _ in iter_batches(batch):
            pass
    try:
        header = parse_header(batch)
        check_crc(batch, header)
    except CorruptBatch:
        return None
    return header


def opened(batch, header, numpy_from):
    """Its columns; None if it cannot be opened."""
    with read_by(numpy_from), suppress(CorruptBatch):
        payload = at_once(payload_of(batch, header, inflated_max=INFLATED_MAX))
        assert len(payload) <= INFLATED_MAX, f"{len(payload)} bytes, {INFLATED_MAX} are the bound"
        return open_batch(batch, header, inflated_max=INFLATED_MAX)
    return None


@contextmanager
def read_by(numpy_from):
    """Rows are read with numpy from so many records on, in the block."""
    before = rows.NUMPY_FROM
    rows.NUMPY_FROM = numpy_from
    try:
        yield
    finally:
        rows.NUMPY_FROM = before


def records_of(columns, header):
    """What each record says."""
    headers = headers_of(columns)
    return [
        (*said, headers.get(index, ()))
        for index, said in enumerate(
            zip(
                offsets_of(columns, header),
                timestamps_of(columns, header),
                keys_of(columns),
                values_of(columns),
                strict=True,
            )
        )
    ]


def records_in(batch):
    """The records of a batch that is known to be good."""
    header = parse_header(batch)
    check_crc(batch, header)
    return records_of(open_batch(batch, header), header)


def read(batch, header, columns, facts, flags):
    """What becomes of a batch whose checksum holds; `facts`: it would be stored."""
    if flags & WITH_ARROW:
        in_arrow(batch, header, columns)
    if columns is None:
        assert facts is None, "a batch was accepted that no reader can open"
        return
    told = records_of(columns, header)
    assert len(told) == header.record_count
    if flags & CONVERTED:
        assert in_both_forms(columns, header) == (told, told)
    if facts is not None:
        stored(batch, header, facts, told, flags)


def in_arrow(batch, header, columns):
    """As Spark reads it: the lengths are added up there."""
    table = None
    with suppress(CorruptBatch):
        unsummed = open_batch(batch, header, check_sums=False, inflated_max=INFLATED_MAX)
        table = join_arrow([(header, unsummed)], "t", 0, include_headers=True)
    if table is None:
        return
    table.validate(full=True)
    assert columns is not None, "Spark reads what others refuse"
    assert table.column("key").to_pylist() == keys_of(columns)
    assert table.column("value").to_pylist() == values_of(columns)
    assert table.column("offset").to_pylist() == list(offsets_of(columns, header))


def in_both_forms(columns, header):
    """The records of a batch after it was written in columns, and after those became rows."""
    times = [header.base_timestamp + delta for delta in columns.timestamp_deltas.tolist()]
    deltas = columns.offset_deltas
    payload = encode_columns(
        times,
        keys_of(columns),
        values_of(columns),
        headers_of(columns),
        base_timestamp=header.base_timestamp,
        offset_deltas=None if deltas is None else deltas.tolist(),
    )
    native = encode_batch(
        payload,
        record_count=header.record_count,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes & ~CODEC_MASK,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return records_in(native), records_in(to_rows(native, parse_header(native)))


def judged(batch):
    """What aiokafka reads; None if a header's name is no UTF-8: it minds, and Java does not."""
    try:
        return [
            (each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
            for each in JUDGES["aiokafka"](batch)
        ]
    except UnicodeDecodeError:
        return None


def stored(batch, header, facts, told, flags):
    """A batch that was accepted: it is as it was said to be, also after it is stamped."""
    offsets, times, keys, _, _ = zip(*told, strict=True)
    assert offsets == tuple(range(header.record_count))
    assert (facts.oldest, facts.newest) == (min(times), max(times))
    assert bool(facts.without_key) == (None in keys)
    with suppress(Refused):
        as_stored = validation.admit(
            memoryview(batch), header, facts, CONFIG, now_ms=NOW_MS, inflated_max=INFLATED_MAX
        )
        assert as_stored.max_timestamp == facts.newest
        assert records_in(batch) == told
        if flags & CONVERTED:
            compacted(batch, as_stored, told)
        if flags & JUDGED:
            assert judged(bytes(to_rows(batch, as_stored))) in (told, None)
        if flags & WITH_ARROW:
            unsummed = open_batch(batch, as_stored, check_sums=False)
            assert join_arrow([(as_stored, unsummed)], "t", 0).num_rows == len(told)


def compacted(batch, header, told):
    """Of a batch that was stored the newest record of each key stays, as it was."""
    newest = {key: offset for offset, _, key, _, _ in told if key is not None}
    left = _clean_batch(
        header, memoryview(batch), newest, now_ms=NOW_MS, delete_retention_ms=9, keep_empty=True
    )
    assert records_in(left) == [each for each in told if newest.get(each[2], -1) == each[0]]
