"""Who votes in the metadata quorum, as this node knows, and how that may change. Pure.

A voter is a node with a directory. The last record of the voters that was written counts, committed
or not; while there is none, the configuration does, which knows no directories. One voter comes or
goes at a time, so that a majority before and one after always have a voter in common. Source:
KIP-853.
"""

from __future__ import annotations

from collections.abc import Mapping

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.ready import LogView
from hightide_broker.core.quorum.roles import QuorumConfig, Voter

VOTERS_MAX = 99
"""More would only make every commit wait for more disks."""


class Membership:
    """The voters as one node knows them."""

    def __init__(self, config: QuorumConfig, log: LogView) -> None:
        self._config = config
        self._log = log
        self._known: tuple[Voter, ...] | None = None
        self._earlier: tuple[Voter, ...] = ()
        self.voters: tuple[int, ...] = ()
        self.is_voter = False
        """Whether this node votes, with this directory."""
        self.was_voter = False
        """Whether the last record of the voters removed it."""
        self._look()

    def refresh(self) -> bool:
        """Look at the log again; whether the voters are others now."""
        if (self._log.voters, self._log.earlier_voters) == (self._known, self._earlier):
            return False
        self._look()
        return True

    def _look(self) -> None:
        self._known, self._earlier = self._log.voters, self._log.earlier_voters
        me = self._config.node
        if self._known is None:
            self.voters = self._config.voters
            self.is_voter = me in self.voters and not self._config.joining
        else:
            self.voters = tuple(voter.id for voter in self._known)
            self.is_voter = self.directory_of(me) == self._config.directory
        voted = any((v.id, v.directory) == (me, self._config.directory) for v in self._earlier)
        self.was_voter = voted and not self.is_voter
        assert me in self.voters or not self.is_voter, f"{me} votes, and is none of {self.voters}"

    @property
    def others(self) -> tuple[int, ...]:
        """All voters but this node."""
        return tuple(voter for voter in self.voters if voter != self._config.node)

    @property
    def sources(self) -> tuple[int, ...]:
        """Whom to ask who leads: the voters that are known, then those of the configuration."""
        known = dict.fromkeys((*self.voters, *self._config.voters))
        return tuple(node for node in known if node != self._config.node)

    @property
    def directory(self) -> str:
        """What this node calls itself: a directory made for a cluster that exists has no part in
        the voters of a configuration."""
        hides = self._config.joining and not self.is_recorded
        return "" if hides else self._config.directory

    @property
    def is_recorded(self) -> bool:
        """Whether the voters are those of a record."""
        return self._known is not None

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """Where the voters of the record listen."""
        return {voter.id: (voter.host, voter.port) for voter in self._known or ()}

    def directory_of(self, node: int) -> str:
        """The directory of a voter; empty if it is none, or no record says so."""
        return next((v.directory for v in self._known or () if v.id == node), "")

    def counts(self, node: int, directory: str) -> bool:
        """Whether what this node holds in this directory counts as a voter's. While no record says
        which directory that is, any does that does not hide."""
        # A node whose disk was lost and made again has forgotten its votes and what it had: counted
        # as before, it could vote twice in an epoch, or for a log that lacks what is committed
        # (KIP-853).
        if node not in self.voters:
            return False
        if self._known is None:
            return bool(directory) or not self._config.directory
        return self.directory_of(node) in ("", directory)

    # -- changes, for a leader ---------------------------------------------------------------------

    def first_record(self, directories: Mapping[int, str]) -> tuple[Voter, ...]:
        """The voters of the configuration with their directories, once all of them are known."""
        config = self._config
        if self.is_recorded or not config.directory or not config.addresses:
            return ()
        known = {**directories, config.node: config.directory}
        if not all(known.get(node) for node in self.voters):
            return ()
        return tuple(
            Voter(id=node, directory=known[node], host=host, port=port)
            for node, (host, port) in config.addresses.items()
        )

    def with_voter(self, new: Voter) -> tuple[Voter, ...]:
        """The voters and one more; raises `Refused`."""
        known = self._recorded()
        if new.id in self.voters:
            raise Refused(
                ErrorCode.DUPLICATE_VOTER,
                f"node {new.id} is a voter with directory {self.directory_of(new.id)}: remove it "
                f"first (hightide quorum remove {new.id}; quorum replace does both)",
            )
        if len(known) >= VOTERS_MAX:
            raise Refused(ErrorCode.INVALID_REQUEST, f"there are {VOTERS_MAX} voters already")
        return (*known, new)

    def without(self, node: int, directory: str) -> tuple[Voter, ...]:
        """The voters without one; raises `Refused`."""
        known = self._recorded()
        if node not in self.voters or directory not in ("", self.directory_of(node)):
            raise Refused(
                ErrorCode.VOTER_NOT_FOUND,
                f"node {node} with directory {directory or 'any'} is none of the voters "
                f"{[(v.id, v.directory) for v in known]}",
            )
        if len(known) == 1:
            raise Refused(ErrorCode.INVALID_REQUEST, f"node {node} is the only voter")
        return tuple(voter for voter in known if voter.id != node)

    def _recorded(self) -> tuple[Voter, ...]:
        if self._known is None:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"the voters {self.voters} are known by configuration only: they are recorded once "
                f"every one of them has been heard of",
            )
        return self._known
