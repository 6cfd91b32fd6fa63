"""Whoever is told what a node does as it does it: the judge of a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hightide_broker.core.image import ClusterImage
    from hightide_broker.core.ready import Event, Ready
    from hightide_broker.runtime.quorum import QuorumDriver
    from hightide_broker.runtime.replica import Replica


class Witness(Protocol):
    """Told after the fact, in the same stretch; it changes nothing."""

    def quorum_stepped(self, driver: QuorumDriver, event: Event, ready: Ready) -> None:
        """An event was taken into account, and all of its duties were carried out."""
        ...

    def image_applied(self, node: int, image: ClusterImage) -> None:
        """A node's image has followed the metadata up to `image.offset`."""
        ...

    def replica_changed(self, node: int, replica: Replica) -> None:
        """A node's replica has another role, or another offset, or is offline."""
        ...
