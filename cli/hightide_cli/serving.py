"""The life of a node's process: opened, announced, closed in order.

All that it takes is imported here at once, so that who starts several nodes can have it imported
before there are several processes.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

import trio

from hightide.net.ports import SystemClock, system_random
from hightide.net.tcp import listen
from hightide_broker.config import BrokerConfig, open_listeners, open_metrics
from hightide_broker.node import Node
from hightide_broker.opening import open_node
from hightide_broker.ports import Disk
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.runtime.base.system import raise_open_files_limit
from hightide_broker.runtime.base.usage import ProcessUsage
from hightide_broker.runtime.server.door import doors_of
from hightide_cli.notify import Notifier
from hightide_cli.settling import settle

WARN_S = 3600.0
"""How often a log says that a listener is open to others."""


async def serve(config: BrokerConfig, ready_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT; where the node is reached is written to `ready_file`."""
    manager = Notifier()
    raise_open_files_limit()
    usage = ProcessUsage()
    trio.lowlevel.add_instrument(usage)
    doors, disk = doors_of(config), RealDisk()
    # Only where it means something: otherwise the end of a terminal ends what runs in it.
    renewing = [signal.SIGHUP] if doors.has_certificates else []
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *renewing) as signals:
        async with open_node(
            config,
            doors=doors,
            disk=disk,
            clock=SystemClock(),
            random=system_random(),
            listen=listen,
            usage=usage.used,
            wait=False,
            formats=False,
        ) as node:
            async with trio.open_nursery() as nursery:
                warn_of_metrics(config)
                nursery.start_soon(warn_of_open, config)
                nursery.start_soon(warn_of_unknown, config.advertised_host)
                nursery.start_soon(manager.follow, node)
                nursery.start_soon(settle, node)
                if ready_file is not None:
                    nursery.start_soon(announce, node, disk, ready_file)
                async for number in signals:
                    if number != signal.SIGHUP:
                        break
                    doors.renew()
                nursery.cancel_scope.cancel()
            manager.stopping()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


async def warn_of_open(config: BrokerConfig) -> None:
    """Log it each hour while others may do anything here; once if only this machine's users may."""
    log = logging.getLogger("hightide.node")
    if not (found := open_listeners(config)):
        if not config.clients_prove:
            told = "all users of this machine may do anything here: hightide up --secure"
            log.warning(told, extra={"event": "server.open_on_loopback"})
        return
    while True:
        log.warning(
            "all who reach %s may do anything: allow.insecure.listener", " and ".join(found)
        )
        await trio.sleep(WARN_S)


def warn_of_metrics(config: BrokerConfig) -> None:
    """Log it when others are told metrics, which nobody has to prove anything for."""
    if place := open_metrics(config):
        logging.getLogger("hightide.node").warning(
            "all who reach %s are told metrics, and names of topics and groups: metrics.listen "
            "asks nobody who they are, expected loopback or a network of your own",
            place,
        )


async def warn_of_unknown(host: str) -> None:
    """Log it when the name that others are told cannot be looked up."""
    try:
        await trio.socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        told = "clients and other nodes are told to come to advertised.host %r, unknown here: %s"
        logging.getLogger("hightide.node").warning(told, host, error)


async def announce(node: Node, disk: Disk, ready_file: Path) -> None:
    """Say where the node serves, once it does; on a full disk, too."""
    await node.serving.wait()
    facts = {
        "pid": os.getpid(),
        "node": node.id,
        "host": node.config.advertised_host,
        "port": node.port,
        "cluster_id": node.cluster_id,
    }
    if node.config.is_split:
        facts["internal"] = "{}:{}".format(*node.internal_address)
    if address := node.config.metrics_address:
        facts["metrics"] = f"{address[0]}:{node.metrics_port}"
    disk.replace(str(ready_file), json.dumps(facts).encode())
