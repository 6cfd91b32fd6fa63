"""A topic as Arrow: `python columns.py TOPIC` counts the records of each key."""

import os
import sys

import pyarrow as pa
import pyarrow.compute as pc

from hightide import LATEST
from hightide.blocking import Consumer

address = os.environ.get("HIGHTIDE_BOOTSTRAP", "127.0.0.1:19092")
with Consumer(address, topics=[sys.argv[1]], auto_offset_reset="earliest") as consumer:
    batches = []
    ends = {tp: end.offset for tp, end in consumer.offsets(LATEST).items()}
    while any((consumer.position(*tp) or 0) < end for tp, end in ends.items()):
        batch = consumer.poll_arrow(timeout_ms=1000)
        if batch is not None:
            batches.append(batch)
if batches:
    keys = pa.Table.from_batches(batches)["key"]
    for each in sorted(pc.value_counts(keys).to_pylist(), key=lambda row: -row["counts"]):
        key = each["values"]
        print(each["counts"], "(no key)" if key is None else key.decode(errors="replace"))
