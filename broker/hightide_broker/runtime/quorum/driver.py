"""The driver of the quorum's state machine: clocks, disk and network around the core.

Every event goes through `step`, which is one stretch without an `await`: the state machine decides,
and its duties are carried out in the order that `core/quorum/ready.py` lays down. Votes are on
disk before an answer leaves, because the answer leaves after `step`; what was appended is synced by
the `Syncer` and counts from the moment it steps `LogSynced`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import trio

from hightide.net.ports import Random
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import (
    BrokerUnreachable,
    ErrorCode,
    HightideError,
    Refused,
    RequestTimedOut,
)
from hightide_broker.core.cluster.changes import Change, SetVoters
from hightide_broker.core.quorum.quorum_events import tail_of
from hightide_broker.core.quorum.ready import (
    NOBODY,
    Answered,
    ElectionState,
    Event,
    LogSynced,
    Ready,
    Requested,
    Resign,
    Sending,
    SnapshotId,
    Tick,
    Unreadable,
    Unusable,
)
from hightide_broker.core.quorum.roles import QuorumConfig, Voter
from hightide_broker.core.quorum.state_machine import Quorum
from hightide_broker.core.quorum.text import show_request, show_voters
from hightide_broker.ports import RESERVE_BYTES, Disk, DiskError
from hightide_broker.runtime.base.call import Call, Later, Reply
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.base.watermark import Wake, Watermark
from hightide_broker.runtime.quorum.metadata_log import MetadataFailed, MetadataLog
from hightide_broker.runtime.quorum.peers import NodeAddresses, Peers
from hightide_broker.runtime.quorum.told import QuorumTold
from hightide_broker.storage.quorum_state import (
    QuorumState,
    read_quorum_state,
    write_quorum_state,
)
from hightide_broker.storage.segment import SegmentDamage
from hightide_broker.storage.snapshots import SnapshotDamaged
from hightide_broker.storage.sync_job import SyncJob
from hightide_broker.trace.events import Tell, tell_nobody

log = logging.getLogger("hightide.quorum")

FETCH_WAIT_MS_MAX = 60_000
HEARING_LOOKS = 20
"""In the time that a fetch waits."""
SNAPSHOT_PIECE_BYTES_MAX = 8 << 20
_UNREADABLE = (SegmentDamage, SnapshotDamaged, DiskError)


class Term(NamedTuple):
    """One epoch in which this node leads."""

    epoch: int
    start: int
    """Where the epoch begins: the leader change is at this offset."""
    committed: Watermark
    """Closed when the term is over."""


class QuorumInstrument(Protocol):
    """Told after the fact, in the same stretch; it changes nothing."""

    def quorum_stepped(self, driver: QuorumDriver, event: Event, ready: Ready) -> None:
        """An event was taken into account, and all of its duties were carried out."""
        ...


class QuorumDriver:
    """One node's part in the quorum; implements `syncer.Syncable`."""

    def __init__(
        self,
        config: QuorumConfig,
        metadata: MetadataLog,
        *,
        disk: Disk,
        directory: str,
        peers: Peers,
        syncer: Syncer,
        random: Random,
        request_timeout_s: float,
        addresses: NodeAddresses,
        instrument: QuorumInstrument | None = None,
        tell: Tell = tell_nobody,
    ) -> None:
        """`addresses` learns what the records of the voters say. Raises `QuorumStateDamaged`."""
        state = read_quorum_state(disk, directory)
        # What is there may be in the page cache only, if the process before could not sync it.
        write_quorum_state(disk, directory, state)
        election_state = ElectionState(
            state.leader_epoch, state.leader_id, state.voted_id, state.voted_directory_id
        )
        self.core = Quorum(
            config, metadata, election_state, random=random.random, now=trio.current_time()
        )
        self.metadata = metadata
        self.committed = Watermark(self.core.high_watermark)
        """What this node knows to be committed; never falls."""
        self.term: Term | None = None
        self.led = Watermark(-1)
        """The newest epoch in which this node has led."""
        self.synced_as = "metadata"
        self.needs_sync = False
        self.owes_records = True
        """To the syncer: metadata is always waited for."""
        self.syncing = False
        self._disk = disk
        self._directory = directory
        self._peers = peers
        self._syncer = syncer
        self._request_timeout_s = request_timeout_s
        self._addresses = addresses
        self._addresses.learn(self.core.membership.addresses)
        self._instrument = instrument
        self._told = QuorumTold(tell)
        self._nursery: trio.Nursery | None = None
        self._has_ended = False
        self._parked: dict[Wake, None] = {}
        self._wake_at = float("-inf")
        self._alarm = trio.Event()
        self._moved = trio.Event()
        self._standing = (self.core.role, self.core.epoch, self.core.leader)
        """As it was announced last."""

    @property
    def node(self) -> int:
        """This node's id."""
        return self.core.config.node

    @property
    def leader(self) -> int:
        """Who leads, as far as is known; -1 if nobody is."""
        return self.core.leader

    async def run(self) -> None:
        """Take part until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await self._watch()
            finally:
                self._has_ended = True

    async def _watch(self) -> None:
        self.step(Tick())
        while True:
            sleeping_until = self._wake_at
            with trio.move_on_at(sleeping_until):
                await self._alarm.wait()
            self._alarm = trio.Event()
            if trio.current_time() >= self._wake_at:
                self.step(Tick())

    async def resign(self) -> None:
        """Stop leading, if this node does, and give the others a moment to hear of it."""
        if self._nursery is None:
            return
        was_leader = self.core.is_leader
        self.step(Resign())
        if was_leader and self.core.membership.others:
            with trio.move_on_after(self._request_timeout_s / 4):
                while self.core.leader == self.node:
                    await self.moved()

    # -- the one way in --------------------------------------------------------------------------

    def step(self, event: Event) -> Ready:
        """Let the state machine decide, and carry out what it says, in order."""
        ready = self.core.step(event, trio.current_time())
        if ready.election_state is not None:
            self._persist(ready.election_state)
        outcome = self._change_log(ready)
        self._addresses.learn(self.core.membership.addresses)
        for sending in ready.send:
            if self._has_ended:
                break  # the node is being stopped, and others did not hear of it in time
            assert self._nursery is not None, "requests leave while the driver runs"
            self._nursery.start_soon(self._ask, sending)
        if ready.committed >= 0:
            self._advance(ready.committed)  # first: it may be the last thing of a term
        standing = (self.core.role, self.core.epoch, self.core.leader)
        if standing != self._standing:
            self._standing = standing
            self._role_changed()
        if self.core.leader_that_is_heard != NOBODY:
            self._told.leader_heard(self.core, self.metadata.log_end)
        self._set_alarm(ready.wake_at)
        if self._instrument is not None:
            self._instrument.quorum_stepped(self, event, ready)
        if outcome is not None:
            self.step(outcome)
        return ready

    def _persist(self, election_state: ElectionState) -> None:
        epoch, leader, voted, voted_directory = election_state
        state = QuorumState(leader, epoch, voted, voted_directory)
        try:
            write_quorum_state(self._disk, self._directory, state)
        except DiskError as error:
            raise MetadataFailed(f"the vote cannot be kept: {error}") from error

    def _change_log(self, ready: Ready) -> Event | None:
        """Cut, append, or begin again; the event that follows at once, if any."""
        usable = True
        if ready.truncate_to is not None:
            before = tail_of(self.metadata)
            self.metadata.truncate_to(ready.truncate_to)
            self._told.log_cut(self.core, before, tail_of(self.metadata), self.core.high_watermark)
            return LogSynced()
        if ready.begin_epoch:
            core = self.core
            self.metadata.append_leader_change(
                core.epoch, leader=core.leader, voters=core.membership.voters
            )
            self._appended()
        if ready.set_voters:
            self._record_voters(ready.set_voters)
        for data in ready.append:
            usable = self.metadata.replicate(data, epoch=self.core.epoch)
            self._appended()
        if ready.piece is not None:
            usable = self.metadata.gather(ready.piece)
            if usable and ready.install is None:
                # The core asks for nothing while anything is being kept: the next piece, now.
                return LogSynced()
        if ready.install is not None and usable:
            usable = self.metadata.install(ready.install)
            if usable:
                return LogSynced()
        return None if usable else Unusable()

    def _record_voters(self, voters: tuple[Voter, ...]) -> None:
        """Append what only the configuration said so far; with a later step, if there is no room
        now."""
        try:
            self.metadata.append([SetVoters(voters=voters)], self.core.epoch)
        except Refused as refusal:
            log.warning("the voters are not recorded yet: %s", refusal.message)
        else:
            log.info("the voters are %s", show_voters(voters), extra={"event": "driver.voters"})
            self._told.voters_written(self.metadata.log_end - 1, voters)
            self._appended()

    def append(self, changes: Sequence[Change], epoch: int) -> int:
        """Append changes as the leader of `epoch`; the offset of the first one.

        Raises `Refused` NOT_CONTROLLER if this node does not lead it any more.
        """
        if self.term is None or self.term.epoch != epoch or not self.core.is_leader:
            raise not_controller(self.leader)
        first = self.metadata.append(changes, epoch)
        self._appended()
        for number, change in enumerate(changes):
            if isinstance(change, SetVoters):
                log.info("the voters become %s", show_voters(change.voters))
                self._told.voters_written(first + number, change.voters)
                self.step(Tick())  # they count from here on
        return first

    def _appended(self) -> None:
        self.needs_sync = True
        self._syncer.mark(self)
        self._wake_parked()

    def _advance(self, watermark: int) -> None:
        self.committed.advance(watermark)
        if self.term is not None:
            self.term.committed.advance(watermark)
        self._wake_parked()

    def _wake_parked(self) -> None:
        parked, self._parked = self._parked, {}
        for wake in parked:
            wake.set()

    def _role_changed(self) -> None:
        core = self.core
        if self.term is not None and not (core.is_leader and core.epoch == self.term.epoch):
            resigned = core.leader == self.node  # and is told as the leader until there is another
            self.term.committed.close(not_controller(NOBODY if resigned else core.leader))
            self.term = None
        if core.is_leader and self.term is None:
            self.term = Term(core.epoch, core.epoch_start, Watermark(self.committed.value))
            self.led.advance(core.epoch)
        self.announce_move()
        self._wake_parked()
        self._told.role_taken(core, self.metadata.log_end)

    def _set_alarm(self, wake_at: float) -> None:
        if wake_at < self._wake_at or self._wake_at <= trio.current_time():
            self._alarm.set()
        self._wake_at = wake_at

    # -- syncer.Syncable -------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """What is to be synced now."""
        self.needs_sync = False
        return self.metadata.begin_sync()

    def finish_sync(self, job: SyncJob) -> None:
        """It is durable: from now on it counts."""
        self.metadata.finish_sync(job)
        self.step(LogSynced())

    def go_offline(self, why: str) -> None:
        """The metadata cannot be promised any more."""
        raise MetadataFailed(why)

    @property
    def is_short_of_room(self) -> bool:
        """Whether the disk is so full that what is left of the reserve is for elections, and for
        stopping and starting."""
        return self._disk.room_left() < RESERVE_BYTES // 2

    async def hear_all_but(self, node: int, since: float) -> None:
        """Until every other voter fetched since then, or had the time to twice over."""
        pause_s = self.core.config.fetch_wait_ms / 1000 / HEARING_LOOKS
        for _ in range(2 * HEARING_LOOKS):
            if self.core.has_heard_all_but(node, since):
                return
            await trio.sleep(pause_s)

    # -- asking others ---------------------------------------------------------------------------

    async def greet(self, voter: Voter) -> None:
        """Tell a node that is to vote who leads, at the address that is to be recorded of it. Only
        the node with this directory accepts that, and only where nodes may speak to it. Raises
        `Refused`."""
        request = c.BeginQuorumEpochRequest(
            cluster_id=self.core.config.cluster_id,
            voter=voter.id,
            voter_directory=voter.directory,
            leader=self.node,
            epoch=self.core.epoch,
        )
        place, timeout_s = (voter.host, voter.port), self._request_timeout_s
        try:
            answer, _ = await self._peers.call_at([place], voter.id, request, timeout_s=timeout_s)
        except RequestTimedOut as error:
            raise _not_there(voter, ErrorCode.REQUEST_TIMED_OUT, error.message) from error
        except HightideError as error:
            raise _not_there(voter, ErrorCode.INVALID_REQUEST, str(error)) from error
        if answer.error is not None:
            raise _not_there(voter, ErrorCode(answer.error), answer.message)

    async def _ask(self, sending: Sending) -> None:
        peer, request = sending
        timeout_s = self._request_timeout_s
        if isinstance(request, m.FetchRequest):
            timeout_s += request.max_wait_ms / 1000
        try:
            response, attachments = await self._peers.call(peer, request, timeout_s=timeout_s)
        except HightideError as error:
            log.debug("no answer of node %d to %s: %s", peer, show_request(request), error)
            gone = isinstance(error, BrokerUnreachable)
            self.step(Answered(peer, request, None, gone=gone))
        else:
            self.step(Answered(peer, request, response, attachments))

    async def moved(self) -> None:
        """Until there is news of who leads, or this node's controller becomes active."""
        await self._moved.wait()

    def announce_move(self) -> None:
        """Wake those who wait for such news."""
        self._moved.set()
        self._moved = trio.Event()

    # -- answering others ------------------------------------------------------------------------

    def begin(self, call: Call[m.Message]) -> Reply | Later:
        """Answer a voter or an observer; raises `Refused`."""
        try:
            return self._begin(call.request)
        except _UNREADABLE as error:
            return self._hand_over(call.request, error)

    def _hand_over(self, request: m.Message, error: Exception) -> Reply:
        """A leader that cannot read what it has makes room for one that can: nobody would ever get
        that from it. Alone it serves those who need nothing of it. Raises `Refused`."""
        log.error(
            "the metadata cannot be read: %s", error, extra={"event": "driver.metadata_unreadable"}
        )
        if not self.core.membership.others:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.step(Unreadable())
        reply = self.step(Requested(request)).reply
        assert reply is not None, f"{self.core!r} has resigned, and serves {request}"
        self._told.answered(request, reply)
        return Reply(reply)

    def _begin(self, request: m.Message) -> Reply | Later:
        ready = self.step(Requested(request))
        if ready.reply is not None:
            self._told.answered(request, ready.reply)
            return Reply(ready.reply)
        assert ready.serve, f"{request} was neither answered nor found to be valid"
        if isinstance(request, c.FetchSnapshotRequest):
            return self._snapshot_piece(request)
        assert isinstance(request, m.FetchRequest)
        answer = self._fetched(request)
        if answer is not None:
            return answer
        # In the same stretch as the look at the log: what comes from now on wakes it.
        wake = Wake()
        self._parked[wake] = None
        return partial(self._park, request, wake)

    def _snapshot_piece(self, request: c.FetchSnapshotRequest) -> Reply:
        answer = partial(c.FetchSnapshotResponse, epoch=self.core.epoch, leader=self.core.leader)
        wanted = SnapshotId(request.snapshot.end_offset, request.snapshot.epoch)
        most = min(max(request.max_bytes, 1), SNAPSHOT_PIECE_BYTES_MAX)
        try:
            size, data = self.metadata.snapshot_piece(wanted, request.position, most)
        except Refused as refusal:
            return Reply(answer(error=refusal.code, message=refusal.message))
        return Reply(answer(size=size, position=request.position, data=0), [data])

    def _fetched(self, request: m.FetchRequest, *, even_nothing: bool = False) -> Reply | None:
        """The answer to a valid fetch; None if there is nothing to say yet."""
        (part,) = request.partitions
        found = self.metadata.read(part.fetch_offset, min(part.max_bytes, request.max_bytes))
        watermark = self.core.high_watermark
        is_news = 0 <= part.high_watermark < watermark
        if found is None and not is_news and not even_nothing and request.max_wait_ms > 0:
            return None
        result = m.FetchResult(
            topic=part.topic,
            partition=part.partition,
            high_watermark=watermark,
            log_start_offset=self.metadata.log_start,
            current_leader=m.LeaderHint(leader=self.core.leader, leader_epoch=self.core.epoch),
            records=-1 if found is None else 0,
        )
        return Reply(m.FetchResponse(partitions=[result]), [] if found is None else [found])

    async def _park(self, request: m.FetchRequest, wake: Wake) -> Reply:
        """Wait for something to say, or until the fetcher's patience is over."""
        over = trio.current_time() + min(request.max_wait_ms, FETCH_WAIT_MS_MAX) / 1000
        while True:
            with trio.move_on_at(over):
                await wake.wait()
            self._parked.pop(wake, None)
            try:
                ready = self.step(Requested(request, parked=True))
                if ready.reply is not None:
                    return Reply(ready.reply)
                answer = self._fetched(request, even_nothing=trio.current_time() >= over)
            except _UNREADABLE as error:
                return self._hand_over(request, error)
            if answer is not None:
                return answer
            wake = Wake()
            self._parked[wake] = None

    def is_current(self, end: int) -> bool:
        """Whether all that was committed when this node came up is below an offset: the leader has
        said how far that is, and something of its epoch is there, after which it knows."""
        said = self.core.told_watermark
        return 0 <= said <= end and self.metadata.snapshot_id(end).epoch == self.core.epoch


def not_controller(leader: int) -> Refused:
    """The refusal of a node that is not the active controller."""
    who = f"node {leader} is" if leader != NOBODY else "none is known"
    return Refused(ErrorCode.NOT_CONTROLLER, f"this node is not the active controller, {who}")


def _not_there(voter: Voter, code: ErrorCode, why: str) -> Refused:
    return Refused(
        code,
        f"node {voter.id} does not answer other nodes at {voter.host}:{voter.port} ({why}): name "
        f"the address of its internal listener (internal.listen.port; listen.port where it has "
        f"none), as every voter reaches it",
    )
