"""The simulated world itself: it repeats exactly, and it keeps its promises seed by seed.

`hightide sim run` runs more seeds; here are as many as a change should not be allowed to break.
"""

import json
import os
import random
import subprocess
import sys

import pytest
import trio
from tries import ALL, LONG, some

from hightide_broker.runtime.quorum import driver
from hightide_broker.simulation import scheduler
from hightide_broker.simulation.run import run_seed
from hightide_broker.simulation.scheduler import SwitchMoved, check_switch, run_seeded

SEEDS = int(os.environ.get("HIGHTIDE_SEEDS", 11 if ALL else 7))


def replay(seed, **environment):
    """The history's fingerprint in a process of its own."""
    command = [sys.executable, "-m", "hightide_cli.main", "sim", "replay", str(seed), "-J"]
    done = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout)["fingerprint"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", some([4, 11], 1))
def test_a_seed_has_one_history_in_any_process(seed):
    here = run_seed(seed).fingerprint
    assert run_seed(seed).fingerprint == here
    assert replay(seed, PYTHONHASHSEED="0") == here
    assert replay(seed, PYTHONHASHSEED="12345") == here


@pytest.mark.slow
def test_different_seeds_have_different_histories():
    assert len({run_seed(seed).fingerprint for seed in (11, 17, 18)}) == 3


@LONG
@pytest.mark.slow
def test_a_planted_accident_changes_the_history(monkeypatch):
    """What the test above would notice: something that no seed decides."""
    accidents = random.SystemRandom()
    step = driver.QuorumDriver.step

    def accidental(self, event):
        self._parked = dict(sorted(self._parked.items(), key=lambda _: accidents.random()))
        if accidents.random() < 0.2:
            self._set_alarm(trio.current_time() + accidents.random())
        return step(self, event)

    monkeypatch.setattr(driver.QuorumDriver, "step", accidental)
    assert len({run_seed(4).fingerprint for _ in range(3)}) > 1


def test_the_order_of_a_set_of_strings_would_be_noticed():
    script = "print(list({'machine-1', 'machine-2', 'machine-3', 'machine-4'}))"
    orders = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    assert len(orders) > 1, "then PYTHONHASHSEED would prove nothing"


def test_tasks_run_in_the_order_that_the_seed_says():
    async def race():
        order = []

        async def runner(number):
            for _ in range(3):
                await trio.lowlevel.checkpoint()
                order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(runner, number)
        return tuple(order)

    assert run_seeded(1, race) == run_seeded(1, race)
    assert len({run_seeded(seed, race) for seed in range(8)}) > 1


def test_time_is_virtual():
    async def sleep():
        await trio.sleep(3600)
        return trio.current_time()

    assert run_seeded(1, sleep) >= 3600


def test_a_switch_that_moved_is_an_error(monkeypatch):
    check_switch()
    monkeypatch.delattr(scheduler.trio_internals, "_ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(SwitchMoved, match="would not repeat"):
        check_switch()


@pytest.mark.slow
def test_every_seed_keeps_every_promise():
    command = [sys.executable, "-m", "hightide_cli.main", "sim", "run", "-o", "json"]
    command += ["--seeds", f"1..{SEEDS}", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["seeds"] == SEEDS
    assert facts["broken"] == []
    # The worlds were not idle.
    assert facts["elections"] > 2 * SEEDS
    assert facts["commits"] > 20 * SEEDS
    assert facts["snapshots_loaded"] > SEEDS / 4
    assert facts["answered"] > facts["asked"] / 5
