"""A cluster in a temporary directory, for the time of a measurement or a demonstration."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hightide_cli.children import Child
from hightide_cli.processes import (
    NodeProcess,
    Plan,
    make_plan,
    start_node,
    stop_nodes,
    wait_for_all,
)
from hightide_cli.secure_cluster import write_client_file


class OwnCluster:
    """Nodes on free ports of loopback; removed with all their data at the end of the block."""

    def __init__(
        self,
        *,
        brokers: int,
        directory: Path | None = None,
        assignments: Sequence[str] = (),
        secure: bool = False,
    ) -> None:
        self._brokers = brokers
        self._secure = secure
        self._assignments = assignments
        self._temporary = tempfile.TemporaryDirectory(prefix="hightide-", dir=directory)
        self._plan: Plan | None = None
        self._processes: dict[NodeProcess, Child] = {}

    def __enter__(self) -> OwnCluster:
        self._plan = make_plan(
            self.data, brokers=self._brokers, split=False, port=0, formats=True, secure=self._secure
        )
        with ExitStack() as stack:
            stack.callback(self._remove)
            self.start(*(process.node for process in self._plan.processes))
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._temporary.cleanup()

    @property
    def data(self) -> Path:
        """The directory of all of its nodes."""
        return Path(self._temporary.name)

    @property
    def nodes(self) -> list[NodeProcess]:
        """All nodes, alive or not."""
        assert self._plan is not None, "inside the block"
        return self._plan.processes

    @property
    def address(self) -> str:
        """host:port of every broker, with commas."""
        return ",".join(f"{f['host']}:{f['port']}" for f in (node.facts() for node in self.nodes))

    @property
    def way(self) -> dict[str, Any]:
        """How its administrator comes in: the options of any client."""
        return {"bootstrap_servers": self.address, **self.client_options}

    @property
    def client_options(self) -> dict[str, Any]:
        """How its administrator comes in, beside the address: by certificate, if it is secure."""
        if not self._secure:
            return {}
        from hightide.net.config_file import read_client_config

        found = read_client_config(write_client_file(self.data, self.address))
        return {name: value for name, value in found.items() if name != "bootstrap_servers"}

    def start(self, *ids: int) -> None:
        """Start nodes, and wait until they serve."""
        assert self._plan is not None, "inside the block"
        started = {
            node: start_node(
                node,
                port=port or int(node.facts().get("port") or 0),
                cluster_id=self._plan.cluster_id,
                voters=self._plan.voters,
                assignments=(*self._plan.security(node), *self._assignments),
            )
            for node, port in self._plan.nodes
            if node.node in ids
        }
        self._processes |= started
        wait_for_all(started)

    def stop(self, node: int, *, kill: bool) -> None:
        """End one node, in order or with `kill -9`; returns once it is gone."""
        process = next(each for each in self.nodes if each.node == node)
        stop_nodes([process], kill=kill)
        self._processes[process].wait()

    def stop_all(self) -> None:
        """End all nodes in order, side by side."""
        stop_nodes(self.nodes)
        for process in self._processes.values():
            process.wait()

    def cpu_s(self) -> float:
        """Seconds of processor time that the nodes have used."""
        return sum(cpu_s(process.pid) for process in self._processes.values())

    def memory_mb(self) -> float | None:
        """The resident memory of the largest node, where the system tells."""
        found = [memory_mb(process.pid, "VmRSS") for process in self._processes.values()]
        sizes = [size for size in found if size is not None]
        return max(sizes, default=None)


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used, 0 where the system does not tell."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    # The name of the command is in parentheses and may hold anything.
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str) -> float | None:
    """Resident memory of a process in MiB, now (`VmRSS`) or at the most (`VmHWM`); None where the
    system does not tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) / 1024, 1)
    return None
