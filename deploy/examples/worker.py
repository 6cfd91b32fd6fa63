"""A worker: `python worker.py TOPIC [COUNT]`. Start several, and they share the partitions.

A record's offset is committed when its work is done. A worker that dies in the middle leaves its
record to another one, so work may be done twice, and never not at all.
"""

import os
import sys
from contextlib import suppress

import trio

import hightide


async def work(record: hightide.Record) -> None:
    value = (record.value or b"").decode(errors="replace")
    print(f"{record.topic}-{record.partition} @{record.offset}: {value}")


async def main(topic: str, count: int | None) -> None:
    async with hightide.Consumer(
        os.environ.get("HIGHTIDE_BOOTSTRAP", "127.0.0.1:19092"),
        group_id=f"workers-of-{topic}",
        topics=[topic],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        done = 0
        async for record in consumer:
            await work(record)
            await consumer.commit()
            done += 1
            if done == count:
                return


with suppress(KeyboardInterrupt):
    trio.run(main, sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
