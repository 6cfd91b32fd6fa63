"""Consumers in groups: who reads what, what is committed when, and who is told of it.

Goal: the rules of Kafka's consumer in a group, and the promise of `rebalance.py`: what is being
worked on is neither committed nor given away. Method: real consumers and a real node in one
process, on the simulation's network, disk and virtual time. Members that fail, are thrown out or
wait for too long are `test_group_consumer_faults.py`'s.
"""

from functools import partial

import pytest
import trio
from group_world import MANUAL, Reader, fill, joined, refusal, shared, site, take, until, virtual
from tries import few

from hightide import ApiError
from hightide.consume import fetcher
from hightide.consume.assignors import assign_range
from hightide.protocol.errors import CorruptBatch, ErrorCode, UsageError
from hightide.protocol.topic_partition import TopicPartition

E = ErrorCode
BOTH = pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])


# --- who reads what -----------------------------------------------------------------------------


@BOTH
@virtual
async def test_partitions_are_shared_and_each_record_is_read_once_while_members_come_and_go(
    assignor,
):
    said = {"partition_assignment_strategy": [assignor]}
    async with site(topic=6) as at, at.client() as client, trio.open_nursery() as nursery:
        produced = 0

        async def write():
            nonlocal produced
            while True:
                await fill(client, 3, partitions=6, start=produced)
                produced += 3
                await trio.sleep(0.05)

        writing = trio.CancelScope()

        async def write_until_told():
            with writing:
                await write()

        nursery.start_soon(write_until_told)
        readers = [await nursery.start(Reader(at, **said).run)]
        await shared(readers, [6])
        for sizes in ([3, 3], [2, 2, 2]):
            readers.append(await nursery.start(Reader(at, **said).run))
            await shared(readers, sizes)
            await trio.sleep(1)
        await readers[1].stop()
        await shared([readers[0], readers[2]], [3, 3])
        await readers[0].stop()
        await shared([readers[2]], [6])
        writing.cancel()
        everything = [r for reader in readers for r in reader.records]
        with trio.move_on_after(30):
            while len(everything) < 6 * produced:
                await trio.sleep(0.1)
                everything = [r for reader in readers for r in reader.records]
        await readers[2].stop()
        found = sorted((r.partition, r.offset) for r in everything)
        ends = [len(await client.read_all(partition=n)) for n in range(6)]
        assert found == [(n, offset) for n in range(6) for offset in range(ends[n])]
        assert await client.committed() == {("t", n): ends[n] for n in range(6)}
        assert await client.groups() == {"g": "Empty"}


@virtual
async def test_a_member_that_stays_keeps_what_it_reads_when_the_group_is_cooperative():
    told = []
    said = {"partition_assignment_strategy": ["cooperative-sticky"]}
    async with site(topic=4) as at, trio.open_nursery() as nursery:
        listening = {
            "on_assigned": lambda parts: told.append(("+", {p.partition for p in parts})),
            "on_revoked": lambda parts: told.append(("-", {p.partition for p in parts})),
        }
        one = await nursery.start(Reader(at, **said, **listening).run)
        await shared([one], [4], 4)
        two = await nursery.start(Reader(at, **said).run)
        parts = await shared([one, two], [2, 2], 4)
        await trio.sleep(5)
        changes = [change for change in told if change[1]]
        assert changes == [("+", {0, 1, 2, 3}), ("-", parts[1])]
        nursery.cancel_scope.cancel()


@BOTH
@pytest.mark.parametrize(
    "beats",
    few([(300, 300), (1500, 200), (200, 1500)], 1),
)
@virtual
async def test_a_rebalance_comes_to_rest(assignor, beats):
    """Nobody begins another one because of what heartbeats were answered while members joined."""
    said = {"partition_assignment_strategy": [assignor]}
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        readers = []
        for sizes, beat in (([2], beats[0]), ([1, 1], beats[1])):
            reader = Reader(at, heartbeat_interval_ms=beat, **said)
            readers.append(await nursery.start(reader.run))
            await shared(readers, sizes, 2)
            await trio.sleep(4)
        readers.append(await nursery.start(Reader(at, **said).run))
        await trio.sleep(10)
        settled = (await client.describe()).generation
        await trio.sleep(20)
        assert (await client.describe()).generation == settled
        # A cooperative group takes another one for each that gives something away.
        assert settled <= (3 if assignor == "range" else 6)
        assert sorted(len(reader.places) for reader in readers) == [0, 1, 1]
        nursery.cancel_scope.cancel()


@virtual
async def test_an_assignor_of_one_s_own_decides():
    def all_to_the_last(members, counts):
        last = max(member.member_id for member in members)
        everything = [TopicPartition(t, n) for t, count in counts.items() for n in range(count)]
        return {member.member_id: everything * (member.member_id == last) for member in members}

    async with site(topic=3) as at, at.client() as client, trio.open_nursery() as nursery:
        said = {"partition_assignment_strategy": all_to_the_last}
        readers = [await nursery.start(Reader(at, **said).run) for _ in range(2)]
        await shared(readers, [0, 3], 3)
        assert (await client.describe()).protocol == "all_to_the_last"
        nursery.cancel_scope.cancel()


@virtual
async def test_members_that_know_no_assignor_in_common_cannot_be_in_one_group():
    async with site() as at, trio.open_nursery() as nursery:
        one = await nursery.start(Reader(at, partition_assignment_strategy=["range"]).run)
        await shared([one], [1], 1)
        async with at.consumer(partition_assignment_strategy=["roundrobin"]) as other:
            for _ in range(2):
                with pytest.raises(ApiError) as caught:
                    await other.poll(timeout_ms=5_000)
                assert caught.value.code is E.INCONSISTENT_GROUP_PROTOCOL
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("assignor", [["best"], [], ["range", "best"]])
@virtual
async def test_an_assignor_that_is_not_known_is_refused(assignor):
    async with site() as at:
        with pytest.raises(UsageError, match=r"assignor.*expected some of .*cooperative-sticky"):
            async with at.consumer(partition_assignment_strategy=assignor):
                pass


@virtual
async def test_a_member_of_a_group_does_not_choose_its_partitions():
    async with site() as at, at.consumer() as consumer:
        with pytest.raises(UsageError, match="reads what the group gives it"):
            await consumer.assign([("t", 0)])


@virtual
async def test_members_may_read_different_topics():
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await client.create("other", partitions=2)
        one = await nursery.start(Reader(at, topics=["t"]).run)
        two = await nursery.start(Reader(at, topics=["t", "other"]).run)
        await until(lambda: len(one.consumer.assignment()) == 1)
        assert {w.topic for w in one.consumer.assignment()} == {"t"}
        await until(lambda: len(two.consumer.assignment()) == 3)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("anew", [{"topics": "t"}, {"pattern": "t"}], ids=str)
@virtual
async def test_who_subscribes_anew_reads_on_where_a_batch_was_damaged(anew, monkeypatch):
    """Nobody was told of it."""

    def damaged(*of_batch):
        raise CorruptBatch("damaged on its way")

    async with site() as at, at.client() as client:
        await fill(client, 3)
        async with at.consumer() as consumer:
            with monkeypatch.context() as meanwhile:
                meanwhile.setattr(fetcher, "check_crc", damaged)
                await joined(consumer)
                await trio.sleep(2)
            await consumer.subscribe(**anew)
            assert len(await take(consumer, 3)) == 3


# --- where it begins ----------------------------------------------------------------------------


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 4), ("none", None)])
@virtual
async def test_where_nothing_is_committed_the_reset_policy_decides(reset, first):
    async with site(topic=2) as at, at.client() as client:
        await client.find()
        await fill(client, 4, partitions=2)
        await client.commit(2, partition=1)
        async with at.consumer(auto_offset_reset=reset, **MANUAL) as consumer:
            if first is None:
                with pytest.raises(ApiError, match="t-0 has no position") as caught:
                    await take(consumer, 3)
                assert caught.value.code is E.OFFSET_OUT_OF_RANGE
                consumer.seek("t", 0, 3)
                first = 3
            await joined(consumer, 2)
            assert (consumer.position("t", 0), consumer.position("t", 1)) == (first, 2)


@virtual
async def test_a_group_goes_on_where_it_was():
    async with site() as at, at.client() as client:
        await fill(client, 10)
        for start in (0, 4, 8):
            async with at.consumer() as consumer:
                found = await take(consumer, min(4, 10 - start))
            assert [r.offset for r in found] == list(range(start, min(start + 4, 10)))


# --- what is committed, and when ----------------------------------------------------------------


@virtual
async def test_what_was_handed_out_is_committed_at_the_end_of_the_block():
    async with site(topic=2) as at, at.client() as client:
        await fill(client, 5, partitions=2)
        async with at.consumer(partitions=[("t", 0)], auto_commit_interval_ms=60_000) as consumer:
            await take(consumer, 3)
            assert await client.committed() == {}
        assert await client.committed() == {("t", 0): 3}
        async with at.consumer(auto_commit_interval_ms=60_000) as consumer:
            await take(consumer, 7)
        assert await client.committed() == {("t", 0): 5, ("t", 1): 5}
        assert await client.groups() == {"g": "Empty"}


@virtual
async def test_what_was_handed_out_before_the_last_call_is_committed_on_the_interval():
    async with site() as at, at.client() as client:
        await fill(client, 6)
        async with at.consumer(auto_commit_interval_ms=1000) as consumer:
            await take(consumer, 2)
            await trio.sleep(3)
            assert await client.committed() == {}
            assert len(await consumer.poll(max_records=3)) == 3
            await trio.sleep(3)
            assert await client.committed() == {("t", 0): 2}
            await consumer.poll(max_records=1)
            await trio.sleep(0.1)
            assert await client.committed() == {("t", 0): 5}


@BOTH
@virtual
async def test_what_was_worked_on_is_committed_before_a_partition_is_given_away(assignor):
    said = {"partition_assignment_strategy": [assignor], "auto_commit_interval_ms": 600_000}
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 5, partitions=2)
        one = await nursery.start(Reader(at, **said).run)
        await until(lambda: len(one.records) == 10)
        assert await client.committed() == {}
        two = await nursery.start(Reader(at, **said).run)
        await shared([one, two], [1, 1], 2)
        await trio.sleep(1)
        assert two.records == []
        (given,) = two.places
        assert (await client.committed())[("t", given)] == 5
        nursery.cancel_scope.cancel()


async def fail_at_work(at, how, first, count):
    """Take `first` records; then fail while working on some of the next."""
    async with at.consumer() as consumer:
        if how == "poll":
            await take(consumer, first)
            assert len(await consumer.poll(max_records=count)) == count
            raise KeyError("work")
        async for record in consumer:
            if record.offset == first:
                raise KeyError("work")


@pytest.mark.parametrize("how", ["for", "poll"])
@virtual
async def test_what_was_in_work_when_it_failed_is_not_committed(how):
    async with site() as at, at.client() as client:
        await fill(client, 8)
        with pytest.raises(KeyError, match="work"):
            await fail_at_work(at, how, first=5, count=2)
        assert await client.committed() == {("t", 0): 5}
        assert await client.groups() == {"g": "Empty"}
        async with at.consumer() as consumer:
            assert [r.offset for r in await take(consumer, 3)] == [5, 6, 7]


@pytest.mark.parametrize("how", ["for", "poll"])
@virtual
async def test_a_rebalance_does_not_commit_what_is_handed_out_with_the_call_that_begins_it(how):
    """Whichever task is first, in many orders: nothing of it is committed while it is worked on."""
    found = set()
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 8)
        for number in range(8):
            group = f"g{number}"
            async with at.consumer(group_id=group) as consumer:
                await take(consumer, 3)
                nursery.start_soon(partial(client.enter, group=group))
                await trio.sleep(1)  # it hears of the other by its heartbeat
                if how == "for":
                    assert (await anext(consumer)).offset == 3
                else:
                    assert len(await consumer.poll(max_records=1)) <= 1
                await trio.sleep(1)
                found.add((await client.committed(group)).get(("t", 0)))
        assert found <= {None, 3}
        nursery.cancel_scope.cancel()


@virtual
async def test_without_auto_commit_nothing_is_committed():
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 5, partitions=2)
        one = await nursery.start(Reader(at, auto_commit_interval_ms=100, **MANUAL).run)
        await until(lambda: len(one.records) == 10)
        two = await nursery.start(Reader(at, auto_commit_interval_ms=100, **MANUAL).run)
        await shared([one, two], [1, 1], 2)
        await trio.sleep(2)
        for reader in (one, two):
            await reader.stop()
        assert await client.committed() == {}
        assert len(two.records) >= 5


@virtual
async def test_commits_by_hand():
    async with site(topic=2) as at, at.client() as client:
        await fill(client, 5, partitions=2)
        async with at.consumer(**MANUAL) as consumer:
            await joined(consumer, 2)
            records = await take(consumer, 5)
            await consumer.commit()
            place = ("t", records[0].partition)
            assert (await client.committed())[place] == 5
            await consumer.commit({("t", 0): 2})
            await consumer.commit({("t", 1): 1, ("t", 0): 3})
            assert await client.committed() == {("t", 0): 3, ("t", 1): 1}
            await consumer.commit({})
            with pytest.raises(ApiError) as caught:
                await consumer.commit({("t", 7): 1})
            assert caught.value.code is E.UNKNOWN_TOPIC_OR_PARTITION
        assert await client.committed() == {("t", 0): 3, ("t", 1): 1}


@virtual
async def test_a_commit_needs_a_group():
    async with site() as at, at.consumer(group_id="") as consumer:
        for offsets in (None, {("t", 0): 1}):
            with pytest.raises(
                UsageError, match=r"commit needs a group: Consumer\(…, group_id='name'"
            ):
                await consumer.commit(offsets)


@virtual
async def test_a_commit_before_the_group_was_joined_is_refused():
    async with site() as at, at.consumer() as consumer:
        with pytest.raises(ApiError, match="no member of group 'g' now: it has not joined yet"):
            await consumer.commit({("t", 0): 1})


# --- partitions of one's own choice ---------------------------------------------------------------


@virtual
async def test_with_partitions_of_its_own_choice_a_consumer_only_commits():
    async with site(topic=2) as at, at.client() as client:
        await fill(client, 5, partitions=2)
        for start in (0, 2):
            async with at.consumer(partitions=[("t", 1)]) as consumer:
                found = await take(consumer, 2)
                assert [r.offset for r in found] == [start, start + 1]
                assert (await client.groups()).get("g", "Empty") == "Empty"
                assert (await client.describe()).members == []
        assert await client.committed() == {("t", 1): 4}
        async with at.consumer(partitions=[("t", 1)], auto_commit_interval_ms=500) as consumer:
            await take(consumer, 1)
            await trio.sleep(1)
            await consumer.poll()
            await trio.sleep(0.1)
            assert await client.committed() == {("t", 1): 5}


@virtual
async def test_partitions_that_are_assigned_later_begin_where_the_group_was_too():
    async with site(topic=2) as at, at.client() as client:
        await client.find()
        await fill(client, 5, partitions=2)
        await client.commit(3, partition=1)
        async with at.consumer(partitions=[("t", 0)], **MANUAL) as consumer:
            await consumer.assign([("t", 1)])
            assert [r.offset for r in await take(consumer, 2)] == [3, 4]


@virtual
async def test_while_the_group_has_members_nobody_else_commits():
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        one = await nursery.start(Reader(at).run)
        await shared([one], [1], 1)
        async with at.consumer(partitions=[("t", 0)]) as consumer:
            with pytest.raises(ApiError) as caught:
                await consumer.commit({("t", 0): 0})
            assert caught.value.code is E.UNKNOWN_MEMBER_ID
        assert await refusal(client.committed()) is None
        nursery.cancel_scope.cancel()


@virtual
async def test_an_assignor_gets_the_members_and_the_topics():
    seen = []

    def watching(members, counts):
        seen.append((members, dict(counts)))
        return assign_range(members, counts)

    async with site(topic=3) as at, trio.open_nursery() as nursery:
        said = {"partition_assignment_strategy": watching, "group_instance_id": "i"}
        one = await nursery.start(Reader(at, **said).run)
        await shared([one], [3], 3)
        ((members, counts),) = seen
        assert counts == {"t": 3}
        assert [(m.topics, m.instance_id, m.owned) for m in members] == [(("t",), "i", ())]
        nursery.cancel_scope.cancel()
