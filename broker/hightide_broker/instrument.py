"""Who may be told what a node does as it does it: the checker of a simulated world."""

from __future__ import annotations

from typing import Protocol

from hightide_broker.runtime.cluster.metadata_loader import ImageInstrument
from hightide_broker.runtime.quorum.driver import QuorumInstrument
from hightide_broker.runtime.replication.replica_loader import ReplicaInstrument


class Instrument(QuorumInstrument, ImageInstrument, ReplicaInstrument, Protocol):
    """What each room tells of, for one who looks at the whole node."""
