"""Small files that people and other programs read: each is there whole, or as it was before."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hightide_broker.runtime.base.durable import sync_directory
from hightide_broker.runtime.base.system import sync_all


def put_file(path: Path, data: bytes, *, mode: int = 0o644, replaces: bool = True) -> bool:
    """Write a file, and what its directory says of it, to the disk. Without `replaces`, one that is
    there stays, and the answer is False. Raises `OSError`."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            sync_all(file.fileno())
        if replaces:
            new.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(new, path)
                replaces = True
    finally:
        new.unlink(missing_ok=True)
    sync_directory(str(path.parent))
    return replaces
