"""What the simulated disk is made of: files and directories, as the process sees them and as a loss
of power leaves them.

A file has the page cache's bytes and those that were synced. A failed sync calls pages clean: what
was not synced by then stays in the page cache alone until it is written again. On the platter there
is what was there before, or a hole (zeros), or the file's end if nothing lies behind it.

A directory has the names there are and a journal of the changes that were not synced yet; a crash
keeps the journal up to a place that chance chooses. A directory whose name is lost takes all in it
along. Faults and `ports.Disk` are in `disk`; here the paths are walked, with Linux's refusals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from hightide.net.ports import Random
from hightide.protocol.records import Buffer
from hightide_broker.ports import DiskError

PAGE_BYTES = 4096
NAME_BYTES_MAX = 255
Span: TypeAlias = tuple[int, int]
"""Bytes from the first to before the second."""

MISSING = "No such file or directory"
NO_DIRECTORY = "Not a directory"
A_DIRECTORY = "Is a directory"


class Inode:
    """A file: it outlives its names for those who have it open."""

    def __init__(self, data: bytes = b"") -> None:
        """An inode that holds these bytes durably."""
        self.data = bytearray(data)
        """The page cache: what every process reads."""
        self.synced = data
        """The platter: what the last sync left there."""
        self.links = 0
        """Names that lead here."""
        self.holder: object | None = None
        """The process that holds the lock on this file."""
        self._clean: list[Span] = []
        """Spans of `data` that a failed sync called clean; ascending."""
        self._handled = len(data)
        """Bytes before this one were synced or called clean; a sync takes the others."""
        self._cut_at = len(data)
        """Since `synced` was written, no cut went below this size."""
        self._flushes: list[Flush] = []
        self._begun = self._ended = 0

    def append(self, data: Buffer) -> None:
        self.data += data

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes; what is appended then is written again."""
        del self.data[size:]
        self._cut_at = min(self._cut_at, size)
        for flush in self._flushes:
            flush.cut_at = min(flush.cut_at, size)
        self.rewrite(size)

    def rewrite(self, position: int) -> None:
        """What is there from `position` on is to be written by the next sync, clean or not."""
        self._handled = min(self._handled, position)
        self._clean = _below(position, self._clean)
        for flush in self._flushes:
            flush.handled = min(flush.handled, position)

    def flip(self, at: int, bit: int) -> None:
        """One bit is not what was written, in the page cache and on the platter."""
        before = self.data[at]
        self.data[at] ^= 1 << bit
        if at < len(self.synced) and self.synced[at] == before:
            self.synced = self.synced[:at] + bytes([self.data[at]]) + self.synced[at + 1 :]

    # -- syncs -----------------------------------------------------------------------------------

    def begin_sync(self) -> Flush:
        """Capture what a sync that begins here makes durable; end it with one of the next three."""
        self._begun += 1
        written, size = _written(self.data, self._clean, self._uncut()), len(self.data)
        flush = Flush(self._begun, written, cut_at=size, handled=size)
        self._flushes.append(flush)
        return flush

    def end_sync(self, flush: Flush) -> None:
        """The sync succeeded."""
        self.drop_sync(flush)
        if flush.number < self._ended:
            return  # A sync that began later has ended before, and left more.
        self._ended = flush.number
        # 1. This sync captures. 2. Another one fails. 3. This one ends: the pages are clean by now.
        self.synced = _written(flush.data, _below(flush.handled, self._clean), self._uncut())
        self._cut_at = flush.cut_at
        self._handled = max(self._handled, flush.handled)

    def fail_sync(self, flush: Flush) -> None:
        """The sync failed: the pages it should have written count as clean from here on."""
        self.drop_sync(flush)
        if self._handled < flush.handled:
            self._clean.append((self._handled, flush.handled))
            self._handled = flush.handled

    def drop_sync(self, flush: Flush) -> None:
        """The sync came to nothing, and its pages are as dirty as they were."""
        if flush in self._flushes:
            self._flushes.remove(flush)

    # -- loss of power ---------------------------------------------------------------------------

    def _uncut(self) -> bytes:
        """The part of what was synced that no cut went below."""
        return self.synced[: self._cut_at]

    def crash(self, random: Random) -> None:
        """Only the platter is left, and chance says what reached it."""
        self.synced = self._fate(random)
        self.data = bytearray(self.synced)
        self._handled = self._cut_at = len(self.data)
        self._clean.clear()
        self._flushes.clear()
        self._ended = self._begun + 1

    def _fate(self, random: Random) -> bytes:
        """What was synced, all that was written since, or something of both. A cut below the end of
        what was synced, and not synced itself, happened or did not."""
        old = self._uncut()
        if len(old) < len(self.synced) and random.randrange(2) == 0:
            return self.synced
        new = _written(self.data, self._clean, old)
        if old == new:
            return old
        same = _same_bytes(old, new)
        match random.randrange(4):
            case 0:
                left = old
            case 1:
                left = new
            case 2:
                upto = same + random.randrange(len(new) - same + 1)
                left = new[:upto] + old[upto:]
            case _:
                left = _with_holes(old, new, same, random)
        return _written(left, self._clean, old)


@dataclass(slots=True, eq=False)
class Flush:
    """A sync of one file that is on its way."""

    number: int
    data: bytes
    """What the platter holds if it succeeds."""
    cut_at: int
    """No cut went below this size since then."""
    handled: int
    """Before this byte nothing was written since then."""


def _below(size: int, spans: Sequence[Span]) -> list[Span]:
    """What lies before `size` of each span."""
    return [(start, min(end, size)) for start, end in spans if start < size]


def _written(data: Buffer, clean: Sequence[Span], old: bytes) -> bytes:
    """Bytes as they reach the platter. Of the spans called clean nothing does: there are the old
    ones, or zeros; and where nothing lies behind such a span the file ends before it."""
    if not clean:
        return bytes(data)
    written = bytearray(data)
    for start, end in _below(len(written), clean):
        written[start:end] = old[start:end].ljust(end - start, b"\0")
    for start, end in reversed(clean):
        if start < len(written) <= end:
            del written[max(start, len(old)) :]
    return bytes(written)


def _same_bytes(old: bytes, new: bytes) -> int:
    """How many bytes are the same from the beginning on."""
    if new.startswith(old):
        return len(old)
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))


def _with_holes(old: bytes, new: bytes, same: int, random: Random) -> bytes:
    """Some pages of the new bytes never reached the disk: there are the old ones, or zeros."""
    torn = bytearray(new)
    position = same
    while position < len(torn):
        upto = min((position // PAGE_BYTES + 1) * PAGE_BYTES, len(torn))
        if random.random() < 0.5:
            torn[position:upto] = old[position:upto].ljust(upto - position, b"\0")
        position = upto
    return bytes(torn)


class Directory:
    """Names, and the changes of names that were not synced. Changes in one call happen at once."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        """The names there are."""
        self.durable: dict[str, Node] = {}
        """Those that were synced."""
        self._journal: list[Mapping[str, Node | None]] = []
        self._settled = 0
        """How many changes came before the journal."""

    def change(self, changes: Mapping[str, Node | None]) -> None:
        """New nodes by name; None removes one."""
        _apply(changes, self.entries)
        self._journal.append(changes)

    def mark(self) -> int:
        """Where the journal ends; a sync that begins here settles it up to there."""
        return self._settled + len(self._journal)

    def settle(self, mark: int | None = None) -> None:
        """Make changes durable, up to a mark or all."""
        count = self.mark() - self._settled if mark is None else max(mark - self._settled, 0)
        for changes in self._journal[:count]:
            _apply(changes, self.durable)
        self._settled += len(self._journal[:count])
        del self._journal[:count]

    def put(self, name: str, node: Node | None) -> None:
        """A name leads to this node or nowhere, durably, whatever the journal says of it."""
        for entries in (self.entries, self.durable):
            _apply({name: node}, entries)
        for index, changes in enumerate(self._journal):
            self._journal[index] = {n: each for n, each in changes.items() if n != name}

    def crash(self, random: Random, seen: set[Node]) -> None:
        """Of this directory and all in it what was synced is left, and of the changes after that
        those before some place. `seen` are nodes that were met under another name: what was on its
        way from one directory to another may be left in both or in none."""
        seen.add(self)
        if self._journal:
            end = self.mark()
            self.settle(self._settled + random.randrange(len(self._journal) + 1))
            self._journal.clear()
            self._settled = end
        self.entries = dict(self.durable)
        for name, node in sorted(self.entries.items(), key=_name_of):
            if node not in seen:
                seen.add(node)
                if isinstance(node, Directory):
                    node.crash(random, seen)
                else:
                    node.crash(random)
            elif isinstance(node, Directory):
                self.put(name, None)

    def files(self, path: str = "") -> Iterator[tuple[str, Inode]]:
        """The files in it, however deep, and their paths, which begin with `path`."""
        for name, node in self.entries.items():
            if isinstance(node, Directory):
                yield from node.files(f"{path}{name}/")
            else:
                yield f"{path}{name}", node


Node: TypeAlias = Inode | Directory


def _name_of(entry: tuple[str, Node]) -> str:
    return entry[0]


def _apply(changes: Mapping[str, Node | None], entries: dict[str, Node]) -> None:
    for name, node in changes.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


@dataclass(frozen=True, slots=True)
class DiskCopy:
    """What was durable under a directory at some time."""

    files: Mapping[str, bytes]
    directories: Mapping[str, DiskCopy]

    @classmethod
    def of(cls, directory: Directory) -> DiskCopy:
        """The durable state of a directory and of all in it."""
        found = sorted(directory.durable.items(), key=_name_of)
        return cls(
            {name: node.synced for name, node in found if isinstance(node, Inode)},
            {name: cls.of(node) for name, node in found if isinstance(node, Directory)},
        )

    def unfold(self) -> Directory:
        """A directory that holds the copy, durably."""
        made = Directory()
        for name, data in self.files.items():
            made.put(name, Inode(data))
        for name, copy in self.directories.items():
            made.put(name, copy.unfold())
        return made


# -- paths ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def names_in(path: str) -> tuple[str, ...]:
    """The names that a path leads through."""
    return tuple(name for name in path.split("/") if name not in ("", "."))


def directory_of(path: str) -> str:
    """The path of the directory that a path's last name is in."""
    parent, slash, _ = path.rstrip("/").rpartition("/")
    return parent or slash or "."


def find(start: Directory, path: str, operation: str, *, named: str | None = None) -> Node:
    """What a path leads to; raises `DiskError`, of `named` if a call has two paths."""
    node: Node = start
    for name in names_in(path):
        if isinstance(node, Inode):
            raise DiskError(named or path, operation, NO_DIRECTORY)
        below = entry(node, name, named or path, operation)
        if below is None:
            raise DiskError(named or path, operation, MISSING)
        node = below
    return node


def entry(place: Directory, name: str, path: str, operation: str) -> Node | None:
    """Where a name leads; one that is too long is refused even to who only looks."""
    node = place.entries.get(name)
    if node is None:
        require_short(name, path, operation)
    return node


def require_short(name: str, path: str, operation: str) -> None:
    """Raise if there can be no such name."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise DiskError(path, operation, "File name too long")


def require_movable(old: str, new: str, node: Node, there: Node | None) -> None:
    """Raise unless a rename may move `node` to where `there` is."""
    source, target = names_in(old), names_in(new)
    why = None
    if isinstance(there, Directory) and source[: len(target)] == target:
        why = "Directory not empty"
    elif isinstance(node, Directory) and target[: len(source)] == source:
        why = "Invalid argument"
    elif isinstance(node, Inode) and isinstance(there, Directory):
        why = A_DIRECTORY
    elif isinstance(node, Directory) and isinstance(there, Inode):
        why = NO_DIRECTORY
    elif isinstance(there, Directory) and there.entries:
        why = "Directory not empty"
    if why is not None:
        raise DiskError(old, "rename", why)
