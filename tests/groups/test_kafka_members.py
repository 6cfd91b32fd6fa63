"""A group with members of Kafka's clients and of this house: each understands the other's leader.

Goal: partitions are shared, whoever leads; and the coordinator sees what Kafka's members read.
Method: a real consumer beside a member told by hand, whose bytes aiokafka's classes write and read.
"""

import trio
from group_world import Reader, site, until, virtual
from kafka_members import AioAssignment, AioSubscription

from hightide.protocol.errors import ErrorCode

SAID = AioSubscription(0, ["t"], b"").encode()


def of_topic(*partitions):
    return AioAssignment(0, [("t", list(partitions))], b"").encode()


def partitions(assignment):
    return [tp.partition for tp in AioAssignment.decode(assignment).partitions()]


@virtual
async def test_a_consumer_reads_what_a_kafka_client_that_leads_gives_it():
    async with site(topic=4) as at, at.client() as kafka, trio.open_nursery() as nursery:
        await kafka.find()
        first = await kafka.enter(metadata=SAID)
        assert first.leader == first.member_id
        await kafka.sync(first, **{first.member_id: of_topic(0, 1, 2, 3)})
        reader = await nursery.start(Reader(at).run)
        await trio.sleep(1)
        joined = await kafka.join(first.member_id, metadata=SAID)
        assert joined.leader == first.member_id
        told = {m.member_id: AioSubscription.decode(m.metadata) for m in joined.members}
        assert [said.subscription for said in told.values()] == [["t"]] * 2
        (other,) = told.keys() - {first.member_id}
        await kafka.sync(joined, **{first.member_id: of_topic(0), other: of_topic(1, 2, 3)})
        await until(lambda: reader.places == {1, 2, 3})
        nursery.cancel_scope.cancel()


@virtual
async def test_a_kafka_client_understands_what_a_consumer_that_leads_gives_it():
    async with site(topic=4) as at, at.client() as kafka, trio.open_nursery() as nursery:
        reader = await nursery.start(Reader(at).run)
        await until(lambda: reader.places == {0, 1, 2, 3})
        joined = await kafka.enter(metadata=SAID)
        assert joined.leader != joined.member_id
        mine = partitions(await kafka.sync(joined))
        assert len(mine) == 2
        await until(lambda: reader.places == {0, 1, 2, 3} - {*mine})
        nursery.cancel_scope.cancel()


@virtual
async def test_offsets_of_what_a_kafka_client_reads_are_not_forgotten():
    async with site(topic=2) as at, at.client() as kafka:
        await kafka.find()
        joined = await kafka.enter(metadata=SAID)
        await kafka.sync(joined, **{joined.member_id: of_topic(0, 1)})
        assert await kafka.commit(3, joined) is None
        found = await kafka.forget(("t", 0), ("u", 0))
        assert found == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, None]
