"""The metadata quorum: Raft with pull replication, as a state machine of `step(event, now)`. Pure.

What this room is: what is replicated, and what is committed. Followers fetch, and a fetch offset is
the acknowledgement; a leader commits what a majority holds, once an entry of its own epoch is among
it, and resigns when a majority stops fetching. What it is not: it neither writes nor sends. It says
what is to be done (`core/ready.py`), and only reads the log.

Invariants: the high watermark never falls; a leader never cuts its log or loads a snapshot.
Sources: KIP-595, KIP-630 (snapshots), KIP-1166 (watermark in the fetch).
"""

from __future__ import annotations

from hightide import controller_messages as c
from hightide import messages as m
from hightide.errors import ErrorCode, Refused
from hightide_broker.core.elector import Elector
from hightide_broker.core.peer import Peer, held_by_majority
from hightide_broker.core.ready import (
    Answered,
    Ballot,
    Event,
    LogSynced,
    Ready,
    Requested,
    Resign,
    Tick,
    Unusable,
)
from hightide_broker.core.roles import Role
from hightide_broker.core.serving import (
    check_fetch,
    check_snapshot_fetch,
    fetch_refusal,
    locate,
)

RESPONSES: dict[type[m.Message], type[c.QuorumResponse]] = {
    c.VoteRequest: c.VoteResponse,
    c.BeginQuorumEpochRequest: c.BeginQuorumEpochResponse,
    c.EndQuorumEpochRequest: c.EndQuorumEpochResponse,
    c.FetchSnapshotRequest: c.FetchSnapshotResponse,
}
OBSERVERS_MAX = 1000
"""Observers that a leader remembers; ids come from the network."""


class Quorum(Elector):
    """One node's part in the quorum."""

    def step(self, event: Event, now: float) -> Ready:
        """Take one event into account; what its driver has to do now, in order."""
        ready = self._ready = Ready()
        match event:
            case Tick():
                pass
            case LogSynced():
                self._log_synced()
            case Requested(request=request, parked=parked):
                ready.reply = self._request(request, parked, now)
            case Answered(request=m.FetchRequest() | c.FetchSnapshotRequest()):
                self._fetch_answered(event, now)
            case Answered():
                self._answered(event, now)
            case Unusable():
                self._fetching.begin_again(now + self.config.retry_backoff_s)
            case Resign():
                self._stopping = True
                if self.role is Role.LEADER:
                    self._become_resigned(now)
                elif self.role in (Role.PROSPECTIVE, Role.CANDIDATE):
                    self._become_unattached(self.epoch, now)
        self._time_passed(now)
        self._announce(now)
        self._fetch(now)
        ballot = Ballot(self.epoch, self.leader, self.voted)
        if ballot != self._durable:
            ready.ballot = self._durable = ballot
        ready.wake_at = min(
            self._deadline, self._audience.due_at, self._round_at, self._fetching.wake_at
        )
        return ready

    # -- following -------------------------------------------------------------------------------

    def _fetch(self, now: float) -> None:
        if self.role is Role.FOLLOWER or (self.role is Role.UNATTACHED and not self._is_voter):
            self._fetching.next_request(self._ready, self.epoch, self.high_watermark, now)

    def _fetch_answered(self, event: Answered, now: float) -> None:
        if not self._fetching.take(event):
            return
        if event.response is None:
            self._fetching.failed(now, gone=event.gone)
            if event.gone and self.role is Role.FOLLOWER:
                # The process is dead, not slow: no need to wait for the whole fetch timeout.
                soon = now + self._backoff()
                self._deadline = min(self._deadline, soon)
            return
        leader, epoch, error = self._fetching.verdict(event.response)
        if self._heed(leader, epoch, now):
            return
        if error or self.role is not Role.FOLLOWER or (leader, epoch) != (self.leader, self.epoch):
            self._fetching.failed(now, gone=False)
            return
        self._elections_lost = 0
        self._deadline = now + self.config.fetch_timeout_s
        self._fetching.succeeded(event, self._ready, now, high_watermark=self.high_watermark)
        if self._ready.truncate_to is None:
            self._follow_watermark()

    def _follow_watermark(self) -> None:
        known = max(self._fetching.leader_watermark, self._log.log_start)
        self._commit(min(known, self._log.log_end))

    def _log_synced(self) -> None:
        if self.role is Role.LEADER:
            self._commit_as_leader()
        elif self.role is Role.FOLLOWER:
            self._follow_watermark()

    def _commit(self, watermark: int) -> None:
        if watermark > self.high_watermark:
            self.high_watermark = self._ready.committed = watermark

    def _commit_as_leader(self) -> None:
        """What a majority holds is committed, once an entry of this epoch is among it."""
        ends = [peer.log_end for peer in self._peers.values()] + [self._log.synced_end]
        held = held_by_majority(ends)
        if held > self.epoch_start:
            self._commit(held)

    # -- requests --------------------------------------------------------------------------------

    def _request(self, request: m.Message, parked: bool, now: float) -> m.Message | None:
        try:
            match request:
                case m.FetchRequest():
                    return self._serve_fetch(request, parked, now)
                case c.FetchSnapshotRequest():
                    self._serve_snapshot(request, now)
                    return None
                case c.VoteRequest():
                    granted = self._vote(request, now)
                    return c.VoteResponse(epoch=self.epoch, leader=self.leader, granted=granted)
                case c.BeginQuorumEpochRequest():
                    self._epoch_began(request, now)
                case c.EndQuorumEpochRequest():
                    self._epoch_ended(request, now)
        except Refused as refusal:
            return self._refuse(request, refusal)
        return RESPONSES[type(request)](epoch=self.epoch, leader=self.leader)

    def _refuse(self, request: m.Message, refusal: Refused) -> m.Message:
        """A no, which always says who leads."""
        if isinstance(request, m.FetchRequest):
            return fetch_refusal(request, refusal, self.leader, self.epoch)
        return RESPONSES[type(request)](
            epoch=self.epoch, leader=self.leader, error=refusal.code, message=refusal.message
        )

    def _serve_fetch(self, request: m.FetchRequest, parked: bool, now: float) -> m.Message | None:
        part = check_fetch(request, self.config)
        self._check_leadership(part.current_leader_epoch)
        result = locate(self._log, part, self.high_watermark, self.leader, self.epoch)
        if result is not None:
            return m.FetchResponse(partitions=[result])
        if not self._log.is_boundary(part.fetch_offset):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"offset {part.fetch_offset} lies inside a batch"
            )
        if not parked:
            peer = self._peer(request.replica_id, now)
            peer.fetched(part.fetch_offset, log_end=self._log.log_end, now=now)
            self._audience.answered(peer.id)
            self._commit_as_leader()
        self._ready.serve = True
        return None

    def _check_leadership(self, epoch: int) -> None:
        self._check_epoch(epoch)
        if epoch > self.epoch:
            raise Refused(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is not known, this is {self.epoch}"
            )
        if self.role is not Role.LEADER or self._stopping:
            raise Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"node {self.config.node} does not lead the metadata quorum in epoch {epoch}",
            )

    def _serve_snapshot(self, request: c.FetchSnapshotRequest, now: float) -> None:
        check_snapshot_fetch(request, self.config)
        self._check_leadership(request.current_leader_epoch)
        self._peer(request.replica_id, now).heard_at = now
        self._ready.serve = True

    def _peer(self, node: int, now: float) -> Peer:
        if node in self._peers:
            return self._peers[node]
        if node not in self._observers and len(self._observers) >= OBSERVERS_MAX:
            del self._observers[min(self._observers, key=lambda o: self._observers[o].heard_at)]
        return self._observers.setdefault(node, Peer(node, now))

    # -- description -----------------------------------------------------------------------------

    def describe(self, now: float) -> tuple[list[m.QuorumReplica], list[m.QuorumReplica]]:
        """Voters and observers as this leader sees them; raises `Refused` where it does not
        lead."""
        self._check_leadership(self.epoch)
        end = self._log.log_end
        me = m.QuorumReplica(
            id=self.config.node,
            log_end_offset=end,
            lag=0,
            last_fetch_ms_ago=0,
            last_caught_up_ms_ago=0,
        )
        voters = [me, *(peer.describe(end, now) for peer in self._peers.values())]
        observers = [peer.describe(end, now) for peer in self._observers.values()]
        return sorted(voters, key=lambda v: v.id), sorted(observers, key=lambda o: o.id)
