"""The admin client against a real node: every method, what it gives and how it refuses.

Goal: the docstrings of `admin.py`. Method: a node in this process on a simulated disk, talked to
over a real socket; effects are looked at through other methods and with the broker tests' own
client.
"""

from functools import partial

import pytest
import trio
from brokers import NOW_MS
from clients import one_node
from fake_broker import IGNORE, LOSE_ANSWER, FakeBroker, in_memory

from hightide import Admin, ApiError, BrokerUnreachable, EpochStart, ErrorCode, RequestTimedOut
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ClosedError, HightideError, UsageError


async def refusal(awaitable):
    """The error that a call ends with, which must be the cluster's."""
    with pytest.raises(ApiError) as caught:
        await awaitable
    return caught.value.code


# --- topics -------------------------------------------------------------------------------------


async def test_a_topic_can_be_used_when_its_creation_returns(one):
    async with one.admin() as admin, one.producer() as producer:
        made = await admin.create_topic("new", partitions=3, configs={"segment.bytes": "4096"})
        places = [await (await producer.send("new", b"v", partition=p)) for p in range(3)]
        configs = {e.name: e.value for e in await admin.describe_configs("topic", "new")}
    assert (made.topic, made.partitions, made.replication_factor) == ("new", 3, 1)
    assert [(place.partition, place.offset) for place in places] == [(0, 0), (1, 0), (2, 0)]
    assert configs["segment.bytes"] == "4096"


async def test_what_is_not_said_of_a_topic_is_the_brokers_default():
    async with one_node(num_partitions="5") as other, other.admin() as admin:
        made = await admin.create_topic("new")
        assert (made.partitions, made.replication_factor) == (5, 1)
        assert len((await admin.describe_topic("new")).partitions) == 5


async def test_replicas_of_a_topic_can_be_named(one):
    async with one.admin() as admin:
        made = await admin.create_topic("new", assignment=[[1], [1]])
        assert made.partitions == 2
        partitions = (await admin.describe_topic("new")).partitions
        assert [part.replicas for part in partitions] == [[1], [1]]
        assert await refusal(admin.create_topic("worse", assignment=[[9]])) in (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        )


async def test_validation_makes_no_topic(one):
    async with one.admin() as admin:
        await admin.create_topic("new", partitions=2, validate_only=True)
        assert [topic.topic for topic in await admin.list_topics()] == ["t"]


@pytest.mark.parametrize(
    ("topic", "options", "code"),
    [
        ("t", {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("not/a name", {}, ErrorCode.INVALID_TOPIC),
        ("", {}, ErrorCode.INVALID_TOPIC),
        ("new", {"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ("new", {"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("new", {"configs": {"no.such.key": "1"}}, ErrorCode.INVALID_CONFIG),
        ("new", {"configs": {"segment.bytes": "many"}}, ErrorCode.INVALID_CONFIG),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_and_not_made(one, topic, options, code):
    async with one.admin() as admin:
        assert await refusal(admin.create_topic(topic, **options)) is code
        assert [found.topic for found in await admin.list_topics()] == ["t"]


async def test_a_refusal_says_what_was_wrong(one):
    async with one.admin() as admin:
        with pytest.raises(ApiError, match=r"TOPIC_ALREADY_EXISTS: .*'?t'?.* exists"):
            await admin.create_topic("t")


async def test_an_internal_topic_is_deleted_only_by_those_who_say_so(one):
    async with one.admin() as admin:
        with pytest.raises(UsageError, match="__consumer_offsets is internal, others rely on it"):
            await admin.delete_topic("__consumer_offsets")
        told = await refusal(admin.delete_topic("__consumer_offsets", internal=True))
        assert told is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_that_does_not_exist_is_told_soon(one):
    async with one.admin() as admin:
        with pytest.raises(ApiError, match="'t' has 1 partition, 7 is none of them") as told:
            await admin.offsets([("t", 7)], m.LATEST)
        assert told.value.attempts < 10, "all of the call's time would be more"


async def test_a_deleted_topic_is_gone_with_its_records(one):
    await one.client.produce(b"old")
    async with one.admin() as admin:
        await admin.delete_topic("t")
        assert await admin.list_topics() == []
        assert await refusal(admin.describe_topic("t")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await refusal(admin.delete_topic("t")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await admin.create_topic("t", partitions=1)
    assert await one.values() == []


async def test_topics_are_listed_and_described_with_their_partitions(one):
    async with one.admin() as admin:
        await admin.create_topic("b", partitions=2)
        await admin.create_topic("a", partitions=1)
        listed = {topic.topic: topic for topic in await admin.list_topics()}
        assert {name: len(topic.partitions) for name, topic in listed.items()} == {
            "a": 1,
            "b": 2,
            "t": 1,
        }
        described = await admin.describe_topic("b")
        assert described == listed["b"]
    for number, part in enumerate(described.partitions):
        assert (part.partition, part.leader, part.replicas, part.isr) == (number, 1, [1], [1])
    assert described.topic_id != listed["a"].topic_id != ""


async def test_partitions_are_added_and_never_taken_away(one):
    await one.client.produce(b"kept")
    async with one.admin() as admin, one.producer() as producer:
        await admin.create_partitions("t", 3)
        assert len((await admin.describe_topic("t")).partitions) == 3
        assert (await (await producer.send("t", b"v", partition=2))).offset == 0
        for count in (3, 2, 0):
            assert (
                await refusal(admin.create_partitions("t", count)) is ErrorCode.INVALID_PARTITIONS
            )
        unknown = await refusal(admin.create_partitions("nowhere", 2))
        assert unknown is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await one.values() == [b"kept"]


# --- records and offsets ------------------------------------------------------------------------


async def test_records_are_deleted_up_to_an_offset_or_all(one):
    await one.client.produce(b"a", b"b", b"c")
    async with one.admin() as admin:
        assert await admin.delete_records({("t", 0): 2}) == {("t", 0): 2}
        assert await one.client.read_all(2) != []
        assert await admin.delete_records({("t", 0): -1}) == {("t", 0): 3}
        assert await refusal(admin.delete_records({("t", 0): 4})) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await admin.delete_records({}) == {}
    assert (await one.client.fetch(3)).result.log_start_offset == 3


async def test_offsets_of_a_time_and_of_both_ends(one):
    async with one.admin() as admin, one.producer() as producer:
        await admin.create_partitions("t", 2)
        for stamp in (NOW_MS, NOW_MS + 200, NOW_MS + 100):
            await (await producer.send("t", b"v", partition=0, timestamp=stamp))
        await admin.delete_records({("t", 0): 1})
        both = [("t", 0), ("t", 1)]

        async def offsets(timestamp):
            found = await admin.offsets(both, timestamp)
            assert list(found) == both
            return [(found[where].offset, found[where].timestamp) for where in both]

        assert [offset for offset, _ in await offsets(m.EARLIEST)] == [1, 0]
        assert [offset for offset, _ in await offsets(m.LATEST)] == [3, 0]
        assert await offsets(m.MAX_TIMESTAMP) == [(1, NOW_MS + 200), (-1, -1)]
        assert await offsets(NOW_MS + 50) == [(1, NOW_MS + 200), (-1, -1)]
        assert await offsets(NOW_MS + 201) == [(-1, -1), (-1, -1)]


@pytest.mark.parametrize("where", [("nowhere", 0), ("t", 7)])
async def test_a_partition_that_is_not_there_stays_so_until_the_timeout(one, where):
    async with one.admin(default_api_timeout_ms=1000) as admin:
        for call in (
            partial(admin.offsets, [where], m.LATEST),
            partial(admin.delete_records, {where: 1}),
        ):
            with pytest.raises(ApiError) as caught:
                await call()
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- configs ------------------------------------------------------------------------------------


async def test_a_topics_configs_are_set_and_taken_back(one):
    async with one.admin() as admin:

        async def entry(name):
            found = await admin.describe_configs("topic", "t")
            return next((e.value, e.default) for e in found if e.name == name)

        before = await entry("segment.bytes")
        assert before[1] is True
        await admin.alter_topic_configs("t", set_={"segment.bytes": "2048", "retention.ms": "5000"})
        assert await entry("segment.bytes") == ("2048", False)
        await admin.alter_topic_configs("t", unset=["segment.bytes"])
        assert await entry("segment.bytes") == before
        assert await entry("retention.ms") == ("5000", False)


@pytest.mark.parametrize(
    ("topic", "set_", "code"),
    [
        ("t", {"no.such.key": "1"}, ErrorCode.INVALID_CONFIG),
        ("t", {"segment.bytes": "-3"}, ErrorCode.INVALID_CONFIG),
        ("nowhere", {"segment.bytes": "2048"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_configs_that_cannot_be_are_refused(one, topic, set_, code):
    async with one.admin() as admin:
        before = await admin.describe_configs("topic", "t")
        assert await refusal(admin.alter_topic_configs(topic, set_=set_)) is code
        assert await admin.describe_configs("topic", "t") == before


async def test_a_brokers_configs_are_described_by_that_broker(one):
    async with one.admin() as admin:
        found = {entry.name: entry for entry in await admin.describe_configs("broker", "1")}
        assert found["node.id"].value == "1"
        assert found["listen.port"].default is False
        assert all(entry.doc for entry in found.values())


@pytest.mark.parametrize(("kind", "name"), [("topic", "nowhere"), ("broker", "9"), ("moon", "1")])
async def test_what_has_no_configs_is_an_error(one, kind, name):
    async with one.admin(default_api_timeout_ms=300) as admin:
        with pytest.raises(HightideError):
            await admin.describe_configs(kind, name)


# --- descriptions -------------------------------------------------------------------------------


async def test_the_cluster_is_described(one):
    async with one.admin() as admin:
        found = await admin.describe_cluster()
        await admin.cluster.refresh([])
        assert found.cluster_id == admin.cluster.metadata.cluster_id != ""
    (broker,) = found.brokers
    assert (found.controller, broker.id, f"{broker.host}:{broker.port}") == (1, 1, one.address)
    assert (broker.fenced, sorted(broker.roles)) == (False, ["broker", "controller"])


async def test_a_node_that_shares_its_process_counts_nothing(one):
    async with one.admin() as admin:
        found = await admin.describe_node(1)
    assert (found.node, found.loop_passes, found.user_ms, found.system_ms) == (1, -1, -1, -1)


async def test_a_node_describes_its_own_copy_of_the_metadata_log(one):
    async with one.admin() as admin:
        await admin.create_topic("new")
        found = await admin.describe_metadata_log(1)
        quorum = await admin.describe_quorum()
    assert found.node == 1
    assert found.log_end_offset == found.synced_offset == found.high_watermark
    assert found.high_watermark == quorum.high_watermark > 1
    assert (found.log_start_offset, found.epochs) == (0, [EpochStart(quorum.epoch, 0)])


async def test_where_controllers_are_is_known_since_the_quorum_was_described(one, monkeypatch):
    quorum, asked = [q.QuorumReplica(id=9, host="there", port=99)], []

    async def describe(request, **_):
        asked.append(request)
        return q.DescribeQuorumResponse(
            cluster_id="c", leader=9, epoch=1, high_watermark=1, voters=quorum, observers=[]
        )

    async def call_at(address, *_, **__):
        asked.append(address)
        raise BrokerUnreachable("gone")

    async with one.admin() as admin:
        monkeypatch.setattr(admin.cluster, "call_any", describe)
        monkeypatch.setattr(admin.cluster, "call_at", call_at)
        await admin.describe_quorum()
        for _ in range(2):
            with pytest.raises(BrokerUnreachable):
                await admin.describe_metadata_log(9)
    assert [each for each in asked if isinstance(each, tuple)] == [("there", 99)] * 2
    assert len(asked) == 4, "asked again only when it was not there"


async def test_log_directories_tell_offsets_and_sizes(one):
    await one.client.produce(b"a", b"b")
    async with one.admin() as admin:
        await admin.create_topic("other", partitions=2)
        (found,) = await admin.describe_log_dirs()
        (only_t,) = await admin.describe_log_dirs(["t"])
    by_place = {(info.topic, info.partition): info for info in found.replicas}
    assert set(by_place) == {("t", 0), ("other", 0), ("other", 1)}
    info = by_place[("t", 0)]
    assert (info.log_start_offset, info.log_end_offset, info.high_watermark) == (0, 2, 2)
    assert (info.size_bytes > 0, info.error, info.synced_offset) == (True, "", 2)
    assert only_t.replicas == [info]


# --- when the cluster does not answer -----------------------------------------------------------


async def test_an_admin_client_outside_its_block_says_so(one):
    admin = one.admin()
    for _ in range(2):
        with pytest.raises(ClosedError, match="async with"):
            await admin.list_topics()
        async with admin:
            assert len(await admin.list_topics()) == 1


@pytest.mark.parametrize(
    ("down", "error"), [(True, BrokerUnreachable), (False, RequestTimedOut)], ids=["down", "silent"]
)
async def test_nobody_answers_within_the_timeout(down, error, autojump_clock):
    broker = FakeBroker({"t": 1}, is_down=down)
    broker.always(m.MetadataRequest, IGNORE)
    options = {"default_api_timeout_ms": 4_000}
    async with (
        in_memory(broker) as network,
        Admin(broker.address, network=network, **options) as admin,
    ):
        with pytest.raises(error) as caught:
            await admin.list_topics()
    assert 2 < trio.current_time() <= 4.1
    assert (f"broker {broker.address}" in str(caught.value), caught.value.knob != "") == (
        True,
        True,
    )


async def test_an_answer_that_was_lost_is_asked_for_again(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.will(m.MetadataRequest, LOSE_ANSWER, LOSE_ANSWER)
    async with in_memory(broker) as network, Admin(broker.address, network=network) as admin:
        assert [topic.topic for topic in await admin.list_topics()] == ["t"]
    assert broker.count(m.MetadataRequest) == 3
