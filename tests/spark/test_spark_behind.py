"""One broker hears of everything late: it leads, coordinates or tells as it did before a topic was
deleted and made again.

Goal: what a sink keeps of a topic is of the one that there is, and a task does not fail over it.
Method: three brokers in this process, one of which applies no metadata until it was heard to
disagree.
"""

# ruff: noqa: F811 - fixtures are imported by name

from contextlib import closing

import pytest
import trio
from patience import PATIENCE_S
from secure_run import direct, reaching

pytest.importorskip("pyspark")

from test_spark_layouts import begun
from test_spark_sink import Target, admin, cluster, everything, rows  # noqa: F401
from three_nodes import until

from hightide.blocking import Admin, Producer
from hightide.protocol import group_messages as g
from hightide.protocol.errors import ApiError
from hightide.spark import client as spark_client
from hightide.spark import task_mark
from hightide.spark.client import BlockingClient
from hightide.spark.marks import Mark, TopicMark, Writing, ends_of
from hightide.spark.produce import TaskWriter
from hightide_broker.runtime.cluster.metadata_loader import MetadataLoader

pytestmark = pytest.mark.live

BROKERS = (1, 2, 3)
ASSIGNMENT = [[broker] for broker in BROKERS]
OLD = 20
"""Records of each partition of the topic that was deleted."""


class Behind:
    """Which brokers, by id, apply nothing that is new; they do once one was heard to disagree."""

    def __init__(self):
        self.ids = set()

    def hear(self, answer):
        if any(part.error == "INCONSISTENT_TOPIC_ID" for part in getattr(answer, "partitions", ())):
            self.ids.clear()


@pytest.fixture
def behind(monkeypatch):
    found, apply, call = Behind(), MetadataLoader._apply, BlockingClient.call

    async def apply_later(loader):
        while loader._node in found.ids:
            await trio.sleep(0.001)
        await apply(loader)

    def call_and_hear(client, *about, **how):
        answer = call(client, *about, **how)
        found.hear(answer[0])
        return answer

    monkeypatch.setattr(MetadataLoader, "_apply", apply_later)
    monkeypatch.setattr(BlockingClient, "call", call_and_hear)
    yield found
    found.ids.clear()


class Remade:
    """A topic with a partition on each broker, made again while one of them is behind."""

    def __init__(self, cluster, admin, name, behind):
        self.cluster, self.admin, self.name, self.behind = cluster, admin, name, behind
        self.controller = admin.describe_cluster().controller
        admin.create_topic(name, assignment=ASSIGNMENT)
        with Producer(**reaching(cluster.bootstrap)) as producer:
            for number in range(3):
                producer.send_many(name, [b"old"] * OLD, partition=number)
            producer.flush()
        for broker in BROKERS:
            self.until_known_at(broker)
        self.old_id = admin.describe_topic(name).topic_id

    def make_again(self, broker):
        """All others know of it."""
        self.behind.ids.add(broker)
        with Admin(**reaching(self.address(self.controller))) as admin:
            admin.delete_topic(self.name)
            admin.create_topic(self.name, assignment=ASSIGNMENT)
        for other in BROKERS:
            if other != broker:
                self.until_known_at(other, not_of=self.old_id)

    def until_known_at(self, broker, *, not_of=""):
        with Admin(**reaching(self.address(broker))) as admin:

            def is_known():
                found = [each for each in admin.list_topics() if each.topic == self.name]
                return found and found[0].topic_id != not_of and found[0].topic_id

            return until(is_known, what=f"it is known at broker {broker}")

    def address(self, broker):
        return self.cluster.bootstrap.split(",")[broker - 1]

    def client(self, broker):
        """One that asks this one first."""
        return closing(BlockingClient(*direct(self.address(broker))))


@pytest.fixture
def remade(cluster, admin, behind, request):
    return Remade(cluster, admin, request.node.originalname.replace("_", "-"), behind)


def test_a_leader_that_has_the_old_topic_does_not_say_where_the_new_one_ends(remade):
    late, other, *_ = (broker for broker in BROKERS if broker != remade.controller)
    remade.make_again(late)
    with remade.client(other) as client:
        found = ends_of(client, [remade.name], timeout_s=PATIENCE_S)[remade.name]
    new_id = remade.until_known_at(late, not_of=remade.old_id)
    assert (found.starts, found.topic_id) == ((0, 0, 0), new_id)


def test_who_tells_of_the_old_topic_is_not_believed_where_leaders_have_the_new_one(
    remade, monkeypatch
):
    monkeypatch.setattr(spark_client, "GONE_TOPIC_GRACE_S", 0.0)
    late = next(broker for broker in BROKERS if broker != remade.controller)
    remade.make_again(late)
    with remade.client(late) as client:
        found = ends_of(client, [remade.name], timeout_s=PATIENCE_S)[remade.name]
    new_id = remade.until_known_at(late, not_of=remade.old_id)
    assert (found.starts, found.topic_id) == ((0, 0, 0), new_id)


def test_a_mark_of_the_new_topic_is_not_kept_as_one_of_the_old(remade):
    with remade.client(remade.controller) as client:
        sink, late = next(
            (sink, coordinator)
            for sink in map("sink-{}".format, range(100))
            if (coordinator := coordinator_of(client, sink)) != remade.controller
        )
        remade.make_again(late)
        topic_id = remade.until_known_at(remade.controller, not_of=remade.old_id)
        mark = Mark(7, {remade.name: TopicMark(topic_id, (0, 0, 0))})
        mark.write(client, sink, [remade.name], timeout_s=PATIENCE_S)
        remade.behind.ids.clear()
        remade.until_known_at(late, not_of=remade.old_id)
        kept = Mark.read(client, sink, timeout_s=PATIENCE_S)
    assert (kept.next_batch, [*kept.topics]) == (7, [remade.name])


def coordinator_of(client, sink):
    client.refresh([], timeout_s=PATIENCE_S)

    def ask():
        found = client._any(g.FindCoordinatorRequest(group=f"sink-{sink}"))
        return found if found.error is None else None

    found = until(ask, what="the group has a coordinator")
    brokers = client.metadata.brokers.values()
    return next(each.id for each in brokers if (each.host, each.port) == (found.host, found.port))


def test_a_topic_that_goes_away_while_it_is_looked_at_is_gone(cluster, admin, monkeypatch):
    name, ask = "goes-away", BlockingClient.ask_leaders
    admin.create_topic(name, partitions=1, replication_factor=1)
    monkeypatch.setattr(spark_client, "GONE_TOPIC_GRACE_S", 0.0)

    def is_gone_at(address):
        with Admin(**reaching(address)) as asked:
            until(lambda: name not in [t.topic for t in asked.list_topics()], what="it is gone")

    def gone_by_then(client, *about, **how):
        monkeypatch.setattr(BlockingClient, "ask_leaders", ask)
        admin.delete_topic(name)
        for address in cluster.bootstrap.split(","):
            is_gone_at(address)
        return ask(client, *about, **how)

    monkeypatch.setattr(BlockingClient, "ask_leaders", gone_by_then)
    with closing(BlockingClient(*direct(cluster.bootstrap))) as client:
        assert ends_of(client, [name], timeout_s=PATIENCE_S, gone_ok=True) == {}


def test_a_task_that_was_told_that_its_topic_is_gone_begins_again_where_it_is_there(
    cluster, admin, request, monkeypatch
):
    """It has not looked at what a dead run stored there."""
    with closing(Target(cluster, admin, request.node.name.replace("_", "-"))) as target:
        begun(target, 0, 0, rows(0, 40), run="dead")
        how = {"kind": TaskWriter, "writing": Writing("checkpoint", "next", job="next")}
        with monkeypatch.context() as patch:
            patch.setattr(task_mark, "ends_of", lambda *_, **__: {})
            told = target.task(task=1, **how)
        with pytest.raises(ApiError, match="The task is to begin again"):
            told.write(rows(0, 100))
        target.run(0, rows(40, 100), rows(0, 40), run="next")
        assert everything(target) == [*range(100)]


def test_a_broker_that_has_not_heard_of_a_topic_does_not_end_a_task_that_has(
    cluster, admin, request, monkeypatch
):
    refresh = BlockingClient.refresh

    def told_by_one_that_is_behind(client, topics, *, timeout_s, gone=None):
        if gone is not None:
            return frozenset(topics)
        return refresh(client, topics, timeout_s=timeout_s)

    with closing(Target(cluster, admin, request.node.name.replace("_", "-"))) as target:
        task = target.task()
        monkeypatch.setattr(BlockingClient, "refresh", told_by_one_that_is_behind)
        task.write(rows(0, 100))
        task.finish()
        assert everything(target) == [*range(100)]
