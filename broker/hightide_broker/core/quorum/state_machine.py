"""The metadata quorum: Raft with pull replication, as a state machine of `step(event, now)`. Pure.

What this room is: what is replicated, and what is committed. Followers fetch, and a fetch offset is
the acknowledgement; a leader commits what a majority holds, once an entry of its own epoch is among
it, and resigns when a majority stops fetching. What it is not: it neither writes nor sends. It says
what is to be done (`core/quorum/ready.py`), and only reads the log.

Invariants: the high watermark never falls; a leader never cuts its log or loads a snapshot.
Sources: KIP-595, KIP-630 (snapshots), KIP-1166 (watermark in the fetch).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.elections import Elections
from hightide_broker.core.quorum.follower import QuorumFollower
from hightide_broker.core.quorum.leader import (
    check_fetch,
    check_snapshot_fetch,
    fetch_refusal,
    locate,
)
from hightide_broker.core.quorum.membership import Membership
from hightide_broker.core.quorum.peers import Peers
from hightide_broker.core.quorum.progress import (
    HighWatermark,
    Progress,
    held_by_majority,
    majority_of,
)
from hightide_broker.core.quorum.ready import (
    NOBODY,
    Answered,
    ElectionState,
    Event,
    LogSynced,
    LogView,
    Ready,
    Requested,
    Resign,
    Tick,
    Unreadable,
    Unusable,
)
from hightide_broker.core.quorum.roles import QuorumConfig, Role, Voter
from hightide_broker.core.quorum.votes import why_no

RESPONSES: dict[type[m.Message], type[c.QuorumResponse]] = {
    c.VoteRequest: c.VoteResponse,
    c.BeginQuorumEpochRequest: c.BeginQuorumEpochResponse,
    c.EndQuorumEpochRequest: c.EndQuorumEpochResponse,
    c.FetchSnapshotRequest: c.FetchSnapshotResponse,
}


class Quorum:
    """One node's part in the quorum: its standing (`Elections`), what it follows with
    (`QuorumFollower`), whom it leads (`Peers`), and what is committed."""

    def __init__(
        self,
        config: QuorumConfig,
        log: LogView,
        known: ElectionState,
        *,
        random: Callable[[], float],
        now: float,
    ) -> None:
        """`known` is what `quorum-state` says, `random` draws from [0, 1)."""
        self.config = config
        self.membership = Membership(config, log)
        self._log = log
        self._ready = Ready()
        self._durable = known
        latest = log.latest_snapshot
        self._watermark = HighWatermark(max(log.log_start, latest.end_offset if latest else 0))
        self._peers = Peers(self.membership)
        self._follower = QuorumFollower(config, log, self.membership)
        self._elections = Elections(
            config,
            log,
            known,
            membership=self.membership,
            peers=self._peers,
            follower=self._follower,
            watermark=self._watermark,
            random=random,
            now=now,
        )

    def __repr__(self) -> str:
        return (
            f"<Quorum {self.config.node} {self.role.value} epoch={self.epoch} "
            f"leader={self.leader} watermark={self.high_watermark}>"
        )

    @property
    def role(self) -> Role:
        """What this node is to the quorum."""
        return self._elections.role

    @property
    def epoch(self) -> int:
        """The newest epoch that this node knows of."""
        return self._elections.epoch

    @property
    def leader(self) -> int:
        """Who leads that epoch, if known."""
        return self._elections.leader

    @property
    def voted(self) -> int:
        """Whom this node voted for in that epoch."""
        return self._elections.voted

    @property
    def election_state(self) -> ElectionState:
        """What this node must not forget."""
        return self._elections.state

    @property
    def leader_that_is_heard(self) -> int:
        """Who leads, and has answered this node since it follows; -1: nobody. A leader that is
        gone, or that this node misses, is still the one of its epoch, and so `leader`."""
        is_heard = self.role is Role.FOLLOWER and self._follower.leader_is_well
        return self.leader if self.is_leader or is_heard else NOBODY

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self._elections.is_leader

    @property
    def epoch_start(self) -> int:
        """Where a leader's own epoch begins."""
        return self._elections.epoch_start

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed, as far as this node knows."""
        return self._watermark.value

    @property
    def told_watermark(self) -> int:
        """What is committed for certain, as the leader said in this life, or as this leader knows;
        -1: nobody has said it yet."""
        if not self.is_leader:
            return self._follower.leader_watermark
        return self.high_watermark if self.high_watermark > self.epoch_start else -1

    @property
    def voters_are_committed(self) -> bool:
        """Whether the last record of the voters is known to be."""
        return self.high_watermark >= self._log.voters_end

    def step(self, event: Event, now: float) -> Ready:
        """Take one event into account; what its driver has to do now, in order."""
        ready, elections = Ready(), self._elections
        self._ready, before, led = ready, elections.state, elections.led_epoch
        # Voters first: a record that came with the last event decides who may be heard. Time after
        # the event: an answer still counts that comes in the stretch in which its deadline passes.
        # Announcements and fetches last: they say what all of that made of this node.
        elections.meet_voters(now)
        self._take(event, now)
        elections.time_passed(now)
        self._keep_voters(now)
        ready.send += elections.announce(now)
        self._fetch(now)
        ready.begin_epoch = elections.led_epoch not in (led, -1)
        if (state := elections.state) != self._durable:
            ready.election_state = self._durable = state
        ready.wake_at = min(elections.wake_at, self._follower.wake_at)
        self._assert_safe(before)
        return ready

    def _assert_safe(self, before: ElectionState) -> None:
        """What a step must never do, whatever the event was."""
        known, ready = self._elections.state, self._ready
        assert known.epoch >= before.epoch, f"{self!r} forgot epoch {before.epoch}"
        if known.epoch == before.epoch:
            assert before.leader in (NOBODY, known.leader), f"{self!r} forgot {before}"
            assert before.voted in (NOBODY, known.voted), f"{self!r} forgot {before}"
            is_kept = before.voted == NOBODY or before.voted_directory == known.voted_directory
            assert is_kept, f"{self!r} forgot {before}"
        changes = ready.append or ready.install or ready.truncate_to is not None
        assert not (self.is_leader and changes), f"{self!r} follows while it leads: {ready}"
        assert not (ready.begin_epoch and ready.serve), f"{self!r} serves an epoch not begun"
        assert self.high_watermark <= self._log.log_end, f"{self!r}: the log ends before that"

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Tick():
                pass
            case LogSynced():
                self._log_synced()
            case Requested(request=request, parked=parked):
                self._ready.reply = self._request(request, parked, now)
            case Answered(request=m.FetchRequest() | c.FetchSnapshotRequest()):
                self._fetch_answered(event, now)
            case Answered():
                self._elections.answered(event, now)
            case Unusable():
                self._follower.begin_again(now + self.config.retry_backoff_s)
            case Unreadable():
                if self.is_leader:
                    self._elections.resign(now)
            case Resign():
                self._elections.stop(now)

    # -- following -------------------------------------------------------------------------------

    def _fetch(self, now: float) -> None:
        if self.role is Role.FOLLOWER or (
            self.role is Role.UNATTACHED and not self.membership.is_voter
        ):
            self._follower.next_request(self._ready, self.epoch, self.high_watermark, now)

    def _fetch_answered(self, event: Answered, now: float) -> None:
        if not self._follower.take(event):
            return
        if event.response is None:
            self._follower.failed(now, gone=event.gone)
            if event.gone:
                self._elections.leader_is_gone(now)
            return
        leader, epoch, error = self._follower.verdict(event.response)
        if self._elections.heed(leader, epoch, now):
            return
        if error or self.role is not Role.FOLLOWER or (leader, epoch) != (self.leader, self.epoch):
            self._follower.failed(now, gone=False)
            return
        self._elections.leader_answered(now)
        self._follower.succeeded(event, self._ready, now, high_watermark=self.high_watermark)
        if self._ready.truncate_to is None:
            # Not before a cut: what is about to go must not count, though the log still has it.
            self._follow_watermark()

    def _follow_watermark(self) -> None:
        known = max(self._follower.leader_watermark, self._log.log_start)
        self._commit(min(known, self._log.log_end))

    def _log_synced(self) -> None:
        if self.is_leader:
            self._commit_as_leader()
        elif self.role is Role.FOLLOWER:
            self._follow_watermark()

    def _commit(self, watermark: int) -> None:
        if self._watermark.rise_to(watermark):
            self._ready.committed = watermark

    def _commit_as_leader(self) -> None:
        """What a majority holds is committed, once an entry of this epoch is among it."""
        # Entries of earlier epochs alone may be cut, though a majority holds them (Raft, figure 8):
        #   1. S1 leads epoch 2 and appends a; S2 has it. S1 is gone.
        #   2. S5 wins epoch 3 by the votes of S3 and S4, and appends b. S5 is gone.
        #   3. S1 wins epoch 4, and gives a to S3: three of five have it.
        #   4. S5 wins epoch 5, because the epoch of b is later than that of a, and a is cut.
        # With an entry of epoch 4 on that majority, S5 does not win.
        ends = [peer.log_end for peer in self._peers.voters.values()]
        if self.membership.is_voter:
            ends.append(self._log.synced_end)
        held = held_by_majority(ends)
        if held > self.epoch_start:
            self._commit(held)

    # -- voters ----------------------------------------------------------------------------------

    def _keep_voters(self, now: float) -> None:
        """A leader records the voters of the configuration once it knows their directories, and
        leads no more once it is committed that it is none."""
        if not self.is_leader or self.high_watermark <= self.epoch_start:
            return
        if not self.membership.is_voter and self.voters_are_committed:
            self._elections.resign(now)
            return
        known = {peer.id: peer.directory for peer in self._peers.voters.values()}
        self._ready.set_voters = self.membership.first_record(known)

    def adding(self, request: q.AddVoterRequest, now: float) -> tuple[Voter, ...]:
        """The voters with one that observes and keeps up; raises `Refused`."""
        self._check_changeable()
        peer = self._peers.observers.get(request.id)
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
        return all(
            peer.heard_at >= since for peer in self._peers.voters.values() if peer.id != node
        )

    def removing(self, request: q.RemoveVoterRequest, since: float) -> tuple[Voter, ...]:
        """The voters without one, if a majority of them fetched since then; raises `Refused`."""
        self._check_changeable()
        left = self.membership.without(request.id, request.directory)
        silent = [
            voter.id
            for voter in left
            if voter.id in self._peers.voters and self._peers.voters[voter.id].heard_at < since
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
        if self.high_watermark <= self.epoch_start or not self.voters_are_committed:
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                "another change of the voters is not committed yet: try again",
            )

    def _is_silent(self, peer: Progress, now: float) -> bool:
        return now >= peer.heard_at + 2 * self.config.fetch_timeout_s

    # -- requests --------------------------------------------------------------------------------

    def _voted(self, request: c.VoteRequest, granted: bool) -> c.VoteResponse:
        log = {"last_epoch": self._log.last_epoch, "log_end": self._log.log_end}
        why = "" if granted else why_no(request, leader=self.leader, voted=self.voted, **log)
        return c.VoteResponse(epoch=self.epoch, leader=self.leader, granted=granted, message=why)

    def _request(self, request: m.Message, parked: bool, now: float) -> m.Message | None:
        try:
            match request:
                case m.FetchRequest():
                    return self._serve_fetch(request, parked, now)
                case c.FetchSnapshotRequest():
                    self._serve_snapshot(request, now)
                    return None
                case c.VoteRequest():
                    return self._voted(request, self._elections.vote(request, now))
                case c.BeginQuorumEpochRequest():
                    self._elections.epoch_began(request, now)
                case c.EndQuorumEpochRequest():
                    self._elections.epoch_ended(request, now)
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
            peer = self._peers.of(request.replica_id, request.replica_directory, now)
            peer.fetched(part.fetch_offset, log_end=self._log.log_end, now=now)
            self._elections.was_told(peer.id)
            self._commit_as_leader()
        self._ready.serve = True
        return None

    def _check_leadership(self, epoch: int) -> None:
        self._elections.check_epoch(epoch)
        if epoch > self.epoch:
            raise Refused(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is not known, this is {self.epoch}"
            )
        if not self.is_leader or self._elections.stopping:
            raise Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"node {self.config.node} does not lead the metadata quorum in epoch {epoch}",
            )

    def _serve_snapshot(self, request: c.FetchSnapshotRequest, now: float) -> None:
        check_snapshot_fetch(request, self.config)
        self._check_leadership(request.current_leader_epoch)
        self._peers.heard(request.replica_id, request.replica_directory, now)
        self._ready.serve = True

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
        voters = [peer.describe(end, now) for peer in self._peers.voters.values()]
        voters += [me] if self.membership.is_voter else []
        observers = [peer.describe(end, now) for peer in self._peers.observers.values()]
        located = [self._located(voter) for voter in sorted(voters, key=lambda v: v.id)]
        return located, sorted(observers, key=lambda o: o.id)

    def describe_alone(self) -> list[q.QuorumReplica]:
        """The voters as this node knows them where nobody leads: how far it is itself, and of the
        others that they vote."""
        me, end = self.config.node, self._log.log_end
        return [
            self._located(q.QuorumReplica(id=voter, log_end_offset=end if voter == me else -1))
            for voter in sorted(self.membership.voters)
        ]

    def _located(self, voter: q.QuorumReplica) -> q.QuorumReplica:
        """A voter as the record of the voters has it, whether it was heard of or not."""
        host, port = self.membership.addresses.get(voter.id, ("", -1))
        directory = self.membership.directory_of(voter.id) or voter.directory
        return msgspec.structs.replace(voter, host=host, port=port, directory=directory)
