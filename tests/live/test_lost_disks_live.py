"""Goal: a disk that was lost, or that came back older, never takes acknowledged records with it.

Method: real processes on free ports; `kill -9`, directories that are removed, replaced and put
back, and every fact is read with the command line, as an operator would. What takes time is waited
for with far more patience than it needs. The quorum's side is in `test_lost_voters_live.py`.
"""

import re
import shutil
import signal
from contextlib import suppress

import pytest
from commands import hightide
from lost_disks import Disks, ports_in_a_row
from secure_run import WORDS, reaching
from three_nodes import until

from hightide import blocking
from hightide.protocol.errors import HightideError
from hightide_cli.failures import CONFLICT, REFUSED, UNHEALTHY, UNREACHABLE, USAGE

pytestmark = [pytest.mark.live, pytest.mark.slow]

KEPT_SOON = "replica.high.watermark.checkpoint.interval.ms=200"
"""What a follower that is killed knows of what was committed is soon on its disk."""
KEPT_NEVER = "replica.high.watermark.checkpoint.interval.ms=1h"
HEARD_OFTEN = "broker.heartbeat.interval.ms=300"
"""A broker may stop in order as soon as all have said that they know."""
REMEDIES = ("hightide storage format --join", "hightide up --replace", "mount or restore it")


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


# -- the last one in sync --------------------------------------------------------------------------


def test_what_only_a_lost_disk_held_is_missed_by_all_and_given_up_only_by_a_human(start):
    """Two followers die one after the other, with 100 and 200 of 300 records; then the leader does,
    a controller, and its disk is gone; all is started again, it with another disk."""
    cluster = start("-n", "5", settings=[KEPT_SOON])
    cluster.place("t", (3, 4, 5), min_insync_replicas=1)
    for dies, isr, end in ((4, [3, 5], 100), (5, [3], 200)):
        cluster.fill("t", end - 100, end)
        cluster.until_held("t", dies, end)
        cluster.kill(dies)
        cluster.until_state("t", isr=isr)
    cluster.fill("t", 200, 300)
    assert cluster.numbers("t") == [*range(300)]
    cluster.kill(3)
    cluster.lose(3)
    cluster.resume("--replace", 3)
    assert cluster.info(3)["joining"] is True
    assert cluster.voters()[3] == cluster.info(3)["directory_id"]
    check_that_nobody_leads(cluster)
    check_that_nothing_is_given_up_unasked(cluster)

    ended = cluster.run("partitions", "elect", "t:0", "--unclean", "--yes")
    check_told(ended, {3: 0, 4: 100, 5: 200})
    cluster.until_state("t", leader=5, isr=[3, 4, 5])
    assert cluster.numbers("t") == [*range(200)]
    cluster.fill("t", 200, 250)
    assert cluster.numbers("t") == [*range(250)]
    until(lambda: set(cluster.held("t")[0].values()) == {(0, 250)}, what="all hold all")
    assert "3 replicas agree" in cluster.run("partitions", "diff", "t:0").err


def check_that_nobody_leads(cluster):
    """Nobody leads, everybody says why, and who held it last; no disk was cut."""
    (state,) = cluster.describe("t")["partitions"]
    assert (state["leader"], state["isr"], state["elr"], state["last_leader"]) == (-1, [], [], 3)
    sentence = "nobody leads t-0: no disk is left that certainly has all that was committed; "
    sentence += "it was held last by broker 3, whose disk was lost or replaced"
    assert sentence in state["error"]
    described = cluster.run("topics", "describe", "--unavailable").out.decode()
    assert "Leader: none" in described
    assert sentence in described
    refused = cluster.run("produce", "t", "--timeout", "1", stdin=b"lost?\n", code=UNREACHABLE)
    assert sentence in refused.err
    held, said = cluster.held("t", code=UNHEALTHY)
    assert held == {3: (0, 0), 4: (0, 100), 5: (0, 200)}
    assert sentence in said


def check_that_nothing_is_given_up_unasked(cluster):
    """Without --yes it is only told what each of them holds; and the preferred one may not lead."""
    before = cluster.describe("t")
    for which in ("t:0", "--all"):
        asked = cluster.run("partitions", "elect", which, "--unclean", code=USAGE)
        assert asked.out == b""
        assert "it was held last by broker 3" in asked.err
        assert "below the last known watermark, 200" in asked.err
        check_told(asked, {3: 0, 4: 100, 5: 200})
        assert "--yes" in asked.err
    refused = cluster.run("partitions", "elect", "t:0", code=REFUSED)
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in refused.err
    assert cluster.describe("t") == before
    assert cluster.held("t")[0] == {3: (0, 0), 4: (0, 100), 5: (0, 200)}


def check_told(ended, held):
    """Of each candidate it is said how many records it holds."""
    for broker, count in held.items():
        assert re.search(rf"broker {broker}\b[^,.;]* {count}\b", ended.err), ended.err


def lose_the_leader(cluster, leader, follower):
    """The follower dies with 123 records, of which it did not keep that they are committed; then
    the leader does, with 200, and its disk is gone. Both are started again."""
    cluster.place("t", (leader, follower), min_insync_replicas=1)
    cluster.fill("t", 0, 123)
    cluster.kill(follower)
    cluster.until_state("t", isr=[leader])
    cluster.fill("t", 123, 200)
    cluster.kill(leader)
    cluster.lose(leader)
    cluster.resume("--replace", leader)
    cluster.until_state("t", leader=-1, elr=[])
    assert cluster.held("t")[0] == {leader: (0, 0), follower: (0, 123)}


def test_what_a_disk_holds_is_told_even_if_it_keeps_no_watermark(start):
    cluster = start("-n", "3", settings=[KEPT_NEVER])
    lose_the_leader(cluster, 1, 2)
    asked = cluster.run("partitions", "elect", "t:0", "--unclean", code=USAGE)
    check_told(asked, {1: 0, 2: 123})


def test_the_longest_log_leads_even_if_the_controller_that_is_asked_is_new(start):
    """A new controller has not heard yet how far the logs reach, and the empty disk is the first of
    the assignment: what another disk still holds must not be cut to nothing."""
    cluster = start("-n", "4")
    lose_the_leader(cluster, 4, 1)
    dead = cluster.active()
    assert dead != 1, "it was away when another one had to lead"
    alive = [cluster.address_of(node) for node in {1, 2, 3} - {dead}]
    with blocking.Admin(**reaching(",".join(alive)), default_api_timeout_ms=2000) as admin:
        admin.describe_topic("t")
        cluster.send(dead, signal.SIGKILL)
        until(lambda: elected(admin, "t"), what="an election")
    state = until(lambda: (found := cluster.state("t"))["leader"] >= 0 and found, what="a leader")
    assert state["leader"] == 1
    assert cluster.numbers("t") == [*range(123)]


def elected(admin, topic):
    """Ask for an unclean election; whether somebody leads."""
    with suppress(HightideError):
        (result,) = admin.elect_leaders([(topic, 0)], unclean=True)
        return result.leader >= 0
    return False


# -- a directory that is empty ---------------------------------------------------------------------


def test_a_node_whose_directory_is_empty_does_not_start_and_makes_nothing(start, tmp_path):
    cluster = start("-n", "3", "--topic", "t:1:3")
    cluster.fill("t", 0, 100)
    others = {node: cluster.pids()[node] for node in (1, 3)}
    cluster.kill(2)
    kept = cluster.directory(2).rename(tmp_path / "kept")
    for is_there in (False, True):
        if is_there:
            cluster.directory(2).mkdir(exist_ok=True)
        check_refused(cluster, 2)
        assert cluster.pids() == others, "the others go on"
    cluster.down()
    check_refused(cluster, 2)
    assert cluster.pids() == {}, "what it started is stopped again"
    asked = cluster.server_start(2)
    assert asked.code == CONFLICT
    assert all(remedy in asked.err for remedy in REMEDIES)
    assert files_of(cluster.directory(2)) == []

    cluster.directory(2).rmdir()
    kept.rename(cluster.directory(2))
    cluster.resume()
    assert cluster.active() in {1, 2, 3}
    assert cluster.numbers("t") == [*range(100)]
    cluster.until_state("t", isr=cluster.state("t")["replicas"])


def files_of(directory):
    return [path.name for path in directory.iterdir()] if directory.exists() else []


def check_refused(cluster, node):
    refused = cluster.resume(code=CONFLICT)
    assert refused.out == b""
    assert f"broker-{node} did not start (exit code {CONFLICT})" in refused.err
    assert f"the data directory of node {node}, is not formatted" in refused.err
    assert all(remedy in refused.err for remedy in REMEDIES)
    assert f"hightide up --replace {node})" in refused.err
    assert "Traceback" not in cluster.log(node)
    assert files_of(cluster.directory(node)) == [], "nothing was formatted"


# -- up --replace that is refused ------------------------------------------------------------------


def test_up_replaces_only_what_is_lost(start):
    cluster = start("-n", "3", "--topic", "t:1:3")
    cluster.fill("t", 0, 10)
    words = ["--replace", "2"]
    running = cluster.resume(*words, code=None)
    assert (running.code, running.out) == (USAGE, b"")
    assert "--replace 2: it runs, as process" in running.err
    cluster.kill(2)
    before, pids = cluster.info(2), cluster.pids()
    refused = cluster.resume(*words, code=USAGE)
    assert "broker-2 is there and formatted" in refused.err
    assert "`hightide quorum replace 2` has it vote" in " ".join(refused.err.split())
    refused = cluster.resume("--replace", "7", code=USAGE)
    assert "--replace 7: the cluster has nodes [1, 2, 3]" in refused.err
    cluster.lose(2)
    cluster.resume("--replace", "2", "--replace", "3", code=USAGE)
    cluster.kill(3)
    away = cluster.directory(3).rename(cluster.directory(3).with_name("away"))
    refused = cluster.resume(*words, code=USAGE)
    assert "only [1] would be left" in refused.err, "the third disk is not there, either"
    away.rename(cluster.directory(3))
    cluster.resume(code=None)
    pids = cluster.pids()
    cluster.resume("--replace", "2", "--replace", "7", code=USAGE)
    assert files_of(cluster.directory(2)) == [], "all or nothing"
    assert cluster.pids() == pids
    cluster.resume(*words)
    assert cluster.info(2)["directory_id"] not in (before["directory_id"], "")
    assert cluster.voters()[2] == cluster.info(2)["directory_id"]
    cluster.until_state("t", isr=cluster.state("t")["replicas"])
    assert cluster.numbers("t") == [*range(10)]


def test_a_directory_that_was_lost_with_the_plan_is_not_made_for_a_voter(start):
    port = ports_in_a_row(2 * 3)  # of a secure cluster each node has two
    cluster = start("-n", "3", "--port", str(port))
    # Two are in sync with everything, no matter who stops last.
    cluster.place("t", (1, 2, 3), min_insync_replicas=2)
    cluster.fill("t", 0, 10)
    cluster.until_recorded()
    before = cluster.voters()
    cluster.down()
    cluster.lose(2)
    (cluster.data / "cluster.json").unlink()
    words = ["-n", "3", "--port", str(port)]
    if WORDS:
        refused = cluster.resume(*words, code=USAGE)
        assert "held a secure cluster: restore the file, or start it with --secure" in " ".join(
            refused.err.split()
        )
        words += WORDS
    refused = cluster.resume(*words, code=USAGE)
    assert "neither cluster.json nor broker-2" in " ".join(refused.err.split())
    assert files_of(cluster.directory(2)) == []
    cluster.resume(*words, "--replace", "2")
    assert cluster.info(2)["joining"] is True
    assert cluster.voters() == before | {2: cluster.info(2)["directory_id"]}
    assert cluster.numbers("t") == [*range(10)]


def test_a_cluster_that_there_never_was_replaces_nothing(tmp_path):
    data = tmp_path / "data"
    for _ in range(2):
        refused = hightide("up", "--detach", "--data", data, "--replace", "1", code=USAGE)
        assert "--replace 1: there is no cluster yet" in " ".join(refused.err.split())
        assert not [path for path in data.rglob("*") if path.is_file()], "it stays a new one"


# -- older copies ----------------------------------------------------------------------------------


def with_a_copy(start, tmp_path, *, min_isr):
    """Brokers 4 and 1 hold 200 records, all in sync; and a copy of 4's directory as it was with 100
    of them, from between two lives, both of which it ended in order."""
    cluster = start("-n", "4", settings=[HEARD_OFTEN])
    cluster.place("t", (4, 1), min_insync_replicas=min_isr)
    cluster.fill("t", 0, 100)
    cluster.stop(4)
    shutil.copytree(cluster.directory(4), tmp_path / "copy")
    cluster.resume()
    cluster.until_state("t", isr=[4, 1])
    cluster.fill("t", 100, 200)
    assert cluster.numbers("t") == [*range(200)]
    return cluster


def put_back(cluster, directory):
    """Broker 4, which does not run, has this directory in place of its own, which is kept aside."""
    cluster.directory(4).rename(directory.with_name("newest"))
    shutil.copytree(directory, cluster.directory(4))


def test_an_older_copy_does_not_lead_although_its_broker_was_eligible(start, tmp_path):
    cluster = with_a_copy(start, tmp_path, min_isr=2)
    cluster.stop(4)
    cluster.until_state("t", leader=1, isr=[1], elr=[4])
    cluster.kill(1)
    cluster.until_state("t", leader=-1, elr=[4, 1])
    put_back(cluster, tmp_path / "copy")
    cluster.start_one(4)
    cluster.until_serving(4)
    state = cluster.until_state("t", leader=-1, elr=[1])
    assert "what is committed is on broker 1, of which one is waited for" in state["message"]
    assert cluster.held("t")[0] == {4: (0, 100), 1: (None, None)}

    cluster.resume()
    cluster.until_state("t", leader=1, isr=[4, 1])
    assert cluster.numbers("t") == [*range(200)]
    until(lambda: set(cluster.held("t")[0].values()) == {(0, 200)}, what="both hold all")
    assert "2 replicas agree" in cluster.run("partitions", "diff", "t:0").err


def test_an_older_copy_of_the_last_in_sync_does_not_lead_and_the_newest_brings_all_back(
    start, tmp_path
):
    cluster = with_a_copy(start, tmp_path, min_isr=1)
    cluster.kill(1)
    cluster.until_state("t", leader=4, isr=[4])
    cluster.fill("t", 200, 300)
    cluster.stop(4)
    cluster.until_state("t", leader=-1, elr=[4])
    put_back(cluster, tmp_path / "copy")
    cluster.resume()
    state = cluster.until_state("t", leader=-1, elr=[])
    assert "held last by broker 4, whose disk was lost or replaced" in state["message"]
    assert cluster.held("t")[0] == {4: (0, 100), 1: (0, 200)}

    cluster.stop(4)
    cluster.lose(4)
    (tmp_path / "newest").rename(cluster.directory(4))
    cluster.resume()
    assert cluster.held("t")[0] == {4: (0, 300), 1: (0, 200)}
    cluster.run("partitions", "elect", "t:0", "--unclean", "--yes")
    cluster.until_state("t", leader=4, isr=[4, 1])
    assert cluster.numbers("t") == [*range(300)]
