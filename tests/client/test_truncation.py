"""What was read may be gone: a consumer never goes on in another log as if it were the same.

Goal: KIP-320 (CO3), and topics that are deleted and made again. Method: real brokers on the
simulated network and disk. One of two replicas misses records; the other dies, and an unclean
election takes the first one. What was lost is known, and so is what every policy makes of it.
"""

from contextlib import asynccontextmanager

import pytest
import trio
from brokers import batch
from fake_broker import FakeBroker, in_memory
from group_world import MANUAL, site, take, until, virtual

from hightide import Admin, ApiError, Consumer, ErrorCode, LogTruncated, Producer
from hightide.consume.subscription import OffsetAndMetadata
from hightide.protocol.messages import LATEST
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.simulation.world import SimClock

KEPT, LOST = 10, 5


@asynccontextmanager
async def admin_of(at):
    async with Admin(at.bootstrap, network=at.world.network.host("admin")) as admin:
        yield admin


async def send(at, *values):
    """Records in as many batches."""
    network = at.world.network.host("sender")
    async with Producer(at.bootstrap, network=network, clock=SimClock()) as producer:
        for value in values:
            await (await producer.send("u", value))


class Story:
    """A partition `u` of two replicas, one of which is to lead what it does not have."""

    def __init__(self, at, admin):
        self.at, self.admin = at, admin
        self.first, self.second = at.machines[1:]

    async def until_led(self, machine, *, in_sync):
        def is_led():
            state = self.at.machines[0].node.image.topics["u"].partitions[0]
            return state.leader == machine.id and len(state.isr) == in_sync

        await until(is_led)

    async def write(self):
        """Some records are on both replicas, the last ones only on the first."""
        assignment = [[self.first.id, self.second.id]]
        await self.admin.create_topic("u", assignment=assignment)
        await send(self.at, *[b"kept %d" % n for n in range(KEPT)])
        await self.second.crash(power=False)
        await self.until_led(self.first, in_sync=1)
        await send(self.at, *[b"lost %d" % n for n in range(LOST)])

    async def lose(self, *values):
        """The first one is gone for good; the other leads, and gets new records."""
        await self.first.crash(power=False)
        self.second.start_again()
        await self.second.serves()
        while (await self.admin.elect_leaders([("u", 0)], unclean=True))[0].error is not None:
            await trio.sleep(0.2)
        await self.until_led(self.second, in_sync=1)
        await send(self.at, *values)


@asynccontextmanager
async def story(**over):
    async with site(brokers=3, **over) as at, admin_of(at) as admin:
        # It would rightly call this a loss.
        at.world.checker.replica_checker._check = lambda *_: None
        told = Story(at, admin)
        await told.write()
        yield told


def reader(at, **options):
    plain = {"topics": (), "partitions": [("u", 0)], "group_id": ""}
    return at.consumer(**(plain | options))


@virtual
@pytest.mark.parametrize("after", [1, LOST, 2 * LOST])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_with_a_policy_reading_goes_on_where_the_logs_part(after, policy):
    told = []
    async with (
        story() as tale,
        reader(tale.at, auto_offset_reset=policy, on_retry=told.append) as consumer,
    ):
        consumer.seek("u", 0, 0)
        assert (await take(consumer, KEPT + LOST))[-1].value == b"lost 4"
        await tale.lose(*[b"new %d" % n for n in range(after)])
        found = await take(consumer, after)
        assert [record.value for record in found] == [b"new %d" % n for n in range(after)]
        assert found[0].offset == KEPT
        (news,) = [error for error in told if isinstance(error, LogTruncated)]
        assert news.divergent_offset == KEPT
        assert "read up to offset 15 of epoch" in str(news)
        assert "has only 10 of it" in str(news)


@virtual
@pytest.mark.parametrize("after", [1, LOST, 2 * LOST])
async def test_without_a_policy_the_caller_hears_of_it_until_it_says_where_to_go_on(after):
    async with story() as tale, reader(tale.at, auto_offset_reset="none") as consumer:
        consumer.seek("u", 0, 0)
        await take(consumer, KEPT + LOST)
        await tale.lose(*[b"new %d" % n for n in range(after)])
        for _ in range(2):
            with pytest.raises(LogTruncated) as caught:
                await take(consumer, 1)
            assert caught.value.divergent_offset == KEPT
        consumer.seek("u", 0, caught.value.divergent_offset)
        assert (await take(consumer, 1))[0].value == b"new 0"


@virtual
async def test_what_was_fetched_before_is_handed_out_first():
    async with story() as tale, reader(tale.at, auto_offset_reset="none") as consumer:
        consumer.seek("u", 0, 0)
        await take(consumer, 1)
        await until(lambda: consumer._subscription.get(("u", 0)).fetch_offset == KEPT + LOST)
        await tale.lose(b"new")
        found = await take(consumer, KEPT + LOST - 1)
        assert found[-1].value == b"lost 4"
        with pytest.raises(LogTruncated):
            await take(consumer, 1)


@virtual
async def test_a_group_that_comes_back_later_knows_it_too():
    async with story() as tale:
        async with reader(tale.at, group_id="g") as consumer:
            await take(consumer, KEPT + LOST)
            await consumer.commit()
            (kept,) = (await consumer.committed()).values()
            assert kept.offset == KEPT + LOST
            assert kept.leader_epoch >= 0
        await tale.lose(*[b"new %d" % n for n in range(2 * LOST)])
        async with reader(tale.at, group_id="g", auto_offset_reset="none") as consumer:
            with pytest.raises(LogTruncated, match="offset 15"):
                await take(consumer, 1)
        async with reader(tale.at, group_id="g", auto_offset_reset="latest") as consumer:
            assert (await take(consumer, 1))[0].value == b"new 0"


@virtual
async def test_a_reader_that_lost_nothing_notices_nothing():
    told = []
    async with story() as tale, reader(tale.at, on_retry=told.append) as consumer:
        await take(consumer, KEPT)
        await tale.lose(b"new")
        consumer.seek("u", 0, KEPT)
        assert (await take(consumer, 1))[0].value == b"new"
        assert not [error for error in told if isinstance(error, LogTruncated)]


async def patiently(consumer, count):
    """The next records of a topic that is gone for a while."""
    while True:
        try:
            return await take(consumer, count)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise


@virtual
@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_topic_that_is_made_again_is_another_one(policy):
    told = []
    options = {"auto_offset_reset": policy, "on_retry": told.append, "metadata_max_age_ms": 500}
    async with site(brokers=1) as at, admin_of(at) as admin:
        await admin.create_topic("u", partitions=1)
        await send(at, b"a", b"b")
        async with reader(at, **options) as consumer:
            consumer.seek("u", 0, 0)
            await take(consumer, 2)
            await admin.delete_topic("u")
            await admin.create_topic("u", partitions=1)
            if policy != "latest":
                await send(at, b"c", b"d", b"e")
            if policy == "none":
                with pytest.raises(LogTruncated, match="'u' was deleted and made again") as caught:
                    await patiently(consumer, 1)
                assert caught.value.divergent_offset == -1
                consumer.seek("u", 0, 0)
            if policy == "latest":
                await until(lambda: [e for e in told if isinstance(e, LogTruncated)])
                await until(lambda: consumer.position("u", 0) == 0)
                await send(at, b"c", b"d", b"e")
            assert [record.value for record in await patiently(consumer, 3)] == [b"c", b"d", b"e"]


async def test_a_leader_from_before_what_was_read_is_not_asked(autojump_clock):
    # A broker that is cut off takes itself for the leader still; the group has read from the next.
    broker = FakeBroker({"t": 1})
    broker.append(batch(b"a", b"b"))
    async with in_memory(broker) as network:
        consumer = Consumer(
            broker.address, partitions=[("t", 0)], auto_offset_reset="none", network=network
        )
        async with consumer:
            consumer._subscription.get(TopicPartition("t", 0)).seek(1, epoch=3)
            consumer._fetcher.wake()
            with trio.move_on_after(3600):
                await consumer.poll(timeout_ms=3_600_000)
            fetches = [r for r in broker.requests if type(r).__name__ == "FetchRequest"]
            assert not fetches
            consumer.seek("t", 0, 1)
            assert [record.value for record in await consumer.poll(timeout_ms=5000)] == [b"b"]


# --- leaders that die ---------------------------------------------------------------------------


@virtual
async def test_what_a_leader_is_asked_its_successor_answers():
    async with site(brokers=3) as at, admin_of(at) as admin:
        story = Story(at, admin)
        assignment = [[story.first.id, story.second.id]]
        await admin.create_topic("u", assignment=assignment)
        await send(at, b"1", b"2")
        assert (await admin.offsets([("u", 0)], LATEST))[("u", 0)].offset == 2
        await story.first.crash(power=True)  # and nobody is told
        assert (await admin.offsets([("u", 0)], LATEST))[("u", 0)].offset == 2


# --- commits ------------------------------------------------------------------------------------


@virtual
async def test_commits_keep_epochs_and_what_the_caller_adds():
    async with site() as at:
        await send_t(at, 3)
        async with at.consumer(**MANUAL) as consumer:
            await take(consumer, 2)
            await consumer.commit()
            where = TopicPartition("t", 0)
            found = (await consumer.committed())[where]
            assert found == OffsetAndMetadata(2, 0, topic_id=found.topic_id)
            assert found.topic_id, "of the topic that was read"
            await consumer.commit({where: OffsetAndMetadata(1, metadata="why")})
            found = found._replace(offset=1, leader_epoch=-1, metadata="why")
            assert await consumer.committed([where]) == {where: found}
            assert await consumer.committed([("t", 7)]) == {("t", 7): None}


@virtual
async def test_commits_in_the_background_keep_their_order_and_tell_their_outcome():
    outcomes = []
    async with site() as at:
        async with reading(at, 3) as consumer:
            for offset in (1, 3, 2):
                consumer.commit_async({("t", 0): offset}, then=outcomes.append)
            consumer.commit_async({("no", 0): 5}, then=outcomes.append)
            assert outcomes == []
        assert outcomes[:3] == [None] * 3
        assert outcomes[3].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async with at.client() as client:
            assert await client.committed() == {("t", 0): 2}


@virtual
async def test_a_background_commit_without_a_listener_tells_on_retry():
    told = []
    async with site() as at:
        async with reading(at, 1, on_retry=told.append) as consumer:
            consumer.commit_async({("no", 0): 5})
        assert told[-1].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@virtual
async def test_what_the_listener_of_a_commit_raises_reaches_the_caller():
    def angry(_):
        raise ZeroDivisionError("mine")

    async with site() as at, reading(at, 1) as consumer:
        consumer.commit_async(then=angry)
        with pytest.raises(ZeroDivisionError, match="mine"):
            await consumer.poll(timeout_ms=1000)


@virtual
async def test_an_older_commit_never_comes_after_a_newer_one():
    async with site() as at:
        async with reading(at, 3) as consumer:
            at.gate.shut()
            consumer.commit_async({("t", 0): 1})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit, {("t", 0): 3})
                await trio.sleep(0.5)
                at.gate.open_again()
        async with at.client() as client:
            assert await client.committed() == {("t", 0): 3}


@virtual
async def test_a_commit_takes_its_turn_after_those_in_the_background():
    outcomes = []
    async with site() as at, reading(at, 4) as consumer:
        for offset in (1, 2):
            consumer.commit_async({("t", 0): offset}, then=outcomes.append)
        await consumer.commit({("t", 0): 3})
        assert outcomes == [None] * 2
        assert (await consumer.committed())[TopicPartition("t", 0)].offset == 3


@virtual
async def test_a_commit_is_not_undone_by_an_automatic_one_that_was_due_before():
    async with site() as at, at.client() as client:
        await send_t(at, 16)
        async with at.consumer(auto_commit_interval_ms=50, max_poll_records=1) as consumer:
            await take(consumer, 1)
            for offset in range(2, 16):
                await trio.sleep(1)
                # With this call what was there before is committed, and the next one is given.
                assert len(await consumer.poll(timeout_ms=1000)) == 1
                await consumer.commit({("t", 0): offset})
                await trio.sleep(0.02)
                assert await client.committed() == {("t", 0): offset}


@virtual
async def test_a_commit_that_is_given_up_in_the_line_lets_nobody_go_early():
    outcomes = []
    async with site() as at:
        async with reading(at, 4) as consumer:
            at.gate.shut()
            consumer.commit_async({("t", 0): 1}, then=outcomes.append)
            with trio.move_on_after(0.5):
                await consumer.commit({("t", 0): 2})
            consumer.commit_async({("t", 0): 3}, then=outcomes.append)
            at.gate.open_again()
        assert outcomes == [None] * 2
        async with at.client() as client:
            assert await client.committed() == {("t", 0): 3}


@asynccontextmanager
async def reading(at, count, **options):
    """A consumer that has read all there is, so many records."""
    await send_t(at, count)
    async with at.consumer(**MANUAL, **options) as consumer:
        await take(consumer, count)
        yield consumer


async def send_t(at, count):
    async with at.client() as client:
        await client.produce(*[b"%d" % n for n in range(count)])
