"""A node: builds a broker, a controller, or both from configuration and ports, in one nursery.

The composition root: the only place that picks which disk, clock, randomness and network are used.

Start, in this order: lock the directory and check whose it is; read (and remove) the clean-shutdown
marker; open the metadata log; listen, so that the quorum can form. A broker then registers with the
active controller, which takes away whatever the last incarnation led; opens its replicas; and asks
to be unfenced, which elects. A client is answered only when all of that is done. Stop: hand
leadership on, resign from the quorum, finish requests, close the logs, write the checkpoints, and
last the marker.
"""

from __future__ import annotations

import logging

import trio

from hightide.net.ports import Network, Random, WallClock
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig, ConfigError
from hightide_broker.core.cluster.features import KNOWN_LEVELS
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.formatting import directory_of, first_users
from hightide_broker.instrument import Instrument
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.tongue import KafkaTongue
from hightide_broker.ports import Disk
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.base.data_directory import watch_directory
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.base.trace import Trace, open_trace
from hightide_broker.runtime.base.usage import Usage, Used
from hightide_broker.runtime.cluster.broker_lifecycle import BrokerLifecycle
from hightide_broker.runtime.cluster.broker_liveness import BrokerLiveness
from hightide_broker.runtime.cluster.controller import ControllerShell, random_id
from hightide_broker.runtime.cluster.controller_channel import ControllerChannel
from hightide_broker.runtime.cluster.joining import join
from hightide_broker.runtime.cluster.metadata_loader import MetadataLoader
from hightide_broker.runtime.groups.coordinators import Coordinators
from hightide_broker.runtime.metrics.happened import Happened
from hightide_broker.runtime.metrics.watching import MetricsPort
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.quorum.metadata_log import MetadataLog
from hightide_broker.runtime.quorum.peers import NodeAddresses, Peers
from hightide_broker.runtime.quorum.settings import quorum_config
from hightide_broker.runtime.replication.fetcher import Fetchers
from hightide_broker.runtime.replication.following import Following
from hightide_broker.runtime.replication.housekeeping import Housekeeping
from hightide_broker.runtime.replication.isr import IsrChanges
from hightide_broker.runtime.replication.known_brokers import KnownBrokers
from hightide_broker.runtime.replication.metadata_applier import MetadataApplier
from hightide_broker.runtime.replication.pending_deletes import PendingDeletes
from hightide_broker.runtime.replication.positions import Positions
from hightide_broker.runtime.replication.repair import Repair
from hightide_broker.runtime.replication.replica_loader import ReplicaLoader
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.runtime.server import table
from hightide_broker.runtime.server.access_handlers import AccessHandlers
from hightide_broker.runtime.server.admin_handlers import AdminHandlers
from hightide_broker.runtime.server.door import Doors
from hightide_broker.runtime.server.entrance import Entrance
from hightide_broker.runtime.server.gate import Gate
from hightide_broker.runtime.server.group_handlers import GroupHandlers
from hightide_broker.runtime.server.listener import Server, server_of
from hightide_broker.runtime.server.offset_handlers import OffsetHandlers
from hightide_broker.runtime.server.record_handlers import RecordHandlers
from hightide_broker.runtime.server.routes import VERSION, Routes
from hightide_broker.storage.directory import METADATA_DIRECTORY, Meta, write_clean_marker
from hightide_broker.storage.runs import begin_run, confirm_run
from hightide_broker.storage.segment import LogConfig
from hightide_broker.trace.events import Event, NodeServes, NodeStarted, NodeStopped
from hightide_broker.trace.failures import failure_of

log = logging.getLogger("hightide.node")


class Node:
    """A running node; made by `opening.open_node`."""

    def __init__(
        self,
        config: BrokerConfig,
        meta: Meta,
        *,
        disk: Disk,
        clock: WallClock,
        random: Random,
        network: Network,
        clean: bool,
        instrument: Instrument | None = None,
        usage: Usage = Used,
        trace: Trace | None = None,
    ) -> None:
        """Opens the metadata log; raises `LogDamaged`, `SnapshotDamaged`,
        `QuorumStateDamaged`, `DiskError`."""
        self.id = config[keys.NODE_ID]
        self.config = config
        self.cluster_id = meta.cluster_id
        self.port = self.metrics_port = -1
        self.serving = trio.Event()
        self._meta = meta
        self._disk = disk
        self._random = random
        self._usage = usage
        self._directory = directory_of(config)
        self._agenda = Agenda()
        self._clock = clock
        self.began_ms = clock.now_ms()
        self.happened = Happened()
        self.doors: Doors | None = None
        self.trace = trace or open_trace(
            disk,
            self._directory,
            self._agenda,
            node=self.id,
            max_bytes=config[keys.TRACE_MAX_BYTES],
            now_ms=clock.now_ms,
        )
        self.syncer = Syncer(disk, self._agenda)
        self._stop = trio.Event()
        self.draining = False
        """Whether it hands what it leads to others, before it stops."""
        self._attached = False
        """Whether the replicas were opened, so that the last stop says nothing any more."""
        self._voters = config.voters
        self._network = network
        # The quorum's connections are its own: a wait for a commit must not hold up its fetches.
        self._addresses = NodeAddresses(self._voters)
        self._peers, self._forwarding = (
            Peers(network, self._addresses, node=self.id) for _ in range(2)
        )
        self._build_quorum(clock, instrument)
        self._build_broker(clock, instrument, clean)

    def _build_quorum(self, clock: WallClock, instrument: Instrument | None) -> None:
        config, path = self.config, f"{self._directory}/{METADATA_DIRECTORY}"
        self.metadata = MetadataLog(
            self._disk,
            path,
            config=LogConfig(segment_bytes=config[keys.METADATA_LOG_SEGMENT_BYTES]),
            clock=clock,
        )
        self._check_voters(path)
        self.quorum = QuorumDriver(
            quorum_config(config, self._meta),
            self.metadata,
            disk=self._disk,
            directory=path,
            peers=self._peers,
            syncer=self.syncer,
            random=self._random,
            request_timeout_s=config.seconds(keys.CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS),
            addresses=self._addresses,
            instrument=instrument,
            tell=self._tell,
        )
        self.metadata_loader = MetadataLoader(
            self.metadata, self.quorum.committed, node=self.id, config=config, instrument=instrument
        )
        self.controller: ControllerShell | None = None
        self._liveness = BrokerLiveness(self._network, node=self.id)
        if "controller" in config.roles:
            self.controller = ControllerShell(
                self.quorum,
                self.metadata_loader,
                self._liveness,
                cluster_id=self.cluster_id,
                config=config,
                random=self._random,
                judge=self._judge,
                first_users=first_users(self._disk, self._directory),
                tell=self._tell,
            )
        self.channel = ControllerChannel(
            self.quorum,
            self.controller,
            self._forwarding,
            timeout_s=config.seconds(keys.REQUEST_TIMEOUT_MS),
        )

    def _check_voters(self, path: str) -> None:
        """A configuration counts only while there is no record, and must not change until then."""
        before = self.metadata.last_voters()
        is_recorded = self.metadata.voters is not None
        if not is_recorded and before is not None and before != tuple(sorted(self._voters)):
            raise ConfigError(
                f"controller.quorum.voters names nodes {sorted(self._voters)}, but the metadata "
                f"log in {path} is one of voters {list(before)}: voters are added and removed "
                f"while they run (hightide quorum add, remove, replace), not by configuration"
            )

    def _build_broker(self, clock: WallClock, instrument: Instrument | None, clean: bool) -> None:
        config, disk = self.config, self._disk
        self._brokers = KnownBrokers()
        tell = self._tell
        self._isr_changes = IsrChanges(self.channel, broker=self.id, config=config, tell=tell)
        self.replicas = Replicas(
            disk, self._directory, syncer=self.syncer, isr_changes=self._isr_changes, tell=tell
        )
        self._positions = Positions(self.replicas, tell)
        lower_offsets = self.replicas.checkpoints.lower_offsets
        self._fetchers = Fetchers(
            self._network,
            self._brokers,
            Following(now_ms=clock.now_ms, lower_offsets=lower_offsets, tell=tell),
            self.syncer,
            self._agenda,
            broker=self.id,
            config=config,
        )
        loader = ReplicaLoader(
            self.replicas,
            broker=self.id,
            config=config,
            disk=disk,
            clock=clock,
            clean=clean,
            instrument=instrument,
        )
        pending_deletes = PendingDeletes(disk, self._directory)
        self._applier = MetadataApplier(
            self.replicas,
            loader,
            brokers=self._brokers,
            fetchers=self._fetchers,
            pending_deletes=pending_deletes,
            broker=self.id,
            config=config,
            disk=disk,
        )
        self._repair = Repair(self.replicas, loader, self._applier, disk=disk)
        self._housekeeping = Housekeeping(
            self.replicas, pending_deletes, config=config, disk=disk, clock=clock
        )
        applied = self.metadata_loader.applied
        self.lifecycle: BrokerLifecycle | None = None
        if "broker" in config.roles:
            self.lifecycle = BrokerLifecycle(
                self.channel, applied, broker=self.id, config=config, replicas=self.replicas
            )
        self.coordinators = Coordinators(self, applied, self.replicas, config=config, clock=clock)
        self._table = self._routes(clock)
        self.server = self._server()

    def _server(self) -> Server:
        facts = Facts(lambda: self.image, broker=self.id, now_ms=self.now_ms)
        kafka = KafkaTongue(facts) if self.config[keys.KAFKA_PROTOCOL_ENABLE] else None
        return server_of(
            self._table,
            self.config,
            self._agenda,
            lambda: self.image,
            self.replicas.traffic,
            why_not=self.why_not,
            is_current=self._is_current,
            kafka=kafka,
        )

    def _routes(self, clock: WallClock) -> Routes:
        config, coordinators = self.config, self.coordinators
        gate = self.gate = Gate(lambda: self.image, config, self._is_current)
        records = RecordHandlers(
            self,
            self.replicas,
            self._brokers,
            config=config,
            clock=clock,
            agenda=self._agenda,
            disk=self._disk,
        )
        groups = GroupHandlers(coordinators, broker=self.id, clock=clock, random=self._random)
        offsets = OffsetHandlers(coordinators, self, config=config, clock=clock)
        admin = AdminHandlers(
            self,
            self.replicas,
            broker=self.id,
            config=config,
            disk=self._disk,
            quorum=self.quorum,
            usage=self._usage,
            trace=self.trace,
        )
        rows = (
            *table.about_the_quorum(self.quorum, self.channel),
            *table.about_records(records),
            *table.about_groups(groups, offsets),
            *table.about_the_cluster(admin),
            *table.about_access(AccessHandlers(gate, lambda: self.image), admin),
        )
        return Routes(
            rows,
            gate,
            node=self.id,
            is_broker=self.lifecycle is not None,
            why_not=self.why_not,
            look=records.look,
        )

    def _tell(self, what: Event) -> None:
        self.happened.count(what)
        self.trace.tell(what)

    def _judge(self, sender: Peer, request: m.Message) -> None:
        self._table.judge(sender, request)

    def _is_current(self) -> bool:
        return self.quorum.is_current(self.metadata_loader.applied.value)

    def why_not(self) -> str:
        """Why it answers no clients yet; empty once it does."""
        if self.serving.is_set():
            return ""
        waits = f"is starting: it waits for the controllers {[*self._voters]}"
        return f"node {self.id} {self.replicas.recovering.told or waits}"

    @property
    def address(self) -> str:
        """host:port, as clients are told."""
        return f"{self.config.advertised_host}:{self.advertised_port}"

    @property
    def advertised_port(self) -> int:
        """The port that others are told."""
        return self.config[keys.ADVERTISED_PORT] or self.port

    @property
    def internal_address(self) -> tuple[str, int]:
        """Where other nodes are told to come."""
        if not self.config.is_split:
            return self.config.advertised_host, self.advertised_port
        port = self.config[keys.INTERNAL_ADVERTISED_PORT] or self._internal_port
        return self.config.internal_advertised_host, port

    @property
    def image(self) -> ClusterImage:
        """The cluster as far as this node has followed the metadata."""
        return self.metadata_loader.image

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration, -1 without one."""
        return self.lifecycle.broker_epoch if self.lifecycle else -1

    @property
    def controller_id(self) -> int:
        """The active controller as far as this node knows, -1 if it hears of none."""
        return self.quorum.core.leader_that_is_heard

    @property
    def stopping(self) -> bool:
        """Whether its orderly stop has begun."""
        return self._stop.is_set()

    def disk_bytes(self) -> tuple[int, int]:
        """Free, and in all, of its disk; raises `DiskError`."""
        return self._disk.free_bytes(self._directory), self._disk.total_bytes(self._directory)

    def now_ms(self) -> int:
        """The time of day, in ms since 1970."""
        return self._clock.now_ms()

    def stop(self) -> None:
        """Begin an orderly stop; `open_node` ends when it is done."""
        if not self.stopping:
            may_lead = self.lifecycle is not None and self.serving.is_set()
            self.draining = may_lead and self.image.has_others_than(self.id)
            self._stop.set()

    # -- admin_handlers.Metadata -----------------------------------------------------------------

    async def change(
        self, request: m.Message, *, timeout_s: float | None = None, sender: Peer | None = None
    ) -> m.Message:
        """Have the controller decide; returns once this node has applied it."""
        reply, offset = await self.channel.ask(request, timeout_s=timeout_s, sender=sender)
        await self.metadata_loader.applied.wait_for(offset)
        return reply

    async def run(
        self, entrance: Entrance, metrics: MetricsPort, previous_epoch: int | None
    ) -> None:
        """Serve until `stop`; raises what makes serving impossible."""
        is_new, roles = self.metadata.log_end == 0, tuple(self.config.roles)
        was_clean = is_new or previous_epoch is not None
        self._tell(NodeStarted(version=VERSION, roles=roles, was_clean=was_clean))
        try:
            clean = await self._live(entrance, metrics, previous_epoch)
            if clean:
                write_clean_marker(self._disk, self._directory, self.broker_epoch)
            elif not self._attached and previous_epoch is not None:
                write_clean_marker(self._disk, self._directory, previous_epoch)
            log.info(
                "node %d stopped%s", self.id, "" if clean else ", not all of its data is clean"
            )
            self._tell(NodeStopped(is_clean=clean))
        except BaseException as error:
            if (failure := failure_of(error)) is not None:
                self._tell(failure)
            raise
        finally:
            self.trace.close()

    async def _live(
        self, entrance: Entrance, metrics: MetricsPort, previous_epoch: int | None
    ) -> bool:
        """Until `stop`; whether all data is whole on disk."""
        self.port, self._internal_port = entrance.port, entrance.internal_port
        self.metrics_port, self.doors = metrics.port, entrance.doors
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._agenda.run)
            nursery.start_soon(metrics.run, self)
            nursery.start_soon(self.syncer.run)
            nursery.start_soon(watch_directory, self._disk, self._directory)
            nursery.start_soon(self._peers.run)
            nursery.start_soon(self._forwarding.run)
            nursery.start_soon(entrance.run, self.server.serve_stream, nursery)
            nursery.start_soon(self.quorum.run)
            nursery.start_soon(self.metadata_loader.run)
            if self.controller is not None:
                nursery.start_soon(self.controller.run)
                if self.config[keys.CONTROLLER_QUORUM_AUTO_JOIN_ENABLE]:
                    nursery.start_soon(self._join_quorum)
                nursery.start_soon(self._liveness.run, self.metadata_loader)
            nursery.start_soon(self._join, nursery, previous_epoch)
            await self._stop.wait()
            clean = await self._leave(entrance)
            nursery.cancel_scope.cancel()
        return clean

    async def _join(self, nursery: trio.Nursery, previous_epoch: int | None) -> None:
        """Register, catch up, open the replicas, be unfenced."""
        if self.lifecycle is not None:
            incarnation = random_id(self._random)
            runs = begin_run(self._disk, self._directory, incarnation)
            await self.lifecycle.register(
                c.RegisterBrokerRequest(
                    broker=self.id,
                    incarnation=incarnation,
                    cluster_id=self.cluster_id,
                    host=self.config.advertised_host,
                    port=self.advertised_port,
                    rack=self.config[keys.BROKER_RACK],
                    roles=list(self.config.roles),
                    previous_broker_epoch=-1 if previous_epoch is None else previous_epoch,
                    directory=self._meta.directory_id,
                    runs=runs,
                    internal=self.internal_address if self.config.is_split else None,
                    features=dict(KNOWN_LEVELS),
                )
            )
            confirm_run(self._disk, self._directory, incarnation)
            self._attached = True
            self._applier.registered(self.broker_epoch)
            nursery.start_soon(self._fetchers.run, self.broker_epoch)
            nursery.start_soon(self._isr_changes.run, self.replicas)
            nursery.start_soon(self.coordinators.run)
            await self.metadata_loader.attach(self._applier)
            nursery.start_soon(self.lifecycle.run)
            await self.lifecycle.unfenced.wait()
            nursery.start_soon(self._housekeeping.run)
            nursery.start_soon(self._repair.run)
            if self.trace.wants_positions:
                nursery.start_soon(self._positions.run)
        self.serving.set()
        log.info("node %d serves on %s, data in %s", self.id, self.address, self._directory)
        self._tell(NodeServes(address=self.address, broker_epoch=self.broker_epoch))

    async def _join_quorum(self) -> None:
        host, port = self.internal_address
        membership = self.quorum.core.membership
        await join(membership, self.channel, node=self.id, host=host, port=port)

    async def _leave(self, entrance: Entrance) -> bool:
        """Hand everything on, finish requests, close the logs; whether all is whole on disk."""
        patience_s = self.config.seconds(keys.SHUTDOWN_TIMEOUT_MS)
        if not self.image.has_others_than(self.id):
            # There is nobody to hand anything to: what is at work is finished first.
            await self._stop_listening(entrance, patience_s)
        was_serving = self.serving.is_set()
        if self.lifecycle is not None and was_serving:
            await self.lifecycle.stop(patience_s)
        self.draining = False
        await self.quorum.resign()
        await self._stop_listening(entrance, patience_s)
        await self._fetchers.stop()
        whole = was_serving and await self.replicas.close()
        await self.metadata.close()
        return whole

    async def _stop_listening(self, entrance: Entrance, patience_s: float) -> None:
        await entrance.aclose()
        await self.server.drain(patience_s)
