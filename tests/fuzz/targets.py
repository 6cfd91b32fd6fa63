"""The targets: plain functions of bytes which end well whatever the bytes are, or have found
something. `python tests/fuzz` feeds them, and so does `test_fuzz.py`. No test lives here."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import seeds
from batches import column_batch, row_batch
from frames import kafka_request, native_request
from kept_files import kept_file
from logs import stored_log
from members import members
from scram import login


class Target(NamedTuple):
    """What is fuzzed, and with what."""

    run: Callable[[bytes], None]
    """Raises what it finds."""
    seeds: Callable[[], Iterator[bytes]]
    bytes_max: int
    """Of an input."""
    share: int
    """Of a hundred executions so many are its."""


TARGETS = {
    "kafka-requests": Target(kafka_request, seeds.of_kafkas_requests, 512, 30),
    "rows": Target(row_batch, seeds.of_rows, 512, 25),
    "columns": Target(column_batch, seeds.of_columns, 512, 14),
    "frames": Target(native_request, seeds.of_frames, 512, 18),
    "members": Target(members, seeds.of_members, 256, 8),
    "logins": Target(login, seeds.of_logins, 256, 1),
    "files": Target(kept_file, seeds.of_files, 512, 3),
    "logs": Target(stored_log, seeds.of_logs, 128, 1),
}
