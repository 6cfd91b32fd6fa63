"""Goal: a leader tells how far a producer has got, as KIP-664 has it.

Method: a real broker in this process, asked before and after batches of a known producer.
"""

from brokers import batch
from clients import one_node

from hightide.protocol import producer_messages as p

ME = 77


async def state_of(client, *, partition=0, producer=ME):
    question = p.ProducerQuestion(topic="t", partition=partition, producer_id=producer)
    (state,) = (await client.call(p.DescribeProducersRequest(partitions=[question]))).partitions
    return state


async def test_a_producer_is_known_by_its_epoch_and_its_last_sequence():
    async with one_node(partitions=2) as found:
        client = found.client
        nobody = await state_of(client)
        assert (nobody.producer_epoch, nobody.last_sequence, nobody.last_offset) == (-1, -1, -1)
        await client.send(batch(b"other"))
        await client.send(batch(b"a", b"b", b"c", producer=(ME, 4, 0)))
        state = await state_of(client)
        assert (state.producer_epoch, state.last_sequence, state.last_offset) == (4, 2, 3)
        assert (state.high_watermark, state.error) == (4, None)
        await client.send(batch(b"d", producer=(ME, 5, 0)))
        state = await state_of(client)
        assert (state.producer_epoch, state.last_sequence, state.last_offset) == (5, 0, 4)
        assert (await state_of(client, partition=1)).last_sequence == -1
        assert (await state_of(client, producer=78)).last_sequence == -1


async def test_a_partition_that_does_not_exist_is_refused():
    async with one_node() as found:
        state = await state_of(found.client, partition=5)
        assert (state.error, state.producer_epoch) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
        assert state.message


async def test_every_producer_is_told():
    async with one_node() as found:
        client = found.client
        for producer, values in ((ME, b"ab"), (ME + 1, b"c")):
            batches = [bytes([each]) for each in values]
            await client.send(batch(*batches, producer=(producer, 3, 0)))
        state = await state_of(client, producer=-1)
        known = {each.producer_id: (each.epoch, each.last_sequence) for each in state.producers}
        assert known == {ME: (3, 1), ME + 1: (3, 0)}
        assert (state.high_watermark, state.last_sequence) == (3, -1)
