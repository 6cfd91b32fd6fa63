"""The metadata quorum under any weather: what was promised holds, and it finds together again.

Goal: one leader an epoch, one vote a voter and epoch, nothing promised that is not durable, no
watermark that falls, nothing committed that changes or that a later leader lacks; and, once letters
arrive again, a leader who commits and whom all follow. Method: a seed decides what arrives, what is
lost or doubled, which disk is done, who dies between two duties and what of its log survives;
`quorum_world.QuorumWorld` judges every step. A failure names its seed.
"""

from __future__ import annotations

import pytest
from quorum_storm import survive
from tries import tries


@pytest.mark.slow
def test_three_voters_keep_every_promise_and_recover():
    survive(tries(150), voters=3)


@pytest.mark.slow
def test_five_voters_keep_every_promise_and_recover():
    survive(tries(100), voters=5)


@pytest.mark.slow
@pytest.mark.parametrize("voters", [3, 5])
def test_a_majority_does_without_the_others(voters):
    survive(tries(80), voters=voters, away=voters // 2)


@pytest.mark.slow
def test_observers_change_nothing_and_see_all_of_it():
    survive(tries(100), voters=3, observers=2)


def test_a_voter_alone_recovers():
    survive(20, voters=1, observers=1)
