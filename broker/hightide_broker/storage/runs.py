"""`broker-runs`: which processes were registered from this directory, so that an old copy is told.

Every process has an id of its own, its incarnation, that the controller keeps. It is written here,
durably, before it is registered, and alone once it is, before it serves. A process that registers
says what was here before; if what the controller knows is not that, the directory is older than
what the cluster saw of it and has forgotten what came since. One incarnation a line: the last one
that was registered (`-`: none, `?`: not known), then those that tried to be.
"""

from __future__ import annotations

from hightide_broker.ports import Disk

RUNS = "broker-runs"
NONE = "-"
UNKNOWN = "?"
"""The directory was made by a version that kept no incarnations; nobody was registered since."""
DAMAGED = "damaged"
"""What an empty file stands for: no incarnation, so that the directory counts as an older copy. Of
what was damaged otherwise nothing can be known either; it names nobody who was registered."""
RUNS_MAX = 64
"""Incarnations kept; of more that never heard from a controller, the oldest go."""


def make_runs(disk: Disk, directory: str) -> None:
    """A directory that was just formatted: nobody was ever registered from it."""
    disk.replace(f"{directory}/{RUNS}", _lines([NONE]))


def begin_run(disk: Disk, directory: str, incarnation: str) -> list[str] | None:
    """Keep that this process is about to be registered; the incarnations before it.

    None if the directory was formatted by a version that kept none.
    """
    path = f"{directory}/{RUNS}"
    known = [UNKNOWN]
    if disk.exists(path):
        known = disk.read_file(path).decode("ascii", "replace").split() or [DAMAGED]
    confirmed, *tried = known
    disk.replace(path, _lines([confirmed, *[*tried, incarnation][-RUNS_MAX:]]))
    return None if confirmed == UNKNOWN else known


def confirm_run(disk: Disk, directory: str, incarnation: str) -> None:
    """This process is registered: what came before it does not count any more."""
    disk.replace(f"{directory}/{RUNS}", _lines([incarnation]))


def _lines(runs: list[str]) -> bytes:
    return "".join(f"{run}\n" for run in runs).encode()
