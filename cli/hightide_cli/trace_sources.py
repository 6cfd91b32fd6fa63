"""Where `hightide trace` reads from: files of nodes that run or do not, or the brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hightide_cli.output import say

if TYPE_CHECKING:
    from hightide import Admin, TracePlace
    from hightide_broker.trace.lines import Told


class Source(Protocol):
    """Events, as far as there are any yet."""

    def read(self, *, positions: bool) -> list[Told]:
        """What is there that was not read yet, in order."""
        ...


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
    """The brokers of a cluster. One that does not answer is left out, and named once."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._places: dict[tuple[int, str], TracePlace] = {}
        self._silent: set[int] = set()

    def read(self, *, positions: bool) -> list[Told]:
        """What is there that was not read yet, in order."""
        from hightide_broker.trace.lines import read_lines
        from hightide_broker.trace.order import in_order
        from hightide_broker.trace.ring import EVENTS, KINDS

        kinds = KINDS if positions else (EVENTS,)
        lines: list[bytes] = self._ask(self._read_all, kinds)
        return in_order(read_lines(lines))

    async def _read_all(self, admin: Admin, kinds: Sequence[str]) -> list[bytes]:
        from hightide import ErrorCode, HightideError

        found: list[bytes] = []
        for broker in (await admin.describe_cluster()).brokers:
            if broker.fenced:
                self._say_silent(broker.id, "it is fenced")
                continue
            try:
                for kind in kinds:
                    found.extend(await self._read_new(admin, broker.id, kind))
            except HightideError as error:
                if getattr(error, "code", None) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    raise
                self._say_silent(broker.id, str(error))
        return found

    async def _read_new(self, admin: Admin, broker: int, kind: str) -> list[bytes]:
        from hightide import TracePlace

        found: list[bytes] = []
        while True:
            place = self._places.get((broker, kind), TracePlace())
            lines, self._places[broker, kind] = await admin.read_trace(broker, kind, place)
            if not lines:
                return found
            found.extend(lines.splitlines())

    def _say_silent(self, broker: int, why: str) -> None:
        if broker not in self._silent:
            self._silent.add(broker)
            say(f"without what broker {broker} told: {why}")
