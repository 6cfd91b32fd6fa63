"""What a page of metrics needs to see of a node."""

from __future__ import annotations

from typing import Protocol

import trio

from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.cluster.broker_lifecycle import BrokerLifecycle
from hightide_broker.runtime.cluster.controller import ControllerShell
from hightide_broker.runtime.cluster.metadata_loader import MetadataLoader
from hightide_broker.runtime.groups.coordinators import Coordinators
from hightide_broker.runtime.metrics.happened import Happened
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.runtime.server.door import Doors
from hightide_broker.runtime.server.gate import Gate
from hightide_broker.runtime.server.listener import Server


class Node(Protocol):
    """A running node; see `node.py` of the package."""

    id: int
    config: BrokerConfig
    cluster_id: str
    began_ms: int
    happened: Happened
    doors: Doors | None
    gate: Gate
    serving: trio.Event
    syncer: Syncer
    quorum: QuorumDriver
    metadata_loader: MetadataLoader
    controller: ControllerShell | None
    lifecycle: BrokerLifecycle | None
    replicas: Replicas
    coordinators: Coordinators
    server: Server

    @property
    def image(self) -> ClusterImage: ...

    @property
    def stopping(self) -> bool: ...

    @property
    def draining(self) -> bool: ...

    def disk_bytes(self) -> tuple[int, int]: ...

    def now_ms(self) -> int: ...
