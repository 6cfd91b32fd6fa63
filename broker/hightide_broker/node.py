"""A node: builds a broker from its configuration and ports, and runs it in one nursery.

The composition root: the only place that picks which disk, clock, randomness and listener are used.

Start, in this order: lock the directory and check whose it is; read (and remove) the clean-shutdown
marker; open the metadata log in a new epoch; listen; register with the controller, which takes away
whatever the last incarnation led; open the replicas; ask to be unfenced, which elects; serve. A
client is answered only when all of that is done. Stop: finish requests, hand leadership back, close
the logs, write the checkpoints, and last the marker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from hightide import controller_messages as c
from hightide import messages as m
from hightide.apis import APIS, Api
from hightide.ports import Random, Stream, WallClock
from hightide_broker.config import BrokerConfig, ConfigError
from hightide_broker.core.changes import AnyChange
from hightide_broker.core.image import ClusterImage
from hightide_broker.ports import Disk
from hightide_broker.runtime.admin_handlers import AdminHandlers
from hightide_broker.runtime.controller import ControllerShell, random_id
from hightide_broker.runtime.handlers import RecordHandlers
from hightide_broker.runtime.housekeeping import Housekeeping
from hightide_broker.runtime.quorum import MetadataLog
from hightide_broker.runtime.replicas import METADATA_DIRECTORY, Replicas
from hightide_broker.runtime.server import Later, Reply, Server
from hightide_broker.runtime.syncer import Syncer
from hightide_broker.runtime.watermark import Watermark
from hightide_broker.storage.directory import (
    Meta,
    check_owner,
    format_directory,
    lock_directory,
    read_meta,
    take_clean_marker,
    write_clean_marker,
)

log = logging.getLogger("hightide.node")

_CONTROLLER_APIS = ("create_topics", "delete_topics", "create_partitions", "alter_configs")


class Listener(Protocol):
    """Where connections come from."""

    @property
    def port(self) -> int:
        """The port that is listened on."""
        ...

    async def accept(self) -> Stream:
        """The next connection; raises `OSError` when this one failed, not the listener."""
        ...

    async def aclose(self) -> None:
        """Take no more connections."""
        ...


class Listen(Protocol):
    """How to listen."""

    async def __call__(self, host: str, port: int) -> Listener: ...


class Node:
    """A running broker and controller of a cluster of one; made by `open_node`."""

    def __init__(
        self, config: BrokerConfig, *, disk: Disk, clock: WallClock, random: Random, clean: bool
    ) -> None:
        self.id = config.number("node.id")
        self.config = config
        self.image = ClusterImage()
        self.cluster_id = ""
        self.port = -1
        self.broker_epoch = -1
        self.serving = trio.Event()
        self._disk = disk
        self._random = random
        self._directory = config.text("log.dirs").rstrip("/")
        self._applied = Watermark()
        self._syncer = Syncer(disk)
        self._stop = trio.Event()
        self.replicas = Replicas(
            broker=self.id,
            config=config,
            directory=self._directory,
            disk=disk,
            clock=clock,
            syncer=self._syncer,
            clean=clean,
        )
        self._metadata_log = MetadataLog(
            disk, f"{self._directory}/{METADATA_DIRECTORY}", node=self.id, clock=clock
        )
        self._housekeeping = Housekeeping(self.replicas, config=config, disk=disk, clock=clock)
        self._records = RecordHandlers(self.replicas, config=config, clock=clock)
        self._admin = AdminHandlers(
            self, self.replicas, broker=self.id, config=config, disk=disk, apis=self._served_apis
        )
        self.server = Server(self, config)

    @property
    def address(self) -> str:
        """host:port, as clients are told."""
        return f"{self.config.advertised_host}:{self.port}"

    def stop(self) -> None:
        """Begin an orderly stop; `open_node` ends when it is done."""
        self._stop.set()

    # -- server.Handlers -------------------------------------------------------------------------

    def serves(self, api: Api) -> bool:
        """Whether clients may use this API here."""
        return api.name in _CONTROLLER_APIS or self._handler(api) is not None

    def _handler(self, api: Api) -> object | None:
        return getattr(self._records, api.name, None) or getattr(self._admin, api.name, None)

    def _served_apis(self) -> list[Api]:
        return [api for api in APIS if self.serves(api)]

    def begin(
        self, api: Api, request: m.Message, attachments: list[memoryview], client: str
    ) -> Reply | Later | None:
        """Begin a request."""
        if api.name in _CONTROLLER_APIS:
            return self._admin.change(request, attachments)
        handler = self._handler(api)
        assert callable(handler), f"{api.name} passed the door without a handler"
        outcome: Reply | Later | None = handler(request, attachments)
        return outcome

    # -- admin_handlers.Metadata -----------------------------------------------------------------

    async def change(self, request: m.Message) -> m.Message:
        """Have the controller decide; returns once this broker has applied it."""
        reply, offset = await self._controller.submit(request)
        await self._applied.wait_for(offset)
        return reply

    async def _apply_metadata(self) -> None:
        """Follow the metadata log for ever: replay, then act."""
        while True:
            await self._metadata_log.committed.wait_for(self._applied.value + 1)
            await self._apply_committed()

    async def _apply_committed(self) -> None:
        end = self._metadata_log.committed.value
        changes: list[AnyChange] = []
        for offset, change in self._metadata_log.changes(self._applied.value):
            self.image.replay(change, offset)
            changes.append(change)
        await self.replicas.apply(self.image, changes)
        self._applied.advance(end)

    # -- life ------------------------------------------------------------------------------------

    async def run(self, meta: Meta, listener: Listener, previous_epoch: int | None) -> None:
        """Serve until `stop`; raises what makes serving impossible."""
        self.cluster_id = meta.cluster_id
        self.port = listener.port
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._syncer.run)
            await self._join(nursery, previous_epoch)
            accepting = trio.CancelScope()
            nursery.start_soon(self._accept, listener, nursery, accepting)
            nursery.start_soon(self._housekeeping.run)
            self.serving.set()
            log.info("node %d serves on %s, data in %s", self.id, self.address, self._directory)
            await self._stop.wait()
            accepting.cancel()
            await listener.aclose()
            clean = await self._leave()
            nursery.cancel_scope.cancel()
        if clean:
            write_clean_marker(self._disk, self._directory, self.broker_epoch)
        log.info("node %d stopped%s", self.id, "" if clean else ", not all of its data is clean")

    async def _join(self, nursery: trio.Nursery, previous_epoch: int | None) -> None:
        """Register, catch up, open the replicas, be unfenced."""
        self._controller = ControllerShell(
            self._metadata_log,
            self._syncer,
            cluster_id=self.cluster_id,
            config=self.config,
            random=self._random,
        )
        registered, _ = await self._controller.submit(
            c.RegisterBrokerRequest(
                broker=self.id,
                incarnation=random_id(self._random),
                cluster_id=self.cluster_id,
                host=self.config.advertised_host,
                port=self.port,
                rack=self.config.text("broker.rack"),
                roles=["broker", "controller"],
                previous_broker_epoch=-1 if previous_epoch is None else previous_epoch,
            )
        )
        assert isinstance(registered, c.RegisterBrokerResponse)
        self.broker_epoch = registered.broker_epoch
        for offset, change in self._metadata_log.changes(0):
            self.image.replay(change, offset)
        self._applied.advance(self._metadata_log.committed.value)
        await self.replicas.load(self.image)
        nursery.start_soon(self._apply_metadata)
        await self._heartbeat()

    async def _heartbeat(self, *, stopping: bool = False) -> None:
        await self.change(
            c.BrokerHeartbeatRequest(
                broker=self.id,
                broker_epoch=self.broker_epoch,
                metadata_offset=self._applied.value,
                want_shut_down=stopping,
            )
        )

    async def _leave(self) -> bool:
        """Finish requests, hand leadership back, close the logs; whether all is whole on disk."""
        await self.server.drain(self.config.seconds("shutdown.timeout.ms"))
        await self._heartbeat(stopping=True)
        whole = await self.replicas.close()
        await self._metadata_log.close(self._disk)
        return whole

    async def _accept(
        self, listener: Listener, nursery: trio.Nursery, accepting: trio.CancelScope
    ) -> None:
        with accepting:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    # Out of descriptors, or the peer is gone already: the listener lives on.
                    log.warning("a connection could not be accepted: %s", error)
                    await trio.sleep(0.1)
                    continue
                nursery.start_soon(self.server.serve_stream, stream)


def prepare_directory(config: BrokerConfig, disk: Disk, random: Random) -> Meta:
    """Whose the directory is; a new one is formatted. Raises `WrongDirectory` or `DiskError`."""
    directory = config.text("log.dirs").rstrip("/")
    node = config.number("node.id")
    cluster = config.text("cluster.id") or None
    disk.make_dirs(directory)
    meta = read_meta(disk, directory)
    if meta is None:
        meta = Meta(cluster or random_id(random), node, random_id(random))
        format_directory(disk, directory, meta)
    check_owner(directory, meta, cluster_id=cluster, node_id=node)
    return meta


@asynccontextmanager
async def open_node(
    config: BrokerConfig, *, disk: Disk, clock: WallClock, random: Random, listen: Listen
) -> AsyncIterator[Node]:
    """A serving node for the block; an orderly stop at its end.

    Raises `LockHeld`, `WrongDirectory`, `DiskError`, or `OSError` if the port is taken.
    """
    directory = config.text("log.dirs").rstrip("/")
    if not directory:
        raise ConfigError("log.dirs is empty, expected a directory")
    disk.make_dirs(directory)
    lock = lock_directory(disk, directory)
    listener: Listener | None = None
    try:
        meta = prepare_directory(config, disk, random)
        host, port = config.text("listen.host"), config.number("listen.port")
        try:
            listener = await listen(host, port)
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        previous_epoch = take_clean_marker(disk, directory)
        node = Node(config, disk=disk, clock=clock, random=random, clean=previous_epoch is not None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run, meta, listener, previous_epoch)
            await node.serving.wait()
            try:
                yield node
            finally:
                node.stop()
    finally:
        if listener is not None:
            await listener.aclose()
        lock.release()
