"""What the tests of the simulated network share: machines "a" and "b", calm weather, patience.

No test lives here.
"""

import random

import trio

from hightide_broker.simulation.network import SimNetwork, Weather
from hightide_broker.simulation.scheduler import run_seeded

PORT = 9000
CALM = Weather(latency_s=0.01, jitter_s=0.0)
LONG_S = 1000.0
BROKEN = trio.BrokenResourceError


def network_of(weather=CALM, seed=0):
    return SimNetwork(random.Random(seed), weather)


def virtual(function, seed=0):
    """Run a test's world to its end on virtual time."""
    return run_seeded(seed, function)


async def connected(network, source="a", target="b"):
    """(the end that connected, the end that accepted)."""
    listener = await network.host(target).listen(target, PORT)
    near = await network.host(source).connect(target, PORT)
    far = await listener.accept()
    await listener.aclose()
    return near, far


async def receive(stream, size=4096):
    """The next bytes; b"" at the end of the stream."""
    view = bytearray(size)
    return bytes(view[: await stream.receive_into(memoryview(view))])


async def receive_all(stream):
    found = []
    while data := await receive(stream):
        found.append(data)
    return found


async def is_silent(function, *args):
    """Whether nothing comes of it, however long one waits."""
    with trio.move_on_after(LONG_S) as scope:
        await function(*args)
    return scope.cancelled_caught
