"""The commands of the stories in `scenarios/replication`, told to brokers on a table. Not a test.

The controller's decisions are versions of the metadata (v1, v2, ...), and a broker learns of one
when the story says so. A question of a follower (C1 is the first of C) and a leader's proposal
(isr1 is the first of all) are letters, which a story delivers, loses, or delivers late.
`check_invariants` says what has to hold after every step. Records are written as value/epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import trio
import trio.testing
from askers import Asker
from table_news import NewsTable, Question, SentProposal, Unable

from hightide.protocol.columns import batch_at
from hightide.protocol.errors import Refused, error_code
from hightide_broker.core.replication.text import Held, show_answer, show_step
from hightide_broker.runtime.base.call import Reply
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.server.fetch_handler import WATERMARK_WAIT_S
from hightide_broker.simulation.stepped_cluster import name_of

PARK_MS = 500


@dataclass(slots=True)
class Produced:
    """A record whose producer waits for acks=all, as the broker's handler waits."""

    value: str
    offset: int
    committed: Watermark
    outcome: str = ""

    def settle(self) -> str:
        """News for the producer, if there is any."""
        if self.outcome:
            return ""
        if self.committed.value > self.offset:
            self.outcome = "acknowledged"
        elif isinstance(self.committed.closed, Refused):
            self.outcome = f"refused, {self.committed.closed.code}"
        return f"{self.value} is {self.outcome}" if self.outcome else ""


def command(method: Callable[..., str]) -> Callable[..., str]:
    """A command's answer ends with the news for those who wait for acks=all."""

    @functools.wraps(method)
    def told(self: TableStory, *args: str, **options: str) -> str:
        answer = method(self, *args, **options)
        news = [each.settle() for each in self.produced]
        return "; ".join([answer, *filter(None, news)])

    return told


class TableStory:
    """One partition on a few brokers, and what happens to it."""

    refusals = (Unable, Refused)

    def __init__(self) -> None:
        self.has_ended = True
        self._begin(NewsTable("A"))

    def _begin(self, table: NewsTable) -> None:
        self.on = table
        self.produced: list[Produced] = []
        self.committed: dict[int, Held] = {}
        """What some replica's watermark has passed: consumers may have read it."""
        self.questions: dict[str, Question] = {}
        self.letters: dict[str, SentProposal] = {}

    # -- what has to hold ------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """After every step. What a watermark passed never changes, and those that may lead by the
        controller's word has all of it, and so all that was acknowledged."""
        for name in self._up():
            replica = self.on.replica(name)
            replica.log.check_invariants()
            self._check_epochs(name, replica)
            held = self.on.held(name)
            watermark = replica.high_watermark
            assert watermark <= replica.log.log_end, f"{name}: watermark above the log end"
            for offset, record in held.items():
                if offset < watermark:
                    known = self.committed.setdefault(offset, record)
                    assert record == known, f"{name} commits {record} at {offset}, it was {known}"
            self._check_own_isr(name, replica)
        for name in self._may_lead():
            self._check_holds_all(name)
        for each in self.produced:
            if each.outcome == "acknowledged":
                assert self.committed[each.offset].value == each.value, f"{each} is lost"

    def _check_epochs(self, name: str, replica: Replica) -> None:
        written = [held.epoch for held in self.on.held(name).values()]
        assert written == sorted(written), f"{name}: epochs {written} do not rise"
        entries = replica.log.epochs.entries
        for one, other in pairwise(entries):
            assert one[0] < other[0], f"{name}: epochs {entries} do not rise"
            assert one[1] < other[1], f"{name}: starts of epochs {entries} do not rise"
        for offset, held in self.on.held(name).items():
            of = replica.log.epochs.epoch_for_offset(offset)
            assert of == held.epoch, f"{name}: {held} at {offset} is of epoch {of} by its cache"

    def _check_own_isr(self, name: str, replica: Replica) -> None:
        """A broker that thinks it leads has committed nothing that its followers lack."""
        isr = replica.leader.isr if replica.leader else ()
        mine = self.on.held(name)
        for member in filter(self._up().__contains__, map(name_of, isr)):
            theirs, log = self.on.held(member), self.on.replica(member).log
            for offset, record in mine.items():
                if log.log_start <= offset < replica.high_watermark:
                    assert theirs.get(offset) == record, f"{name} counts {member}, which lacks it"

    def _check_holds_all(self, name: str) -> None:
        held, start = self.on.held(name), self.on.replica(name).log.log_start
        for offset, record in self.committed.items():
            mine = held.get(offset)
            if offset >= start:
                assert mine == record, f"{name} may lead, and has {mine}, not {record}, at {offset}"

    def _up(self) -> list[str]:
        return [each.name for each in self.on.brokers.values() if each.replica is not None]

    def _may_lead(self) -> list[str]:
        """Who is up and in the ISR, or eligible, by the newest metadata."""
        state = self.on.state
        names = [name_of(each) for each in (*state.isr, *state.elr)]
        return [name for name in names if name in self._up()]

    # -- the cast --------------------------------------------------------------------------------

    def table(self, names: str, min_isr: str = "1", flush: str = "synced") -> str:
        """Begin: all are in sync, the first one leads epoch 0, and everybody knows."""
        assert self.has_ended, "the story before has no end"
        self.has_ended = False
        self._begin(NewsTable(names, min_isr=int(min_isr), flush=flush))
        return self._metadata()

    def end(self) -> str:
        """Which records are acknowledged, and what everybody has who may lead."""
        self.has_ended = True
        promised = [each.value for each in self.produced if each.outcome == "acknowledged"]
        for name in self._may_lead():
            log_start = self.on.replica(name).log.log_start
            for each in self.produced:
                if each.outcome == "acknowledged" and each.offset >= log_start:
                    assert each.value in self.on.values(name), f"{name} lacks {each.value}"
        shown = [f"{name} has {_listed(self.on.values(name))}" for name in self._may_lead()]
        return f"acknowledged {_listed(promised)}; {', '.join(shown)}"

    def show(self, name: str = "") -> str:
        """The newest metadata and every broker, or one broker."""
        if name:
            return self._describe(name)
        everybody = [self._describe(each.name) for each in self.on.brokers.values()]
        return "; ".join([self._metadata(), *everybody])

    def _metadata(self) -> str:
        state = self.on.state
        version = len(self.on.versions) - 1
        elr = f" elr={_names(state.elr)}" if state.elr else ""
        leader = name_of(state.leader)
        return f"v{version} {leader} leads e{state.leader_epoch} isr={_names(state.isr)}{elr}"

    def _describe(self, name: str) -> str:
        if self.on.broker(name).replica is None:
            return f"{name} is down"
        return f"{name} {self.on.show(name)}"

    # -- metadata --------------------------------------------------------------------------------

    def elect(self, name: str) -> str:
        """The controller lets a member of the ISR lead a new epoch."""
        isr = _names(self.on.state.isr)
        assert name in isr, f"{name} is not in sync"
        self.on.elect(name, isr)
        return self._metadata()

    def fence(self, name: str) -> str:
        """The controller has not heard of a broker for too long."""
        self.on.fence(name)
        return self._metadata()

    def unfence(self, name: str) -> str:
        self.on.unfence(name)
        return self._metadata()

    @command
    def learn(self, names: str, *versions: str) -> str:
        """Brokers hear of the newest metadata, or of these versions one after the other."""
        for name in names:
            for version in versions or (str(len(self.on.versions) - 1),):
                self.on.deliver(self.on.broker(name), self.on.versions[int(version.lstrip("v"))])
        return "; ".join(self._describe(name) for name in names)

    # -- brokers ---------------------------------------------------------------------------------

    def crash(self, *names: str) -> str:
        """The process is gone; its page cache is not."""
        for name in names:
            self.on.crash(name)
        return "; ".join(self._describe(name) for name in names)

    def power(self, *names: str) -> str:
        """The power is gone, and all that was not synced."""
        for name in names:
            self.on.crash(name, power=True)
        return "; ".join(self._describe(name) for name in names)

    @command
    def restart(self, name: str) -> str:
        """A broker is back with what its disk kept; it is registered again, and fenced."""
        self.on.restart(name)
        return f"{self._metadata()}; {self._describe(name)}"

    def checkpoint(self, name: str) -> str:
        """A broker writes down its watermark, for after a restart."""
        self.on.keep_watermark(name)
        return str(self.on.broker(name).checkpoint)

    def remove(self, name: str) -> str:
        """A broker does not serve this partition any more."""
        replica = self.on.replica(name)
        replica.resign(replica.leader_epoch, Refused("UNKNOWN_TOPIC_OR_PARTITION", "it is gone"))
        return self._describe(name)

    def delete_records(self, name: str, offset: str) -> str:
        self.on.up(name).delete_records(int(offset))
        return self._describe(name)

    @command
    def time(self, seconds: str) -> str:
        """Time passes, and every leader looks what that means."""
        self.on.pass_time(float(seconds))
        for each in self._up():
            self.on.replica(each).recompute()
        return f"{self.on.now:g}"

    # -- records ---------------------------------------------------------------------------------

    @command
    def produce(self, value: str, to: str = "", acks: str = "all", synced: str = "yes") -> str:
        """A producer sends a record to whom it takes for the leader."""
        name = to or self.on.leader
        replica = self.on.up(name)
        batch = batch_at(0, [value.encode()])
        waits_at = replica.committed
        appended = replica.append(memoryview(batch), acks_all=acks == "all", now_ms=0)
        if acks == "all":
            self.produced.append(Produced(value, appended.base_offset, waits_at))
        if self.on.config.synced and synced == "yes":
            self.on.sync(name)
        return f"{name} has {value} at {appended.base_offset} watermark={replica.high_watermark}"

    def latest(self, name: str) -> str:
        """A consumer asks for the end."""
        return str(self.on.latest(name))

    # -- fetching --------------------------------------------------------------------------------

    @command
    def fetch(self, name: str, times: str = "1") -> str:
        """Whole fetches of a follower."""
        told = []
        for _ in range(int(times)):
            question = self.on.ask(name)
            told.append(f"{self._answer(question)}, {self._take(question)}")
        return "; then ".join(told)

    @command
    def question(self, name: str) -> str:
        """A follower asks; whom it follows has not heard the question yet."""
        asked = self.on.ask(name)
        number = 1 + sum(each.follower == asked.follower for each in self.questions.values())
        self.questions[f"{name}{number}"] = asked
        part = asked.part
        return (
            f"{name}{number} asks {asked.leader} in e{part.current_leader_epoch} for "
            f"{part.fetch_offset}, the last epoch is {part.last_fetched_epoch}"
        )

    @command
    def answer(self, which: str) -> str:
        """Whom the follower follows hears the question; the answer is on its way."""
        return self._answer(self._asked(which))

    @command
    def take(self, which: str, synced: str = "yes") -> str:
        """The follower gets the answer."""
        return self._take(self._asked(which), synced=synced == "yes")

    @command
    def wait(self, which: str, *words: str) -> str:
        """The question waits at the leader while other things happen: commands, between `then`."""
        question, answered = self._asked(which), "waits"
        waiting = self.on.hear(question, max_wait_ms=PARK_MS)

        async def meanwhile() -> None:
            nonlocal answered
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.on.agenda.run)
                assert not isinstance(waiting, Reply), "there is nothing to wait for"
                asker = Asker(partial(self.on.answered, question))
                self.on.agenda.now(partial(waiting.begin, asker))
                await trio.testing.wait_all_tasks_blocked()
                for each in " ".join(words).split(" then "):
                    step, *rest = each.split()
                    getattr(self, step)(*rest)
                    self.check_invariants()
                await trio.sleep(3 * WATERMARK_WAIT_S)
                answered = "waits no longer" if question.answer else "waits until its time is up"
                await trio.sleep(PARK_MS / 1000 + 1)
                nursery.cancel_scope.cancel()

        trio.run(meanwhile, clock=trio.testing.MockClock(autojump_threshold=0))
        assert question.answer is not None
        return f"{which} {answered}; {self._said(question)}"

    def _asked(self, which: str) -> Question:
        if which not in self.questions:
            raise Unable(f"{which} was not asked")
        return self.questions[which]

    def _answer(self, question: Question) -> str:
        reply = self.on.hear(question)
        assert isinstance(reply, Reply)
        self.on.answered(question, reply)
        return self._said(question)

    def _take(self, question: Question, *, synced: bool = True) -> str:
        name = name_of(question.follower)
        step = self.on.take_answer(question, synced=synced)
        replica = self.on.up(name)
        standing = f"end={replica.log.log_end} watermark={replica.high_watermark}"
        return f"{name} {show_step(step)}: {standing}"

    def _said(self, question: Question) -> str:
        assert question.answer is not None
        result, data = question.answer
        return f"{question.leader} answers {show_answer(result, self.on.records_in(data))}"

    # -- the ISR ---------------------------------------------------------------------------------

    @command
    def look(self, name: str) -> str:
        """A leader looks for members of its ISR that lag."""
        leader = self.on.up(name).require_leader()
        leader.drop_laggards(self.on.now)
        self.on.replica(name).recompute()
        return f"{name} proposes {_names(leader.proposal.isr) if leader.proposal else 'nothing'}"

    @command
    def send(self, name: str) -> str:
        """A leader's proposal is on its way, once more if it was before."""
        leader = self.on.up(name).require_leader()
        if leader.proposal is None or leader.is_settled:
            raise Unable(f"{name} has nothing to propose")
        which = f"isr{len(self.letters) + 1}"
        self.letters[which] = SentProposal(name, leader.proposal)
        wish = leader.proposal
        return f"{which} of {name} in e{wish.leader_epoch}: {_names(wish.isr)}"

    @command
    def decide(self, which: str) -> str:
        """The controller judges a proposal; the answer is on its way."""
        letter = self._letter(which)
        letter.answer = self.on.judge(letter)
        if letter.answer.error:
            return f"refused, {letter.answer.error}"
        return f"granted; {self._metadata()}"

    def carry(self, name: str) -> str:
        """A leader's proposal reaches the controller at once; nobody hears of it yet."""
        self.send(name)
        return self.decide(f"isr{len(self.letters)}")

    def lose(self, which: str) -> str:
        """The leader gives up to wait for an answer: it may have been carried out, or be late."""
        self._letter(which).is_lost = True
        return "lost"

    @command
    def hear(self, which: str) -> str:
        """The leader gets the controller's answer."""
        letter = self._letter(which)
        if letter.answer is None:
            raise Unable("there is no answer")
        replica = self.on.up(letter.leader)
        if replica.leader is not None:
            error = letter.answer.error
            alike = [each for each in self.letters.values() if each.proposal is letter.proposal]
            replica.leader.on_answer(
                letter.proposal,
                None if error is None else error_code(error),
                is_only_one=not any(each.is_lost for each in alike),
            )
            replica.recompute()
        return self.counts(letter.leader)

    def counts(self, name: str) -> str:
        """Who has to have a record before a leader takes it for committed."""
        leader = self.on.up(name).leader
        if leader is None:
            return f"{name} does not lead"
        maximal = _names(tuple(sorted(leader.maximal_isr)))
        return f"{name} waits for {maximal}, isr={_names(leader.isr)}"

    def _letter(self, which: str) -> SentProposal:
        if which not in self.letters:
            raise Unable(f"there is no {which}")
        return self.letters[which]


def _names(brokers: tuple[int, ...]) -> str:
    return "".join(map(name_of, brokers)) or "-"


def _listed(values: list[str]) -> str:
    return " ".join(values) or "nothing"
