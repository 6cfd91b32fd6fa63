"""A client's own tasks, and Ctrl-C.

Goal: whatever is struck, everything ends, and the user sees his own exception or the interruption.
Method: a program of its own, as a signal ends trio; it is struck at every step of the main task, or
at every line of trio that starts a task.
"""

import subprocess
import sys

import pytest
import trio
from patience import PATIENCE_S
from strikes import STRIKES

from hightide.net.background import open_background


async def test_the_blocks_own_exception_leaves_a_background_as_it_is():
    async def fail():
        async with open_background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()


STRUCK_AT_STEPS = """
import signal, sys, trio
from hightide.net.background import open_background


class Strike(trio.abc.Instrument):
    def __init__(self, step):
        self.left = step

    def before_task_step(self, task):
        self.left -= task.name.endswith("main")
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


async def main():
    async with open_background():
        await trio.lowlevel.checkpoint()


struck = 0
for step in range(1, 9):
    try:
        trio.run(main, instruments=[Strike(step)])
    except KeyboardInterrupt:
        struck += 1
sys.exit(struck < 3)
"""
STRUCK_AT_LINES = """
from hightide.net.background import open_background, start

strike = Strike({"line"}, {"spawn_impl"})


async def main(line):
    async with open_background() as nursery:
        strike.aim(line)
        start(nursery, trio.sleep_forever)
        sys.settrace(None)
        if strike.left <= 0:
            await trio.sleep_forever()


strike.at_every_place(partial(trio.run, main), least=10)
"""
STRUCK_AT_THE_ENDS_OF_BLOCKS = """
import hightide

strike = Strike({"call"}, {"__aenter__", "__aexit__"})


async def main(call):
    strike.aim(call)
    async with hightide.Producer("127.0.0.1:1"):
        await trio.lowlevel.checkpoint()
    sys.settrace(None)
    await trio.lowlevel.checkpoint()  # where it is heard of at the latest


strike.at_every_place(partial(trio.run, main), least=6)
"""
STRUCK_WHILE_IT_JOINS = """
import hightide
from hightide.testing import BlockingCluster

strike = Strike({"line"}, {"poll", "_tend", "tend", "_release", "start"})


async def main(line, address):
    async with hightide.Consumer(address, group_id=f"g{line}", topics=["t"]) as consumer:
        strike.aim(line)
        await consumer.poll()
        sys.settrace(None)
        await trio.lowlevel.checkpoint()


with BlockingCluster(1) as cluster:
    with hightide.blocking.Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=1)
    strike.at_every_place(partial(trio.run, main), cluster.bootstrap, least=20)
"""
PROGRAMS = {
    "steps": STRUCK_AT_STEPS,
    "lines": STRIKES + STRUCK_AT_LINES,
    "blocks": STRIKES + STRUCK_AT_THE_ENDS_OF_BLOCKS,
    "joining": STRIKES + STRUCK_WHILE_IT_JOINS,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_an_interruption_anywhere_ends_a_background(program):
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0
