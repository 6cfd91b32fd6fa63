"""Makes replicas: opens their logs, or says why that cannot be done.

What a replica's log must hold is decided here: nothing or, where other replicas may rely on it, all
that was committed and on disk.
"""

from __future__ import annotations

import logging
from typing import Protocol

from hightide.net.ports import WallClock
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.image import ClusterImage, PartitionState, TopicState
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.replication.checkpoints import Checkpoints
from hightide_broker.runtime.replication.log_loader import NOWHERE, LogLoader
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.runtime.replication.troubles import advice
from hightide_broker.storage.segment import SegmentDamage

log = logging.getLogger("hightide.replicas")


class ReplicaInstrument(Protocol):
    """Told after the fact, in the same stretch; it changes nothing."""

    def replica_changed(self, node: int, replica: Replica) -> None:
        """A node's replica has another role, or another offset, or is offline."""
        ...


class ReplicaLoader:
    """The replicas of one data directory; `clean`: the last stop was an orderly one."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        broker: int,
        config: BrokerConfig,
        disk: Disk,
        clock: WallClock,
        clean: bool,
        instrument: ReplicaInstrument | None = None,
    ) -> None:
        self._replicas = replicas
        self._checkpoints: Checkpoints = replicas.checkpoints
        self._troubles = replicas.troubles
        self._broker = broker
        self._config = config
        self._defaults = config.topic_defaults()
        self._inflated_max = config[keys.MESSAGE_INFLATED_MAX_BYTES]
        self._clock = clock
        self._logs = LogLoader(disk, replicas.directory, replicas.checkpoints, clean=clean)
        self._instrument = instrument

    def topic_config(self, image: ClusterImage, topic: str) -> TopicConfig:
        """How a topic is configured: what the metadata says, else this node's defaults."""
        return TopicConfig.of(image.topic_settings(topic), self._defaults)

    def is_relied_on(self, state: PartitionState) -> bool:
        """Whether this broker may hold records that nobody else has."""
        return self._broker in (*state.isr, *state.elr, *state.last_known_elr, state.leader)

    def must_reach(self, image: ClusterImage, topic: TopicState, number: int) -> int:
        """Where the log of a replica ends at least that other replicas may rely on: at what was
        committed and on disk; `NOWHERE` if it need not even be there."""
        state, tp = topic.partitions[number], TopicPartition(topic.name, number)
        if not self.is_relied_on(state) or not self._checkpoints.had_records(tp):
            return NOWHERE
        if len(state.replicas) == 1:
            return 0  # whatever is left of it is all there is
        if not self.topic_config(image, topic.name).synced:
            return 0
        committed = self._checkpoints.high_watermarks.get(tp, 0)
        if topic.synced_since < 0:
            return committed
        # Some of it may have counted before it had to be on disk.
        return min(committed, self._checkpoints.recovery_points.get(tp, 0))

    def bytes_to_scan(self, tp: TopicPartition) -> int:
        """How much of a log is to be scanned when it is opened, at most; for a worker thread."""
        return self._logs.bytes_to_scan(tp)

    def load(
        self,
        topic: TopicState,
        number: int,
        config: TopicConfig,
        *,
        must_reach: int = NOWHERE,
        salvage: bool = False,
    ) -> Replica:
        """Open or make a replica; one that could not be is offline and says why. For a worker
        thread: nobody else may be at work in its directory."""
        outcome = self._logs.open(topic, number, config, must_reach=must_reach, salvage=salvage)
        tp = TopicPartition(topic.name, number)
        replica = Replica(
            topic.name,
            topic.topic_id,
            number,
            config=config,
            log=outcome.log,
            high_watermark=self._checkpoints.high_watermarks.get(tp, 0),
            inflated_max=self._inflated_max,
            offline=outcome.why,
            is_damaged=outcome.is_damaged,
            lacks_space=outcome.lacks_space,
            must_reach=must_reach,
            troubles=self._troubles,
            tell=self._changed,
        )
        try:
            if not replica.offline:
                replica.rebuild_producers(now_ms=self._clock.now_ms())
        except SegmentDamage as damage:
            # What lies below the recovery point was not looked at when the log was opened.
            replica.offline, replica.is_damaged = advice(damage), True
        except DiskError as error:
            replica.offline = str(error)
        if replica.offline:
            replica.tell(replica)
        return replica

    def _changed(self, replica: Replica) -> None:
        self._replicas.changed(replica)
        if self._instrument is not None:
            self._instrument.replica_changed(self._broker, replica)

    def warn_of_own_defaults(self, image: ClusterImage) -> None:
        """Say it where this node's file sets what the cluster has another record of."""
        for name in self._config.given:
            key, own = keys.KEYS[name].topic_key, self._config.values[name]
            recorded = image.cluster_config.get(key.name, own) if key else own
            if key and recorded != own:
                log.warning(
                    "%s=%s is not used: in this cluster %s is %s (`hightide configs alter cluster` "
                    "changes it for all nodes)",
                    *(name, own, key.name, recorded),
                )
