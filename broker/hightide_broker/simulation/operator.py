"""The operator of a simulated world: admits voters whose disks were replaced.

As `hightide quorum replace` does: the voter with the old directory is removed, and the node is
added with the new one once it keeps up. It is tried again and again, because anything may be in the
way of either. In some worlds the nodes do that themselves, and the operator only looks.
"""

from __future__ import annotations

import trio

from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import Refused
from hightide_broker.runtime.cluster.controller import ControllerShell
from hightide_broker.simulation.world import PORT, Machine, World

LOOKS_S = 0.5
PATIENCE_S = 5.0


async def operate(world: World) -> None:
    """Until cancelled."""
    while True:
        await trio.sleep(LOOKS_S)
        for machine in world.machines:
            leader = world.leader()
            if machine.owes_admission and leader is not None and leader.node is not None:
                assert leader.node.controller is not None
                with trio.move_on_after(PATIENCE_S):
                    await _admit(world, machine, leader.node.controller)


async def _admit(world: World, machine: Machine, controller: ControllerShell) -> None:
    """The next step to let a machine vote again, if there is one now."""
    leader = world.leader()
    if leader is None or leader.node is None or machine.node is None:
        return
    membership, number = leader.node.quorum.core.membership, machine.id
    wanted = machine.node.quorum.core.config.directory
    found = membership.directory_of(number)
    try:
        if found == wanted:
            world.story.tell(f"operator: {machine.name} votes again")
            machine.owes_admission = False
            world.readmitted += 1
        elif world.knobs.joins_by_itself:
            return
        elif found:
            await controller.submit(q.RemoveVoterRequest(id=number))
            world.story.tell(f"operator: {machine.name} votes no more")
        else:
            await controller.submit(q.AddVoterRequest(id=number, host=machine.name, port=PORT))
    except Refused:
        """Not now: it does not keep up yet, nobody leads, or something else is under way."""
