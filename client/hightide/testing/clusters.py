"""A real replicated cluster inside a test: brokers in this process, on free ports of loopback.

    async with hightide.testing.cluster(brokers=3) as c:
        async with hightide.Producer(c.bootstrap) as producer: ...
        await c.kill(1)

The brokers are those of `hightide up`, with files in a temporary directory; the network between
them can be cut. Without an event loop: `with hightide.testing.BlockingCluster() as c`. Fixtures
for pytest come with the package; see `hightide.pytest_plugin`.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import trio

from hightide.blocking.base import Blocking
from hightide.net.background import open_background
from hightide.net.options import ClientOptions, from_config
from hightide.net.ports import Network, Stream, SystemClock, system_random
from hightide.net.tcp import SocketStream, free_ports, listen
from hightide.protocol.errors import UsageError
from hightide.protocol.login_messages import ScramUpsertion
from hightide_broker.config import BrokerConfig, make_config
from hightide_broker.formatting import format_node
from hightide_broker.node import Node
from hightide_broker.opening import open_node
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.runtime.server.door import doors_of
from hightide_broker.secure_local import (
    client_settings,
    first_users,
    make_secrets,
    node_settings,
)

CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "default.replication.factor": "1",
}
"""What differs from a cluster of `hightide up`: groups begin at once."""
VOTERS_MAX = 3
START_TIMEOUT_S = 300.0
"""Only a node that hangs takes so long: a machine that is busy is only slow."""


class TestCluster:
    """Made by `cluster`; brokers have the ids 1 to n."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(
        self,
        directory: Path,
        nursery: trio.Nursery,
        *,
        brokers: int,
        configs: Mapping[str, str],
        secure: bool,
    ) -> None:
        if brokers < 1:
            raise UsageError(f"brokers is {brokers}, expected 1 or more")
        self.directory = directory
        ids, ports = range(1, brokers + 1), free_ports(2 * brokers if secure else brokers)
        self.ports = dict(zip(ids, ports, strict=False))
        """Broker → its port."""
        self._node_ports = dict(zip(ids, ports[-brokers:], strict=True))
        """Broker → where the others come in; under TLS another one."""
        self._certificates = directory / "certs" if secure else None
        self._users: list[ScramUpsertion] = []
        """Who may log in to a secure cluster from its beginning."""
        if self._certificates is not None:
            make_secrets(self._certificates, ids)
            self._users = first_users(self._certificates)
        self._configs = {**CONFIGS, **configs}
        self._nursery = nursery
        self._lives: dict[int, _Life] = {}
        self._cuts: set[frozenset[int]] = set()
        self._streams: list[tuple[frozenset[int], SocketStream]] = []

    @property
    def bootstrap(self) -> str:
        """host:port of every broker, with commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def client_options(self) -> dict[str, Any]:
        """How clients come in, beside `bootstrap`: as the administrator of a secure cluster, as in
        `Producer(c.bootstrap, **c.client_options)`."""
        if self._certificates is None:
            return {}
        return from_config(ClientOptions, client_settings(self._certificates))

    @property
    def alive(self) -> list[int]:
        """The brokers that run."""
        return sorted(self._lives)

    # -- brokers ---------------------------------------------------------------------------------

    async def start(self, *brokers: int) -> None:
        """Start these, or all that do not run; returns once they serve."""
        wanted = [b for b in brokers or self.ports if self._known(b) not in self._lives]
        for broker in wanted:
            life = self._lives[broker] = _Life()
            self._nursery.start_soon(self._live, broker, life)
        with trio.fail_after(START_TIMEOUT_S):
            for broker in wanted:
                await self._lives[broker].serving.wait()

    async def kill(self, broker: int) -> None:
        """End a broker as `kill -9` would: nothing is said, nothing is finished."""
        life = self._lives.pop(self._known(broker), None)
        if life is not None:
            life.scope.cancel()
            await life.ended.wait()

    async def stop(self, broker: int) -> None:
        """An orderly stop: its partitions are handed over first."""
        life = self._lives.pop(self._known(broker), None)
        if life is not None:
            life.stop.set()
            await life.ended.wait()

    def _known(self, broker: int) -> int:
        if broker not in self.ports:
            raise UsageError(f"broker {broker}, expected one of {[*self.ports]}")
        return broker

    async def _live(self, broker: int, life: _Life) -> None:
        config = self._config(broker)
        if self._certificates is not None:
            format_node(config, RealDisk(), system_random(), users=self._users)
        doors = doors_of(config)
        try:
            with life.scope:
                async with open_node(
                    config,
                    disk=RealDisk(),
                    clock=SystemClock(),
                    random=system_random(),
                    listen=listen,
                    doors=doors,
                    network=_Wires(self, broker, doors.network),
                    wait=False,
                ) as node:
                    await _until_stopped(node, life)
        finally:
            life.ended.set()

    def _config(self, broker: int) -> BrokerConfig:
        voters = list(self.ports)[:VOTERS_MAX] if len(self.ports) >= VOTERS_MAX else [1]
        roles = "broker,controller" if broker in voters else "broker"
        return make_config(
            {
                "node.id": str(broker),
                "process.roles": roles,
                "cluster.id": "test-cluster",
                "controller.quorum.voters": ",".join(
                    f"{voter}@127.0.0.1:{self._node_ports[voter]}" for voter in voters
                ),
                "log.dirs": str(self.directory / f"broker-{broker}"),
                "listen.port": str(self.ports[broker]),
                **self._security(broker),
                **self._configs,
            }
        )

    def _security(self, broker: int) -> dict[str, str]:
        if self._certificates is None:
            return {}
        return node_settings(self._certificates, broker, self._node_ports[broker])

    # -- the network between them ----------------------------------------------------------------

    def cut(self, one: int, other: int) -> None:
        """Two brokers cannot reach each other any more; clients reach both."""
        pair = frozenset((self._known(one), self._known(other)))
        self._cuts.add(pair)
        for between, stream in self._streams:
            if between == pair:
                stream.shut_down()
        self._streams = [each for each in self._streams if each[0] != pair]

    def heal(self) -> None:
        """All brokers reach each other again."""
        self._cuts.clear()

    async def connect(self, broker: int, network: Network, host: str, port: int) -> Stream:
        """A broker's way to others, by its network; raises `OSError` where it is cut."""
        others = [other for other, known in self._node_ports.items() if known == port]
        pair = frozenset((broker, *others))
        if pair in self._cuts:
            raise OSError(f"broker {broker} is cut off from {host}:{port}")
        stream = await network.connect(host, port)
        assert isinstance(stream, SocketStream)
        if pair in self._cuts:  # while they met
            stream.shut_down()
        self._streams.append((pair, stream))
        return stream


class _Life:
    """One process of a broker, if these were processes."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.serving = trio.Event()
        self.stop = trio.Event()
        self.ended = trio.Event()


async def _until_stopped(node: Node, life: _Life) -> None:
    await node.serving.wait()
    life.serving.set()
    await life.stop.wait()


class _Wires:
    """The network of one broker; implements `ports.Network`."""

    def __init__(self, cluster: TestCluster, broker: int, network: Network) -> None:
        self._cluster = cluster
        self._broker = broker
        self._network = network

    async def connect(self, host: str, port: int) -> Stream:
        return await self._cluster.connect(self._broker, self._network, host, port)


@asynccontextmanager
async def cluster(
    brokers: int = 3,
    *,
    configs: Mapping[str, str] | None = None,
    directory: Path | None = None,
    secure: bool = False,
) -> AsyncIterator[TestCluster]:
    """A cluster for the block, serving already; `configs` are keys of all brokers. Its files go to
    `directory`, or to a temporary one that is removed. `secure`: under TLS, closed to who has no
    certificate of it; clients take its `client_options`."""
    with _directory(directory) as path:
        async with open_background() as nursery:
            made = TestCluster(path, nursery, brokers=brokers, configs=configs or {}, secure=secure)
            await made.start()
            try:
                yield made
            finally:
                with trio.CancelScope(shield=True):
                    for broker in made.alive:
                        await made.kill(broker)


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="hightide-", ignore_cleanup_errors=True) as path:
        yield Path(path)


class BlockingCluster(Blocking):
    """`cluster` for code without an event loop; the same options."""

    _name = "cluster"

    def __init__(self, brokers: int = 3, **options: Any) -> None:
        self._entering = _Entering(partial(cluster, brokers, **options))
        super().__init__(self._entering)

    @property
    def _cluster(self) -> TestCluster:
        return self._entering.entered

    @property
    def bootstrap(self) -> str:
        """host:port of every broker, with commas."""
        return self._cluster.bootstrap

    @property
    def client_options(self) -> dict[str, Any]:
        """How clients come in, beside `bootstrap`, if the cluster is secure."""
        return self._cluster.client_options

    @property
    def ports(self) -> dict[int, int]:
        """Broker → its port."""
        return self._cluster.ports

    @property
    def directory(self) -> Path:
        """Where the brokers have their files, `broker-1` and so on."""
        return self._cluster.directory

    @property
    def alive(self) -> list[int]:
        """The brokers that run."""
        return self._cluster.alive

    def start(self, *brokers: int) -> None:
        """Start these, or all that do not run; returns once they serve."""
        self._run(self._cluster.start, *brokers)

    def kill(self, broker: int) -> None:
        """End a broker as `kill -9` would."""
        self._run(self._cluster.kill, broker)

    def stop(self, broker: int) -> None:
        """Stop a broker in order, as SIGTERM does: it hands its leaderships on first."""
        self._run(self._cluster.stop, broker)

    def cut(self, one: int, other: int) -> None:
        """Two brokers cannot reach each other any more."""
        self._run_sync(self._cluster.cut, one, other)

    def heal(self) -> None:
        """All brokers reach each other again."""
        self._run_sync(self._cluster.heal)


class _Entering:
    """An async context manager as `Blocking` wants it: entered, it is still there."""

    def __init__(self, make: Any) -> None:
        self._block = make()
        self.entered: TestCluster

    async def __aenter__(self) -> Self:
        self.entered = await self._block.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._block.__aexit__(None, None, None)
