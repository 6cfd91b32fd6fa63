"""Small files that people and other programs read: each is there whole, or as it was before."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def put_file(path: Path, data: bytes, *, mode: int = 0o644, replaces: bool = True) -> bool:
    """Write a file, and what its directory says of it, to the disk. Without `replaces`, one that is
    there stays, and the answer is False. Raises `OSError`."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            new.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(new, path)
                replaces = True
    finally:
        new.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return replaces


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
