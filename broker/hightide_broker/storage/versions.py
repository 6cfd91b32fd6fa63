"""Which content of a small file is the newest, where worker threads and the loop both write it."""

from __future__ import annotations

from collections.abc import Callable

from hightide_broker.ports import DiskError


class Versions:
    """Numbers the contents of one file: an older one never follows a newer one.

    Numbers are given on the loop, or under the caller's lock. Writing asks `Disk.replace` for its
    turn, and only then looks whether something newer was written meanwhile.
    """

    def __init__(self) -> None:
        self.given = 0
        """The number of the newest content."""
        self._begun = 0
        self._written = 0

    @property
    def is_behind(self) -> bool:
        """Whether the file may say something else than the newest content."""
        return self.given > self._written

    def give(self) -> int:
        """There is a new content."""
        self.given += 1
        return self.given

    def write(self, number: int, replace: Callable[[Callable[[], bool]], None]) -> None:
        """Have a content written by `replace(unless)`, unless it is too old; raises `DiskError`."""
        before = self._begun

        def is_old() -> bool:
            nonlocal before
            before = self._begun
            self._begun = max(before, number)
            return number <= before

        try:
            replace(is_old)
        except DiskError:
            if self._begun == number:
                self._begun = before
            raise
        # Only now: who asks `is_behind` while it is replaced must not rely on it.
        self._written = max(self._written, number)
