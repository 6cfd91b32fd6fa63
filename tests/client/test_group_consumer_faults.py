"""Consumers in groups that are slow, thrown out, replaced, cancelled; and who is told of it.

Goal: a member that does not ask for records any more makes room and comes back; listeners hear of
every partition, of lost ones as lost; static members keep their place; what coordinators refuse for
a while is asked again. Method: as in `test_group_consumer.py`.
"""

from functools import partial
from itertools import islice

import pytest
import trio
from group_world import (
    MANUAL,
    SESSION_MS,
    Reader,
    fill,
    group_led_by,
    in_sync,
    joined,
    later,
    outcome,
    shared,
    site,
    take,
    until,
    virtual,
)

from hightide import ApiError
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC

E = ErrorCode
BOTH = pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])


class Heard:
    """Listeners that write down what they are told."""

    def __init__(self, *, is_async=False):
        self.news = []
        names = ("assigned", "revoked", "lost")
        make = self._async if is_async else self._sync
        self.options = {f"on_{name}": make(name) for name in names}

    def _sync(self, name):
        return lambda parts: self._note(name, parts)

    def _async(self, name):
        async def listener(parts):
            await trio.sleep(0.01)
            self._note(name, parts)

        return listener

    def _note(self, name, parts):
        if parts:
            self.news.append((name, sorted(part.partition for part in parts)))


async def throw_out(client, group="g"):
    """Take every member out of a group, as an administrator may."""
    for member in (await client.describe(group)).members:
        await client.leave(member.member_id, group=group)


# --- listeners ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@virtual
async def test_listeners_hear_what_is_given_and_taken(is_async):
    heard = Heard(is_async=is_async)
    async with site(topic=2) as at, trio.open_nursery() as nursery:
        one = await nursery.start(Reader(at, **heard.options).run)
        await shared([one], [2], 2)
        two = await nursery.start(Reader(at).run)
        (kept, _) = await shared([one, two], [1, 1], 2)
        await trio.sleep(1)
        assert heard.news == [("assigned", [0, 1]), ("revoked", [0, 1]), ("assigned", [*kept])]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_listener_may_commit_what_is_taken():
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 3, partitions=2)

        async def commit(parts):
            await one.consumer.commit({tuple(part): 2 for part in parts})

        one = Reader(at, on_revoked=commit, **MANUAL)
        await nursery.start(one.run)
        await until(lambda: len(one.records) == 6)
        two = await nursery.start(Reader(at, **MANUAL).run)
        await shared([one, two], [1, 1], 2)
        assert await client.committed() == {("t", 0): 2, ("t", 1): 2}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["assigned", "revoked", "lost"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@virtual
async def test_what_a_listener_raises_reaches_the_caller_once(name, is_async):
    async def fail_later(parts):
        raise KeyError(name)

    def fail(parts):
        raise KeyError(name)

    said = {f"on_{name}": fail_later if is_async else fail}
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 2)
        async with at.consumer(auto_offset_reset="latest", **said) as consumer:
            if name != "assigned":
                await joined(consumer)
            if name == "revoked":
                await later(nursery, client.enter)
                await trio.sleep(1)
            elif name == "lost":
                await throw_out(client)
                await trio.sleep(1)
            with pytest.raises(KeyError, match=name):
                await consumer.poll(timeout_ms=10_000)
            nursery.cancel_scope.cancel()
            assert await consumer.poll(timeout_ms=100) == []


@BOTH
@virtual
async def test_partitions_of_a_member_that_was_thrown_out_are_lost_and_not_revoked(assignor):
    heard = Heard()
    said = {"partition_assignment_strategy": [assignor], "auto_commit_interval_ms": 600_000}
    async with site(topic=2) as at, at.client() as client:
        await fill(client, 5, partitions=2)
        async with at.consumer(**said, **heard.options) as consumer:
            await take(consumer, 4)
            await throw_out(client)
            await trio.sleep(1)
            with pytest.raises(ApiError, match="no member of group 'g' now") as caught:
                await consumer.commit()
            assert caught.value.code is E.UNKNOWN_MEMBER_ID
            assert "max_poll_interval_ms" in str(caught.value)
            again = set()
            while len(again) < 10:
                again |= {(r.partition, r.offset) for r in await take(consumer, 1)}
        news = [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1]), ("revoked", [0, 1])]
        assert heard.news == news, "the last word is the close's"


@virtual
async def test_nothing_is_handed_out_of_partitions_that_are_lost():
    async with site() as at, at.client() as client:
        await fill(client, 9)
        for number in range(8):
            name = f"g{number}"
            async with at.consumer(group_id=name, **MANUAL) as consumer:
                await take(consumer, 2)
                await throw_out(client, name)
                await trio.sleep(1)
                assert [r.offset for r in await take(consumer, 2)] == [0, 1]


@virtual
async def test_a_commit_of_a_member_that_does_not_know_yet_that_it_is_out_is_refused():
    said = {"heartbeat_interval_ms": 5_000}
    async with site() as at, at.client() as client, at.consumer(**said) as consumer:
        await fill(client, 5)
        await take(consumer, 2)
        await throw_out(client)
        await client.member()
        with pytest.raises(ApiError) as caught:
            await consumer.commit()
        assert caught.value.code is E.UNKNOWN_MEMBER_ID
        assert await client.committed() == {}


@virtual
async def test_who_hears_only_when_it_joins_that_it_is_out_begins_where_the_group_is():
    """Somebody else read its partition meanwhile, and went on."""
    heard = Heard()
    said = {"partition_assignment_strategy": ["cooperative-sticky"], "heartbeat_interval_ms": 500}
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 9)
        async with at.consumer(**said, **MANUAL, **heard.options) as consumer:
            await take(consumer, 2)
            said = {"assignor": "cooperative-sticky", "session_timeout_ms": 300_000}
            joining = await later(nursery, partial(client.enter, **said))
            await trio.sleep(0.6)  # it hears of the rebalance, and its caller is busy
            await client.leave((await client.describe()).leader)
            other = await outcome(joining)
            await client.sync(other)
            assert await client.commit(7, other) is None
            await client.leave(other.member_id)
            for _ in range(50):
                assert await consumer.poll(timeout_ms=50, max_records=0) == []
                await trio.sleep(0.05)
            assert consumer.position("t", 0) == 7
        assert ("lost", [0]) in heard.news


# --- a caller that is away ----------------------------------------------------------------------


@virtual
async def test_a_caller_that_is_away_for_too_long_makes_room_and_comes_back():
    heard = Heard()
    said = {"max_poll_interval_ms": 3_000}
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 5, partitions=2)
        async with at.consumer(**said, **heard.options) as consumer:
            await joined(consumer, 2)
            await trio.sleep(2.5)
            assert (await client.describe()).state == "Stable"
            await trio.sleep(1)
            told = await client.describe()
            why = "not polled for 3 s (max_poll_interval_ms)"
            assert (told.state, why in told.rebalances[-1].cause) == ("Empty", True)
            with pytest.raises(ApiError) as caught:
                await consumer.commit()
            assert why in str(caught.value)
            other = await nursery.start(Reader(at).run)
            await until(lambda: len(other.records) == 10)
            with trio.fail_after(30):
                while len(consumer.assignment()) != 1 or len(other.places) != 1:
                    await consumer.poll(timeout_ms=50)
        assert [name for name, _ in heard.news] == ["assigned", "lost", "assigned", "revoked"]
        assert heard.news[1] == ("lost", [0, 1])
        nursery.cancel_scope.cancel()


@virtual
async def test_a_caller_that_is_away_makes_room_in_time_for_who_joins_meanwhile():
    async with site(topic=2) as at, trio.open_nursery() as nursery:
        async with at.consumer(max_poll_interval_ms=3_000) as consumer:
            await joined(consumer, 2)
            other = await nursery.start(Reader(at, max_poll_interval_ms=600_000).run)
            start = trio.current_time()
            await shared([other], [2], 2)
            assert trio.current_time() - start < 5
        nursery.cancel_scope.cancel()


@virtual
async def test_a_caller_may_be_busy_for_max_poll_interval_ms_also_during_a_rebalance():
    heard = Heard()
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 5)
        async with at.consumer(max_poll_interval_ms=60_000, **heard.options) as consumer:
            await take(consumer, 2)
            before = await client.describe()
            nursery.start_soon(partial(client.enter, session_timeout_ms=300_000))
            await trio.sleep(2 * SESSION_MS / 1000)
            told = await client.describe()
            assert before.members[0].member_id in {each.member_id for each in told.members}
            await consumer.commit({("t", 0): 2})
            await consumer.poll(timeout_ms=1_000)
        assert ("lost", [0]) not in heard.news
        nursery.cancel_scope.cancel()


@virtual
async def test_waiting_for_records_is_not_being_away():
    async with (
        site() as at,
        at.client() as client,
        at.consumer(max_poll_interval_ms=2_000) as consumer,
    ):
        await joined(consumer)
        assert await consumer.poll(timeout_ms=20_000) == []
        told = await client.describe()
        assert (told.state, told.generation) == ("Stable", 1)
        await trio.sleep(1.5)
        assert await consumer.poll() == []
        await trio.sleep(1.5)
        assert (await client.describe()).generation == 1


@virtual
async def test_a_poll_that_is_cancelled_leaves_nothing_behind():
    async with site() as at, at.client() as client, at.consumer() as consumer:
        for wait in (0, 0.0001, 0.001, 0.002, 0.01, 0.1):
            with trio.move_on_after(wait):
                await consumer.poll(timeout_ms=60_000)
        await joined(consumer)
        await fill(client, 5)
        await trio.sleep(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await consumer.poll(timeout_ms=60_000)
        assert [r.offset for r in await take(consumer, 5)] == [0, 1, 2, 3, 4]
        told = await client.describe()
        assert (told.generation, len(told.members)) == (1, 1)


@virtual
async def test_a_cancelled_wait_is_no_wait_and_the_time_of_its_caller_begins():
    async with (
        site() as at,
        at.client() as client,
        at.consumer(max_poll_interval_ms=2_000) as consumer,
    ):
        await joined(consumer)
        with trio.move_on_after(5):
            await consumer.poll(timeout_ms=60_000)
        assert (await client.describe()).generation == 1
        await trio.sleep(4)
        assert (await client.describe()).state == "Empty"


@virtual
async def test_a_consumer_that_is_closed_while_it_joins_leaves_no_member_behind():
    async with (
        site(group_initial_rebalance_delay_ms="3s") as at,
        at.client() as client,
        trio.open_nursery() as nursery,
    ):
        await client.find()
        async with at.consumer() as consumer:
            assert await consumer.poll(timeout_ms=1_000) == []
        two, start = await nursery.start(Reader(at).run), trio.current_time()
        await shared([two], [1], 1)
        assert trio.current_time() - start < 6
        assert len((await client.describe()).members) == 1
        nursery.cancel_scope.cancel()


@virtual
@pytest.mark.parametrize("at_work", [True, False], ids=["reading", "in a rebalance"])
async def test_a_consumer_that_is_cancelled_leaves_its_group_at_once(at_work):
    delay = "0" if at_work else "3s"
    async with site(group_initial_rebalance_delay_ms=delay) as at, at.client() as client:
        await client.find()
        with trio.move_on_after(1) as scope:
            async with at.consumer() as consumer:
                await consumer.poll(timeout_ms=60_000)
        assert scope.cancelled_caught
        await trio.sleep(5)
        assert (await client.describe()).members == []


@virtual
async def test_a_consumer_that_is_cancelled_does_not_wait_for_a_broker_that_is_gone():
    async with site() as at, at.client() as client:
        await client.find()
        with trio.move_on_after(5):
            async with at.consumer() as consumer:
                await joined(consumer)
                await at.machines[0].crash(power=True)
                await consumer.poll(timeout_ms=60_000)
        began = trio.current_time()
        assert 5 <= began <= 5.6


# --- static members -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(0, id="joined twice"),
        pytest.param(1, id="joined once"),
    ],
)
@virtual
async def test_a_static_member_that_starts_again_has_its_partitions_without_a_rebalance(first):
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        readers = []
        for number in range(2):
            reader = Reader(at, group_instance_id=f"i{number}")
            readers.append(await nursery.start(reader.run))
            await until(lambda: all(each.places for each in readers))
        parts = await shared(readers, [1, 1], 2)
        before = await client.describe()
        await readers[first].stop()
        assert (await client.describe()).state == "Stable"
        again = await nursery.start(Reader(at, group_instance_id=f"i{first}").run)
        readers[first] = again
        assert await shared(readers, [1, 1], 2) == parts
        await trio.sleep(5)
        after = await client.describe()
        assert (after.state, after.generation) == ("Stable", before.generation)
        assert {each.instance_id for each in after.members} == {"i0", "i1"}
        nursery.cancel_scope.cancel()


@virtual
async def test_a_static_member_that_was_replaced_says_so():
    said = {"group_instance_id": "i"}
    async with site() as at, at.client() as client:
        await fill(client, 5)
        async with at.consumer(**said) as old:
            await take(old, 2)
            async with at.consumer(**said) as new:
                await joined(new)
                await trio.sleep(1)
                for _ in range(2):
                    with pytest.raises(ApiError) as caught:
                        await old.poll(timeout_ms=5_000, max_records=1)
                    assert caught.value.code is E.FENCED_INSTANCE_ID
                with pytest.raises(ApiError) as caught:
                    await old.commit({("t", 0): 1})
                assert caught.value.code is E.FENCED_INSTANCE_ID
                assert (await client.describe()).generation == 1
        assert (await client.describe()).state == "Stable"


# --- coordinators that fail ---------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@virtual
async def test_members_go_on_when_the_broker_comes_back(power):
    heard = Heard()
    async with site(topic=2) as at, trio.open_nursery() as nursery:
        async with at.client() as client:
            await fill(client, 5, partitions=2)
        one = await nursery.start(Reader(at, **heard.options).run)
        two = await nursery.start(Reader(at).run)
        await shared([one, two], [1, 1], 2)
        await until(lambda: len(one.records) + len(two.records) >= 10)
        async with at.client() as client:
            before, news = await client.describe(), list(heard.news)
        await at.again(power=power)
        async with at.client() as client:
            await fill(client, 5, partitions=2, start=5)
            await until(lambda: len(one.records) + len(two.records) >= 20)
            after = await client.describe()
            assert after.generation == before.generation
            assert [m.member_id for m in after.members] == [m.member_id for m in before.members]
            assert heard.news == news
            for reader in (one, two):
                await reader.stop()
            assert await client.committed() == {("t", 0): 10, ("t", 1): 10}


@virtual
async def test_a_commit_that_the_coordinator_cannot_keep_now_is_asked_again():
    async with (
        site(offsets_commit_timeout_ms="500") as at,
        at.client() as client,
        trio.open_nursery() as nursery,
        at.consumer(**MANUAL) as consumer,
    ):
        await fill(client, 5)
        await take(consumer, 3)
        at.gate.shut()
        committing = await later(nursery, consumer.commit)
        await trio.sleep(2)
        at.gate.open_again()
        assert await outcome(committing) is None
        assert await client.committed() == {("t", 0): 3}


@virtual
async def test_a_commit_finds_the_next_coordinator():
    async with site(brokers=2, offsets_topic_num_partitions="4") as at, at.client() as client:
        name, wanted = await group_led_by(client, at, 1)
        await in_sync(client, wanted.partition, 2)
        await at.machines[1].crash(power=False)
        await until(lambda: at.leads(0, wanted.partition))
        at.machines[1].start_again()
        await at.machines[1].serves()
        await in_sync(client, wanted.partition, 2)
        async with at.consumer(group_id=name, partitions=[("t", 0)], **MANUAL) as consumer:
            await consumer.commit({("t", 0): 1})
            places = [m.PartitionName(topic=OFFSETS_TOPIC, partition=wanted.partition)]
            await client.call(m.ElectLeadersRequest(partitions=places))
            await consumer.commit({("t", 0): 2})
            async with at.client(1) as second:
                assert await second.committed(name) == {("t", 0): 2}


@virtual
async def test_what_a_thread_takes_while_partitions_are_let_go_of_is_committed_or_not_taken():
    async with site() as at, at.client() as client, at.consumer() as consumer:
        await fill(client, 5)
        await joined(consumer)
        lent = await consumer.lend(timeout_ms=60_000)
        records, late = iter(lent), []
        next(records)
        completed, rebalancer = consumer._completed, consumer._rebalancer
        drop = completed.drop_of

        def drop_of(partitions):
            late.extend(islice(records, 1))  # at this moment, in the other thread
            drop(partitions)

        completed.drop_of = drop_of
        (position,) = rebalancer._release(rebalancer._owned()).values()
        assert position.offset + len(late) == 0  # the first one is being worked on
