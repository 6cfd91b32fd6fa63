"""Rows of a CSV file to records of a topic: `python ingest.py TOPIC < orders.csv`.

The first column is the key: rows of one customer lie in one partition, in order.
"""

import csv
import json
import os
import sys

from hightide import HightideError
from hightide.blocking import Producer

csv.field_size_limit(sys.maxsize)
topic = sys.argv[1]
with Producer(os.environ.get("HIGHTIDE_BOOTSTRAP", "127.0.0.1:19092"), acks="all") as producer:
    rows = list(csv.DictReader(sys.stdin))
    deliveries = [
        producer.send(topic, json.dumps(row).encode(), key=next(iter(row.values())).encode())
        for row in rows
    ]
    failed = 0
    for row, delivery in zip(rows, deliveries, strict=True):
        try:
            delivery.result()  # on the disk of every in-sync replica
        except HightideError as error:
            failed += 1
            print(f"{row} was not stored: {error}", file=sys.stderr)
print(f"{len(rows) - failed} of {len(rows)} rows are in {topic}")
sys.exit(failed > 0)
