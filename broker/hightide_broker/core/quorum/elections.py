"""Who leads the metadata quorum: roles, elections, announcements. Pure.

Elections go by (last epoch, log end), after a pre-vote that changes nothing: a voter that was cut
off and comes back cannot depose a leader whom a majority follows. A vote is for one candidate and
one epoch, and so is a leader.

Invariants: the epoch never falls; (leader, voted) of an epoch never change once set. Who votes is
`membership.py`; what is committed, the other half, is `state_machine.py`. Sources: KIP-595,
KIP-853, KIP-996.
"""

from __future__ import annotations

from collections.abc import Callable

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.follower import QuorumFollower
from hightide_broker.core.quorum.leader import (
    EPOCH_MAX,
    check_addressee,
    check_cluster,
    check_epoch_range,
)
from hightide_broker.core.quorum.membership import Membership
from hightide_broker.core.quorum.peers import Peers
from hightide_broker.core.quorum.progress import HighWatermark, last_majority_contact
from hightide_broker.core.quorum.ready import NOBODY, Answered, ElectionState, LogView, Sending
from hightide_broker.core.quorum.roles import TRANSITIONS, QuorumConfig, Role
from hightide_broker.core.quorum.votes import PendingAnnouncements, Votes

_NEVER = float("inf")


class Elections:
    """One node's standing in the quorum: its role, the epoch, who leads it, whom it voted for."""

    def __init__(
        self,
        config: QuorumConfig,
        log: LogView,
        known: ElectionState,
        *,
        membership: Membership,
        peers: Peers,
        follower: QuorumFollower,
        watermark: HighWatermark,
        random: Callable[[], float],
        now: float,
    ) -> None:
        """`peers` are kept while this node leads, `follower` is what it follows with; of the log
        and the `watermark` only is read."""
        self.role = Role.UNATTACHED
        self.epoch, self.leader, self.voted, self._voted_directory = known
        self.epoch_start = -1
        """Where a leader's own epoch begins."""
        self.stopping = False
        """Whether this node is about to stop: it stands no more."""
        self._config = config
        self._log = log
        self._membership = membership
        self._peers = peers
        self._follower = follower
        self._watermark = watermark
        self._random = random
        self._votes = Votes(membership.voters)
        self._announcements = PendingAnnouncements()
        self._round_at = _NEVER
        """When a leader looks for voters that do not fetch, to tell them again."""
        self._successors: list[int] = []
        self._elections_lost = 0
        self._deadline = now + self._election_timeout()
        self._begin(now)

    def _begin(self, now: float) -> None:
        """The role after a start."""
        me = self._config.node
        if self.epoch < self._log.last_epoch:
            self._begin_epoch(self._log.last_epoch)
        if self.leader == me and not (self._may_stand and self._others):
            self.leader = NOBODY
        if self.leader == me:
            # What was written in this epoch and not synced is lost: it must not be written again.
            self.role = Role.RESIGNED
            self._successors = list(self._others)
            self._announcements.begin(self._others, now)
        elif self.leader != NOBODY:
            self.role = Role.FOLLOWER
            self._follower.begin(self.leader, now)
            self._deadline = now + self._config.fetch_timeout_s
        elif not self._is_voter:
            self._follower.search(now)
        elif not self._others:
            self._deadline = now
        elif self.voted == me:
            self.role, self._deadline = Role.CANDIDATE, now
        elif self.voted == NOBODY and self._config.first_pause_s is not None:
            # Nothing is known of a leader who could be disturbed, and the pre-vote asks first.
            self._deadline = now + self._config.first_pause_s * self._random()

    def __repr__(self) -> str:
        return (
            f"<Elections of {self._config.node} {self.role.value} epoch={self.epoch} "
            f"leader={self.leader} voted={self.voted}>"
        )

    @property
    def state(self) -> ElectionState:
        """What must be durable before anything is said that rests on it."""
        return ElectionState(self.epoch, self.leader, self.voted, self._voted_directory)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.role is Role.LEADER

    @property
    def led_epoch(self) -> int:
        """The epoch that this node leads; -1 if it does not."""
        return self.epoch if self.is_leader else -1

    @property
    def wake_at(self) -> float:
        """When time alone changes something."""
        return min(self._deadline, self._announcements.due_at, self._round_at)

    @property
    def _is_voter(self) -> bool:
        return self._membership.is_voter

    @property
    def _may_stand(self) -> bool:
        """Whether to seek votes. One that was removed does so until that is known to be committed,
        its own vote not counted: it may be the only one that has the record, and then the others,
        by the voters before, cannot elect anybody. Source: Ongaro's dissertation, 4.2.2."""
        removal_stands = self._watermark.value >= self._log.voters_end
        return self._is_voter or (self._membership.was_voter and not removal_stands)

    @property
    def _others(self) -> tuple[int, ...]:
        return self._membership.others

    def meet_voters(self, now: float) -> None:
        """The voters may be others since the last step: a record of them was written, or cut."""
        if not self._membership.refresh():
            return
        self._votes = Votes(self._membership.voters)
        if self.is_leader:
            self._peers.meet_voters(now)
            for voter in self._others:
                self._announcements.add(voter, now)
        elif self.role in (Role.PROSPECTIVE, Role.CANDIDATE):
            self._become_unattached(self.epoch, now)
        if self.role is Role.UNATTACHED and self._may_stand:
            self._deadline = now + self._election_timeout()
            if self._is_voter:
                self._follower.end()

    # -- time ------------------------------------------------------------------------------------

    def _election_timeout(self) -> float:
        return self._config.election_timeout_s * (1 + self._random())

    def time_passed(self, now: float) -> None:
        """What time alone changes: a leader without a majority resigns, a timeout begins the next
        election, or gives one up."""
        if self.is_leader:
            self._check_quorum(now)
        if now < self._deadline or self.is_leader:
            return
        if self.stopping or not (self._may_stand or self.role in (Role.FOLLOWER, Role.RESIGNED)):
            self._deadline = _NEVER
            return
        match self.role:
            case Role.UNATTACHED | Role.CANDIDATE:
                self._become_prospective(now)
            case Role.FOLLOWER if self._may_stand:
                self._become_prospective(now)
            case Role.FOLLOWER | Role.RESIGNED:
                epoch = self.epoch + (self.role is Role.RESIGNED)
                self._become_unattached(epoch, now)
            case Role.PROSPECTIVE:
                self._lose(now)

    def _check_quorum(self, now: float) -> None:
        """Resign if a majority has not fetched for 1.5 fetch timeouts."""
        heard = [self._peers.voters[voter].heard_at for voter in self._others]
        last = last_majority_contact(heard, votes_itself=self._is_voter)
        self._deadline = last + 1.5 * self._config.fetch_timeout_s
        if now >= self._deadline:
            self.resign(now)

    # -- becoming --------------------------------------------------------------------------------

    def _become(self, role: Role) -> None:
        assert role in TRANSITIONS[self.role], f"{self!r} cannot become {role.value}"
        self.role = role
        self._announcements.end()
        self._round_at = _NEVER
        self._peers.end()
        self._follower.end()

    def _begin_epoch(self, epoch: int, voted: int = NOBODY, directory: str = "") -> None:
        self.epoch, self.leader = epoch, NOBODY
        self.voted, self._voted_directory = voted, directory

    def _become_unattached(self, epoch: int, now: float) -> None:
        """Know no leader, of a higher epoch or after a vote."""
        assert epoch >= self.epoch, f"{self!r}: epoch would fall to {epoch}"
        if self.role in (Role.LEADER, Role.FOLLOWER):
            # Otherwise what is left of the old timer goes on: epochs must not put elections off.
            self._deadline = now + self._election_timeout()
        self._become(Role.UNATTACHED)
        if epoch > self.epoch:
            self._begin_epoch(epoch)
        if not self._is_voter:
            self._follower.search(now)

    def _become_follower(self, leader: int, epoch: int, now: float) -> None:
        if epoch == self.epoch and self.role is Role.FOLLOWER:
            return
        self._become(Role.FOLLOWER)
        if epoch > self.epoch:
            self._begin_epoch(epoch)
        assert self.leader in (NOBODY, leader), f"{self!r}: {leader} leads this epoch as well"
        self.leader = leader
        self._deadline = now + self._config.fetch_timeout_s
        self._follower.begin(leader, now)

    def _become_prospective(self, now: float) -> None:
        """Ask who would vote, before disturbing anybody."""
        self._become(Role.PROSPECTIVE)
        self._seek_votes(now)
        if self._votes.won:
            self._become_candidate(now)

    def _become_candidate(self, now: float) -> None:
        self._become(Role.CANDIDATE)
        self._begin_epoch(self.epoch + 1, self._config.node, self._config.directory)
        self._seek_votes(now)
        if self._votes.won:
            self._become_leader(now)

    def _seek_votes(self, now: float) -> None:
        assert self.role in (Role.PROSPECTIVE, Role.CANDIDATE), f"{self.role} asks for votes"
        self._votes.begin(self._config.node)
        self._announcements.begin(self._others, now)
        self._deadline = now + self._election_timeout()

    def _become_leader(self, now: float) -> None:
        self._become(Role.LEADER)
        self.leader = self._config.node
        self.epoch_start = self._log.log_end
        self._elections_lost = 0
        self._peers.begin(now)
        self._announcements.begin(self._others, now)
        self._round_at = now + self._config.fetch_timeout_s / 2 if self._others else _NEVER
        self._check_quorum(now)

    def resign(self, now: float) -> None:
        """Lead no more, and tell the others who had best stand."""
        successors = sorted(self._others, key=lambda voter: -self._peers.voters[voter].log_end)
        self._become(Role.RESIGNED)
        self._successors = successors
        self._announcements.begin(self._others, now)
        self._deadline = now + self._election_timeout()

    def _lose(self, now: float) -> None:
        """A candidate tries again soon. If nobody wants an election now, go back to what was."""
        if self.role not in (Role.CANDIDATE, Role.PROSPECTIVE):
            return
        self._elections_lost += 1
        if self.role is Role.PROSPECTIVE:
            if self.leader != NOBODY and self._is_voter:
                self._become_follower(self.leader, self.epoch, now)
                return
            # One that was removed looks around as well: the voters it knows may be others by now.
            self._become_unattached(self.epoch, now)
        self._deadline = now + self._backoff()

    def _backoff(self) -> float:
        return self._config.backoff_s(self._elections_lost, self._random())

    # -- announcing: votes, and beginnings and ends of epochs -------------------------------------

    def announce(self, now: float) -> list[Sending]:
        """Tell those who have not answered yet what there is to tell in this role."""
        if self.is_leader and now >= self._round_at:
            half = self._config.fetch_timeout_s / 2
            self._round_at = now + half
            for peer in self._peers.voters.values():
                if now - peer.heard_at >= half:
                    self._announcements.add(peer.id, now)
        return [Sending(peer, self._announcement(peer)) for peer in self._announcements.due(now)]

    def was_told(self, peer: int) -> None:
        """A peer fetches from this leader: it need not be told who leads."""
        self._announcements.answered(peer)

    def _announcement(self, peer: int) -> m.Message:
        me, cluster_id = self._config.node, self._config.cluster_id
        directory = self._membership.directory_of(peer)
        if self.is_leader:
            return c.BeginQuorumEpochRequest(
                cluster_id=cluster_id,
                voter=peer,
                leader=me,
                epoch=self.epoch,
                voter_directory=directory,
            )
        if self.role is Role.RESIGNED:
            return c.EndQuorumEpochRequest(
                cluster_id=cluster_id,
                voter=peer,
                leader=me,
                epoch=self.epoch,
                successors=self._successors,
                voter_directory=directory,
            )
        return c.VoteRequest(
            cluster_id=cluster_id,
            voter=peer,
            candidate=me,
            candidate_directory=self._config.directory,
            epoch=self.epoch,
            last_epoch=self._log.last_epoch,
            log_end=self._log.log_end,
            pre_vote=self.role is Role.PROSPECTIVE,
            voter_directory=directory,
        )

    # -- answers ---------------------------------------------------------------------------------

    def answered(self, event: Answered, now: float) -> None:
        """A peer answered an announcement, or did not; of an older one no vote is counted."""
        is_current = event.request == self._current_announcement(event.peer)
        response = event.response
        if response is None:
            if is_current:
                half = self._config.fetch_timeout_s / 2
                again_in = half if self.is_leader else self._config.retry_backoff_s
                self._announcements.failed(event.peer, again_at=now + again_in)
                if self._votes.miss(event.peer):
                    self._lose(now)
            return
        assert isinstance(response, c.QuorumResponse), f"{response} to {event.request}"
        if self.heed(response.leader, response.epoch, now) or not is_current:
            return
        self._announcements.answered(event.peer)
        if isinstance(response, c.VoteResponse):
            self._count_vote(event.peer, response, now)

    def _current_announcement(self, peer: int) -> m.Message | None:
        if self.role in (Role.UNATTACHED, Role.FOLLOWER) or peer not in self._others:
            return None
        return self._announcement(peer)

    def heed(self, leader: int, epoch: int, now: float) -> bool:
        """Learn from what another node says of the quorum; whether this node's role changed."""
        if not self.epoch <= epoch <= EPOCH_MAX or leader == self._config.node:
            return False  # nobody follows itself: a later epoch of somebody else's will be heard of
        before = (self.role, self.epoch)
        if epoch > self.epoch:
            if leader != NOBODY:
                self._become_follower(leader, epoch, now)
            elif self._may_stand:
                # Others go by leaders alone: this epoch may end with its candidate, unheard of.
                self._become_unattached(epoch, now)
        elif leader != NOBODY and (self.leader == NOBODY or self._has_lost_sight_of(leader)):
            self._become_follower(leader, epoch, now)
        return before != (self.role, self.epoch)

    def _has_lost_sight_of(self, leader: int) -> bool:
        """An observer that could not reach its leader for a while. A prospective voter is another
        matter: that others still name the leader it misses is no news."""
        return self.role is Role.UNATTACHED and self.leader == leader

    def _count_vote(self, voter: int, response: c.VoteResponse, now: float) -> None:
        comes_to_nothing = self._votes.count(voter, granted=response.granted and not response.error)
        if self._votes.won:
            if self.role is Role.PROSPECTIVE:
                self._become_candidate(now)
            else:
                self._become_leader(now)
        elif comes_to_nothing:
            self._lose(now)

    # -- following -------------------------------------------------------------------------------

    def leader_answered(self, now: float) -> None:
        """The leader gave a useful answer: no election is needed for a while."""
        assert self.role is Role.FOLLOWER, f"{self!r} has no leader to answer"
        self._elections_lost = 0
        self._deadline = now + self._config.fetch_timeout_s

    def leader_is_gone(self, now: float) -> None:
        """The leader's process is dead, not slow: no need to wait for the whole fetch timeout."""
        if self.role is Role.FOLLOWER:
            assert self.leader != NOBODY, f"{self!r} follows nobody"
            self._deadline = min(self._deadline, now + self._backoff())

    def stop(self, now: float) -> None:
        """Lead no more, and stand no more."""
        self.stopping = True
        if self.is_leader:
            self.resign(now)
        elif self.role in (Role.PROSPECTIVE, Role.CANDIDATE):
            self._become_unattached(self.epoch, now)

    # -- requests --------------------------------------------------------------------------------

    def _check_envelope(
        self,
        request: c.VoteRequest | c.BeginQuorumEpochRequest | c.EndQuorumEpochRequest,
        sender: int,
    ) -> None:
        """Raise `Refused` unless the request is for this voter, of this cluster."""
        check_cluster(request.cluster_id or "none", self._config)
        check_epoch_range(request.epoch)
        check_addressee(request.voter, request.voter_directory, sender, self._config)

    def check_epoch(self, epoch: int) -> None:
        """Raise `Refused` FENCED_LEADER_EPOCH for an epoch that is over."""
        if epoch < self.epoch:
            raise Refused(
                ErrorCode.FENCED_LEADER_EPOCH, f"epoch {epoch} is over, this is {self.epoch}"
            )

    def vote(self, request: c.VoteRequest, now: float) -> bool:
        """Whether to vote for a candidate; raises `Refused`. Sources: KIP-595, KIP-996."""
        self._check_envelope(request, request.candidate)
        if (
            request.log_end < 0
            or not 0 <= request.last_epoch <= request.epoch - (not request.pre_vote)
            or request.candidate == self._config.node
        ):
            raise Refused(ErrorCode.INVALID_REQUEST, f"{request} contradicts itself")
        self.check_epoch(request.epoch)
        if request.epoch > self.epoch:
            # Also in a pre-vote: its epoch is one that its sender is in, not one that it wants, so
            # an earlier one is over (KIP-996).
            self._become_unattached(request.epoch, now)
        mine = (self._log.last_epoch, self._log.log_end)
        up_to_date = (request.last_epoch, request.log_end) >= mine
        if request.pre_vote:
            if self.role is Role.FOLLOWER and self._follower.leader_is_well:
                return False
            return up_to_date and not self.is_leader
        if self.leader != NOBODY:
            return False
        candidate = request.candidate, request.candidate_directory
        if self.voted == NOBODY and up_to_date:
            self._become_unattached(self.epoch, now)
            self._deadline = now + self._election_timeout()
            self.voted, self._voted_directory = candidate
        # Two nodes of one id, where one takes the other's place, are two candidates.
        return (self.voted, self._voted_directory) == candidate

    def _check_rival(self, leader: int, epoch: int) -> None:
        """Raise `Refused` for an old leader, or for one of an epoch that another one leads."""
        self.check_epoch(epoch)
        is_rival = epoch == self.epoch and self.leader not in (NOBODY, leader)
        if is_rival or leader == self._config.node:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"{leader} says it leads epoch {epoch}, but {self.leader} does",
            )

    def epoch_began(self, request: c.BeginQuorumEpochRequest, now: float) -> None:
        """Another node says that it leads; raises `Refused`."""
        self._check_envelope(request, request.leader)
        self._check_rival(request.leader, request.epoch)
        self._become_follower(request.leader, request.epoch, now)

    def epoch_ended(self, request: c.EndQuorumEpochRequest, now: float) -> None:
        """The leader steps down: its best successor is to stand at once, the others later. Raises
        `Refused`."""
        self._check_envelope(request, request.leader)
        self._check_rival(request.leader, request.epoch)
        if len(request.successors) > len(self._membership.voters):
            raise Refused(ErrorCode.INVALID_REQUEST, "more successors than there are voters")
        if request.epoch > self.epoch:
            self._become_follower(request.leader, request.epoch, now)
        if self.role not in (Role.FOLLOWER, Role.UNATTACHED) or not self._may_stand:
            return
        self._follower.leader_gone = True
        successors, longest = request.successors, self._config.election_backoff_max_s
        if self._config.node not in successors:
            self._deadline = now + longest
        elif (place := successors.index(self._config.node)) == 0:
            self._deadline = now
        else:
            # Who stands last waits half of the longest back-off, each before it half as long as the
            # next: those whose logs reach further have mostly won by then.
            self._deadline = now + longest / 2 ** (len(successors) - 1) * 2 ** (place - 1)
