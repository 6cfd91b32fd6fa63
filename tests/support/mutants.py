"""Bugs planted in the quorum, its driver and its controller; each one breaks one rule.

Not a test. A mutant is a context in which the bug is there; `test_mutants.py` shows that the
simulation notices each of them.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

from hightide_broker.core.cluster import image
from hightide_broker.core.quorum import elections, follower, state_machine
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.core.quorum.roles import Role
from hightide_broker.runtime.cluster import controller as controller_shell
from hightide_broker.runtime.quorum import driver, metadata_log
from hightide_broker.simulation.disk_syncs import Sync

Mutant = Callable[[], AbstractContextManager[None]]
MUTANTS: dict[str, Mutant] = {}
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@contextmanager
def planted(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` for the block; a function takes whatever the one before it took."""
    before = getattr(owner, name)
    if inspect.isfunction(before) and inspect.isfunction(value):
        _check_takes(value, before)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@cache
def _check_takes(value: Callable[..., Any], before: Callable[..., Any]) -> None:
    """Raise `TypeError` unless it can be called as what it takes the place of: a bug that crashes
    wherever it is called is noticed by everybody, and says nothing."""
    taken = inspect.signature(before).parameters.values()
    kinds = [(parameter.name, parameter.kind) for parameter in taken]
    places = [name for name, kind in kinds if kind in BY_PLACE]
    names = [name for name, kind in kinds if kind is inspect.Parameter.KEYWORD_ONLY]
    inspect.signature(value).bind(*places, **dict.fromkeys(names))


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


@mutant
def votes_and_epochs_are_not_kept_on_disk():
    return planted(driver.QuorumDriver, "_persist", lambda self, election_state: None)


@mutant
def votes_are_forgotten_at_a_restart():
    read = driver.read_quorum_state

    def forgets(disk, directory):
        state = read(disk, directory)
        return driver.QuorumState(state.leader_id, state.leader_epoch, NOBODY)

    return planted(driver, "read_quorum_state", forgets)


@mutant
def a_voter_votes_for_everybody():
    vote = elections.Elections.vote

    def generous(self, request, now):
        if not request.pre_vote and request.epoch == self.epoch and self.leader == NOBODY:
            self.voted = NOBODY
        return vote(self, request, now)

    return planted(elections.Elections, "vote", generous)


@mutant
def the_longer_log_counts_instead_of_the_later_epoch():
    vote = elections.Elections.vote

    def by_length(self, request, now):
        mine, theirs = self._log.log_end, request.log_end
        with planted(type(self._log), "last_epoch", property(lambda log: 0)):
            return vote(self, request, now) and theirs >= mine

    return planted(elections.Elections, "vote", by_length)


@mutant
def any_log_may_lead():
    vote = elections.Elections.vote

    def careless(self, request, now):
        with planted(type(self._log), "last_epoch", property(lambda log: -1)):
            return vote(self, request, now)

    return planted(elections.Elections, "vote", careless)


@mutant
def there_is_no_pre_vote():
    become = elections.Elections._become_prospective

    def at_once(self, now):
        become(self, now)
        if self.role is Role.PROSPECTIVE:
            self._become_candidate(now)

    return planted(elections.Elections, "_become_prospective", at_once)


@mutant
def one_copy_is_enough():
    return planted(state_machine, "held_by_majority", max)


@mutant
def a_leader_counts_what_it_has_not_synced():
    def hasty(self):
        ends = [peer.log_end for peer in self._peers.voters.values()] + [self._log.log_end]
        held = state_machine.held_by_majority(ends)
        if held > self.epoch_start:
            self._commit(held)

    return planted(state_machine.Quorum, "_commit_as_leader", hasty)


@mutant
def a_follower_acknowledges_what_it_has_not_synced():
    wake_at = property(lambda self: float("inf") if self._under_way is not None else self._due)
    return planted(follower.QuorumFollower, "wake_at", wake_at)


@mutant
def an_entry_of_an_old_epoch_is_committed_by_counting():
    def counting(self):
        ends = [peer.log_end for peer in self._peers.voters.values()] + [self._log.synced_end]
        self._commit(state_machine.held_by_majority(ends))

    return planted(state_machine.Quorum, "_commit_as_leader", counting)


@mutant
def a_log_that_differs_is_not_cut():
    return planted(metadata_log.MetadataLog, "truncate_to", lambda self, offset: None)


@mutant
def divergence_goes_unnoticed():
    return planted(state_machine, "locate", lambda *args: None)


@mutant
def a_leader_does_what_a_late_answer_says():
    answered, end = state_machine.Quorum._fetch_answered, follower.QuorumFollower.end

    def forgetting_nothing(self):
        under_way = getattr(self, "_under_way", None)
        end(self)
        self._under_way = under_way

    def in_any_role(self, event, now):
        if event.response is None or self.role is not Role.LEADER:
            return answered(self, event, now)
        self._follower.succeeded(event, self._ready, now, high_watermark=0)
        self._fetching._due = float("inf")
        return None

    @contextmanager
    def both():
        with (
            planted(follower.QuorumFollower, "end", forgetting_nothing),
            planted(state_machine.Quorum, "_fetch_answered", in_any_role),
        ):
            yield

    return both()


@mutant
def a_leader_goes_on_in_its_epoch_after_a_restart():
    begin = elections.Elections._begin

    def reborn(self, now):
        begin(self, now)
        if self.role is Role.RESIGNED:
            self.role = Role.CANDIDATE
            self.leader = NOBODY
            self._become_leader(now)

    return planted(elections.Elections, "_begin", reborn)


@mutant
def the_controller_answers_before_commit():
    async def at_once(self, term, what):
        return self._quorum.metadata.log_end

    return planted(controller_shell.ControllerShell, "_committed", at_once)


@mutant
def a_snapshot_forgets_who_is_fenced():
    registration = image._registration

    def forgets(state):
        return controller_shell.RegisterBroker(
            **{
                name: getattr(registration(state), name)
                for name in registration(state).__struct_fields__
                if name != "fenced"
            }
        )

    return planted(image, "_registration", forgets)


@mutant
def the_disk_lies_about_syncs():
    return planted(Sync, "end", Sync.drop)
