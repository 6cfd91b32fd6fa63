"""The brokers of the cluster, as far as this one has followed the metadata.

`MetadataApplier` gives it each new image; fetchers find their leaders here, leaders the racks and
the processes of those who fetch.
"""

from __future__ import annotations

from collections.abc import Mapping

from hightide_broker.core.cluster.image import BrokerState, ClusterImage


class KnownBrokers:
    """Who is registered, where, and as which process."""

    def __init__(self) -> None:
        self._image = ClusterImage()
        self.active: Mapping[int, int] = {}
        """Brokers that are neither fenced nor stopping → their epochs."""

    def update(self, image: ClusterImage) -> bool:
        """Go by newer metadata; whether other brokers are active now."""
        self._image = image
        before = self.active
        self.active = {b: state.epoch for b, state in image.brokers.items() if image.is_active(b)}
        return self.active != before

    def get(self, broker: int) -> BrokerState | None:
        """A broker's registration; None if it has none."""
        return self._image.brokers.get(broker)

    def epoch_of(self, broker: int) -> int:
        """The epoch of a broker's registration, -1 if it has none."""
        return self._image.broker_epoch(broker)

    def rack_of(self, broker: int) -> str:
        """Where a broker stands, empty if it does not say."""
        state = self.get(broker)
        return "" if state is None else state.rack
