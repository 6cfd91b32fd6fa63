"""What Linux and macOS call by different names."""

from __future__ import annotations

import errno
import fcntl
import os
import resource

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its `fsync` leaves bytes in the drive's own cache, which a power cut empties."""
_UNKNOWN_THERE = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
"""What a file system says that has no such call, as one over the network."""
_ZEROES = bytes(1 << 16)


def sync_data(descriptor: int) -> None:
    """Have the drive keep a file's bytes and its size; raises `OSError`."""
    if _FULL_SYNC is None and hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        sync_all(descriptor)


def sync_all(descriptor: int) -> None:
    """Have the drive keep a file, or the names in a directory; raises `OSError`."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in _UNKNOWN_THERE:
                raise
    os.fsync(descriptor)


def allocate(descriptor: int, size: int) -> None:
    """Make a file so large that it has room on the disk for all of it; raises `OSError`."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    at = os.fstat(descriptor).st_size
    while at < size:
        at += os.pwrite(descriptor, _ZEROES[: size - at], at)


def raise_open_files_limit() -> int:
    """Lift the process's soft limit of open files to the hard one; the limit that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_limit()


def open_files_limit() -> int:
    """How many files the process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def open_files() -> int:
    """How many descriptors the process has; raises `OSError`."""
    place = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    # Linux says it there since 6.2; before, and on macOS, they have to be listed: 2 ms a thousand.
    told = os.stat(place).st_size if place.startswith("/proc") else 0
    return told or len(os.listdir(place))
