"""Listeners of a consumer in a group may do their work: commit what goes, seek what comes, and hear
of the end; and a close has one deadline for everything.

Method: as in `test_group_consumer.py`: real consumers and a node on virtual time.
"""

from functools import partial

import pytest
import trio
from group_world import MANUAL, Reader, fill, joined, shared, site, take, until, virtual

from hightide import RequestTimedOut
from hightide.protocol import messages as m
from hightide.protocol.errors import UsageError

BOTH = pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])


async def grow(client, count):
    """Give the topic so many partitions."""
    more = m.MorePartitions(topic="t", count=count)
    await client.ask(m.CreatePartitionsRequest(topics=[more]))


@BOTH
@virtual
async def test_a_commit_in_on_revoked_keeps_how_far_what_goes_was_read(assignor):
    told = {}
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 5, partitions=2)

        async def revoked(parts):
            told.setdefault("revoked", []).extend(parts)
            await consumer.commit()

        said = {"partition_assignment_strategy": [assignor], **MANUAL}
        consumer = at.consumer(on_revoked=revoked, **said)
        async with consumer:
            await take(consumer, 10)
            await consumer.poll(timeout_ms=0)  # the last ones are done with, too
            assert await client.committed() == {}
            two = await nursery.start(Reader(at, **said).run)
            with trio.fail_after(60):
                while len(two.places) != 1 or len(consumer.assignment()) != 1:
                    await consumer.poll(timeout_ms=50)
            assert two.records == [], "it goes on where the first one was"
            gone = [part for part in told["revoked"] if part.partition in two.places]
            assert len(gone) == 1
            assert (await client.committed())[gone[0]] == 5
        nursery.cancel_scope.cancel()


@virtual
async def test_a_commit_in_on_revoked_stops_before_the_record_that_is_worked_on():
    async with site() as at, at.client() as client:
        await fill(client, 5)

        async def revoked(parts):
            await consumer.commit()

        consumer = at.consumer(on_revoked=revoked, **MANUAL)

        async def fail_at_the_third():
            async with consumer:
                numbers = iter(range(10))
                async for _ in consumer:
                    if next(numbers) == 2:
                        raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail_at_the_third()
        assert await client.committed() == {("t", 0): 2}


@virtual
async def test_closing_tells_on_revoked_which_may_commit():
    told = []
    async with site(topic=2) as at, at.client() as client:
        await fill(client, 3, partitions=2)

        async def revoked(parts):
            told.append(sorted(parts))
            await consumer.commit()

        consumer = at.consumer(on_revoked=revoked, **MANUAL)
        async with consumer:
            await take(consumer, 6)
        assert told == [[("t", 0), ("t", 1)]]
        assert await client.committed() == {("t", 0): 3, ("t", 1): 3}


@virtual
async def test_what_on_revoked_raises_at_the_end_leaves_the_block():
    async with site() as at:

        def revoked(parts):
            raise KeyError("mine")

        async def read():
            async with at.consumer(on_revoked=revoked) as consumer:
                await joined(consumer)

        with pytest.raises(KeyError, match="mine"):
            await read()


@virtual
async def test_nothing_is_handed_out_before_on_assigned_has_finished():
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 9)
        heard, may_end = trio.Event(), trio.Event()

        async def assigned(parts):
            heard.set()
            await may_end.wait()
            for part in parts:
                consumer.seek(*part, 6)

        consumer = at.consumer(on_assigned=assigned)
        records = []

        async def read():
            async with consumer:
                while len(records) < 3:
                    records.extend(await consumer.poll(timeout_ms=100))

        nursery.start_soon(read)
        await heard.wait()
        await trio.sleep(5)
        assert records == []
        may_end.set()
        await until(lambda: len(records) == 3)
        assert [record.offset for record in records] == [6, 7, 8]


@virtual
async def test_records_come_although_on_assigned_failed():
    async with site() as at, at.client() as client:
        await fill(client, 3)

        def assigned(parts):
            raise KeyError("mine")

        async with at.consumer(on_assigned=assigned) as consumer:
            with pytest.raises(KeyError, match="mine"):
                await take(consumer, 3)
            assert len(await take(consumer, 3)) == 3


@virtual
async def test_a_close_gives_all_commits_one_deadline_and_tells_of_each():
    told = []
    async with site() as at, at.client() as client:
        await fill(client, 9)
        said = {**MANUAL, "request_timeout_ms": 4_000}

        async def close_late():
            async with at.consumer(**said) as consumer:
                for number in range(3):
                    await take(consumer, 1)
                    if number == 0:
                        await at.machines[0].crash(power=False)
                    consumer.commit_async(then=told.append)

        started = trio.current_time()
        await close_late()
        assert trio.current_time() - started < 4 + 3, "not four seconds for each"
        assert [type(error) for error in told[1:]] == [RequestTimedOut] * 2, told


@virtual
async def test_a_consumer_without_a_group_reads_partitions_that_are_added_from_their_start():
    async with site() as at, at.client() as client:
        options = {"group_id": "", "metadata_max_age_ms": 2_000, "auto_offset_reset": "latest"}
        async with at.consumer(**options) as consumer:
            await joined(consumer)
            await grow(client, 3)
            await client.produce(b"early", partition=2)
            (record,) = await take(consumer, 1)
            assert (record.partition, record.offset, record.value) == (2, 0, b"early")
            await until(partial(_reads_all, consumer, 3))


@virtual
async def test_partitions_that_are_added_are_not_read_by_who_named_its_own():
    async with site() as at, at.client() as client:
        options = {"group_id": "", "metadata_max_age_ms": 1_000}
        async with at.consumer(**options) as consumer:
            await joined(consumer)
            await consumer.assign([("t", 0)])
            await grow(client, 2)
            await consumer.poll(timeout_ms=5_000)
            assert consumer.assignment() == [("t", 0)]


def _reads_all(consumer, count):
    return len(consumer.assignment()) == count


@virtual
async def test_readers_share_what_there_is_while_listeners_take_their_time():
    async def slowly(parts):
        await trio.sleep(0.5)

    async with site(topic=4) as at, trio.open_nursery() as nursery:
        slow = {"on_assigned": slowly, "on_revoked": slowly}
        readers = [await nursery.start(Reader(at, **slow).run) for _ in range(2)]
        await shared(readers, [2, 2], 4)
        nursery.cancel_scope.cancel()


@virtual
async def test_a_close_in_the_middle_of_a_rebalance_lets_on_revoked_end():
    told = []
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 5, partitions=2)

        async def revoked(parts):
            told.append("begins")
            await trio.sleep(0.05)
            await consumer.commit()
            told.append("ends")

        consumer = at.consumer(
            on_revoked=revoked, partition_assignment_strategy=["range"], **MANUAL
        )
        async with consumer:
            await take(consumer, 10)
            await nursery.start(Reader(at, **MANUAL).run)
            with trio.fail_after(60):
                while not told:
                    await consumer.poll(timeout_ms=1)
        assert told == ["begins", "ends"]
        assert await client.committed() == {("t", 0): 5, ("t", 1): 5}
        nursery.cancel_scope.cancel()


@virtual
async def test_who_was_told_of_partitions_is_told_that_they_go():
    for late_s in (0.0, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02):
        told = []

        async def assigned(parts, told=told):
            await trio.sleep(0.002)
            told.append("assigned")

        async with site() as at:
            listeners = {"on_assigned": assigned, "on_revoked": lambda _, t=told: t.append("gone")}
            async with at.consumer(**listeners) as consumer:
                await consumer.poll(timeout_ms=1)
                await trio.sleep(late_s)
        assert told in ([], ["assigned", "gone"])


@virtual
async def test_two_tasks_may_not_poll_one_consumer():
    async with (
        site() as at,
        at.client() as client,
        trio.open_nursery() as nursery,
        at.consumer() as consumer,
    ):
        await joined(consumer)
        nursery.start_soon(partial(consumer.poll, timeout_ms=60_000))
        await trio.sleep(1)
        for poll in (consumer.poll, consumer.poll_arrow, consumer.__anext__):
            with pytest.raises(UsageError, match="polled already, by another task"):
                await poll()
        await fill(client, 1)
