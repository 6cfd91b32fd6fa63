"""What a look at something found, and looks that more than one command of doctor's takes: at a
disk, and at a port."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hightide_broker.runtime.base.system import sync_data

DISK_FREE_BYTES_MIN = 1 << 30
SYNC_P50_S_MAX = 0.02
_SYNCS = 30
OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(NamedTuple):
    """One check's result; `advice` says what to do when it is not ok."""

    check: str
    status: str
    found: str
    advice: str = ""


def existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def space_left(directory: Path) -> Finding:
    """Room for records on the disk of a directory."""
    free = shutil.disk_usage(directory).free
    found = f"{free / (1 << 30):.1f} GiB free"
    if free < DISK_FREE_BYTES_MIN:
        return Finding("disk space", FAIL, found, "free some, or choose another --data")
    return Finding("disk space", OK, found)


def sync_time(directory: Path) -> Finding:
    """How long appending 4 KiB and syncing it takes: what a synced acknowledgement costs."""
    try:
        times = sorted(_timed(directory))
    except OSError as error:
        why = f"{directory}: {error.strerror}"
        return Finding("sync time", FAIL, why, "make room or the disk writable, or another --data")
    p50, p99 = times[len(times) // 2], times[-1]
    found = f"p50 {p50 * 1000:.2f} ms, worst {p99 * 1000:.2f} ms"
    if p50 > SYNC_P50_S_MAX:
        return Finding("sync time", WARN, found, "slow disk: flush=replicated, or a faster one")
    return Finding("sync time", OK, found)


def _timed(directory: Path) -> Iterator[float]:
    clock: Callable[[], float] = time.perf_counter
    with tempfile.NamedTemporaryFile(dir=directory, prefix="hightide-doctor-") as file:
        for _ in range(_SYNCS):
            started = clock()
            os.write(file.fileno(), bytes(4096))
            sync_data(file.fileno())
            yield clock() - started


def why_not_bound(host: str, port: int) -> str:
    """Why nobody can listen there now; empty: somebody can."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""
