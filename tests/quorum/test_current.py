"""Whether a node has all that was committed when it came up; before, rules may be missing.

Method: the driver's question on a core and a log that the test makes up.
"""

from types import SimpleNamespace

import pytest

from hightide_broker.core.quorum.state_machine import Quorum
from hightide_broker.runtime.quorum.driver import QuorumDriver

EPOCH = 7


@pytest.mark.parametrize(
    ("told", "end", "epoch", "is_current"),
    [
        pytest.param(-1, 10, EPOCH, False, id="nobody has said what is committed"),
        pytest.param(11, 10, EPOCH, False, id="more is committed"),
        pytest.param(10, 10, EPOCH - 1, False, id="a new leader may not know of all yet"),
        pytest.param(10, 10, EPOCH, True, id="all of it is there"),
        pytest.param(10, 12, EPOCH, True, id="and more"),
    ],
)
def test_all_that_was_committed_is_there(told, end, epoch, is_current):
    metadata = SimpleNamespace(snapshot_id=lambda _: SimpleNamespace(epoch=epoch))
    core = SimpleNamespace(told_watermark=told, epoch=EPOCH)
    driver = SimpleNamespace(core=core, metadata=metadata)
    assert QuorumDriver.is_current(driver, end) is is_current


@pytest.mark.parametrize("watermark", [0, 5, 6])
def test_a_leader_knows_once_something_of_its_own_epoch_is_committed(watermark):
    core = SimpleNamespace(is_leader=True, high_watermark=watermark, epoch_start=5)
    assert Quorum.told_watermark.fget(core) == (watermark if watermark > 5 else -1)
