"""What an election and an announcement keep count of. Pure."""

from __future__ import annotations

from hightide.protocol import controller_messages as c
from hightide_broker.core.quorum.progress import majority_of
from hightide_broker.core.quorum.ready import NOBODY

_NEVER = float("inf")


def why_no(
    request: c.VoteRequest, *, leader: int, voted: int, last_epoch: int, log_end: int
) -> str:
    """Why a candidate did not get a vote: by whom its voter hears lead, whom it voted for in this
    epoch, and how far its own log goes."""
    if (request.last_epoch, request.log_end) < (last_epoch, log_end):
        theirs = f"its log ends at {request.log_end} in epoch {request.last_epoch}"
        return f"{theirs}, the one asked has {log_end} in epoch {last_epoch}"
    if leader != NOBODY:
        return f"node {leader} leads"
    return f"it voted for node {voted}"


class Votes:
    """The votes of one election, or the promises of one pre-vote."""

    def __init__(self, voters: tuple[int, ...]) -> None:
        self._voters = voters
        self._votes: dict[int, bool] = {}
        self._silent: set[int] = set()
        """Who was asked last without an answer."""
        self._is_over = False

    def begin(self, candidate: int) -> None:
        """A new election: the candidate votes for itself, if it is one of the voters."""
        self._votes = {candidate: True} if candidate in self._voters else {}
        self._silent, self._is_over = set(), False
        assert not self.lost, f"nobody can elect {candidate}: the voters are {self._voters}"

    def count(self, voter: int, *, granted: bool) -> bool:
        """Count what a voter answered; the last answer of each counts. Whether the election comes
        to nothing by that, and did not before: each further no must not put the next try off."""
        # A letter may come twice, or late: an answer by name cannot make two votes of one.
        assert voter in self._voters, f"{voter} votes, and is none of {self._voters}"
        self._votes[voter] = granted
        self._silent.discard(voter)
        return self._ends()

    def miss(self, voter: int) -> bool:
        """A voter gave no answer, and is asked again; as `count`."""
        if voter in self._voters and voter not in self._votes:
            self._silent.add(voter)
        return self._ends()

    def _ends(self) -> bool:
        was_over, self._is_over = self._is_over, self.lost or self._is_stuck
        return self._is_over and not was_over

    @property
    def won(self) -> bool:
        """Whether a majority said yes."""
        return sum(self._votes.values()) >= majority_of(len(self._voters))

    @property
    def lost(self) -> bool:
        """Whether those who can still say yes are no majority."""
        rejected = sum(not granted for granted in self._votes.values())
        return len(self._voters) - rejected < majority_of(len(self._voters))

    @property
    def _is_stuck(self) -> bool:
        """Whether somebody said no, and whoever else could say yes gives no answer: two stood at
        once, say, and the third one is dead. To wait for that one takes a whole timeout."""
        said_no = not all(self._votes.values())
        return said_no and not self.won and {*self._votes, *self._silent} >= {*self._voters}


class PendingAnnouncements:
    """Who is to be told something, and has not answered yet."""

    def __init__(self) -> None:
        self._owing: dict[int, bool] = {}
        self.due_at = _NEVER
        """When those who owe an answer are told (again)."""

    def begin(self, peers: tuple[int, ...], now: float) -> None:
        """There is something to tell all of them."""
        assert len({*peers}) == len(peers), f"{peers}: somebody would be told twice"
        self._owing, self.due_at = dict.fromkeys(peers, False), now
        self._check()

    def end(self) -> None:
        """There is nothing to tell any more."""
        self._owing, self.due_at = {}, _NEVER
        self._check()

    def add(self, peer: int, now: float) -> None:
        """Announce to one more peer, now."""
        self._owing.setdefault(peer, False)
        self.due_at = now
        self._check()

    def answered(self, peer: int) -> None:
        """A peer has heard the announcement: it is not sent again."""
        self._owing.pop(peer, None)
        self._check()

    def failed(self, peer: int, *, again_at: float) -> None:
        """An announcement, or the answer to it, was lost: it is sent again at `again_at`."""
        # It may have answered an earlier letter meanwhile, and owes nothing.
        if peer in self._owing:
            self._owing[peer] = False
            self.due_at = min(self.due_at, again_at)
        self._check()

    def due(self, now: float) -> list[int]:
        """Whom to tell now; they are not told twice at a time."""
        if now < self.due_at:
            return []
        self.due_at = _NEVER
        peers = [peer for peer, on_its_way in self._owing.items() if not on_its_way]
        self._owing.update(dict.fromkeys(peers, True))
        self._check()
        return peers

    def _check(self) -> None:
        """Whoever owes an answer is on the way to be told, or has a time at which it will be."""
        all_on_the_way = all(self._owing.values())
        assert all_on_the_way or self.due_at < _NEVER, f"somebody in {self._owing} is told nothing"
