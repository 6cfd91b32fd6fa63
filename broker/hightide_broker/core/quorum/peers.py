"""What a leader of the metadata quorum knows of the others, in this epoch. Pure.

Voters count for what is committed; observers are remembered so that one of them can become a voter,
and to describe them. Who is no leader knows nothing of either.
"""

from __future__ import annotations

from hightide_broker.core.quorum.membership import Membership
from hightide_broker.core.quorum.progress import Progress

OBSERVERS_MAX = 1000
"""Observers that a leader remembers; ids come from the network."""


class Peers:
    """The other voters, and the nodes that only observe."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.voters: dict[int, Progress] = {}
        """All other voters, heard of or not."""
        self.observers: dict[int, Progress] = {}

    def begin(self, now: float) -> None:
        """An epoch of this leader begins: what was known before counts for nothing."""
        known = [*self.voters, *self.observers]
        assert not known, f"of another epoch something is known of {known}"
        self.voters = {voter: Progress(voter, now) for voter in self._membership.others}
        self.observers = {}

    def end(self) -> None:
        """This node leads no more."""
        self.voters, self.observers = {}, {}

    def meet_voters(self, now: float) -> None:
        """The membership changed: what is known of those who vote now is kept, if they did, or
        observed, before."""
        self.voters = {voter: self._met(voter, now) for voter in self._membership.others}
        ahead = [peer for peer in self.voters.values() if peer.heard_at > now]
        assert not ahead, f"it is {now}, and later was heard of {ahead}"

    def _met(self, voter: int, now: float) -> Progress:
        """What is known of a voter, as one or as an observer before."""
        known = self.voters.get(voter) or self.observers.pop(voter, None)
        if known is not None and self._membership.counts(voter, known.directory):
            return known
        return Progress(voter, now)

    def of(self, node: int, directory: str, now: float) -> Progress:
        """The node that fetches: a voter, if it has that voter's directory."""
        peer = self._observer(node, now)
        if self._is_voter(node, directory):
            self.observers.pop(node, None)
            peer = self.voters[node]
        peer.directory = directory
        assert len(self.observers) <= OBSERVERS_MAX, f"{len(self.observers)} observers are kept"
        return peer

    def heard(self, node: int, directory: str, now: float) -> None:
        """A node asked for something that says nothing of its log."""
        if self._is_voter(node, directory):
            peer = self.voters[node]
            assert now >= peer.heard_at, f"node {node} was heard of later, at {peer.heard_at}"
            peer.heard_at = now

    def _is_voter(self, node: int, directory: str) -> bool:
        return node in self.voters and self._membership.counts(node, directory)

    def _observer(self, node: int, now: float) -> Progress:
        if node not in self.observers and len(self.observers) >= OBSERVERS_MAX:
            del self.observers[min(self.observers, key=lambda o: self.observers[o].heard_at)]
        return self.observers.setdefault(node, Progress(node, now))
