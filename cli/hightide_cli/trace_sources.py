"""Where `hightide trace` reads from: files of nodes that run or do not, or the nodes that run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from hightide_cli.leaderless import NO_LEADER, known_quorum
from hightide_cli.output import say

if TYPE_CHECKING:
    from hightide import Admin, TracePlace
    from hightide_broker.trace.lines import Told

ANSWER_S, SILENT_S = 5.0, 1.0
"""How long a node may take for a piece of its trace; and one that did not answer before."""
QUORUM_S = 5.0
"""How long it may take to say who the controllers are."""
BROKER, CONTROLLER, NOBODY = "broker", "controller", -1
_LOOKED_AT_BYTES = 64 << 10
BY_HAND = "hightide trace --file DIRECTORY/trace"


class Source(Protocol):
    """Events, as far as there are any yet."""

    def read(self, *, positions: bool) -> list[Told]:
        """What is there that was not read yet, in order."""
        ...


def traces_at(path: Path) -> Path:
    """A file of lines, or the directory that a node keeps its trace in, given that or the node's
    own; raises `click.UsageError` if there is none."""
    from hightide_broker.trace.ring import SUFFIX, TRACE_DIRECTORY

    for place in (path / TRACE_DIRECTORY, path):
        if any(place.glob(f"*{SUFFIX}")) or (place.is_file() and _has_trace(place)):
            return place
    raise click.UsageError(
        f"--file {path}: no trace is in it, expected a node's directory, its {TRACE_DIRECTORY}/, "
        f"or a file of it"
    )


def _has_trace(file: Path) -> bool:
    """Whether lines of a trace are in a file, or nothing yet."""
    from hightide_broker.trace.lines import read_lines

    with file.open("rb") as opened:
        head = opened.read(_LOOKED_AT_BYTES)
    is_begun = b"\n" not in head and head[:1] in (b"", b"{")
    return is_begun or any(True for _ in read_lines(head.splitlines()))


class Files:
    """Files of lines, and directories that nodes keep their traces in."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._read: dict[Path, int] = {}
        """How many bytes of each."""

    def read(self, *, positions: bool) -> list[Told]:
        """What is there that was not read yet, in order."""
        from hightide_broker.trace.lines import read_lines
        from hightide_broker.trace.order import in_order

        found: list[Told] = []
        for path in self._paths:
            for file in self._files_of(path, positions):
                found.extend(read_lines(self._new_lines(file)))
        return in_order(found)

    def _files_of(self, path: Path, positions: bool) -> list[Path]:
        from hightide_broker.trace.ring import EVENTS, KINDS, SUFFIX

        if not path.is_dir():
            return [path]
        kinds = KINDS if positions else (EVENTS,)
        return [file for kind in kinds for file in sorted(path.glob(f"{kind}-*{SUFFIX}"))]

    def _new_lines(self, file: Path) -> list[bytes]:
        """Whole lines behind those that were read; none of a file that was removed meanwhile."""
        try:
            with file.open("rb") as opened:
                opened.seek(self._read.get(file, 0))
                data = opened.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read[file] = self._read.get(file, 0) + len(whole)
        return whole.splitlines()


class FromCluster:
    """The brokers of a cluster, and its controllers where they are nodes of their own. One that
    does not answer is left out, and named once."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._places: dict[tuple[int, str], TracePlace] = {}
        self._silent: set[int] = set()
        self._quorum: list[int] | None = None
        """Voters and observers, as they were known last; None: nobody was asked yet."""

    def read(self, *, positions: bool) -> list[Told]:
        """What is there that was not read yet, in order."""
        from hightide_broker.trace.lines import read_lines
        from hightide_broker.trace.order import in_order
        from hightide_broker.trace.ring import EVENTS, KINDS

        kinds = KINDS if positions else (EVENTS,)
        lines: list[bytes] = self._ask(self._read_all, kinds)
        return in_order(read_lines(lines))

    async def _read_all(self, admin: Admin, kinds: Sequence[str]) -> list[bytes]:
        import trio

        from hightide import ErrorCode, HightideError

        found: list[bytes] = []
        for kind_of_node, node in await self._nodes(admin):
            try:
                for kind in kinds:
                    found.extend(await self._read_new(admin, node, kind))
            except HightideError as error:
                code = getattr(error, "code", None)
                if kind_of_node == BROKER and code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    raise
                self._say_silent(node, f"{kind_of_node} {node}", str(error))
            except trio.TooSlowError:
                why = f"no answer within {ANSWER_S:g} s"
                self._say_silent(node, f"{kind_of_node} {node}", why)
        return found

    async def _nodes(self, admin: Admin) -> list[tuple[str, int]]:
        """Brokers that serve, and controllers that are no brokers."""
        cluster = await admin.describe_cluster()
        for broker in cluster.brokers:
            if broker.fenced:
                self._say_silent(broker.id, f"broker {broker.id}", "it is fenced")
        # Where nobody leads, a broker takes a while to say so: it is asked once.
        if cluster.controller != NO_LEADER or self._quorum is None:
            self._quorum = await self._find_quorum(admin)
        found = [(BROKER, broker.id) for broker in cluster.brokers if not broker.fenced]
        known = {broker.id for broker in cluster.brokers}
        return found + [(CONTROLLER, node) for node in self._quorum if node not in known]

    async def _find_quorum(self, admin: Admin) -> list[int]:
        """Who votes about the metadata or observes it; what was known before, if nobody says."""
        import trio

        from hightide import ErrorCode, HightideError

        why = f"no answer within {QUORUM_S:g} s"
        with trio.move_on_after(QUORUM_S):
            try:
                quorum = await known_quorum(admin)
            except HightideError as error:
                if getattr(error, "code", None) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    raise
                why = str(error)
            else:
                return [node.id for node in (*quorum.voters, *quorum.observers)]
        self._say_silent(NOBODY, "controllers that are no brokers", why)
        return self._quorum or []

    async def _read_new(self, admin: Admin, broker: int, kind: str) -> list[bytes]:
        import trio

        from hightide import TracePlace

        found: list[bytes] = []
        while True:
            place = self._places.get((broker, kind), TracePlace())
            with trio.fail_after(SILENT_S if broker in self._silent else ANSWER_S):
                lines, place = await admin.read_trace(broker, kind, place)
            self._places[broker, kind] = place
            self._silent.discard(broker)
            if not lines:
                return found
            found.extend(lines.splitlines())

    def _say_silent(self, node: int, name: str, why: str) -> None:
        if node not in self._silent:
            self._silent.add(node)
            say(f"without what {name} told: {why}; on its machine: {BY_HAND}")
