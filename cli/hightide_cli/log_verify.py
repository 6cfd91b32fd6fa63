"""`hightide log verify`: every batch of every segment, the checkpoints, and that a log reaches as
far as is written down that it does. Nothing is written, also not where nothing can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click

from hightide_broker.ports import Disk
from hightide_broker.storage.checkpoint import (
    LEADER_EPOCHS,
    OFFSET_FILES,
    RECOVERY_POINTS,
    MalformedCheckpoint,
    read_epochs,
    read_offsets,
)
from hightide_broker.storage.recovery import damage_in
from hightide_broker.storage.segment import LogConfig, Segment, SegmentDamage
from hightide_broker.storage.snapshots import SnapshotDamaged, read_snapshot
from hightide_cli.output import say


class Verification:
    """Of some files; `bad` counts the damaged places that were named."""

    def __init__(self, disk: Disk, files: Sequence[Path]) -> None:
        self._disk = disk
        self._files = files
        self.bad = 0

    def run(self) -> None:
        """Look at everything, and name what is damaged."""
        # The last segment of each log: files come in order.
        logs = {file.parent: file for file in self._files if file.suffix == ".log"}
        # Before the logs, which grow meanwhile if a broker runs.
        points = self._recovery_points(logs)
        for file in self._files:
            if file.suffix == ".checkpoint":
                self._look_at_snapshot(file)
            else:
                self._look_at_segment(file)
        for directory, last in logs.items():
            self._look_at_epochs(directory)
            self._look_at_end(last, points.get(directory, 0))

    def _damaged(self, sentence: str) -> None:
        self.bad += 1
        click.echo(sentence)

    def _recovery_points(self, logs: Iterable[Path]) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for data in sorted({directory.parent for directory in logs}):
            for name in OFFSET_FILES:
                try:
                    offsets = read_offsets(self._disk, str(data / name))
                except MalformedCheckpoint as error:
                    self._damaged(str(error))
                    continue
                if name == RECOVERY_POINTS:
                    found |= {data / str(tp): offset for tp, offset in offsets.items()}
        return found

    def _look_at_segment(self, file: Path) -> None:
        segment = open_segment(self._disk, file)
        for damage in damage_in(segment):
            self._damaged(f"{damage.path}: byte {damage.position}: {damage.why}")
        for name, why in _index_damage(segment):
            say(f"{name}: {why}; the broker rebuilds it when it opens the log")

    def _look_at_snapshot(self, file: Path) -> None:
        end, _, epoch = file.stem.partition("-")
        try:
            read_snapshot(self._disk, str(file.parent), (int(end), int(epoch)))
        except SnapshotDamaged as error:
            self._damaged(str(error))

    def _look_at_epochs(self, directory: Path) -> None:
        try:
            read_epochs(self._disk, str(directory / LEADER_EPOCHS))
        except MalformedCheckpoint as error:
            say(f"{error}; the broker rebuilds it when it opens the log")

    def _look_at_end(self, last: Path, recovery_point: int) -> None:
        """A log that ends before what was durable has lost something."""
        if last != max(last.parent.glob("*.log")):
            return  # only some of them are looked at
        end = int(last.stem)
        try:
            for header, _ in open_segment(self._disk, last).headers():
                end = header.next_offset
        except SegmentDamage:
            return  # which is named already
        if end < recovery_point:
            self._damaged(
                f"{last.parent} ends at offset {end}, but was on disk up to offset {recovery_point}"
            )


def open_segment(disk: Disk, file: Path) -> Segment:
    """A segment to read from."""
    directory, base = str(file.parent), int(file.stem)
    return Segment(disk, directory, base, config=LogConfig(), create=False)


def _index_damage(segment: Segment) -> Iterator[tuple[str, str]]:
    """Indexes whose entries do not rise, or do not fit the segment."""
    indexes = segment.indexes
    for index, limit in ((indexes.offsets, segment.size), (indexes.times, None)):
        if not index.exists:
            continue
        if not index.has_whole_entries():
            yield index.path, "its size is not a whole number of entries"
            continue
        entries = index.entries()
        if any(one[0] >= two[0] or one[1] > two[1] for one, two in pairwise(entries)):
            yield index.path, "its entries do not rise"
        elif limit is not None and entries and entries[-1][1] >= limit:
            yield index.path, "its last entry lies behind the segment"
