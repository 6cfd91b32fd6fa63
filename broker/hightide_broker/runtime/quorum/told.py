"""What happens in the quorum, told to the trace, and roles to the log as well: all that an election
decides, and with a measure what comes to nothing.

A node that hears of no leader asks every other second whether it could win, for as long as the
others are away; and so does one that only it does not hear, of all others. One that does not vote
is told again and again of a leader that is dead, until there is another. That must not push out of
the trace how it began: the first of those events are told, then one a minute, with a count.
"""

from __future__ import annotations

import logging

import trio
from msgspec.structs import replace

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.quorum.quorum_events import (
    Tail,
    log_cut,
    role_taken,
    vote_answered,
    voters_written,
)
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.core.quorum.text import Standing, show_role
from hightide_broker.trace.events import Tell

log = logging.getLogger("hightide.quorum")

TOLD_MAX = 20
"""So many in a row are told while no leader is found: more than an election needs that succeeds."""
PAUSE_S = 60.0
"""Then one in so long."""


class QuorumTold:
    """Tells what one node does in the quorum."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._found = (NOBODY, -1)
        """The leader that was found last, and its epoch."""
        self._roles = _Measure()
        self._pre_votes = _Measure()

    def role_taken(self, node: Standing, log_end: int) -> None:
        """A node stands elsewhere now. That its leader is the one of before is no news: it may be
        gone."""
        found = (node.leader, node.epoch)
        is_news = node.leader != NOBODY and found != self._found
        if is_news or self._roles.lets_through(trio.current_time()):
            self._tell_role(node, log_end)
        if is_news:
            self._found = found
            self._begin_again()

    def leader_heard(self, node: Standing, log_end: int) -> None:
        """A node leads, or its leader answers: what came to nothing is over."""
        if self._roles.left_out:
            self._tell_role(node, log_end)
        if self._roles.told:
            self._begin_again()

    def _tell_role(self, node: Standing, log_end: int) -> None:
        log.info("%s", show_role(node), extra={"event": "driver.role"})
        self._tell(replace(role_taken(node, log_end), left_out=self._roles.take()))

    def _begin_again(self) -> None:
        self._roles, self._pre_votes = _Measure(), _Measure(self._pre_votes.left_out)

    def answered(self, request: m.Message, reply: m.Message) -> None:
        """Another node was answered; tells it if it had asked for a vote."""
        if not (isinstance(request, c.VoteRequest) and isinstance(reply, c.VoteResponse)):
            return
        what = vote_answered(request, reply)
        if not what.is_pre_vote:
            self._tell(what)
        elif self._pre_votes.lets_through(trio.current_time()):
            self._tell(replace(what, left_out=self._pre_votes.take()))

    def voters_written(self, offset: int, voters: tuple[Voter, ...]) -> None:
        """These vote from the record at `offset` on."""
        self._tell(voters_written(offset, voters))

    def log_cut(self, node: Standing, before: Tail, after: Tail, high_watermark: int) -> None:
        """Of a node's metadata log that ended at `before`, the rest is gone."""
        self._tell(log_cut(node, before, after, high_watermark))


class _Measure:
    """How often something was told, and was not."""

    def __init__(self, left_out: int = 0) -> None:
        self.left_out = left_out
        """Since it was last told."""
        self.told = 0
        self._again_at = 0.0

    def lets_through(self, now: float) -> bool:
        """Whether it may be told once more."""
        if self.told >= TOLD_MAX and now < self._again_at:
            self.left_out += 1
            return False
        self.told, self._again_at = self.told + 1, now + PAUSE_S
        return True

    def take(self) -> int:
        """How many were left out, which is told now."""
        left_out, self.left_out = self.left_out, 0
        return left_out
