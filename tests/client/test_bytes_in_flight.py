"""What is sent stays as it is until nobody needs it: a batch that is sent again, while its first
attempt may be on its way still, has its own bytes, and goes to its own partition (CVE-2026-35554).

Method: a broker that loses requests and answers, behind a way that takes a few bytes at a time, so
that requests time out half sent; memory for a few batches only. Of all that comes, whether it is
kept or not, each record says where it belongs, and what has one place has one content.
"""

import random
from typing import NamedTuple

import pytest
import trio
from brokers import FakeClock
from fake_broker import IGNORE, LOSE_ANSWER, STORE_AND_SAY_NOTHING, FakeBroker, Trick, in_memory
from streams import MemoryStream
from tries import few

from hightide import DeliveryTimeout, Producer
from hightide.produce.accumulator import Accumulator
from hightide.protocol import messages as m
from hightide.protocol.batch_builder import Batch
from hightide.protocol.columns import to_records
from hightide.protocol.errors import HightideError
from hightide.protocol.records import check_crc, iter_batches

TOPICS = {"a": 2, "b": 1, "c": 3}
PLACES = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]
RECORDS = 120
REQUEST_S, DELIVERY_S = 2.0, 20.0


class Strict(FakeBroker):
    """Looks at the bytes of every attempt; what is wrong with them is in `wrongs`."""

    def __post_init__(self):
        super().__post_init__()
        self.wrongs = []
        self.attempts = 0
        self.repeats = 0
        self._contents = {}

    def _produce(self, request, attachments, trick):
        for part in request.partitions:
            self._look(part, bytes(attachments[part.records]))
        return super()._produce(request, attachments, trick)

    def _look(self, part, data):
        ((header, batch),) = iter_batches(data)
        check_crc(batch, header)
        self.attempts += 1
        mine = f"{part.topic}-{part.partition} "
        for record in to_records(batch, header, part.topic, part.partition):
            if not record.value.decode().startswith(mine):
                self.wrongs.append(f"{record.value[:9]!r} came to {mine}")
        sent_as = (header.producer_id, header.producer_epoch, header.base_sequence)
        first = self._contents.setdefault((*sent_as, part.topic, part.partition), data)
        self.repeats += first is not data
        if first != data:
            self.wrongs.append(f"{sent_as} of {mine} has two contents")


class Narrow(MemoryStream):
    """A stream that takes some bytes now and then."""

    def __init__(self, whole, dice):
        super().__init__(whole._here, whole._there)
        self._dice = dice
        self._room = 0

    def send_now(self, buffers):
        taken = b"".join(bytes(buffer) for buffer in buffers)[: self._room]
        self._room -= len(taken)
        return super().send_now([taken]) if taken else 0

    async def wait_writable(self):
        await trio.sleep(self._dice.choice([0.0, 0.0, 0.1, 0.1, REQUEST_S + 0.5]))
        self._room = self._dice.randrange(1, 1500)


class NarrowNetwork:
    def __init__(self, network, dice):
        self._network = network
        self._dice = dice

    async def connect(self, host, port):
        return Narrow(await self._network.connect(host, port), self._dice)


class Life(NamedTuple):
    """Of a producer, and what its broker heard of it."""

    broker: Strict
    sent: dict
    """By place."""
    acknowledged: set
    errors: list
    """Of records that were not."""
    repeated: list
    """Why batches were sent again."""


async def live(seed):
    dice, broker = random.Random(seed), Strict(TOPICS)
    life = Life(broker, {place: [] for place in PLACES}, set(), [], [])
    tricks = [IGNORE, STORE_AND_SAY_NOTHING, LOSE_ANSWER, *[Trick()] * 3]
    broker.will(m.ProduceRequest, *(dice.choice(tricks) for _ in range(30)))

    async def wait_for(delivery, value):
        try:
            await delivery
        except HightideError as error:
            life.errors.append(error)
        else:
            life.acknowledged.add(value)

    async with (
        in_memory(broker) as network,
        Producer(
            broker.address,
            network=NarrowNetwork(network, dice),
            random=random.Random(seed),
            clock=FakeClock(),
            compression_type=dice.choice(["none", "lz4", "zstd"]),
            batch_size=300,
            buffer_memory=2500,
            linger_ms=5,
            request_timeout_ms=REQUEST_S * 1000,
            delivery_timeout_ms=DELIVERY_S * 1000,
            max_block_ms=3_600_000,
            on_retry=life.repeated.append,
        ) as producer,
        trio.open_nursery() as nursery,
    ):
        for number in range(RECORDS):
            topic, partition = dice.choice(PLACES)
            text = f"{topic}-{partition} {number} " + "x" * dice.choice([0, 10, 100, 240])
            delivery = await producer.send(topic, text.encode(), partition=partition)
            life.sent[topic, partition].append(text.encode())
            nursery.start_soon(wait_for, delivery, text.encode())
            await trio.sleep(dice.choice([0, 0, 0.01, 0.5]))
    return life


@pytest.mark.parametrize("seed", few(range(12), 4))
async def test_an_attempt_has_its_own_bytes_and_comes_to_its_own_partition(seed, autojump_clock):
    life = await live(seed)
    assert life.broker.wrongs == []
    assert life.broker.repeats > 3, "then nothing was tried"
    assert any("sending took more than" in str(why) for why in life.repeated), "none was half sent"
    for place, sent in life.sent.items():
        stored = life.broker.values(*place)
        assert stored == [value for value in sent if value in {*stored}], place
        assert {*sent} & life.acknowledged <= {*stored}, place
    assert {type(error) for error in life.errors} <= {DeliveryTimeout}
    assert len(life.acknowledged) > RECORDS / 2


async def test_a_buffer_that_is_used_for_another_batch_too_early_would_be_noticed(
    autojump_clock, monkeypatch
):
    """As in a producer that has a pool of them, and gives back what it will send again."""
    encode, retry, pool = Batch.encode, Accumulator.retry, []

    def pooled(self, *args):
        is_new = self.encoded is None
        data = encode(self, *args)
        if is_new and pool:
            self.encoded = pool.pop()
            self.encoded[:] = data
        return self.encoded

    def gives_back(self, batch, *args, **kwargs):
        pool.append(batch.encoded)
        retry(self, batch, *args, **kwargs)

    monkeypatch.setattr(Batch, "encode", pooled)
    monkeypatch.setattr(Accumulator, "retry", gives_back)
    wrongs = (await live(0)).broker.wrongs
    assert any(" came to " in wrong for wrong in wrongs)
    assert any("two contents" in wrong for wrong in wrongs)
