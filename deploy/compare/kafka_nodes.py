"""Three nodes of Apache Kafka, each broker and controller, with Kafka's defaults.

The settings of the JVM are those of Kafka's own start script, heap included.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compare.processes import end, free_ports, run, start, undisturbed

NODES = (1, 2, 3)
HEAP = ("-Xmx1G", "-Xms1G")
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
FORMAT_S = 300.0
_PROPERTIES = """node.id={node}
process.roles=broker,controller
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
"""
_LOGGING = """appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""


class KafkaNodes:
    """Formatted nodes; `start` starts them."""

    def __init__(self, directory: Path, jars: Path, log: str) -> None:
        self._directory = directory
        self._log = log
        self._java = ["java", "-cp", f"{jars}/*"]
        self._logging = f"-Dlog4j2.configurationFile={directory}/log4j2.properties"
        self._processes: dict[int, subprocess.Popen[str]] = {}
        ports = free_ports(2 * len(NODES))
        self._ports = dict(zip(NODES, ports, strict=False))
        self._controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))

    @property
    def address(self) -> str:
        """host:port of every broker."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def pids(self) -> dict[int, int]:
        """Process ids, by the node's."""
        return {node: process.pid for node, process in self._processes.items()}

    def format(self) -> None:
        """Write what each node is told, and make its directory."""
        (self._directory / "log4j2.properties").write_text(_LOGGING)
        cluster_id = _random_id()
        for node in NODES:
            self._settings(node).write_text(self._properties(node))
            command = [*self._java, self._logging, "kafka.tools.StorageTool", "format"]
            command += ["--cluster-id", cluster_id, "--config", str(self._settings(node))]
            run(command, log=f"{self._log}-format", timeout_s=FORMAT_S)

    def start(self) -> None:
        """Start all nodes, and wait for nothing."""
        for node in NODES:
            command = [*self._java, *HEAP, *JVM, self._logging, "kafka.Kafka"]
            command += [str(self._settings(node))]
            self._processes[node] = start(command, log=f"{self._log}-{node}")

    def wait(self) -> None:
        """There is no other program whose end says that they serve."""

    def end(self) -> None:
        """Kill them: their data is of no use to anybody."""
        end(self._processes.values())

    def _settings(self, node: int) -> Path:
        return self._directory / f"server-{node}.properties"

    def _properties(self, node: int) -> str:
        voters = [f"{each}@127.0.0.1:{port}" for each, port in self._controllers.items()]
        return _PROPERTIES.format(
            node=node,
            voters=",".join(voters),
            port=self._ports[node],
            controller_port=self._controllers[node],
            data=self._directory / f"data-{node}",
        )


@contextmanager
def kafka_nodes(directory: Path, jars: Path, log: str) -> Iterator[KafkaNodes]:
    """Formatted nodes that do not run yet; at the end of the block none does."""
    nodes = KafkaNodes(directory, jars, log)
    try:
        nodes.format()
        yield nodes
    finally:
        with undisturbed():
            nodes.end()


def _random_id() -> str:
    """One that no command line takes for an option."""
    while (found := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()).startswith("-"):
        pass
    return found.rstrip("=")
