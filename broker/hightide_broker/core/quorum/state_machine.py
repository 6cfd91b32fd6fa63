"""The metadata quorum: Raft with pull replication, as a state machine of `step(event, now)`. Pure.

What this room is: what is replicated, and what is committed. Followers fetch, and a fetch offset is
the acknowledgement; a leader commits what a majority holds, once an entry of its own epoch is among
it, and resigns when a majority stops fetching. What it is not: it neither writes nor sends. It says
what is to be done (`core/quorum/ready.py`), and only reads the log.

Invariants: the high watermark never falls; a leader never cuts its log or loads a snapshot.
Sources: KIP-595, KIP-630 (snapshots), KIP-1166 (watermark in the fetch).
"""

from __future__ import annotations

import msgspec

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.elections import Elections
from hightide_broker.core.quorum.leader import (
    check_fetch,
    check_snapshot_fetch,
    fetch_refusal,
    locate,
)
from hightide_broker.core.quorum.progress import Progress, held_by_majority, majority_of
from hightide_broker.core.quorum.ready import (
    Answered,
    ElectionState,
    Event,
    LogSynced,
    Ready,
    Requested,
    Resign,
    Tick,
    Unusable,
)
from hightide_broker.core.quorum.roles import Role, Voter

RESPONSES: dict[type[m.Message], type[c.QuorumResponse]] = {
    c.VoteRequest: c.VoteResponse,
    c.BeginQuorumEpochRequest: c.BeginQuorumEpochResponse,
    c.EndQuorumEpochRequest: c.EndQuorumEpochResponse,
    c.FetchSnapshotRequest: c.FetchSnapshotResponse,
}
OBSERVERS_MAX = 1000
"""Observers that a leader remembers; ids come from the network."""


class Quorum(Elections):
    """One node's part in the quorum."""

    def step(self, event: Event, now: float) -> Ready:
        """Take one event into account; what its driver has to do now, in order."""
        ready = self._ready = Ready()
        self._meet_voters(now)
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
        self._keep_voters(now)
        self._announce(now)
        self._fetch(now)
        election_state = ElectionState(self.epoch, self.leader, self.voted)
        if election_state != self._durable:
            ready.election_state = self._durable = election_state
        ready.wake_at = min(
            self._deadline, self._announcements.due_at, self._round_at, self._fetching.wake_at
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
        ends = [peer.log_end for peer in self._peers.values()]
        if self._is_voter:
            ends.append(self._log.synced_end)
        held = held_by_majority(ends)
        if held > self.epoch_start:
            self._commit(held)

    # -- voters ----------------------------------------------------------------------------------

    def _keep_voters(self, now: float) -> None:
        """A leader records the voters of the configuration once it knows their directories, and
        leads no more once it is committed that it is none."""
        if self.role is not Role.LEADER or self.high_watermark <= self.epoch_start:
            return
        if not self._is_voter and self.high_watermark >= self._log.voters_end:
            self._become_resigned(now)
            return
        known = {peer.id: peer.directory for peer in self._peers.values()}
        self._ready.set_voters = self.membership.first_record(known)

    def adding(self, request: q.AddVoterRequest, now: float) -> tuple[Voter, ...]:
        """The voters with one that observes and keeps up; raises `Refused`."""
        self._check_changeable()
        peer = self._observers.get(request.id)
        voters = self.membership.with_voter(
            Voter(
                id=request.id,
                directory=request.directory or (peer.directory if peer else ""),
                host=request.host,
                port=request.port,
            )
        )
        keeps_up = peer is not None and peer.log_end >= self.high_watermark
        if peer is None or not peer.directory or not keeps_up or self._is_silent(peer, now):
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"node {request.id} does not observe the metadata, or has not caught up: start it "
                f"with a directory made by `hightide storage format --join`, and try again",
            )
        if peer.directory != voters[-1].directory:
            raise Refused(
                ErrorCode.INVALID_VOTER_KEY,
                f"node {request.id} observes with directory {peer.directory}, not with "
                f"{request.directory}",
            )
        return voters

    def has_heard_all_but(self, node: int, since: float) -> bool:
        """Whether every other voter fetched since then."""
        return all(peer.heard_at >= since for peer in self._peers.values() if peer.id != node)

    def removing(self, request: q.RemoveVoterRequest, since: float) -> tuple[Voter, ...]:
        """The voters without one, if a majority of them fetched since then; raises `Refused`."""
        self._check_changeable()
        left = self.membership.without(request.id, request.directory)
        silent = [
            voter.id
            for voter in left
            if voter.id in self._peers and self._peers[voter.id].heard_at < since
        ]
        if len(left) - len(silent) < majority_of(len(left)):
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"without node {request.id} the voters {silent} would have to decide, which are "
                f"not heard of: nothing could be decided any more",
            )
        return left

    def _check_changeable(self) -> None:
        """Raise `Refused` unless a change of the voters may begin: one at a time, and not before a
        new leader knows what is committed."""
        self._check_leadership(self.epoch)
        if self.high_watermark < max(self.epoch_start + 1, self._log.voters_end):
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                "another change of the voters is not committed yet: try again",
            )

    def _is_silent(self, peer: Progress, now: float) -> bool:
        return now >= peer.heard_at + 2 * self.config.fetch_timeout_s

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
            peer = self._peer(request.replica_id, request.replica_directory, now)
            peer.fetched(part.fetch_offset, log_end=self._log.log_end, now=now)
            self._announcements.answered(peer.id)
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
        node = request.replica_id
        if node in self._peers and self.membership.counts(node, request.replica_directory):
            self._peers[node].heard_at = now
        self._ready.serve = True

    def _peer(self, node: int, directory: str, now: float) -> Progress:
        """The one who fetches: a voter, if it has that voter's directory."""
        peer = self._observer(node, now)
        if node in self._peers and self.membership.counts(node, directory):
            self._observers.pop(node, None)
            peer = self._peers[node]
        peer.directory = directory
        return peer

    def _observer(self, node: int, now: float) -> Progress:
        if node not in self._observers and len(self._observers) >= OBSERVERS_MAX:
            del self._observers[min(self._observers, key=lambda o: self._observers[o].heard_at)]
        return self._observers.setdefault(node, Progress(node, now))

    # -- description -----------------------------------------------------------------------------

    def describe(self, now: float) -> tuple[list[q.QuorumReplica], list[q.QuorumReplica]]:
        """Voters and observers as this leader sees them; raises `Refused` where it does not
        lead."""
        self._check_leadership(self.epoch)
        end = self._log.log_end
        me = q.QuorumReplica(
            id=self.config.node,
            directory=self.config.directory,
            log_end_offset=end,
            lag=0,
            last_fetch_ms_ago=0,
            last_caught_up_ms_ago=0,
        )
        voters = [peer.describe(end, now) for peer in self._peers.values()]
        voters += [me] if self._is_voter else []
        observers = [peer.describe(end, now) for peer in self._observers.values()]
        located = [self._located(voter) for voter in sorted(voters, key=lambda v: v.id)]
        return located, sorted(observers, key=lambda o: o.id)

    def _located(self, voter: q.QuorumReplica) -> q.QuorumReplica:
        """A voter as the record of the voters has it, whether it was heard of or not."""
        host, port = self.membership.addresses.get(voter.id, ("", -1))
        directory = self.membership.directory_of(voter.id) or voter.directory
        return msgspec.structs.replace(voter, host=host, port=port, directory=directory)
