"""A node from its directory to its end: locked, looked at, run, stopped in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from hightide.net.ports import Network, Random, WallClock
from hightide_broker.config import BrokerConfig
from hightide_broker.formatting import directory_of, format_node, read_directory
from hightide_broker.instrument import Instrument
from hightide_broker.node import Node
from hightide_broker.ports import Disk
from hightide_broker.runtime.base.trace import Trace
from hightide_broker.runtime.base.usage import Usage, Used
from hightide_broker.runtime.metrics.watching import MetricsPort, open_metrics_port
from hightide_broker.runtime.server.door import Doors, doors_of
from hightide_broker.runtime.server.entrance import Entrance, Listen, open_entrance
from hightide_broker.storage.directory import (
    METADATA_DIRECTORY,
    RESERVE,
    lock_directory,
    take_clean_marker,
)
from hightide_broker.storage.quorum_state import read_quorum_state


@asynccontextmanager
async def open_node(
    config: BrokerConfig,
    *,
    disk: Disk,
    clock: WallClock,
    random: Random,
    listen: Listen,
    network: Network | None = None,
    instrument: Instrument | None = None,
    usage: Usage = Used,
    doors: Doors | None = None,
    wait: bool = True,
    formats: bool = True,
    trace: Trace | None = None,
) -> AsyncIterator[Node]:
    """A node for the block, serving already unless told not to `wait`; an orderly stop at its end.

    `doors`: by which others come in, for who has them renewed. `formats`: make the directory, if it
    is new, for a new cluster: not where it may have been lost. `trace`: who is told what happens,
    if not the files of its directory.
    Raises `LockHeld`, `NotFormatted`, `WrongDirectory`, `QuorumStateDamaged`, `LogDamaged`,
    `SnapshotDamaged`, `DiskError`, or `OSError` if the port is taken.
    """
    directory = directory_of(config)
    if formats:
        disk.make_dirs(directory)
    else:
        read_directory(config, disk)
    lock = lock_directory(disk, directory)
    entrance: Entrance | None = None
    metrics = MetricsPort(None)
    try:
        meta = format_node(config, disk, random) if formats else read_directory(config, disk)
        entrance = await open_entrance(doors or doors_of(config), listen)
        metrics = await open_metrics_port(config.metrics_address, listen)
        disk.keep_reserve(f"{directory}/{RESERVE}")
        read_quorum_state(disk, f"{directory}/{METADATA_DIRECTORY}")
        previous_epoch = take_clean_marker(disk, directory)
        node = Node(
            config,
            meta,
            disk=disk,
            clock=clock,
            random=random,
            network=network or entrance.doors.network,
            clean=previous_epoch is not None,
            instrument=instrument,
            usage=usage,
            trace=trace,
        )
        async with _running(node, entrance, metrics, previous_epoch):
            if wait:
                await node.serving.wait()
            yield node
    finally:
        await metrics.aclose()
        if entrance is not None:
            await entrance.aclose()
        lock.release()


@asynccontextmanager
async def _running(
    node: Node, entrance: Entrance, metrics: MetricsPort, previous_epoch: int | None
) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run, entrance, metrics, previous_epoch)
        try:
            yield
        finally:
            node.stop()
