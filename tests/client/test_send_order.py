"""Records of a partition are stored in the order in which they were sent, whichever way."""

import random

import pytest
import trio
from brokers import FakeClock
from fake_broker import FakeBroker, in_memory
from tries import few

from hightide import Producer


@pytest.mark.parametrize("seed", few(range(20), 6))
async def test_records_of_a_partition_keep_their_order_however_they_are_sent(seed, autojump_clock):
    """One after the other, with and without keys, small ones and such as fill a batch, many at once
    and where the caller says."""
    dice, broker, rows = random.Random(seed), FakeBroker({"t": 1}), []
    async with (
        in_memory(broker) as network,
        Producer(
            broker.address,
            network=network,
            random=random.Random(3),
            clock=FakeClock(),
            batch_size=200,
            linger_ms=5,
        ) as producer,
    ):
        for _ in range(200):
            value = b"%04d" % len(rows) + b"x" * dice.choice([0, 0, 0, 30, 120, 300])
            match dice.randrange(8):
                case 0:
                    await producer.send("t", value, key=b"k")
                case 1:
                    await producer.send("t", value, partition=0, headers=[("h", b"1")])
                case 2:
                    rows.append(b"first of two")
                    await producer.send_many("t", [rows[-1], value])
                case 3:
                    await trio.sleep(dice.choice([0, 0.01]))
                    await producer.send("t", value, timestamp=5)
                case _:
                    await producer.send("t", value)
            rows.append(value)
    assert broker.values() == rows
