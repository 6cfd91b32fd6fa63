"""Batches for Kafka's clients: sent as they are stored where that can be, converted where not.

Method: answers of a fetch by hand, whose files are bytes.
"""

import pytest
from brokers import batch
from kafkakit import rows

from hightide.protocol import messages as m
from hightide.protocol.records import iter_batches
from hightide_broker.kafka.converted import CONVERTED_BYTES_MAX, Conversions, converted
from hightide_broker.runtime.base.call import Reply
from hightide_broker.storage.file_slice import FileSlice


class File:
    """Bytes in the place of a file; it may be shorter than it was."""

    path = "0.log"

    def __init__(self, data):
        self.data = bytes(data)

    def read(self, position, size):
        return self.data[position : position + size]


def reply_of(*parts):
    results = [
        m.FetchResult(topic="t", partition=number, records=number) for number in range(len(parts))
    ]
    slices = [FileSlice(File(data), 0, len(data), 9) for data in parts]
    return Reply(m.FetchResponse(partitions=results), slices)


def rest_of(reply, *, conversions=None, zstd=True, topic_id="id"):
    kept = Conversions() if conversions is None else conversions
    return converted(kept, lambda _topic: topic_id, reply, zstd=zstd)


def columns(*values, **kind):
    return bytes(batch(*values, **kind))


def test_rows_stay_a_slice_of_the_file():
    assert rest_of(reply_of(rows(b"a") + rows(b"b"), rows(b"c"))) is None
    assert rest_of(reply_of()) is None


async def test_what_was_converted_needs_no_more():
    reply = await rest_of(reply_of(columns(b"a"), rows(b"b") + columns(b"c")))()
    assert rest_of(reply) is None
    found = [[header.magic for header, _ in iter_batches(data)] for data in reply.attachments]
    assert found == [[2], [2, 2]]


async def test_a_batch_is_converted_once_and_another_one_in_its_place_again():
    conversions = Conversions()
    first, second = columns(b"a"), columns(b"b")
    for data, topic_id in ((first, "id"), (first, "id"), (second, "id"), (first, "other")):
        await rest_of(reply_of(data), conversions=conversions, topic_id=topic_id)()
    assert len(conversions._kept) == 3


async def test_who_knows_no_zstd_is_refused_that_partition_alone():
    reply = await rest_of(
        reply_of(rows(b"a", codec="zstd"), columns(b"b", codec="zstd"), rows(b"c")), zstd=False
    )()
    errors = [part.error for part in reply.body.partitions]
    assert errors == ["UNSUPPORTED_COMPRESSION_TYPE"] * 2 + [None]
    assert [part.records for part in reply.body.partitions] == [-1, -1, 0]
    assert len(reply.attachments) == 1


async def test_a_batch_that_cannot_be_opened_is_that_partitions_trouble():
    broken = bytearray(columns(b"a", b"b"))
    broken[61] ^= 0xFF
    reply = await rest_of(reply_of(broken, columns(b"c")))()
    assert [part.error for part in reply.body.partitions] == ["CORRUPT_MESSAGE", None]


async def test_once_enough_is_converted_the_others_are_asked_for_again():
    large = columns(bytes(CONVERTED_BYTES_MAX))
    reply = await rest_of(reply_of(large + large, columns(b"b"), rows(b"c")))()
    sizes = [len(data) for data in reply.attachments]
    assert sizes[0] > CONVERTED_BYTES_MAX
    assert len([*iter_batches(reply.attachments[0])]) == 1
    assert sizes[1] == 0 < sizes[2]


def test_a_file_that_shrank_ends_the_connection():
    reply = reply_of(rows(b"a"))
    reply.attachments[0].file.data = b""
    with pytest.raises(OSError, match="shrank"):
        rest_of(reply)
