"""`partitions elect --unclean`: what it would cost is told first, as far as anybody knows.

Goal: a human sees how much each replica holds before it leads; a broker that does not answer is
never counted as an empty one, nor keeps the election from being asked for; and nothing is asked for
without `--yes`. Method: the command in this process, whose admin client is one that says what a
cluster would.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hightide.protocol import messages as m
from hightide.protocol.errors import BrokerUnreachable, ErrorCode, RequestTimedOut
from hightide_cli import options
from hightide_cli.failures import CONFLICT, NOT_FOUND, REFUSED, UNREACHABLE, USAGE, exit_code
from hightide_cli.main import main

WHY = "nobody leads orders-0: no disk is left that certainly has all"
UNCLEAN = ["elect", "orders:0", "--unclean"]
NOBODY = BrokerUnreachable("nobody answers", broker="127.0.0.1:1")


def part(number=0, *, leader=-1, replicas=(1, 2, 3)):
    message = "" if leader >= 0 else WHY
    return m.PartitionMetadata(
        partition=number,
        leader=leader,
        leader_epoch=7,
        replicas=[*replicas],
        isr=[],
        message=message,
    )


def replica(start=0, *, end, watermark, number=0, error=""):
    return m.ReplicaInfo(
        topic="orders",
        partition=number,
        size_bytes=0,
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=watermark,
        error=error,
    )


class FakeAdmin:
    """What brokers would say; `looks` is what looking at the topics comes to, if not that."""

    def __init__(self, *parts, looks=None, **replicas):
        self.topics = [m.TopicMetadata(topic="orders", topic_id="id", partitions=list(parts))]
        self.looks = looks
        self.replicas = {int(name.removeprefix("b")): each for name, each in replicas.items()}
        """By broker; None: it does not answer."""
        self.living, self.behind = (1, 2, 3), 0
        """Brokers that are not fenced; how often a preferred replica is not in sync yet."""
        self.timeouts_s = []
        self.elected = []

    def __call__(self, bootstrap, timeout_s):
        self.timeouts_s.append(timeout_s)
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def list_topics(self):
        if self.looks is not None:
            raise self.looks
        return self.topics

    async def describe_log_dirs(self, topics):
        assert topics == ["orders"]
        return [
            m.DescribeLogDirsResponse(
                broker=broker,
                path="" if held is None else "data",
                replicas=[] if held is None else [held],
                error="it did not answer" if held is None else "",
            )
            for broker, held in self.replicas.items()
        ]

    async def describe_cluster(self):
        brokers = [SimpleNamespace(id=n, fenced=n not in self.living) for n in (1, 2, 3)]
        return SimpleNamespace(brokers=brokers)

    async def elect_leaders(self, wanted, *, unclean=False):
        self.elected.append((wanted, unclean))
        if self.behind:
            self.behind -= 1
            late = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            return [m.ElectLeadersResult(topic="orders", partition=0, leader=2, error=late)]
        return [m.ElectLeadersResult(topic=t, partition=p, leader=1) for t, p in wanted or []]


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `partitions` against a cluster: its exit code, and what it said beside its result."""

    def run(cluster, *words):
        monkeypatch.setattr(options, "admin", cluster)
        monkeypatch.setattr(sys, "argv", ["hightide", "partitions", *words])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return end.value.code, " ".join(said.err.split())

    return run


def test_what_each_replica_holds_is_told_and_where_its_log_ends(command):
    """Below the watermark that any of them knows: only that was acknowledged."""
    cluster = FakeAdmin(
        part(),
        b1=replica(2, end=9, watermark=6),
        b2=replica(end=4, watermark=4),
        b3=replica(7, end=7, watermark=5),
    )
    code, said = command(cluster, *UNCLEAN)
    assert code == USAGE
    assert f"orders:0: {WHY}. Committed were at least the records below the last known" in said
    assert "watermark, 6; of them " in said
    for broker, held, end in ((1, 4, 9), (2, 4, 4), (3, 0, 7)):
        assert f"broker {broker} has {held} (its log ends at {end})" in said
    assert cluster.elected == []


@pytest.mark.parametrize("silent", [None, replica(end=9, watermark=9, error="its disk failed")])
def test_a_replica_of_which_nothing_is_known_is_not_told_to_be_empty(command, silent):
    cluster = FakeAdmin(part(), b1=replica(end=5, watermark=5), b2=silent)
    code, said = command(cluster, *UNCLEAN, "--yes")
    assert code == 0
    held = "broker 1 has 5 (its log ends at 5), broker 2 does not say, broker 3 does not say"
    assert f"watermark, 5; of them {held}" in said
    assert cluster.elected == [([("orders", 0)], True)]


@pytest.mark.parametrize("looks", [NOBODY, RequestTimedOut("no answer in time")])
def test_a_cluster_that_cannot_be_looked_at_is_told_and_asked_all_the_same(command, looks):
    cluster = FakeAdmin(looks=looks)
    code, said = command(cluster, *UNCLEAN, "--yes")
    assert (code, cluster.elected) == (0, [([("orders", 0)], True)])
    assert f"what the replicas still hold is not known: {looks}" in said


@pytest.mark.parametrize("looks", [None, NOBODY])
def test_nobody_is_elected_uncleanly_without_yes_whether_anybody_answers_or_not(command, looks):
    cluster = FakeAdmin(part(), looks=looks)
    code, said = command(cluster, *UNCLEAN)
    assert (code, cluster.elected) == (USAGE, [])
    assert "add --yes to do it" in said


@pytest.mark.parametrize(("given", "for_the_look"), [("60", 5.0), ("2", 2.0)])
def test_the_look_takes_less_time_than_there_is_to_elect(command, given, for_the_look):
    cluster = FakeAdmin(part())
    assert command(cluster, *UNCLEAN, "--yes", "--timeout", given)[0] == 0
    assert cluster.timeouts_s == [for_the_look, float(given)]


def test_only_what_has_no_leader_and_was_named_is_weighed(command):
    cluster = FakeAdmin(part(0), part(1, leader=2), part(2), b1=replica(end=1, watermark=1))
    _, said = command(cluster, "elect", "orders:0", "orders:1", "--unclean", "--yes")
    assert "orders:0: " in said
    assert "orders:1: " not in said
    assert "orders:2: " not in said
    _, said = command(cluster, "elect", "--all", "--unclean", "--yes")
    assert "orders:0: " in said
    assert "orders:2: " in said


def test_a_clean_election_looks_at_nothing(command):
    cluster = FakeAdmin(part(), looks=NOBODY)
    assert command(cluster, "elect", "orders:0") == (0, "")
    assert len(cluster.timeouts_s) == 1


@pytest.mark.parametrize(
    ("leader", "living", "asked", "code"),
    [
        (2, (1, 2), 3, 0),
        (2, (2,), 1, REFUSED),
        (-1, (1, 2), 1, REFUSED),
    ],
    ids=["it catches up", "its broker is away", "there is nobody to catch up with"],
)
def test_a_preferred_replica_is_waited_for_while_it_catches_up(
    command, leader, living, asked, code
):
    cluster = FakeAdmin(part(leader=leader))
    cluster.living, cluster.behind = living, 2
    assert command(cluster, "elect", "orders:0")[0] == code
    assert cluster.elected == [([("orders", 0)], False)] * asked


@pytest.mark.parametrize(
    ("code", "ends_with"),
    [
        (ErrorCode.VOTER_NOT_FOUND, NOT_FOUND),
        (ErrorCode.DUPLICATE_VOTER, CONFLICT),
        (ErrorCode.REQUEST_TIMED_OUT, UNREACHABLE),
    ],
)
def test_a_refusal_has_the_exit_code_of_its_kind(code, ends_with):
    assert exit_code(code) == ends_with
