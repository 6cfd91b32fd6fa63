"""What the live tests of lost disks share: clusters whose directories are taken away and come back.

No test lives here. A process that is started writes into the log of its node; what a process of its
own said is told apart by where that log ended before.
"""

import json
import random
import shutil
import socket
from contextlib import ExitStack, suppress
from dataclasses import asdict

import msgpack
from commands import COMMAND, PATIENCE_S, hightide
from secure_run import reaching
from three_nodes import QUICK_STOP, Nodes, until

from hightide import blocking
from hightide.net.tcp import LASTING_PORTS, free_ports
from hightide_broker.secure_local import make_secrets, node_settings
from hightide_cli import processes
from hightide_cli.processes import nodes_of, read_plan, start_node
from hightide_cli.secure_cluster import CERTIFICATES

FIRST_SEGMENT = "00000000000000000000.log"
VOTERS = msgpack.packb("type") + msgpack.packb("voters")
"""As a record of the voters begins."""


def ports_in_a_row(count):
    """The first of some ports of loopback that are all free, and not among those that the system
    gives to those that ask for any: they must still be free when a cluster comes back."""
    places = LASTING_PORTS[::count]
    for first in random.sample(places, k=len(places)):
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError(f"no {count} ports in a row are free")


class Disks(Nodes):
    """A cluster that loses disks. `settings` hold for all its nodes, whenever they are started."""

    def __init__(self, data, *words, settings=()):
        self.settings = settings
        super().__init__(data, *self._set, *words)

    @property
    def _set(self):
        return [word for key in self.settings for word in ("--set", key)]

    def resume(self, *words, code=0):
        """`up` on what there is."""
        command = ["up", "--detach", "--data", self.data, *QUICK_STOP, *self._set, *words]
        return hightide(*command, code=code, patience_s=PATIENCE_S)

    def address_of(self, node):
        """Where a node listens, whether or not it serves yet."""
        (port,) = [port for each, port in read_plan(self.data).nodes if each.node == node]
        return f"127.0.0.1:{port}"

    def place_of(self, node):
        """Where other nodes reach it."""
        plan = read_plan(self.data)
        ports = plan.internal or [port for _, port in plan.nodes]
        (port,) = [
            port for each, port in zip(plan.processes, ports, strict=True) if each.node == node
        ]
        return f"127.0.0.1:{port}"

    def pids(self):
        """{node: process id} of the nodes that live, by the locks on their directories."""
        found = {node.node: node.pid() for node in nodes_of(self.data)}
        return {node: pid for node, pid in found.items() if pid is not None}

    def directory(self, node):
        return self.data / f"broker-{node}"

    def lose(self, node):
        """The disk of a node that does not run is gone."""
        shutil.rmtree(self.directory(node))

    def start_one(self, node, *assignments):
        """Start one node's process, as `up` does for all; what its log says from then on."""
        plan = read_plan(self.data)
        ((process, port),) = [each for each in plan.nodes if each[0].node == node]
        before = len(self.log(node))
        started = start_node(
            process,
            port=port,
            cluster_id=plan.cluster_id,
            voters=plan.voters,
            assignments=[*plan.security(process), *self.settings, *assignments],
        )
        self.started.append(started)
        return lambda: self.log(node)[before:]

    def start_controller(self, node):
        """Format and start one controller more, as on a machine of its own; where others reach
        it."""
        plan, (port, internal) = read_plan(self.data), free_ports(2)
        where = f"127.0.0.1:{internal if plan.is_secure else port}"
        values = {
            "node.id": node,
            "log.dirs": str(self.data / f"controller-{node}"),
            "listen.port": port,
            "process.roles": "controller",
            "cluster.id": plan.cluster_id,
            "controller.quorum.voters": f"{plan.voters},{node}@{where}",
        }
        if plan.is_secure:
            make_secrets(self.data / CERTIFICATES, [node])
            values |= node_settings(self.data / CERTIFICATES, node, internal)
        file = self.data / f"controller-{node}.toml"
        file.write_text("".join(f'"{key}" = {json.dumps(each)}\n' for key, each in values.items()))
        words = ["-c", str(file)]
        hightide("storage", "format", "--join", "--cluster-id", plan.cluster_id, *words)
        command = [*COMMAND, "server", "start", *words]
        with (self.data / "logs" / f"controller-{node}.log").open("ab") as output:
            self.started.append(processes.spawn(command, output))
        return where

    def join(self, node):
        """Format a directory for the cluster that exists."""
        cluster_id = read_plan(self.data).cluster_id
        words = ["--cluster-id", cluster_id, *self._keys(node)]
        return hightide("storage", "format", "--join", *words)

    def server_start(self, node):
        """Start a node in the foreground that does not start."""
        return hightide("server", "start", *self._keys(node), code=None)

    def _keys(self, node):
        plan = read_plan(self.data)
        (process,) = [each for each in plan.processes if each.node == node]
        keys = [
            f"node.id={node}",
            f"log.dirs={self.directory(node)}",
            f"cluster.id={plan.cluster_id}",
            f"controller.quorum.voters={plan.voters}",
            *plan.security(process),
        ]
        return [word for key in keys for word in ("--set", key)]

    def info(self, node):
        """What `storage info` says of a directory."""
        where = ["--set", f"log.dirs={self.directory(node)}"]
        return json.loads(hightide("storage", "info", *where, "-o", "json").out)

    # -- one partition ---------------------------------------------------------------------------

    def place(self, topic, replicas, **configs):
        """A topic of one partition on these brokers, the first of them to lead it."""
        named = {key.replace("_", "."): str(value) for key, value in configs.items()}
        with blocking.Admin(**reaching(self.address)) as admin:
            admin.create_topic(topic, assignment=[[*replicas]], configs=named)

    def fill(self, topic, start, end):
        """Numbers as records, all of them acknowledged."""
        lines = "".join(f"{number}\n" for number in range(start, end))
        self.run("produce", topic, "--acks", "all", stdin=lines.encode())

    def numbers(self, topic):
        """What can be read, by offset."""
        return [int(row["value"]) for row in self.read(topic)]

    def state(self, topic):
        """The one partition, as some broker knows it."""
        with blocking.Admin(**reaching(self.address)) as admin:
            (partition,) = admin.describe_topic(topic).partitions
        return asdict(partition)

    def until_state(self, topic, **wanted):
        """Wait until the partition is so."""

        def found():
            state = self.state(topic)
            return wanted.items() <= state.items() and state

        return until(found, what=f"{topic} with {wanted}")

    def until_held(self, topic, node, end):
        """Wait until a node has on disk that everything up to here is committed."""
        path = self.directory(node) / "replication-offset-checkpoint"
        line = f"{topic} 0 {end}"
        until(lambda: path.exists() and line in path.read_text().splitlines(), what=line)

    def held(self, topic, code=None):
        """Broker → where its log begins and ends; and what else `partitions describe` says."""
        ended = self.run("partitions", "describe", f"{topic}:0", "-o", "json", code=code)
        rows = json.loads(ended.out)
        ends = {row["broker"]: (row["log_start_offset"], row["log_end_offset"]) for row in rows}
        return ends, ended.err

    def stop(self, node):
        """Stop one node in order."""
        hightide("down", "--data", self.data, "--node", node)

    def until_serving(self, *nodes):
        """Wait until nodes that were started by themselves serve."""
        processes = [node for node in read_plan(self.data).processes if node.node in nodes]

        def serve():
            return all(node.pid() and node.facts().get("pid") == node.pid() for node in processes)

        until(serve, what=f"nodes {nodes} serve")

    # -- the quorum ------------------------------------------------------------------------------

    def until_recorded(self):
        """Wait until the voters are a record, with their directories, on every controller."""
        nodes = [node for node in read_plan(self.data).processes if "controller" in node.roles]

        def recorded():
            logs = [node.directory / "__cluster_metadata-0" / FIRST_SEGMENT for node in nodes]
            return all(VOTERS in path.read_bytes() for path in logs)

        until(recorded, what="the voters are recorded")

    def voters(self, address=None):
        """Voter → its directory; whether or not all of them are heard of."""
        words = ["quorum", "status", "-o", "json", "--timeout", "2"]
        ended = hightide(*words, address=address or self.address, code=None)
        if not ended.out:
            return None
        return {each["id"]: each["directory"] for each in json.loads(ended.out)["voters"]}
