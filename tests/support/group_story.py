"""The commands of the stories in `scenarios/groups`, told to a consumer group. Not a test.

Members are processes, called by their member ids; `as=i` makes one static, as instance i. A request
that waits is answered later: the step that lets it be answered ends with the news. A leader's sync
gives everybody a partition, x0 to the first of the group and so on, or what `give=a:x0+x1` says. A
write is on its way until it is `kept`, or cannot be. Times are in seconds since the beginning.
"""

from __future__ import annotations

import functools

from groupkit import BROKEN_DISK, REBALANCE_S, SESSION_S, Coordinator, check

from hightide_broker.core.groups.parts import State
from hightide_broker.core.groups.text import show_group


class Unable(Exception):
    """The story asks for what cannot be."""


def command(method):
    """A command's answer ends with the news for those who waited."""

    @functools.wraps(method)
    def told(self, *args, **options):
        said = method(self, *args, **options)
        return "; ".join(filter(None, [said, *self.news()]))

    return told


class GroupStory:
    """One group, its processes, and what happens to them."""

    refusals = (Unable,)

    def __init__(self):
        self.group("0")

    def group(self, delay="3", max_size="100"):
        """Begin with an empty group and this initial delay."""
        self.on = Coordinator(initial_delay_s=float(delay), size_max=int(max_size))
        self.instances, self.waiting = {}, []
        self.kept_value, self.given = None, {}
        self.highest = 0
        return self.show()

    # -- what has to hold ------------------------------------------------------------------------

    def check_invariants(self):
        """After every step: the fields fit together, nobody waits unheard, generations rise, and
        what members have in Stable is what their leader gave."""
        check(self.on.group)
        group, instances = self.on.group, self.instances
        waiting = [m for m in group.members if m.joining is not None or m.syncing is not None]
        assert len(waiting) == len(self.on.parked)
        assert group.generation >= self.highest
        self.highest = group.generation
        if group.state is State.STABLE and group.generation in self.given:
            given = self.given[group.generation]
            for member in group.members:
                name = instances.get(member.member_id) or member.member_id
                assert member.assignment.decode() == given.get(name, ""), name

    def news(self):
        """What those hear whose request was answered meanwhile."""
        answered = [asked for asked in self.waiting if not asked.waits]
        self.waiting = [asked for asked in self.waiting if asked.waits]
        return [self._heard(asked) for asked in answered]

    def _heard(self, asked):
        answer, who = asked.answer, asked.member
        if answer.error:
            return f"{who}'s {asked.kind} is refused, {answer.error}"
        if asked.kind == "sync":
            return f"{who} gets {answer.assignment.decode() or 'nothing'}"
        if answer.leader != who:
            return f"{who} is in g{answer.generation} with {answer.protocol} led by {answer.leader}"
        others = " ".join(member.member_id for member in answer.members)
        skips = ", and assigns nothing" if answer.skip_assignment else ""
        return f"{who} leads {others} in g{answer.generation} with {answer.protocol}{skips}"

    def _said(self, asked):
        if asked.waits:
            self.waiting.append(asked)
            return f"{asked.member}'s {asked.kind} waits"
        return self._heard(asked)

    # -- processes -------------------------------------------------------------------------------

    @command
    def ask(self, name, assignors="range", topics="x", session=SESSION_S, wait=REBALANCE_S, **said):
        """A process without an id asks to join; a static one, `as=i`, joins with that."""
        instance = self.instances[name] = said.get("as", "")
        return self._said(
            self.on.join(
                new=name,
                instance=instance,
                protocols=" ".join(f"{each}:{topics}" for each in assignors.split(",")),
                session=float(session),
                rebalance=float(wait),
            )
        )

    @command
    def join(self, name, assignors="range", topics="x", session=SESSION_S, wait=REBALANCE_S):
        """A process joins with the id that it has."""
        return self._said(
            self.on.join(
                name,
                instance=self.instances.get(name, ""),
                protocols=" ".join(f"{each}:{topics}" for each in assignors.split(",")),
                session=float(session),
                rebalance=float(wait),
            )
        )

    @command
    def enter(self, *names, **said):
        """Processes ask for an id, and join with it."""
        return "; ".join(self._enter(name, **said) for name in names)

    def _enter(self, name, **said):
        asked = self.ask(name, **said)
        return self.join(name, **said) if "MEMBER_ID_REQUIRED" in asked else asked

    @command
    def sync(self, *names, give=""):
        """Processes ask what they get; the leader says who gets what."""
        return "; ".join(self._sync(name, give) for name in names)

    def _sync(self, name, give):
        on = self.on
        given = {member: f"x{at}" for at, member in enumerate(on.ids)}
        if give:
            given = dict(each.split(":") for each in give.split(","))
        before = len(on.writes)
        asked = on.sync(name, instance=self.instances.get(name, ""), **given)
        if len(on.writes) > before:
            lasting = {self.instances.get(each) or each: what for each, what in given.items()}
            self.given[on.generation] = lasting
        return self._said(asked)

    @command
    def heartbeat(self, *names, of=""):
        """Processes say that they are alive, in the present generation or an older one."""
        return self._each(self.on.heartbeat, names, of)

    @command
    def commit(self, *names, of=""):
        """Processes commit offsets, in the present generation or an older one."""
        return self._each(self.on.commit, names, of)

    def _each(self, asks, names, of):
        generation = int(of.removeprefix("g")) if of else self.on.generation
        errors = [
            asks(name, generation=generation, instance=self.instances.get(name, ""))
            for name in names
        ]
        return " ".join(str(error or "ok") for error in errors)

    @command
    def leave(self, name="", **said):
        """A process leaves; or an administrator removes a static member, `as=i`."""
        return str(self.on.leave(name, instance=said.get("as", "")) or self.show())

    # -- the coordinator -------------------------------------------------------------------------

    @command
    def kept(self):
        """The oldest write is done."""
        if not self.on.writes:
            raise Unable("nothing is on its way")
        self.kept_value = self.on.written().value
        return self.show()

    @command
    def lost(self):
        """The oldest write could not be kept."""
        if not self.on.writes:
            raise Unable("nothing is on its way")
        self.on.written(BROKEN_DISK)
        return self.show()

    @command
    def time(self, seconds, alive=""):
        """Time passes; these processes send a heartbeat every second."""
        for _ in range(int(seconds)):
            self.on.wait(1)
            for name in alive.split(",") if alive else ():
                self.on.heartbeat(name, instance=self.instances.get(name, ""))
        return f"{self.on.now:g}"

    @command
    def fail_over(self):
        """Another broker takes over what was kept."""
        self.on.fail_over(self.kept_value)
        self.highest = 0
        return self.show()

    def why(self):
        """The cause of the last rebalance."""
        causes = self.on.group.causes
        return causes[-1].text.partition(" (session")[0] if causes else "none"

    def show(self):
        return show_group(self.on.group, assigned=True)
