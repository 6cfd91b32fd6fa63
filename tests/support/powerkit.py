"""What a loss of power would leave of real files, by the calls that were made.

No test lives here. A name is durable once its directory has been synced with that name in it, bytes
once their file has been synced after the last write. Whatever a test finds when it begins is there
for good.
"""

from __future__ import annotations

import os
from pathlib import Path


class Power:
    """Watches every sync of this process; files are told apart by their inodes."""

    def __init__(self, monkeypatch, root: Path) -> None:
        self._root = root
        self._names: dict[int, dict[str, int]] = {}
        self._bytes: dict[int, tuple[int, int]] = {}
        for path in (root, *root.rglob("*")):
            self._note(path.stat().st_ino, path)
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, original):
        def sync(descriptor):
            original(descriptor)
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            self._note(os.fstat(number).st_ino, number)

        return sync

    def _note(self, inode: int, file: int | Path) -> None:
        facts = os.stat(file)
        if os.path.isdir(file):
            with os.scandir(file) as entries:
                self._names[inode] = {entry.name: entry.inode() for entry in entries}
        else:
            self._bytes[inode] = (facts.st_size, facts.st_mtime_ns)

    def lost(self, path: Path | str) -> str:
        """What of a path would be lost: the name that is not durable, its bytes, or nothing."""
        at = self._root
        for name in Path(path).absolute().relative_to(self._root).parts:
            if self._names.get(at.stat().st_ino, {}).get(name) != (at / name).stat().st_ino:
                return f"the name {name!r} in {at}"
            at /= name
        facts = at.stat()
        if at.is_file() and self._bytes.get(facts.st_ino) != (facts.st_size, facts.st_mtime_ns):
            return f"the bytes of {at}"
        return ""
