"""Goal: a simulation that is run from the command line says what it did, and can be run again.

Method: a few seeds, as processes of their own.
"""

import json
import logging
import re
import subprocess
import sys

import pytest
from commands import hightide

from hightide_broker.simulation import replicated
from hightide_cli import sim

pytestmark = pytest.mark.slow

TOTALS = ["virtual_s", "events", "messages", "elections", "commits", "snapshots_loaded"]
TOTALS += ["power_losses", "lost_disks", "readmitted"]
FIELDS = ["seeds", "world", "broken", *TOTALS, "asked", "answered", "seconds"]
OUTCOME = ["seed", "violation", "fingerprint", *TOTALS, "asked", "answered"]
SEED = 17
"""Like the next one, a quick one."""


@pytest.fixture(scope="module")
def story():
    """What one seed tells."""
    return hightide("sim", "replay", SEED).out.decode().splitlines()


@pytest.fixture(scope="module")
def outcome():
    (row,) = hightide("sim", "replay", SEED, "-J").rows
    return row


def test_run_has_the_stable_json_and_the_numbers_of_its_seeds(outcome):
    ended = hightide("sim", "run", "--seeds", f"{SEED}..{SEED}", "-o", "json")
    totals = json.loads(ended.out)
    assert list(totals) == FIELDS
    assert totals["seeds"] == 1
    assert totals["broken"] == []
    assert totals["seconds"] > 0
    for name in [*TOTALS, "asked", "answered"]:
        assert totals[name] == round(outcome[name])
    assert ended.err == ""


def test_run_adds_its_seeds_up_whatever_the_number_of_jobs():
    found = []
    for jobs in (1, 2):
        words = ["--seeds", f"{SEED}..{SEED + 1}", "--jobs", jobs, "-o", "ndjson"]
        (row,) = hightide("sim", "run", *words).rows
        assert row["seeds"] == 2
        assert row["commits"] > 0
        found.append({name: value for name, value in row.items() if name != "seconds"})
    assert found[0] == found[1]


def test_one_number_is_one_seed_and_text_has_a_line_for_each_fact():
    lines = hightide("sim", "run", "--seeds", SEED).out.decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == FIELDS
    assert lines[0] == "seeds: 1"


def test_replay_as_json_is_the_outcome_alone(outcome):
    assert list(outcome) == OUTCOME
    assert outcome["seed"] == SEED
    assert outcome["violation"] == ""
    assert re.fullmatch(r"[0-9a-f]{32}", outcome["fingerprint"])
    assert outcome["virtual_s"] > 40
    assert outcome["asked"] >= outcome["answered"] > 0


def test_replay_tells_the_story_in_order_and_the_verdict_last(story, outcome):
    assert re.match(r" *0\.000 s  Knobs\(controllers=\d", story[0])
    times = [float(line.split()[0]) for line in story[:-1]]
    assert times == sorted(times)
    assert times[-1] <= outcome["virtual_s"]
    assert any(line.split(" s  ")[1].startswith("fault: ") for line in story[1:-1])
    assert any(line.endswith("healed") for line in story)
    verdict = f"seed {SEED}, history {outcome['fingerprint']}: every promise was kept"
    assert story[-1] == verdict


def test_replay_of_the_same_seed_prints_the_same(story):
    assert hightide("sim", "replay", SEED).out.decode().splitlines() == story
    another = hightide("sim", "replay", SEED + 1).out.decode().splitlines()
    assert another[0] != story[0]


def test_a_seed_in_which_a_node_crashes_is_named_and_does_not_end_the_others(monkeypatch):
    def crashes(seed, *, keep_story):
        raise ExceptionGroup("a nursery", [ValueError(f"in seed {seed}")])

    monkeypatch.setattr(replicated, "run_seed", crashes)
    first, second = sim._outcomes(range(7, 9), "replicated", 1)
    assert (first.seed, second.seed) == (7, 8)
    assert first.violation.startswith("a node ended by a bug\n")
    assert "ValueError: in seed 7" in first.violation
    assert logging.getLogger("hightide").isEnabledFor(logging.WARNING), "who calls it has logs, too"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--seeds", f"1..{10**30}"], "10000000 or fewer in one run"),
        (["--seeds", "1..5", "--jobs", "99999999999"], "99999999999"),
    ],
    ids=str,
)
def test_more_than_a_machine_can_run_is_a_usage_error(words, named):
    assert named in hightide("sim", "run", *words, code=2).err


@pytest.mark.parametrize(
    "words", [["run", "--seeds", "1..100000", "--jobs", "2"], ["replay", SEED]], ids=str
)
def test_an_interrupted_simulation_ends_at_once_and_quietly(words):
    command = [sys.executable, "-c", INTERRUPTED, "sim", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_ctrl_c_strikes_nothing_half_done():
    """Inside of the pool it could leave a lock behind, and its threads would wait for ever."""
    command = [sys.executable, "-c", STRUCK_INSIDE, "sim", "run", "--seeds", "1..1000"]
    done = subprocess.run([*command, "--jobs", "2"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "went on\n")


STRUCK_INSIDE = """
import os, queue, signal, sys
from hightide_cli.main import main

put = queue.Queue._put


def struck(self, item):
    queue.Queue._put = put
    os.kill(os.getpid(), signal.SIGINT)
    put(self, item)
    print("went on", flush=True)


queue.Queue._put = struck
sys.argv[0] = "hightide"
main()
"""


INTERRUPTED = """
import os, signal, sys, threading
from hightide_broker.simulation import run
from hightide_cli.main import main

run_seed, ours = run.run_seed, os.getpid()


def interrupted(seed, **how):
    os.kill(ours, signal.SIGINT)
    return run_seed(seed, **how)


run.run_seed = interrupted
sys.argv[0] = "hightide"
main()
"""
