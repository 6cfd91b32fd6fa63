"""The table of requests: each stands in it once, with who answers it and what that takes.

Method: the rows as a node makes them, over handlers that only say who they are; and one real
controller that is no broker.
"""

from collections import Counter

import pytest
from brokers import settings

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST, APIS
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.acls import Operation, Resource
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.quorum.leader import METADATA_TOPIC
from hightide_broker.runtime.base.call import Call, Reply
from hightide_broker.runtime.server import table
from hightide_broker.runtime.server.gate import Gate, Permission
from hightide_broker.runtime.server.routes import Routes

ENVELOPED = {"register_broker", "broker_heartbeat", "allocate_producer_ids", "alter_partition"}
"""Decided by the active controller alone, and only nodes ask."""
NEEDS_NOTHING = {"api_versions", "describe_cluster", "sasl_handshake", "sasl_authenticate"}


class Anybody:
    """A room's handlers: each answers with its own name."""

    def __init__(self, room):
        self._room = room

    def __getattr__(self, name):
        return lambda _: f"{self._room}.{name}"


def rows():
    return [
        *table.about_the_quorum(Anybody("quorum"), Anybody("channel")),
        *table.about_records(Anybody("records")),
        *table.about_groups(Anybody("groups"), Anybody("offsets")),
        *table.about_the_cluster(Anybody("admin")),
        *table.about_access(Anybody("access"), Anybody("admin")),
    ]


def routes(*, is_broker=True, why_not=""):
    gate = Gate(ClusterImage, settings(), bool)
    return Routes(rows(), gate, node=4, is_broker=is_broker, why_not=lambda: why_not, look=None)


def ask(found, request):
    outcome = found.begin(API_BY_REQUEST[type(request)], Call(request))
    return outcome if isinstance(outcome, str | Reply) else outcome()


def refusal(found, request):
    with pytest.raises(Refused) as caught:
        ask(found, request)
    return caught.value


def fetch(topic="orders", by=-1):
    part = m.FetchPartition(topic=topic, partition=0, fetch_offset=0)
    return m.FetchRequest(replica_id=by, max_wait_ms=0, partitions=[part])


def test_every_request_stands_in_the_table_or_comes_in_an_envelope():
    named = Counter(row.api.name for row in rows())
    assert named.pop("fetch") == 3, "by followers, by consumers, of the metadata"
    assert named.pop("list_offsets") == 2, "by followers, by consumers"
    assert set(named.values()) == {1}
    asked = {*named, "fetch", "list_offsets", "api_versions"}
    assert {api.name for api in APIS} == asked | ENVELOPED


def test_who_asks_needs_a_permission_but_for_what_is_no_secret():
    free = {row.api.name for row in rows() if not row.permissions}
    assert free == NEEDS_NOTHING - {"api_versions"}


def test_only_nodes_act_for_the_cluster():
    action = Permission(Operation.CLUSTER_ACTION, Resource.CLUSTER)
    for row in rows():
        assert row.is_for_clients == (action not in row.permissions), row.api.name


@pytest.mark.parametrize(
    ("request_", "who"),
    [
        (fetch(), "records.fetch"),
        (fetch(by=2), "records.fetch"),
        (fetch(METADATA_TOPIC, by=2), "quorum.begin"),
        (fetch(METADATA_TOPIC), "quorum.begin"),
        (c.EndQuorumEpochRequest(cluster_id="", voter=2, epoch=1, leader=1), "quorum.begin"),
        (m.CreateTopicsRequest(topics=[]), "admin.change"),
        (m.MetadataRequest(), "admin.metadata"),
    ],
)
def test_a_request_finds_who_answers_it(request_, who):
    assert ask(routes(), request_) == who


def test_a_node_that_starts_answers_nodes_and_says_why_it_answers_nobody_else():
    starting = routes(why_not="it starts")
    assert ask(starting, fetch(METADATA_TOPIC, by=2)) == "quorum.begin"
    assert isinstance(ask(starting, m.ApiVersionsRequest()), Reply)
    for request in (fetch(), fetch(by=2), m.MetadataRequest()):
        said = refusal(starting, request)
        assert (said.code, said.message) == (ErrorCode.BROKER_NOT_AVAILABLE, "it starts")


def test_a_controller_answers_about_the_cluster_and_sends_away_who_wants_records():
    controller = routes(is_broker=False)
    assert ask(controller, m.MetadataRequest()) == "admin.metadata"
    assert ask(controller, fetch(METADATA_TOPIC, by=2)) == "quorum.begin"
    for request in (fetch(), m.ListOffsetsRequest(partitions=[])):
        said = refusal(controller, request)
        assert said.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "node 4 is a controller" in said.message


def test_what_only_an_envelope_carries_is_refused_at_the_door():
    request = c.AllocateProducerIdsRequest(broker=1, broker_epoch=1)
    said = refusal(routes(), request)
    assert said.code is ErrorCode.INVALID_REQUEST
    assert "envelope" in said.message


@pytest.mark.parametrize("is_broker", [True, False])
def test_what_is_announced_is_what_is_answered(is_broker):
    found = routes(is_broker=is_broker)
    announced = {api.name for api in ask(found, m.ApiVersionsRequest()).body.apis}
    assert announced >= {"api_versions", "fetch", "metadata", "vote"}
    assert ("produce" in announced, "join_group" in announced) == (is_broker, is_broker)
    assert not announced & ENVELOPED
