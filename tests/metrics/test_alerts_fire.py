"""Each alert is fired by what it is about, on a real cluster, and by nothing before.

Goal: whoever takes over `deploy/alerts.yml` is called when a broker dies, and not when none does.
Method: processes whose pages are scraped, a script for each rule that does the harm, and the rules'
own expressions; the rules' clock goes on by a minute with each scrape. What no script can do to a
machine is done to its calls (`fault_hook`).
"""

import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from alarm import MINUTE_S, RULES, Faults, Watch, Watched, alerted
from secure_run import open_only
from three_nodes import Nodes, until
from tries import ALL, LONG

from hightide import Admin, AuthenticationFailed, read_client_config

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    open_only("the scripts start what they need, open or secure"),
]
HOOK = Path(__file__).parents[1] / "support" / "fault_hook"
DISK, DISK_SHORT, DISK_LEFT, FILLED = 100 * 10**9, 14 * 10**9, 19 * 10**9, 10**8
SLOW_S = 0.6
LAG_MAX = 1_000
HOUR_MS, DAY_S = 3_600_000, 86_400
GUESSES = 90
"""Failed logins between two looks, a minute apart: more than one a second."""
SETTINGS = (
    *("--set", "broker.session.timeout.ms=2s"),
    *("--set", "auto.leader.rebalance.enable=false"),
    *("--set", "offsets.topic.num.partitions=1"),
    *("--set", "group.initial.rebalance.delay.ms=0"),
)
UNDER_REPLICATED = "hightide_under_replicated_partitions"
OF_ITS_OWN = {
    "HightideAuthenticationFailures",
    "HightideCertificateExpires",
    "HightideInsecureListener",
}
"""What is about a secure cluster."""


@contextmanager
def faulty(place):
    """Nodes that start in here have faults when a file says so."""
    with pytest.MonkeyPatch.context() as patch:
        paths = filter(None, [str(HOOK), os.environ.get("PYTHONPATH")])
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("FAULTS", str(place))
        yield Faults(place)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Three brokers on a machine that may go wrong."""
    place = tmp_path_factory.mktemp("alerts")
    with faulty(place) as faults:
        faults.begin("total-bytes", DISK)
        faults.begin("free-bytes", DISK)
        made = Nodes(place / "data", "-n", "3", *SETTINGS)
        try:
            made.create("__warm", "-p", "1", "-r", "3")
            yield Watched(made, faults)
        finally:
            made.end()


# -- the scripts -----------------------------------------------------------------------------------


def a_majority_is_gone(watched, watch):
    watched.cluster.kill(1, 2)
    alerted(watch, "HightideNoActiveController")


def a_broker_is_gone(watched, watch):
    watched.cluster.kill(2)
    alerted(watch, "HightideBrokerDown")


def heartbeats_get_lost(watched, watch):
    watched.faults.begin("unheard", 2)
    alerted(watch, "HightideBrokerFenced")


def the_only_replica_is_gone(watched, watch):
    watched.cluster.kill(watched.topic("alone")["leader"])
    alerted(watch, "HightideOfflinePartitions")
    watched.heal()
    watched.run("topics", "delete", "alone", "--yes")


def one_of_two_that_must_be_in_sync_is_gone(watched, watch):
    found = watched.topic("both", replicas=2, min_insync_replicas=2)
    (follower,) = {*found["replicas"]} - {found["leader"]}
    watched.cluster.kill(follower)
    alerted(watch, "HightideUnderMinIsr")


def a_follower_is_gone(watched, watch):
    found = watched.topic("three", replicas=3)
    watched.cluster.kill(next(iter({*found["replicas"]} - {found["leader"]})))
    alerted(watch, "HightideUnderReplicated")


def the_only_copy_is_damaged(watched, watch):
    broker = watched.topic("damaged")["leader"]
    watched.run("produce", "damaged", stdin=b"x" * 100 + b"\n")
    watched.damage("damaged", broker)
    watched.run("consume", "damaged", "--from", "start", "-e", "--timeout", "2", code=None)
    alerted(watch, "HightideOfflineReplicas")
    watched.run("topics", "delete", "damaged", "--yes")


def damage_is_found(watched, watch):
    found = watched.topic("spoilt", replicas=3)
    watched.run("produce", "spoilt", "--acks", "all", stdin=b"x" * 100 + b"\n")
    watched.damage("spoilt", found["leader"])
    watched.run("consume", "spoilt", "--from", "start", "-e", "--timeout", "20", code=None)
    alerted(watch, "HightideCorruption")


def the_disk_is_slow(watched, watch):
    watched.topic("slow")
    watched.faults.begin("slow-sync", SLOW_S)
    alerted(watch, "HightideFsyncSlow", lambda: watched.run("produce", "slow", stdin=b"x\n"))


def the_disk_is_full(watched, watch):
    watched.faults.begin("free-bytes", DISK_SHORT)
    alerted(watch, "HightideDiskLow")
    watched.faults.begin("free-bytes", DISK)


def the_disk_fills(watched, watch):
    left = DISK_LEFT

    def write():
        nonlocal left
        left -= FILLED
        watched.faults.begin("free-bytes", left)

    alerted(watch, "HightideDiskWillFill", write)
    watched.faults.begin("free-bytes", DISK)


def the_disk_of_a_log_fails(watched, watch):
    watched.topic("unsyncable")
    watched.faults.begin("fail-sync", "/unsyncable-0/")
    watched.run("produce", "unsyncable", "--timeout", "2", stdin=b"x\n", code=None)
    alerted(watch, "HightideLogDirFailed")
    watched.run("topics", "delete", "unsyncable", "--yes")


def a_node_stands_still_again_and_again(watched, watch):
    watch.step_s = 2.5 * MINUTE_S
    alerted(watch, "HightideLoopLag", lambda: watched.frozen(3))


def somebody_gives_up_what_is_lost(watched, watch):
    found = watched.topic("given-up", replicas=2)
    first = found["leader"]
    (second,) = {*found["replicas"]} - {first}
    watched.cluster.kill(second)
    until(
        lambda: watched.partition("given-up")["isr"] == [first],
        what="the leader is alone in sync",
    )
    watched.run("produce", "given-up", "--acks", "1", stdin=b"only here\n")
    watched.cluster.kill(first)
    watched.cluster.start_one(second)
    until(lambda: second in watched.serving(), what="the other one is back")
    # Until the first one is missed, no election is needed.
    until(lambda: watched.partition("given-up")["leader"] < 0, what="nobody leads")
    assert "HightideUncleanElection" not in watch.look(), "and the new controller's zero is seen"
    words = ("partitions", "elect", "given-up:0", "--unclean", "--yes", "--timeout", "2")
    until(lambda: watched.run(*words, code=None).code == 0, what="it is elected")
    alerted(watch, "HightideUncleanElection")


def a_controller_does_not_keep_up(watched, watch):
    leader = watched.cluster.active()
    watched.cluster.send(next(node for node in (1, 2, 3) if node != leader), signal.SIGSTOP)
    watched.quotas(LAG_MAX + 100, at=leader)
    alerted(watch, "HightideQuorumLag")


def a_group_reads_what_is_old(watched, watch):
    watched.topic("old", replicas=3, retention_ms=-1)
    times = [round(time.time() * 1000) - HOUR_MS] * 2
    lines = [json.dumps({"value": "x", "timestamp": at}).encode() + b"\n" for at in times]
    watched.run("produce", "old", "-J", stdin=b"".join(lines))
    watched.run("consume", "old", "--group", "late", "--from", "start", "-c", "1")
    # Its coordinator tells it, which reads its groups when somebody asks for one.
    alerted(watch, "HightideGroupLag", lambda: watched.run("groups", "lag", "late"))
    watched.run("topics", "delete", "old", "--yes")


SCRIPTS = {
    "HightideNoActiveController": a_majority_is_gone,
    "HightideBrokerDown": a_broker_is_gone,
    "HightideBrokerFenced": heartbeats_get_lost,
    "HightideOfflinePartitions": the_only_replica_is_gone,
    "HightideUnderMinIsr": one_of_two_that_must_be_in_sync_is_gone,
    "HightideUnderReplicated": a_follower_is_gone,
    "HightideOfflineReplicas": the_only_copy_is_damaged,
    "HightideCorruption": damage_is_found,
    "HightideFsyncSlow": the_disk_is_slow,
    "HightideDiskLow": the_disk_is_full,
    "HightideDiskWillFill": the_disk_fills,
    "HightideLogDirFailed": the_disk_of_a_log_fails,
    "HightideLoopLag": a_node_stands_still_again_and_again,
    "HightideUncleanElection": somebody_gives_up_what_is_lost,
    "HightideQuorumLag": a_controller_does_not_keep_up,
    "HightideGroupLag": a_group_reads_what_is_old,
}


WORST = [
    "HightideNoActiveController",
    "HightideBrokerDown",
    "HightideOfflinePartitions",
    "HightideUnderMinIsr",
    "HightideCorruption",
    "HightideDiskLow",
]
"""What somebody gets up for at night; the long runs have the others, too."""


def test_every_alert_has_a_script():
    assert {*RULES} == {*SCRIPTS} | OF_ITS_OWN


@pytest.mark.parametrize("name", SCRIPTS if ALL else WORST)
def test_an_alert_is_silent_until_what_it_is_about_happens(watched, name):
    watch = Watch(watched)
    until(lambda: watched.serving() == {1, 2, 3}, what="all brokers serve")
    until(
        lambda: name not in watch.look() and watch.sum(UNDER_REPLICATED) == 0,
        what=f"everything is in sync, and {name} is not pending",
    )
    assert name not in watch.look()
    try:
        SCRIPTS[name](watched, watch)
    finally:
        watched.heal()


# -- of a secure cluster ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """One broker where users log in."""
    made = Nodes(tmp_path_factory.mktemp("secure") / "data", "--secure", *SETTINGS)
    try:
        yield made
    finally:
        made.end()


class Scraped:
    """A cluster that is only looked at."""

    def __init__(self, cluster):
        self._found = {row["node"]: row["metrics"] for row in cluster.ps()}

    def scraped(self):
        return self._found


async def guess(config, count):
    """As many failed logins, side by side."""
    known = read_client_config(config)
    del known["sasl_password_location"]

    async def one():
        with pytest.raises(AuthenticationFailed):
            async with Admin(**known, sasl_password="wrong") as admin:
                await admin.describe_cluster()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)


@LONG
def test_somebody_who_tries_passwords_is_told_of(secure):
    watch = Watch(Scraped(secure))
    name, config = "HightideAuthenticationFailures", secure.data / "client.toml"
    trio.run(guess, config, 1)
    assert name not in watch.look()
    assert name not in watch.look()
    alerted(watch, name, lambda: trio.run(guess, config, GUESSES))


def test_a_certificate_is_told_of_before_it_ends(secure):
    watch, name = Watch(Scraped(secure)), "HightideCertificateExpires"
    assert name not in watch.look()
    ends = watch.sum('hightide_certificate_expiry_timestamp_seconds{listener="client"}')
    watch.now = ends - 15 * DAY_S
    assert name not in watch.look()
    watch.now = ends - 14 * DAY_S
    alerted(watch, name)


def test_a_listener_that_asks_nobody_is_told_of_where_another_asks(secure, watched):
    name = "HightideInsecureListener"
    assert name not in Watch(Scraped(secure)).look()
    assert name not in Watch(watched).look()
    alerted(Watch(Scraped(secure), watched), name)
