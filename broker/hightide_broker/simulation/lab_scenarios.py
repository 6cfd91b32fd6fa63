"""Lessons: what can happen to replicated records, told step by step on a `Table`.

Each lesson plays a story with real replicas and writes down what is done, what the brokers say to
each other, and who has which offsets, epochs and watermarks. Every claim that a lesson makes about
its end is checked: a lesson that does not come out as it says raises `AssertionError`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import NamedTuple

from hightide.protocol.errors import Refused
from hightide_broker.core.replication.follower import Step, Truncate
from hightide_broker.core.replication.text import show_answer, show_step
from hightide_broker.simulation.stepped_cluster import (
    LAG_MAX_S,
    Lane,
    Table,
    lanes_of,
    name_of,
)
from hightide_broker.trace.text import sentence

TRACED = "Lines with `trace:` are what `hightide trace` tells of a cluster: A is broker 1 in it."


class Lesson(NamedTuple):
    """A story that can be played."""

    name: str
    title: str
    play: Callable[[Account], None]


class Frame(NamedTuple):
    """One step of a lesson, and who has what after it."""

    part: str
    text: str
    """What was done; empty: the part begins."""
    said: list[str]
    """What somebody said, or what follows."""
    lanes: list[Lane]
    leader: str
    leader_epoch: int
    isr: list[str]


class Account:
    """What a lesson says, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.frames: list[Frame] = []
        self._table: Table | None = None
        self._step = 0
        self._is_open = False
        """Whether a step is under way."""
        self._told = ("", "", list[str]())
        """The part and the step that are under way, and what was said in it."""

    def part(self, title: str, table: Table) -> None:
        """A part of the story begins, on a table of its own."""
        self.end_step()
        self._table, self._step, self._told = table, 0, (title, "", [])
        self._is_open = True
        self.lines += ["", f"== {title}", ""]
        self.state()

    def step(self, text: str) -> None:
        """Something is done."""
        self.end_step()
        self._step, self._told = self._step + 1, (self._told[0], text, [])
        self._is_open = True
        self.lines.append(f"{self._step:2}. {text}")

    def end_step(self) -> None:
        """What a step brought is there by now."""
        self._trace()
        table, is_open, self._is_open = self._table, self._is_open, False
        if table is not None and is_open:
            state = table.state
            isr = [name_of(broker) for broker in state.isr]
            place = name_of(state.leader), state.leader_epoch, isr
            self.frames.append(Frame(*self._told, lanes_of(table), *place))

    def say(self, text: str) -> None:
        """Somebody says something, or something follows."""
        self._told[2].append(text)
        indent = "    "
        self.lines += textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent)

    def _trace(self) -> None:
        """What happened since, as a trace of it would say."""
        if self._table is not None:
            told, self._table.told = self._table.told, []
            for node, what in told:
                self.say(f"trace: {sentence(node, what)}")

    def state(self) -> None:
        """Who has what."""
        table = self._table
        assert table is not None
        self._trace()
        state = table.state
        isr = ",".join(map(name_of, state.isr)) or "-"
        elr = f" elr={','.join(map(name_of, state.elr))}" if state.elr else ""
        self.lines.append(
            f"      metadata: {name_of(state.leader)} leads e{state.leader_epoch} isr={isr}{elr}"
        )
        for broker in table.brokers.values():
            self.lines.append(f"      {broker.name} {_describe(table, broker.name)}")
        self.lines.append("")

    # -- what happens on every table -------------------------------------------------------------

    def fetch(self, table: Table, name: str) -> Step | None:
        """A follower fetches once."""
        self.end_step()
        part = table.question(name)
        follower = table.replica(name).follower
        assert follower is not None
        leader = name_of(follower.leader)
        result, data = table.answer(leader, name, part)
        asked = f"offset {part.fetch_offset} in epoch {part.current_leader_epoch}"
        if part.last_fetched_epoch >= 0:
            asked += f", my last epoch is {part.last_fetched_epoch}"
        self.step(f"{name} fetches from {leader}: {asked}")
        self.say(f"{leader} answers {show_answer(result, table.records_in(data))}")
        step = table.take(name, part, result, data)
        self.say(f"{name} {show_step(step)}")
        return step

    def produce(self, table: Table, value: str) -> Callable[[], bool]:
        """A producer sends a record to the leader; whether it has been acknowledged by now."""
        self.end_step()
        leader = table.leader
        appended = table.produce(value)
        self.step(
            f"a producer sends {value} with acks=all to {leader}: offset "
            f"{appended.base_offset}, epoch {table.state.leader_epoch}"
        )
        return lambda: table.is_acknowledged(appended, by=leader)


def _describe(table: Table, name: str) -> str:
    if table.broker(name).replica is None:
        return "is down"
    log = table.replica(name).log
    epochs = ", ".join(f"e{epoch} from {start}" for epoch, start in log.epochs.entries)
    return f"{table.show(name)} end={log.log_end} epochs=({epochs})"


# -- one after the other ---------------------------------------------------------------------------


def one_after_the_other(account: Account) -> None:
    """The follower restarts, and the leader dies before the follower has fetched again."""
    table = Table("AB", flush="replicated")
    account.part("With leader epochs", table)
    is_acknowledged = _one_after_the_other(account, table)
    assert is_acknowledged
    assert table.values("B") == ["m1", "m2", "m3"] == table.values("A")
    account.say("m2 was acknowledged, and is still there; both replicas are equal.")

    table = Table("AB", flush="replicated", old_rule=True)
    account.part("With the old rule: a follower cuts its log at its own high watermark", table)
    is_acknowledged = _one_after_the_other(account, table)
    assert is_acknowledged
    assert table.values("B") == ["m1", "m3"] == table.values("A")
    account.say("m2 was acknowledged, and is lost: B cut it before it led.")


def _one_after_the_other(account: Account, table: Table) -> bool:
    account.produce(table, "m1")
    account.fetch(table, "B")
    account.fetch(table, "B")
    done = account.produce(table, "m2")
    account.fetch(table, "B")
    account.step("B fetches once more; A hears that B has everything below 2, its answer is lost")
    table.fetch("B", lost_answer=True)
    acknowledged = done()
    account.say(
        f"A's high watermark is 2, so m2 is {'' if acknowledged else 'not '}acknowledged. "
        f"B's is still {table.replica('B').high_watermark}."
    )
    account.state()
    account.step("B restarts")
    table.keep_watermark("B")
    table.crash("B")
    table.restart("B")
    account.state()
    account.step("A dies before B has fetched again. B is in sync, so B leads")
    table.crash("A")
    table.elect("B", "B")
    account.produce(table, "m3")
    account.step("A comes back, and follows B; its watermark checkpoint is from before m2")
    table.broker("A").checkpoint = 1
    table.restart("A")
    account.state()
    _until_equal(account, table, "A")
    return acknowledged


def _until_equal(account: Account, table: Table, name: str) -> None:
    """Fetch until a fetch finds nothing new."""
    for _ in range(6):
        before = table.replica(name).log.log_end, table.values(name)
        account.fetch(table, name)
        if (table.replica(name).log.log_end, table.values(name)) == before:
            break
    account.state()


# -- both at the same time -------------------------------------------------------------------------


def both_at_the_same_time(account: Account) -> None:
    """Leader and follower lose power together; the one with less comes back first."""
    table = Table("AB")
    account.part("With leader epochs, and flush=synced as by default", table)
    assert not _both_at_the_same_time(account, table, acknowledged_unsynced=False)
    assert table.values("A") == ["m1", "m3"] == table.values("B")
    account.say(
        "m2 was never acknowledged: B had not synced it. Nothing acknowledged is lost, and "
        "the replicas are equal."
    )

    table = Table("AB", flush="replicated")
    account.part("With leader epochs, and flush=replicated", table)
    assert _until_m2(account, table, acknowledged_unsynced=True)
    _the_longest_leads(account, table)
    assert table.values("A") == ["m1", "m2"] == table.values("B")
    account.say(
        "m2 is still there, because A had happened to sync it. It was acknowledged from page "
        "caches: had neither synced it, it would be lost. That is what flush=synced is for."
    )

    table = Table("AB", flush="replicated", old_rule=True)
    account.part("With the old rule: a follower cuts its log at its own high watermark", table)
    assert _both_at_the_same_time(account, table, acknowledged_unsynced=True)
    assert table.values("A") == ["m1", "m2", "m4"]
    assert table.values("B") == ["m1", "m3", "m4"]
    account.say("The replicas differ at offset 1, for ever, and nobody notices.")


def _until_m2(account: Account, table: Table, *, acknowledged_unsynced: bool) -> bool:
    """A has m2 on disk, B in its page cache; whether it is acknowledged."""
    account.produce(table, "m1")
    account.fetch(table, "B")
    account.fetch(table, "B")
    table.sync("A")
    table.sync("B")
    done = account.produce(table, "m2")
    if acknowledged_unsynced:
        part = table.question("B")
        account.step("B fetches m2 into its page cache, and asks for the next: A counts that")
        result, data = table.answer("A", "B", part)
        table.take("B", part, result, data, synced=False)
        table.fetch("B", lost_answer=True)
    else:
        account.step("B fetches m2 into its page cache; before it is synced, B does not ask again")
        part = table.question("B")
        table.take("B", part, *table.answer("A", "B", part), synced=False)
    table.sync("A")
    acknowledged = done()
    account.say(f"m2 is {'' if acknowledged else 'not '}acknowledged.")
    account.state()
    table.keep_watermark("A")
    table.keep_watermark("B")
    return acknowledged


def _the_longest_leads(account: Account, table: Table) -> None:
    account.step("A and B lose power at the same time; B had not synced m2")
    table.lose_power("AB")
    account.step("B comes back first, and nobody leads: either may lack what it had not synced")
    table.restart("B")
    table.unfence("B")
    assert table.leader == "nobody"
    account.state()
    account.step("A comes back; now both have said how far their logs reach: the longest leads")
    table.restart("A")
    table.unfence("A")
    assert table.leader == "A"
    account.state()
    _until_equal(account, table, "B")


def _both_at_the_same_time(account: Account, table: Table, *, acknowledged_unsynced: bool) -> bool:
    acknowledged = _until_m2(account, table, acknowledged_unsynced=acknowledged_unsynced)
    account.step("A and B lose power at the same time; B had not synced m2")
    table.crash("A", power=True)
    table.crash("B", power=True)
    account.step("B comes back first; it is in sync by the metadata, so it leads")
    table.elect("B", "B")
    table.restart("B")
    account.produce(table, "m3")
    account.step("A comes back, and follows B")
    table.restart("A")
    account.state()
    _until_equal(account, table, "A")
    if table.old_rule:
        account.produce(table, "m4")
        _until_equal(account, table, "A")
    return acknowledged


# -- reconciliation --------------------------------------------------------------------------------


def reconciliation(account: Account) -> None:
    """A follower has records of an epoch that went on without it."""
    table = Table("AB")
    account.part("A follower finds where its log and its leader's part", table)
    account.step("A leads epoch 1")
    table.elect("A", "AB")
    for value in ("m0", "m1", "m2"):
        account.produce(table, value)
        table.fetch("B")
    table.fetch("B")
    account.say("B has fetched all of that.")
    for value in ("m3", "m4"):
        account.produce(table, value)
    account.say("Nobody fetched m3 and m4, so they are not acknowledged.")
    account.state()
    account.step("A is cut off; B leads epoch 2")
    table.crash("A")
    table.elect("B", "B")
    account.produce(table, "n3")
    account.state()
    account.step("A comes back, and follows B")
    table.restart("A")
    account.state()
    assert table.replica("B").log.epochs.end_offset_for(1, 4) == (1, 3)
    step = account.fetch(table, "A")
    assert step == Truncate(3), step
    account.say("B's epoch 1 ended at offset 3: whatever A has from there on, B never had.")
    _until_equal(account, table, "A")
    assert table.values("A") == ["m0", "m1", "m2", "n3"] == table.values("B")
    account.say("Offsets 3 and 4 of epoch 1 are gone from A, and n3 of epoch 2 is there.")


# -- a follower stalls -----------------------------------------------------------------------------


def a_follower_stalls(account: Account) -> None:
    """A follower stops fetching; the leader goes on without it, once the controller agrees."""
    table = Table("ABC", min_isr=2)
    account.part("The ISR shrinks when a follower stalls", table)
    for name in "BC":
        account.fetch(table, name)
    done = account.produce(table, "m1")
    account.fetch(table, "B")
    account.fetch(table, "B")
    assert not done()
    account.say("C does not fetch: m1 is not acknowledged, because C is in the ISR.")
    account.state()
    account.step(f"{LAG_MAX_S:g} s pass (replica.lag.time.max.ms), and a little more; B fetches")
    table.pass_time(LAG_MAX_S + 1)
    table.fetch("B")
    leader = table.replica("A").leader
    assert leader is not None
    assert leader.drop_laggards(table.now)
    table.replica("A").recompute()
    assert not done()
    account.say("A proposes to the controller: ISR A,B. Until that is granted, C still counts.")
    account.step(f"the controller grants ISR {table.grant()}, and A hears of it")
    assert done()
    account.say("C stays eligible (elr) until the controller has heard of A and B after that, and")
    account.say("nothing commits before: they might be two machines without power.")
    account.say("Now m1 is acknowledged: two replicas have it, and min.insync.replicas is 2.")
    account.state()
    account.step("C wakes up")
    account.fetch(table, "C")
    account.fetch(table, "C")
    account.step(f"C has everything: A proposes it, the controller grants ISR {table.grant()}")
    account.state()
    assert len(table.state.isr) == 3


# -- a new leader's watermark ----------------------------------------------------------------------


def a_watermark_behind(account: Account) -> None:
    """A new leader has all that is committed, and does not know yet that it is."""
    table = Table("AB")
    account.part("A new leader's watermark is behind", table)
    done = account.produce(table, "m1")
    account.fetch(table, "B")
    table.fetch("B", lost_answer=True)
    assert done()
    account.step("B fetches again, and the answer with the new watermark is lost")
    account.say("m1 is acknowledged: consumers of A have read it.")
    account.state()
    account.step("A dies, B leads; A is still in the ISR for the moment")
    table.crash("A")
    table.elect("B", "AB")
    account.state()
    account.step("a consumer asks B for the end of the partition")
    try:
        table.latest("B")
    except Refused as refusal:
        account.say(f"B answers: {refusal}")
        account.say("That is retriable. To answer 0 would tell the consumer to read m1 again.")
    else:
        raise AssertionError("B knows its watermark")
    account.step("the controller takes A out of the ISR, and B hears of it")
    table.fence("A")
    account.step(f"the consumer asks again: {table.latest('B')}")
    account.state()
    assert table.latest("B") == 1


# -- last replica standing -------------------------------------------------------------------------


def last_replica_standing(account: Account) -> None:
    """The last replica of the ISR comes back without what it had; the others still have it."""
    table = Table("ABC", min_isr=2, flush="replicated")
    account.part("Eligible leader replicas (KIP-966)", table)
    done = account.produce(table, "m1")
    for name in "BCBC":
        table.fetch(name)
    account.step("B and C fetch it")
    assert done()
    account.say("m1 is acknowledged: three replicas have it.")
    account.step("C is fenced, then B: only A is in sync, fewer than min.insync.replicas=2")
    table.fence("C")
    table.fence("B")
    account.state()
    account.say("B left an ISR of two, so it has all that is committed: it stays eligible (elr).")
    account.step("a producer sends m2")
    try:
        table.produce("m2")
    except Refused as refusal:
        account.say(f"A answers: {refusal}")
    else:
        raise AssertionError("m2 was taken")
    account.step("A loses power, and comes back without what it had not synced")
    table.crash("A", power=True)
    table.fence("A", lost_data=True)
    account.state()
    account.say("A stopped uncleanly: it may have forgotten m1, so it is not eligible.")
    account.step("A is back, but nobody leads: B is waited for")
    table.restart("A")
    table.unfence("A")
    account.state()
    assert table.leader == "nobody"
    account.step("B comes back with its log, and is elected")
    table.broker("B").epoch += 1
    table.unfence("B")
    account.state()
    assert table.leader == "B"
    _until_equal(account, table, "A")
    assert table.values("B") == ["m1"] == table.values("A")
    account.say(
        "m1 is still there. Had A been elected as the last one of the ISR, it would have been lost."
    )


LESSONS = (
    Lesson("one-after-the-other", "follower, then leader, go down", one_after_the_other),
    Lesson("both-at-once", "leader and follower lose power together", both_at_the_same_time),
    Lesson("reconciliation", "a diverged follower finds back", reconciliation),
    Lesson("isr-shrink", "a follower stalls, the ISR shrinks and grows", a_follower_stalls),
    Lesson("watermark-behind", "a new leader cannot say yet what is committed", a_watermark_behind),
    Lesson("last-replica", "the last replica of the ISR forgets", last_replica_standing),
)


def play(name: str) -> list[str]:
    """The account of a lesson; raises `KeyError` if there is none, `AssertionError` if it does not
    come out as it says."""
    return _played(name).lines


def frames(name: str) -> list[Frame]:
    """The same, step by step, with who has what after each."""
    return _played(name).frames


def _played(name: str) -> Account:
    lesson = {lesson.name: lesson for lesson in LESSONS}[name]
    account = Account()
    account.lines.append(f"{lesson.name}: {lesson.title}.")
    account.lines += ["", *(line.strip() for line in (lesson.play.__doc__ or "").splitlines())]
    account.lines += ["", TRACED]
    lesson.play(account)
    account.end_step()
    return account
