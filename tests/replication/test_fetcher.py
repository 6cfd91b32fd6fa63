"""What is fetched from a leader while roles change and connections are late.

Goal: with `flush=synced` a fetch acknowledges, so none leaves before what it stands for is on disk;
and a partition is in one request at a time. Method: the broker of `leaderkit`, a disk whose syncs
wait, and a network that connects when the test says.
"""

import trio
from brokers import GatedDisk
from leaderkit import ME, TWO, Here
from trio.testing import wait_all_tasks_blocked

from hightide.protocol import messages as m
from hightide.protocol import wire


class Wire:
    """A stream that takes everything, and a network that has it once `gate` is open."""

    can_send_file = False
    peer = "two"
    common_name = ""

    def __init__(self):
        self.gate = trio.Event()
        self.fetches = []
        """What was asked for: offsets by partition."""

    async def connect(self, host, port):
        await self.gate.wait()
        return self

    def send_now(self, buffers):
        data = b"".join(map(bytes, buffers))
        envelope = wire.decode_request_envelope(wire.split_frame(data[4:], message_limit=1 << 20))
        asked = wire.decode_body(envelope.body, m.FetchRequest)
        self.fetches.append([(part.partition, part.fetch_offset) for part in asked.partitions])
        return len(data)

    async def receive_into(self, view, wanted=1):
        await trio.sleep_forever()

    async def aclose(self):
        pass


def fetchers_of(here, network):
    found = here.applier._fetchers
    found._network = network
    return found


async def test_a_follower_that_led_while_it_waited_for_a_connection_owes_its_sync_first(nursery):
    disk, network = GatedDisk(), Wire()
    here = Here(disk=disk)
    here.run_agenda(nursery)
    nursery.start_soon(here.syncer.run)
    nursery.start_soon(fetchers_of(here, network).run, 10)
    await wait_all_tasks_blocked()
    replica = await here.create(leader=TWO, flush="synced")
    await wait_all_tasks_blocked()
    await here.change(leader=ME)
    disk.shut()
    here.append(2)
    here.replicas.mark_dirty(replica)
    await wait_all_tasks_blocked()
    await here.change(leader=TWO)
    network.gate.set()
    await wait_all_tasks_blocked()
    assert network.fetches == []
    disk.gate.set()
    await wait_all_tasks_blocked()
    assert network.fetches == [[(0, 2)]]
    nursery.cancel_scope.cancel()


async def nothing():
    """Ends at once."""


async def test_nothing_is_started_while_the_fetchers_end():
    """Who comes in that very turn is told nothing, and does not fall."""
    for _ in range(20):
        here = Here()
        fetchers = here.applier._fetchers

        async def come_all_the_time(fetchers=fetchers):
            for _ in range(50):
                fetchers.start(nothing)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            here.run_agenda(nursery)
            nursery.start_soon(fetchers.run, 10)
            await here.create(leader=TWO)
            await wait_all_tasks_blocked()
            nursery.start_soon(come_all_the_time)
            await trio.lowlevel.checkpoint()
            await fetchers.stop()
            nursery.cancel_scope.cancel()
