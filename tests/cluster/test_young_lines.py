"""A broker that dies right after it came back is missed as soon as any other.

Goal: a line that broke before it had stood for long is made again after a short pause, which grows
only while that goes on. Method: lines of a controller to fake processes, in simulated time.
"""

from __future__ import annotations

import trio
from test_broker_liveness import CONTROLLER, with_lines

from hightide_broker.runtime.cluster.broker_liveness import RETRY_S, STOOD_S


def test_who_dies_young_is_gone_within_a_short_pause():
    async def body(told):
        process = told.listen(1)
        told.announce(1, 11)
        await trio.sleep(STOOD_S / 2)
        assert process.open == 1
        await process.kill()
        await trio.sleep(2 * RETRY_S)
        assert told.gone == {1: 11}

    with_lines(body)


def test_who_lets_nobody_stay_is_called_more_and_more_seldom():
    async def body(told):
        process = told.listen(1)
        told.announce(1, 11)
        await trio.sleep(RETRY_S)
        for _ in range(1000):
            told.network.reset(CONTROLLER, "b1")
            await trio.sleep(RETRY_S / 2)
        # 25 s, in which pauses double from the shortest one.
        assert 5 <= process.accepted <= 12
        assert told.gone == {}

    with_lines(body)
