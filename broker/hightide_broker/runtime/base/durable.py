"""What makes files, directories and names durable on the real disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hightide_broker.ports import DiskError, DiskFile
from hightide_broker.runtime.base import system

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def mapped(path: str, operation: str) -> Iterator[None]:
    """An `OSError` of the block becomes a `DiskError`."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, operation, error) from error


def disk_error(path: str, operation: str, error: OSError) -> DiskError:
    """What an `OSError` is to those who know no files."""
    why = error.strerror or str(error)
    return DiskError(path, operation, why, full=error.errno in FULL)


def duplicates(files: Sequence[DiskFile]) -> list[tuple[str, int]]:
    """Path and a descriptor of its own for each file; none is left open if one fails."""
    found: list[tuple[str, int]] = []
    try:
        for file in files:
            descriptor = file.duplicate_descriptor()
            assert descriptor is not None, f"{file.path} is no file of the real disk"
            found.append((file.path, descriptor))
    except DiskError:
        for _, descriptor in found:
            os.close(descriptor)
        raise
    return found


def sync(files: Sequence[tuple[str, int]], directories: Sequence[str]) -> None:
    """Sync and close duplicates; every one is closed, the first failure is raised."""
    try:
        for path, descriptor in files:
            with mapped(path, "sync"):
                system.sync_data(descriptor)
        for directory in directories:
            with mapped(directory, "sync"):
                sync_directory(directory)
    finally:
        for _, descriptor in files:
            os.close(descriptor)


def make_dirs(path: str) -> None:
    """Make a directory and what lies above it; each new name is synced where it stands."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if not os.path.exists(above):
        make_dirs(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    sync_directory(above)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        system.sync_all(descriptor)
    finally:
        os.close(descriptor)
