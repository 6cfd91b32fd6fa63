"""Topics that go, or are made again, under a consumer of a group.

Goal: nothing of the next topic of a name is skipped, and nothing that was read of the one before
counts as read of it, however long nothing was fetched meanwhile; and who listens hears of all that
goes. Method: simulated brokers; the topic is deleted and made again while its consumer is paused,
has only begun, or polls.
"""

import pytest
import trio
from group_world import MANUAL, fill, site, take, virtual

from hightide.protocol import messages as m

QUICK = {"metadata_max_age_ms": 500}
LONG_MS = 600_000


async def make_again(client, count):
    await client.ask(m.DeleteTopicsRequest(topics=["t"]))
    await trio.sleep(0.3)
    await client.create("t", partitions=1)
    await fill(client, count)


async def poll_nothing(consumer, seconds=3):
    with trio.move_on_after(seconds):
        while True:
            assert await consumer.poll(timeout_ms=50, max_records=0) == []
            await trio.sleep(0.05)


@pytest.mark.parametrize("has_led", [False, True], ids=["the same epoch", "an older epoch"])
@virtual
async def test_who_is_paused_in_the_middle_begins_with_the_first_record_of_the_next(has_led):
    async with site() as at:
        if has_led:
            await at.again()
        async with at.client() as client, at.consumer(**MANUAL, **QUICK) as consumer:
            await fill(client, 10)
            await take(consumer, 3)
            consumer.pause(("t", 0))
            await make_again(client, 30)
            await poll_nothing(consumer)
            consumer.resume(("t", 0))
            with trio.fail_after(60):
                (record,) = await take(consumer, 1)
            assert record.offset == 0


@virtual
async def test_what_was_read_of_one_is_not_committed_for_the_next():
    async with site() as at, at.client() as client:
        await fill(client, 10)
        async with at.consumer(**QUICK, auto_commit_interval_ms=LONG_MS) as consumer:
            await take(consumer, 3)
            consumer.pause(("t", 0))
            await make_again(client, 30)
            await poll_nothing(consumer)
        async with at.consumer(**MANUAL) as consumer:
            assert (await take(consumer, 1))[0].offset == 0


@virtual
async def test_who_has_only_begun_where_its_group_was_goes_on_in_no_other_topic():
    async with site() as at, at.client() as client:
        await fill(client, 10)
        async with at.consumer() as consumer:
            await take(consumer, 5)
        async with at.consumer(partitions=[("t", 0)], **QUICK) as consumer:
            consumer.pause(("t", 0))
            await poll_nothing(consumer)
            assert consumer.position("t", 0) == 5
            await make_again(client, 30)
            await poll_nothing(consumer)
            consumer.resume(("t", 0))
            assert (await take(consumer, 1))[0].offset == 0


@virtual
async def test_the_same_offset_of_another_topic_is_committed():
    async with site() as at, at.client() as client:
        await fill(client, 5)
        async with at.consumer() as consumer:
            await take(consumer, 5)
        said = {"partitions": [("t", 0)], "auto_commit_interval_ms": LONG_MS}
        async with at.consumer(**QUICK, **said) as consumer:
            await poll_nothing(consumer)
            await make_again(client, 5)
            assert [record.offset for record in await take(consumer, 5)] == [0, 1, 2, 3, 4]
        assert await client.committed() == {("t", 0): 5}


@pytest.mark.parametrize("heartbeat_ms", [300, 20_000])
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@virtual
async def test_who_listens_hears_of_a_topic_that_goes_and_was_chosen_by_a_pattern(
    assignor, heartbeat_ms
):
    read: set = set()
    said = {"partition_assignment_strategy": [assignor], "heartbeat_interval_ms": heartbeat_ms}
    async with site() as at, at.client() as client:
        await client.create("u", partitions=2)
        async with at.consumer(topics=[], session_timeout_ms=60_000, **said) as consumer:
            await consumer.subscribe(
                pattern="[tu]",
                on_assigned=read.update,
                on_revoked=read.difference_update,
                on_lost=read.difference_update,
            )
            await poll_nothing(consumer, 5)
            assert len(read) == 3
            await client.ask(m.DeleteTopicsRequest(topics=["u"]))
            await poll_nothing(consumer, 30)
            assert read == {("t", 0)} == set(consumer.assignment())


@virtual
async def test_who_knows_the_topic_before_goes_on_where_its_group_is_in_the_next():
    async with site() as at, at.client() as client:
        await fill(client, 10)
        async with at.consumer(topics=[], metadata_max_age_ms=LONG_MS) as late:
            await late.assign([("t", 0)])
            await take(late, 3)
            await late.unsubscribe()
            await make_again(client, 30)
            async with at.consumer() as quick:
                await take(quick, 5)
            await late.assign([("t", 0)])
            assert (await take(late, 1))[0].offset == 5
