"""What the live tests of several nodes share: clusters that die with their test, and patience.

No test lives here. Nodes are killed by the process ids that `ps` tells or their starter knows.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from itertools import pairwise

from commands import StartedCluster, hightide
from patience import PATIENCE_MS, PATIENCE_S, Patience, wait_until

from hightide_cli.processes import read_plan, start_node

QUICK_STOP = ("--set", "shutdown.timeout.ms=1s")
"""The last nodes of a cluster that stops wait for a majority that is gone."""
STOP_IN_ORDER = ("--set", f"shutdown.timeout.ms={PATIENCE_MS}")
"""A node that stops is heard by the others, however busy the machine is."""
POLL_S = 0.05


def until(true, *, what, progress=lambda: None):
    """Wait for something that is true; what it was, when it is."""
    return wait_until(true, what, progress=progress, every_s=POLL_S)


class Nodes(StartedCluster):
    """A cluster of several nodes."""

    def __init__(self, data, *words, stop=QUICK_STOP):
        self.data = data
        self._settings = [word for before, word in pairwise(words) if before == "--set"]
        """Of all nodes, whenever they start: a broker that believes in another session than its
        controller is heard too seldom."""
        self._stop = stop
        self.started = []
        """Nodes that were started without `up`."""
        try:
            super().__init__(data, "--port", "0", *stop, *words)
        except BaseException:
            self.end()
            raise

    @property
    def addresses(self):
        """Of each broker, in the order of their ids."""
        return self.address.split(",")

    def address_of(self, node):
        (row,) = [row for row in self.ps() if row["node"] == node]
        return f"{row['host']}:{row['port']}"

    def pids(self):
        """{node: process id} of the nodes that live."""
        return {row["node"]: row["pid"] for row in self.ps() if row["pid"] is not None}

    def send(self, node, number):
        """Send a signal to a node's process."""
        os.kill(self.pids()[node], number)

    def kill(self, *nodes):
        """`kill -9`; returns when the kernel has let go of the directories."""
        for node in nodes:
            self.send(node, signal.SIGKILL)
        until(lambda: not self.pids().keys() & set(nodes), what=f"nodes {nodes} are gone")

    def up_again(self, code=0):
        settings = [word for each in self._settings for word in ("--set", each)]
        return hightide("up", "--detach", "--data", self.data, *self._stop, *settings, code=code)

    def down(self):
        return hightide("down", "--data", self.data)

    def start_one(self, node):
        """Start one node's process, as `up` does for all."""
        plan = read_plan(self.data)
        ((process, port),) = [each for each in plan.nodes if each[0].node == node]
        started = start_node(
            process,
            port=port,
            cluster_id=plan.cluster_id,
            voters=plan.voters,
            assignments=(*plan.security(process), *self._settings),
        )
        self.started.append(started)
        return started

    def log(self, node):
        """What a node said since it was first started."""
        (path,) = (self.data / "logs").glob(f"*-{node}.log")
        return path.read_text()

    def quorum(self, address=None, code=0):
        """What `quorum status` says; None if it ended with a code that was not asked for."""
        words = ["quorum", "status", "-o", "json", "--timeout", "2"]
        ended = hightide(*words, address=address or self.address, code=None)
        return json.loads(ended.out) if ended.code == code else None

    def active(self):
        """The node of the active controller."""
        return until(self.quorum, what="a quorum with all of its voters")["leader"]

    def create(self, topic, *words, address=None):
        """Create a topic, however long it takes to find a controller."""

        def created():
            command = ["topics", "create", topic, "--if-not-exists", *words, "--timeout", "2"]
            return hightide(*command, address=address or self.address, code=None).code == 0

        until(created, what=f"topic {topic} is created")

    def topics(self, address=None):
        ended = hightide("topics", "list", "-o", "quiet", address=address or self.address)
        return set(ended.out.decode().split())

    def end(self):
        """Nothing of it is left alive."""
        patience = Patience("processes die")
        while (self.data / "cluster.json").exists() and (pids := self.pids()):
            for pid in pids.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            patience.check()
            time.sleep(POLL_S)
        for process in self.started:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
