"""A replica whose disk fails while it has nothing to fetch, and its leader's session holds it.

Goal: what `test_offline_at_once.py` promises does not depend on whether records come meanwhile: who
serves nobody is neither waited for nor taken back into the ISR. Method: that of the other file; the
replica goes offline when nothing is written.
"""

from __future__ import annotations

import trio
from test_offline_at_once import HEARTBEAT_S, SEED, SOON_S, in_three

from hightide_broker.simulation.scheduler import run_seeded


async def lose_a_quiet_follower(at):
    """It is out of the ISR; the partition and the broker."""
    partition, victim = at.find(leads=False, is_controller=False)
    await trio.sleep(1)
    victim.node.replicas.get("t", partition).go_offline("its disk broke")
    with trio.fail_after(SOON_S):
        while victim.id in at.state(partition).isr:
            await trio.sleep(0.001)
    return partition, victim


def test_a_quiet_follower_whose_disk_fails_stays_out_of_the_isr():
    async def body(at):
        partition, victim = await lose_a_quiet_follower(at)
        for _ in range(20):
            await trio.sleep(HEARTBEAT_S / 60)
            assert victim.id not in at.state(partition).isr

    run_seeded(SEED, lambda: in_three(body))


def test_a_quiet_follower_whose_disk_fails_is_not_waited_for():
    async def body(at):
        partition, _ = await lose_a_quiet_follower(at)
        await trio.sleep(0.01)
        assert await at.send(partition, 20) < SOON_S

    run_seeded(SEED, lambda: in_three(body))
