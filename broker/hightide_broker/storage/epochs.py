"""The leader epoch cache: which leader wrote which offsets (KIP-101, KIP-279).

An ordered map epoch → start offset, the offset of the first record the leader of that epoch could
write; both columns rise strictly. The file may lag behind, and have an entry too many after a cut:
both are noticed when the log is opened, and repaired by the batches. Worker threads write it with
the next sync of the log, once there is a record of the epoch: before, an election costs no file
anything. What a cut removes is written at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial

from hightide.protocol.records import BatchHeader
from hightide_broker.ports import Disk, DiskError
from hightide_broker.storage.checkpoint import read_epochs, write_epochs
from hightide_broker.storage.versions import Versions

UNDEFINED = (-1, -1)
"""No such epoch, no such offset."""


class EpochCache:
    """The epochs of one log, with their file. Offsets are exclusive ends unless named start."""

    def __init__(self, disk: Disk, path: str, entries: list[tuple[int, int]] | None = None) -> None:
        self._disk = disk
        self._path = path
        self._entries: list[tuple[int, int]] = entries if entries is not None else []
        self._in_file: list[tuple[int, int]] | None = list(self._entries)
        """What the file says; None: it could not be written."""
        self._versions = Versions()

    @classmethod
    def load(cls, disk: Disk, path: str) -> EpochCache:
        """Read the file; raises `MalformedCheckpoint`, and then the log rebuilds it from
        batches."""
        return cls(disk, path, read_epochs(disk, path))

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{epoch}:{start}" for epoch, start in self._entries) + "}"

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), oldest first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1][0] if self._entries else -1

    def is_owed(self, log_end: int) -> bool:
        """Whether the file would not do for a log that ends there. What begins at the end of a log
        is dropped when that is opened, so that it is not written."""
        if self._in_file is None:
            return True
        return self._in_file != self._entries and (
            _below(self._in_file, log_end) != _below(self._entries, log_end)
        )

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`; whether anything changed.

        Nothing happens if the newest entry is this epoch and starts no later. Otherwise entries
        with an epoch or a start at or above the new one's are dropped from the tail first.
        """
        assert epoch >= 0, f"epoch {epoch} is negative"
        assert start_offset >= 0, f"start offset {start_offset} of epoch {epoch} is negative"
        if self._entries and self._entries[-1][0] == epoch and self._entries[-1][1] <= start_offset:
            return False
        while self._entries and (
            self._entries[-1][0] >= epoch or self._entries[-1][1] >= start_offset
        ):
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        self._versions.give()
        return True

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(largest known epoch ≤ `epoch`, where it ends), the answer to OffsetForLeaderEpoch.

        `UNDEFINED` if `epoch` is -1 or above all known ones; for an epoch below all known ones,
        that epoch itself and the start of the first known one.
        """
        if epoch == -1 or not self._entries or epoch > self._entries[-1][0]:
            return UNDEFINED
        if epoch == self._entries[-1][0]:
            return epoch, log_end
        above = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        if above == 0:
            return epoch, self._entries[0][1]
        return self._entries[above - 1][0], self._entries[above][1]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 if unknown."""
        above = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[above - 1][0] if above else -1

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop every entry that starts at or above `end_offset`; whether any was dropped."""
        kept = [entry for entry in self._entries if entry[1] < end_offset or end_offset < 0]
        if len(kept) == len(self._entries):
            return False
        self._entries = kept
        self._versions.give()
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget what lies below `start_offset`, keeping the epoch that covers it; whether
        changed."""
        above = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if above == 0 or (self._entries[above - 1][1] == start_offset and above == 1):
            return False
        self._entries[:above] = [(self._entries[above - 1][0], start_offset)]
        self._versions.give()
        return True

    def agrees_with(self, header_at: Callable[[int], BatchHeader | None]) -> bool:
        """Whether each epoch is that of the batch where it begins; the newest one may have none.

        The file has no checksum: a digit that changed on the disk would let a log be cut where its
        leader's does not end. `header_at` finds the batch that holds an offset.
        """
        for number, (epoch, start) in enumerate(self._entries):
            header = header_at(start)
            if header is None:
                agrees = number == len(self._entries) - 1
            elif header.base_offset > start:
                agrees = header.leader_epoch >= epoch  # compaction took what was there
            else:
                begins_there = header.base_offset == start or number == 0
                agrees = header.leader_epoch == epoch and begins_there
            if not agrees:
                return False
        return True

    def rebuild(self, headers: Iterable[BatchHeader], *, start: int) -> None:
        """Become what the batches of a log say that begins at `start`, without the file; an epoch
        begins behind the last batch of the one before."""
        self.clear()
        for header in headers:
            if header.leader_epoch > self.latest_epoch:
                self.assign(header.leader_epoch, start)
            start = header.next_offset

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._versions.give()

    def write(self) -> None:
        """Replace the file, durably."""
        self._versions.give()
        self._write(self._versions.given, list(self._entries))

    def writing(self, log_end: int) -> Callable[[], None]:
        """What replaces the file by what is known now of a log that ends there, in any thread;
        nothing, if something newer was written meanwhile."""
        # A number of its own: what was written under the last one may have left out the newest
        # epoch, which began where the log ended then.
        return partial(self._write, self._versions.give(), _below(self._entries, log_end))

    def _write(self, number: int, entries: list[tuple[int, int]]) -> None:
        def replace(unless: Callable[[], bool]) -> None:
            def is_old() -> bool:
                if unless():
                    return True
                self._in_file = entries  # in its turn: nobody else writes now
                return False

            write_epochs(self._disk, self._path, entries, unless=is_old)

        try:
            self._versions.write(number, replace)
        except DiskError:
            self._in_file = None
            raise


def _below(entries: Iterable[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """Those that begin below an offset."""
    return [entry for entry in entries if entry[1] < offset]
