"""What a process counts of itself: each turn of its event loop once, and time that only grows."""

import trio

from hightide_broker.runtime.base.usage import ProcessUsage

TURNS = 50


async def test_turns_of_the_event_loop_are_counted():
    usage = ProcessUsage()
    trio.lowlevel.add_instrument(usage)
    before = usage.used()
    for _ in range(TURNS):
        await trio.lowlevel.checkpoint()
    after = usage.used()
    assert after.loop_passes - before.loop_passes == TURNS
    trio.lowlevel.remove_instrument(usage)
    await trio.lowlevel.checkpoint()
    assert usage.used().loop_passes == after.loop_passes
    assert after.user_ms >= before.user_ms > 0
    assert after.system_ms >= before.system_ms >= 0
