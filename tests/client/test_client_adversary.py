"""Programs that are interrupted, cancelled, forked, dropped and wrong lose nothing and never hang.

Goal: promises 2, 4 and 8 for anybody who uses the clients, whatever happens to his program, and to
a broker meanwhile. Method: `client_adversary`. HIGHTIDE_ROUNDS says how many rounds, HIGHTIDE_SEED
where they begin, HIGHTIDE_KIND that only one kind is played; a failure names the seed of its round.
"""

import os
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from client_adversary import KINDS, judge_order, judge_row, judged, prepare
from client_adversary_tools import Reading, number_value
from secure_run import own_cluster

from hightide import Record

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROUNDS = int(os.environ.get("HIGHTIDE_ROUNDS", len(KINDS)))
SEED = int(os.environ.get("HIGHTIDE_SEED", "1"))
ONLY = os.environ.get("HIGHTIDE_KIND", "")
AT_ONCE = ["group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=4"]
PAUSE_S = 4.0
"""Between the deaths of brokers."""
MANY = 500
"""So many rounds reach every place that is named below."""
INTERRUPTED = ("Call._serve", "_Portal.soon", "Opened.run", "Producer.send", "Consumer.poll")
INTERRUPTED += ("Producer.flush", "Lent.take_all", "Lent.__iter__", "Places.take")
CANCELLED = ("send", "send_many", "flush", "awaited", "poll", "poll_arrow", "__anext__", "commit")
CANCELLED += ("seek_to_time", "committed", "producer", "consumer")


@contextmanager
def dying_brokers(cluster):
    """One after the other is killed, and started again."""
    over, nodes = threading.Event(), [process.node for process in cluster.nodes]

    def kill():
        while not over.wait(PAUSE_S):
            nodes.append(nodes.pop(0))
            cluster.stop(nodes[-1], kill=True)
            cluster.start(nodes[-1])

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def check(verdict, rounds):
    """Nothing failed, and the adversary was there."""
    print(f"rounds {dict(verdict.kinds)}\n{dict(verdict.tally)}")
    assert not verdict.failures, "\n".join(verdict.failures)
    inside = {name: n for name, n in verdict.tally.items() if name.startswith("interrupted ")}
    cancelled = {name: n for name, n in verdict.tally.items() if name.startswith("cancelled ")}
    assert ONLY or sum(inside.values()) >= rounds, "hardly any call was interrupted"
    assert ONLY or sum(cancelled.values()) >= rounds / 2, "hardly any call was cancelled"
    assert ONLY or rounds < len(KINDS) or {*verdict.kinds} == {kind.__name__ for kind in KINDS}
    if rounds >= MANY and not ONLY:
        missed = [name for name in INTERRUPTED if f"interrupted {name}" not in inside]
        missed += [name for name in CANCELLED if f"cancelled {name}" not in cancelled]
        assert not missed, f"nobody was ever struck in {missed}"


def test_whatever_happens_to_a_program_nothing_is_lost_and_nothing_hangs(tmp_path):
    with own_cluster(brokers=1, directory=tmp_path, assignments=AT_ONCE) as cluster:
        prepare(cluster.address, 1)
        check(judged(cluster.address, SEED, SEED + ROUNDS, only=ONLY), ROUNDS)


@pytest.mark.skipif(ROUNDS < MANY, reason="brokers die in the long form only")
def test_the_same_while_brokers_die(tmp_path):
    with own_cluster(brokers=3, directory=tmp_path, assignments=AT_ONCE) as cluster:
        prepare(cluster.address, 3)
        with dying_brokers(cluster):
            rounds = ROUNDS // 8
            check(judged(cluster.address, -rounds, 0, only=ONLY), rounds)


# --- the judges can fail ------------------------------------------------------------------------

WRONG = (
    (("a/1", 0, "stored", 7), {}, "is lost"),
    (("a/1", 0, "stored", -1), {}, "is lost"),
    (("a/1", 0, "maybe", -1), {"a/1": [(0, 7), (0, 9)]}, "2 times"),
    (("a/1", 0, "absent", -1), {"a/1": [(0, 7)]}, "was not sent"),
    (("a/1", 0, "accepted", -1), {"a/1": [(1, 7)]}, "was sent to 0"),
    (("a/1", 0, "stored", 7), {"a/1": [(0, 8)]}, "told to be at 7"),
)


@pytest.mark.parametrize(("row", "places", "words"), WRONG)
def test_a_record_that_is_wrong_is_found(row, places, words):
    (found,) = judge_row(*row, places)
    assert words in found


def test_a_record_that_may_be_there_or_not_is_no_failure():
    for state in ("maybe", "accepted"):
        assert not [*judge_row("a/1", 0, state, -1, {})]
        assert not [*judge_row("a/1", 0, state, -1, {"a/1": [(0, 7)]})]


def test_a_sender_whose_records_changed_places_is_found():
    stored = [("a/0", 0, 0), ("b/7", 0, 1), ("a/2", 0, 2), ("a/1", 0, 3), ("a/1", 1, 0)]
    assert [*judge_order("a", stored)] == ["a/1 at 3 comes after 2"]
    assert not [*judge_order("b", stored)]


def test_a_gap_a_repeat_and_a_commit_that_nobody_made_are_found():
    reading = Reading(SimpleNamespace(committed=lambda _: {0: 2}), "g", auto=False)
    reading.got([number(0), number(1)])
    with pytest.raises(AssertionError, match="1 after 2"):
        reading.got([number(1)])
    with pytest.raises(AssertionError, match="3 after 2"):
        reading.got([number(3)])
    with pytest.raises(AssertionError, match=r"committed 2 of 0, expected \[0\]"):
        reading.check_committed()
    reading.maybe_committed()
    reading.check_committed()
    assert reading.next == {0: 2, 1: 0}
    reading.begins(lambda: 2)
    with pytest.raises(AssertionError, match="0 after 2"):
        reading.got([number(0)])
    with pytest.raises(AssertionError, match="2 became 1"):
        reading.handed_over(lambda partition: 1 - partition)


def number(offset):
    """A record of `numbers`."""
    value = number_value(0, offset)
    return Record(topic="numbers", partition=0, offset=offset, timestamp=0, key=None, value=value)
