"""A console beside a cluster of three processes, asked over HTTP.

Goal: lanes are what brokers say of themselves, moves happen only where they are allowed, and no
bytes that anybody sends harm it; method: processes, sockets, bytes.
"""

import pytest
from console_run import ATTACKS, Console, Visitor
from patience import wait_until
from secure_run import open_only, reaching
from three_nodes import Nodes

from hightide import blocking

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    open_only("who may see what has a test of its own"),
]
MARKUP = "<img src=x onerror=alert(1)>\x00\x1b[31m\u202e</script>"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    data = tmp_path_factory.mktemp("cluster") / "data"
    made = Nodes(data, "-n", "3", "--topic", "orders:2:3")
    try:
        made.run("produce", "orders", stdin=b"".join(b"%d\n" % n for n in range(100)))
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def console(cluster):
    made = Console(cluster.address)
    yield made
    code, said = made.end()
    assert (code, said.splitlines()) == (0, ["Ctrl-C stops it", "stopped"])


@pytest.fixture(scope="module")
def changing(cluster):
    made = Console(cluster.address, "--allow-changes")
    yield made
    made.end()


def test_lanes_are_what_the_brokers_say_of_their_replicas(cluster, console):
    watching = Visitor(console).watch("orders")

    def said_by_brokers():
        with blocking.Admin(**reaching(cluster.address)) as admin:
            return sorted(
                (replica.partition, directory.broker, replica.log_end_offset)
                for directory in admin.describe_log_dirs(["orders"])
                for replica in directory.replicas
            )

    def shown():
        return sorted(
            (number, broker, end)
            for number in (0, 1)
            for broker, badge, stale, end in watching.lanes(number)
            if badge == "ISR" and not stale
        )

    expected = wait_until(
        lambda: (found := said_by_brokers()) == shown() and found, "lanes are as brokers say"
    )
    assert sum(end for _, broker, end in expected if broker == 1) == 100
    why = [part["why"] for part in watching.state["topic"]["partitions"]]
    assert len(why) == 2
    assert watching.state["cluster"]["quorum"]["leader"] in (1, 2, 3)


def test_records_are_text_whatever_is_in_them(cluster, console):
    cluster.run("topics", "create", "odd", "-p", "1", "-r", "1")
    with blocking.Producer(**reaching(cluster.address)) as producer:
        for value in (MARKUP.encode(), b"\xff\xfe", None):
            producer.send("odd", value=value, key=b"<b>").result()
    found = Visitor(console).get("/api/messages", topic="odd", partition=0, offset=0)
    values = [record["value"] for record in found["records"]]
    assert values[0]["text"] == MARKUP
    assert values[1]["hex"] == "ff fe"
    assert values[2] is None
    assert (found["start"], found["end"], found["next"]) == (0, 3, 3)
    visitor = Visitor(console)
    assert visitor.get("/api/messages", topic="odd", key="no")["records"] == []
    assert visitor.get("/api/messages", topic="odd", limit=1)["records"][0]["offset"] == 2
    assert "does not exist" in visitor.get("/api/messages", 502, topic="odd", partition=9)["error"]
    assert visitor.get("/api/messages", 409, topic="no")["code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_group_is_moved_only_where_changes_are_allowed_and_after_a_preview(
    cluster, console, changing
):
    cluster.run("consume", "orders", "--group", "readers", "--from", "start", "-c", "100")
    looks, moves = Visitor(console), Visitor(changing)
    group = moves.get("/api/group", group="readers")
    parts = [[part["topic"], part["partition"]] for part in group["partitions"]]
    move = {"group": "readers", "partitions": parts, "to": "start"}
    assert (looks.session["changes"], moves.session["changes"]) == (False, True)
    assert (
        "--allow-changes" in looks.post("/api/group/move", {**move, "preview": False}, 403)["error"]
    )
    previewed = moves.post("/api/group/move", move)["moves"]
    assert {each["new"] for each in previewed} == {0}

    def lag():
        return sum(part["lag"] for part in moves.get("/api/group", group="readers")["partitions"])

    assert lag() == 0
    assert moves.post("/api/group/move", {**move, "preview": False})["moves"] == previewed
    wait_until(lambda: lag() == 100, "the group has moved")
    listed = looks.get("/api/groups")["groups"]
    assert "readers" in [each["group"] for each in listed]


@pytest.mark.parametrize("name", ATTACKS)
def test_whatever_is_said_the_next_one_is_answered(console, name):
    for _ in range(3):
        answer = console.say(ATTACKS[name])
        assert not answer.startswith(b"HTTP/1.1 2")
        assert not answer.startswith(b"HTTP/1.1 5")
    assert Visitor(console).get("/api/groups")["groups"] is not None


def test_attacks_on_the_console_reach_no_broker(cluster, console):
    for attack in ATTACKS.values():
        console.say(attack)
    assert cluster.pids().keys() == {1, 2, 3}
    assert console.process.poll() is None
    cluster.run("produce", "orders", stdin=b"still here\n")


def test_who_signs_out_sees_nothing_more(console):
    visitor = Visitor(console)
    watching = visitor.watch()
    watching.until(lambda state: state["cluster"].get("brokers"), "the stream begins")
    visitor.post("/api/sign-out", {})
    wait_until(lambda: watching.is_over, "the stream ends")
    assert visitor.get("/api/groups", 401)["error"] == "sign in first"


def test_two_consoles_of_one_machine_leave_each_other_their_cookies(console, changing):
    first, second = Visitor(console), Visitor(changing)
    assert first._cookie.partition("=")[0] != second._cookie.partition("=")[0]


def test_the_story_of_a_partition_begins_with_its_leader(cluster, console):
    visitor = Visitor(console)
    watching = visitor.watch("orders")
    watching.until(lambda _: watching.events, "something is told")

    def frames():
        return visitor.get("/api/timeline", topic="orders", partition=0)["frames"]

    found = wait_until(
        lambda: (seen := frames()) and seen[-1]["lanes"] and seen[-1]["starts"] and seen,
        "the story is there",
    )
    assert found[-1]["starts"][0][1] == 0
