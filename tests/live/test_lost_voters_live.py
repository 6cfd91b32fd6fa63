"""Goal: a controller's disk that was lost votes for nobody, and voters come and go while all runs.

Method: real processes on free ports; nodes are killed, directories removed and formatted again, and
every fact is read with the command line or in what the nodes say, as an operator would. What takes
time is waited for with far more patience than it needs. The records' side is in
`test_lost_disks_live.py`.
"""

import pytest
from commands import hightide
from lost_disks import Disks
from three_nodes import until

from hightide_cli.failures import CONFLICT, NOT_FOUND, REFUSED, UNHEALTHY, UNREACHABLE, USAGE

pytestmark = [pytest.mark.live, pytest.mark.slow]

SOON = (
    "controller.quorum.election.timeout.ms=300",
    "controller.quorum.election.backoff.max.ms=300",
    "controller.quorum.fetch.timeout.ms=800",
    "broker.heartbeat.interval.ms=500",
    "broker.session.timeout.ms=4s",
)
ELECTIONS = 6
"""Elections that a voter tries to hold, one timeout and more apart, until it counts as never."""


@pytest.fixture
def start(tmp_path):
    """Start a cluster in an empty directory; it is dead when the test ends."""
    started = []

    def begin(*words, **options):
        started.append(Disks(tmp_path / "data", *words, **options))
        return started[-1]

    yield begin
    for cluster in started:
        cluster.end()


def test_a_laggard_and_an_empty_disk_are_no_majority_and_who_knows_all_leads(start):
    cluster = start("-n", "3", settings=SOON)
    cluster.until_recorded()
    cluster.kill(3)
    cluster.place("unknown-to-3", (1, 2))
    cluster.run("produce", "unknown-to-3", stdin=b"still here\n")
    before = cluster.voters()
    cluster.kill(1, 2)
    cluster.lose(2)
    cluster.join(2)
    assert cluster.info(2)["joining"] is True

    said = {node: cluster.start_one(node) for node in (2, 3)}
    tried = "prospective epoch="
    until(lambda: said[3]().count(tried) >= ELECTIONS, what="node 3 stands again and again")
    for node in said:
        assert "leader epoch=" not in said[node]()
        assert "candidate epoch=" not in said[node]()
        assert "active controller" not in said[node]()
        refused = hightide(
            *("quorum", "status", "--timeout", "1"), address=cluster.address_of(node), code=None
        )
        assert refused.code == UNREACHABLE
        assert refused.out == b""
    assert tried not in said[2](), "it has no vote, and asks for none"

    said[1] = cluster.start_one(1)
    cluster.until_serving(1, 2, 3)
    assert "active controller of epoch" in said[1](), "nobody else could be the first"
    assert cluster.topics() == {"unknown-to-3"}
    until(lambda: observers(cluster, code=UNHEALTHY) == [2], what="2 observes")
    replaced = cluster.run("quorum", "replace", "2")
    new = cluster.info(2)["directory_id"]
    assert f"node 2 with directory {before[2]} does not vote any more" in replaced.err
    assert f"node 2 with directory {new} votes" in replaced.err
    assert cluster.voters() == {1: before[1], 2: new, 3: before[3]}
    (record,) = cluster.read("unknown-to-3")
    assert record["value"] == "still here"
    cluster.kill(1)
    cluster.create("by-the-new-one", address=cluster.address_of(3))
    known, new_one = {"unknown-to-3", "by-the-new-one"}, cluster.address_of(2)
    until(lambda: cluster.topics(new_one) == known, what="2 follows")


def observers(cluster, code=0):
    """Who observes, as the leader says; `code`: how `quorum status` ends."""
    status = cluster.quorum(code=code)
    return [each["id"] for each in status["observers"]] if status else None


# -- voters that come and go -----------------------------------------------------------------------


def test_a_voter_that_was_removed_is_not_missed_and_votes_again_once_it_is_added(start):
    cluster = start("-n", "3")
    cluster.until_recorded()
    before = cluster.voters()
    gone = max({1, 2, 3} - {cluster.active()})
    removed = cluster.run("quorum", "remove", gone)
    assert f"node {gone} with directory {before[gone]} does not vote any more" in removed.err
    assert cluster.voters() == {node: before[node] for node in before if node != gone}
    check_refusals(cluster, gone)

    port = cluster.place_of(gone)
    cluster.kill(gone)
    cluster.create("without-it")
    missed = cluster.run("quorum", "add", f"{gone}@{port}", "--timeout", "0.5", code=UNREACHABLE)
    assert "does not observe the metadata, or has not caught up" in missed.err
    cluster.start_one(gone)
    cluster.until_serving(gone)
    until(lambda: observers(cluster) == [gone], what=f"{gone} observes")
    added = cluster.run("quorum", "add", f"{gone}@{port}")
    assert f"node {gone} with directory {before[gone]} votes" in added.err
    assert cluster.voters() == before
    again = cluster.run("quorum", "add", f"{gone}@{port}", code=CONFLICT)
    assert f"node {gone} is a voter with directory {before[gone]}: remove it first" in again.err
    assert cluster.voters() == before

    cluster.kill(cluster.active())
    cluster.create("with-its-vote")


def check_refusals(cluster, gone):
    """What does not exist is refused, with a sentence, and changes nothing."""
    before = cluster.voters()
    for node in (gone, 9):
        refused = cluster.run("quorum", "remove", node, code=NOT_FOUND)
        assert f"node {node} with directory any is none of the voters" in refused.err
    unknown = cluster.run("quorum", "add", "9@127.0.0.1:1", "--timeout", "0.5", code=UNREACHABLE)
    assert "node 9 does not observe the metadata" in unknown.err
    unknown = cluster.run("quorum", "replace", "9", "--timeout", "0.5", code=REFUSED)
    assert "node 9 does not observe the metadata" in unknown.err
    unplaced = cluster.run("quorum", "replace", gone, code=USAGE)
    assert f"say where it listens, {gone}@HOST:PORT" in " ".join(unplaced.err.split())
    for words in (["add", gone], ["add", "four@h:1"], ["add", "4@h"], ["replace", "4@"]):
        assert "expected ID" in cluster.run("quorum", *words, code=USAGE).err
    assert cluster.voters() == before


def test_the_leader_itself_can_be_removed(start):
    cluster = start("-n", "3")
    cluster.until_recorded()
    before, leader = cluster.voters(), cluster.active()
    cluster.run("quorum", "remove", leader)
    voters = {node: before[node] for node in before if node != leader}
    until(lambda: cluster.voters() == voters, what=f"voters {voters}")
    status = until(cluster.quorum, what="a quorum of two")
    assert status["leader"] in voters
    cluster.create("by-two", "-p", "3")
    observing = cluster.address_of(leader)
    until(lambda: "by-two" in cluster.topics(observing), what="it follows as an observer")
    last = min(voters)
    cluster.run("quorum", "remove", last)
    (alone,) = {1, 2, 3} - {leader, last}
    until(lambda: cluster.voters() == {alone: before[alone]}, what=f"only {alone} votes")
    refused = cluster.run("quorum", "remove", alone, code=REFUSED)
    assert f"node {alone} is the only voter" in refused.err
    for node in (leader, last):
        cluster.run("quorum", "add", f"{node}@{cluster.place_of(node)}")
    assert cluster.voters() == before
    cluster.create("by-three")


def test_a_fourth_controller_joins_and_any_one_of_four_may_die(start):
    cluster = start("-n", "3")
    cluster.until_recorded()
    before = cluster.voters()
    address = cluster.start_controller(4)
    until(lambda: observers(cluster) == [4], what="4 observes")
    added = cluster.run("quorum", "add", f"4@{address}")
    fourth = cluster.quorum()["voters"][-1]
    assert added.err == f"node 4 with directory {fourth['directory']} votes\n"
    assert cluster.voters() == {**before, 4: fourth["directory"]}
    dead = cluster.active()
    cluster.kill(dead)
    alive = cluster.address_of(min({1, 2, 3} - {dead}))
    cluster.create("by-three-of-four", address=alive)
    cluster.resume()
    assert cluster.voters() == {**before, 4: fourth["directory"]}
    assert until(cluster.quorum, what="a quorum of four")["leader"] in {1, 2, 3, 4}
    cluster.run("quorum", "remove", 4)
    assert cluster.voters() == before
