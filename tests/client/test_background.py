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
import signal, sys, trio
from hightide.net.background import open_background, start

left = 0


def trace(frame, event, argument):
    global left
    if frame.f_code.co_name == "spawn_impl" and event == "line":
        left -= 1
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
    return trace


async def main(line):
    global left
    async with open_background() as nursery:
        left = line
        sys.settrace(trace)
        start(nursery, work)
        sys.settrace(None)
        if left <= 0:
            await trio.sleep_forever()


async def work():
    await trio.sleep_forever()


line = 1
while True:
    try:
        trio.run(main, line)
        break  # it was the last line
    except KeyboardInterrupt:
        line += 1
sys.exit(line < 10)
"""
STRUCK_AT_THE_ENDS_OF_BLOCKS = """
import signal, sys, trio
import hightide

left = 0


def trace(frame, event, argument):
    global left
    if frame.f_code.co_name in ("__aenter__", "__aexit__"):
        left -= 1
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)


async def main(call):
    global left
    left = call
    sys.settrace(trace)
    async with hightide.Producer("127.0.0.1:1"):
        await trio.lowlevel.checkpoint()
    sys.settrace(None)
    await trio.lowlevel.checkpoint()  # where it is heard of at the latest


call = 1
while True:
    try:
        trio.run(main, call)
        break  # it was the last call
    except KeyboardInterrupt:
        call += 1
sys.exit(call < 6)
"""
STRUCK_WHILE_IT_JOINS = """
import signal, sys, trio
import hightide
from hightide.testing import BlockingCluster

left = 0


def trace(frame, event, argument):
    global left
    if frame.f_code.co_name not in ("poll", "_tend", "tend", "_release", "start"):
        return None
    if event == "line":
        left -= 1
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
    return trace


async def main(address, line):
    global left
    async with hightide.Consumer(address, group=f"g{line}", topics=["t"]) as consumer:
        left = line
        sys.settrace(trace)
        await consumer.poll()
        sys.settrace(None)
        await trio.lowlevel.checkpoint()


line = 1
with BlockingCluster(1) as cluster:
    with hightide.blocking.Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=1)
    while True:
        try:
            trio.run(main, cluster.bootstrap, line)
            break  # it was the last line
        except KeyboardInterrupt:
            line += 1
sys.exit(line < 20)
"""
PROGRAMS = {
    "steps": STRUCK_AT_STEPS,
    "lines": STRUCK_AT_LINES,
    "blocks": STRUCK_AT_THE_ENDS_OF_BLOCKS,
    "joining": STRUCK_WHILE_IT_JOINS,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_an_interruption_anywhere_ends_a_background(program):
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0
