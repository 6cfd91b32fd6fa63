"""The files of a trace: lines are added to the last one, and the oldest go when there are too many
bytes.

A file is called by its number, and never added to once another process wrote it: its last line may
be torn. A disk that fails or is full loses events, nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hightide_broker.ports import Disk, DiskError, DiskFile, size_of
from hightide_broker.trace.lines import read_line

log = logging.getLogger("hightide.trace")

TRACE_DIRECTORY = "trace"
SUFFIX = ".jsonl"
KINDS = EVENTS, POSITIONS = ("events", "positions")
"""What the files begin with."""
SHARES = 8
"""A full ring has about so many files: an eighth of it is given up at a time."""
FILES_MAX = 256
"""Each process begins one, and one that is started again and again must not push out why."""
PIECE_BYTES_MAX = 256 << 10
"""What is read at once, and more than any line has."""
_DIGITS = 20


class Place(NamedTuple):
    """Where to read on: a file's number, and a position in it."""

    file: int = 0
    position: int = 0


class Ring:
    """The files of one directory with one prefix; implements `recorder.Shelf`."""

    def __init__(self, disk: Disk, directory: str, prefix: str, *, max_bytes: int) -> None:
        """Raises `DiskError`."""
        self._disk = disk
        self._directory = directory
        self._prefix = prefix
        self._bytes_max = max_bytes
        self._sizes = {
            number: size_of(disk, path_of(directory, prefix, number))
            for number in numbers_in(disk, directory, prefix)
        }
        """By number, the oldest first."""
        self._file: DiskFile | None = None
        self._number = 1
        """Of the file that is open, or was."""
        self._is_failing = False

    def put(self, lines: Sequence[bytes]) -> int:
        """Add whole lines; how many of them, the last ones, could not be."""
        kept = 0
        for portion in self._portions(lines):
            data = b"".join(portion)
            try:
                self._room_for(len(data)).append(data)
            except DiskError as error:
                if not self._is_failing:
                    log.warning("the trace is not kept: %s", error)
                self._is_failing = True
                return len(lines) - kept
            self._sizes[self._number] = self._filled + len(data)
            kept += len(portion)
        self._is_failing = False
        return 0

    def _portions(self, lines: Sequence[bytes]) -> Iterator[list[bytes]]:
        """As many at once as fill a file."""
        portion: list[bytes] = []
        room = self._share - self._filled
        for line in lines:
            room -= len(line)
            if room < 0 and portion:
                yield portion
                portion, room = [], self._share - len(line)
            portion.append(line)
        yield portion

    @property
    def _share(self) -> int:
        return self._bytes_max // SHARES

    @property
    def _filled(self) -> int:
        """Bytes of the file that is open."""
        return 0 if self._file is None else self._sizes.get(self._number, 0)

    def _room_for(self, size: int) -> DiskFile:
        """The file to add to."""
        if self._file is not None and self._filled + size <= self._share:
            return self._file
        self.close()
        # The same once more, if nothing came into it.
        self._number = max(self._sizes, default=self._number - 1) + 1
        while self._sizes and self._is_full(size):
            oldest = min(self._sizes)
            self._disk.remove(self._path(oldest))
            del self._sizes[oldest]
        self._file = self._disk.open(self._path(self._number), create=True)
        return self._file

    def _is_full(self, size: int) -> bool:
        """Whether another file, with so much in it, has no room."""
        about_to_be = sum(self._sizes.values()) + max(size, self._share)
        return about_to_be > self._bytes_max or len(self._sizes) >= FILES_MAX

    def _path(self, number: int) -> str:
        return path_of(self._directory, self._prefix, number)

    def close(self) -> None:
        """Have the next line begin a file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def path_of(directory: str, prefix: str, number: int) -> str:
    """Where a file lies."""
    return f"{directory}/{prefix}-{number:0{_DIGITS}d}{SUFFIX}"


def numbers_in(disk: Disk, directory: str, prefix: str) -> Iterator[int]:
    """The files that there are, the oldest first; none where there is no directory. Raises
    `DiskError`."""
    if disk.exists(directory):
        for name in disk.list(directory):
            stem = name.removeprefix(f"{prefix}-").removesuffix(SUFFIX)
            if name == f"{prefix}-{stem}{SUFFIX}" and stem.isdecimal() and len(stem) == _DIGITS:
                yield int(stem)


def read_piece(disk: Disk, directory: str, prefix: str, place: Place) -> tuple[bytes, Place]:
    """Whole lines from a place on, at most a piece of them, and where to go on; no lines: this is
    all that there is yet. Raises `DiskError`."""
    for number in numbers_in(disk, directory, prefix):
        if number < place.file:
            continue
        position = place.position if number == place.file else 0
        data = _read(disk, path_of(directory, prefix, number), position)
        end = data.rfind(b"\n") + 1
        if end:
            return data[:end], Place(number, position + end)
    return b"", place


def _read(disk: Disk, path: str, position: int) -> bytes:
    """A piece of a file; nothing of one that was given up meanwhile."""
    try:
        file = disk.open(path)
    except DiskError:
        if disk.exists(path):
            raise
        return b""
    try:
        return file.read(position, PIECE_BYTES_MAX) if position < file.size() else b""
    finally:
        file.close()


def next_number(disk: Disk, directory: str) -> int:
    """The number that the next event of a node gets: above all that are kept. Raises
    `DiskError`."""
    return max(_last_number(disk, directory, prefix) for prefix in KINDS) + 1


def _last_number(disk: Disk, directory: str, prefix: str) -> int:
    """Of the last line that can be read, whatever a power cut made of those behind it; -1: none
    can."""
    for number in reversed([*numbers_in(disk, directory, prefix)]):
        data = disk.read_file(path_of(directory, prefix, number))
        for line in reversed(data.splitlines()):
            if (told := read_line(line)) is not None:
                return told.number
    return -1
