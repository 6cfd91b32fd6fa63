"""A log may go while somebody looks for a time in it.

Method: a real node on a simulated disk, and the steps of one search by hand.
"""

import pytest
from brokers import batch, client_of, new_node

from hightide.protocol import messages as m
from hightide.protocol.codecs import at_once
from hightide.protocol.errors import Refused
from hightide_broker.runtime.replication.by_time import finding_timestamp
from hightide_broker.simulation.disk import SimDisk


async def test_a_topic_that_is_deleted_meanwhile_is_not_read_on():
    async with new_node(SimDisk()) as node, client_of(node) as client:
        await client.create("t")
        await client.send(batch(b"a", b"b", times=[500, 100]))
        await client.send(batch(b"c", times=[500]))
        await client.delete_records(1)
        replica = node.replicas.get("t", 0)
        steps = finding_timestamp(replica, 300)
        next(steps)
        await client.call(m.DeleteTopicsRequest(topics=["t"]))
        with pytest.raises(Refused, match="the topic was deleted"):
            at_once(steps)
