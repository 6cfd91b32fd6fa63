"""Batches of hightide's own clients that take long to look into are looked into in turn with
everybody else's work, and stay in their order.

Method: the tongue by hand; then a real node, asked for much at once.
"""

import pytest
from brokers import batch, client_of, new_node, settings

from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide_broker.core.replication.validation import RECORDS_AT_ONCE
from hightide_broker.runtime.server.native import NativeTongue
from hightide_broker.simulation.disk import SimDisk

ME = 77
MANY = [b""] * (RECORDS_AT_ONCE + 1)


def looks(request, *attachments):
    buffers = wire.encode_request(request, request_id=1, client="c", attachments=attachments)
    frame = b"".join(map(bytes, buffers))
    return NativeTongue().hear(bytearray(frame[4:])).looks


@pytest.mark.parametrize("values", [[b"v"], MANY])
def test_what_takes_long_is_looked_at_first(values):
    part = m.ProducePartition(topic="t", partition=0, records=0)
    request = m.ProduceRequest(acks=1, timeout_ms=1, partitions=[part])
    assert looks(request, bytes(batch(*values))) is (values is MANY)


async def test_batches_of_one_connection_stay_in_their_order():
    async with new_node(SimDisk(), settings()) as node, client_of(node) as client:
        await client.create("t")
        first = await client.begin(bytes(batch(*MANY, producer=(ME, 0, 0))))
        second = await client.begin(bytes(batch(b"v", producer=(ME, 0, len(MANY)))))
        offsets = []
        for answer in (first, second):
            body, _ = await answer.wait(60)
            offsets += [(part.error, part.base_offset) for part in body.partitions]
        assert offsets == [(None, 0), (None, len(MANY))]
        again = await client.send(bytes(batch(*MANY, producer=(ME, 0, 0))))
        assert (again.base_offset, again.is_repeated) == (0, True)
