"""The lessons of `hightide lab`: they come out as they say, and their accounts are as written down.

Goal: what people read there is what the code does. Method: each lesson checks its own claims while
it is played; its account is compared with a file, line by line (`--rewrite` refills it). Then the
claims that matter are checked here once more, on the words.
"""

import difflib
import re

import pytest
from click.testing import CliRunner
from transcripts import SCENARIOS

from hightide_broker.simulation.lab_scenarios import LESSONS, frames, play
from hightide_cli.main import cli

NAMES = [lesson.name for lesson in LESSONS]


def account(name):
    return "\n".join(play(name)) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_account_is_as_written_down(name, rewrite):
    path = SCENARIOS / "lab" / f"{name}.txt"
    told = account(name)
    if rewrite:
        path.parent.mkdir(exist_ok=True)
        path.write_text(told, encoding="utf-8")
    written = path.read_text(encoding="utf-8")
    if told != written:
        pair = written.splitlines(), told.splitlines()
        diff = difflib.unified_diff(*pair, "expected", "got", n=2, lineterm="")
        pytest.fail("\n".join([f"{path.name} (--rewrite refills it)", *diff]), pytrace=False)


def last_state(name, part, broker):
    """How a broker's log was shown last in a part of a lesson."""
    text = account(name).split("== ")[part]
    lines = [line.strip() for line in text.splitlines()]
    shown = [line for line in lines if line.startswith(f"{broker} ")][-1]
    return shown.split(": ")[1].split(" watermark=")[0]


def test_with_epochs_the_acknowledged_record_stays_and_with_the_old_rule_it_is_lost():
    assert last_state("one-after-the-other", 1, "A") == "m1/e0 m2/e0 m3/e1"
    assert last_state("one-after-the-other", 2, "A") == "m1/e0 m3/e1"


def test_with_epochs_replicas_end_equal_and_with_the_old_rule_they_differ():
    for part in (1, 2):
        assert last_state("both-at-once", part, "A") == last_state("both-at-once", part, "B")
    assert last_state("both-at-once", 3, "A") != last_state("both-at-once", 3, "B")


def test_a_diverged_follower_loses_exactly_what_its_leader_never_had():
    assert last_state("reconciliation", 1, "A") == "m0/e1 m1/e1 m2/e1 n3/e2"


def test_the_command_lists_and_plays_them():
    listed = CliRunner().invoke(cli, ["lab", "list", "-o", "quiet"])
    assert listed.output.split() == NAMES
    played = CliRunner().invoke(cli, ["lab", "run", "reconciliation"])
    assert (played.exit_code, played.output) == (0, account("reconciliation"))
    unknown = CliRunner().invoke(cli, ["lab", "run", "nothing"])
    assert (unknown.exit_code, unknown.output) == (
        4,
        "there is no lesson 'nothing': see hightide lab list\n",
    )
    misspelt = CliRunner().invoke(cli, ["lab", "run", "one-after-other"])
    assert (misspelt.exit_code, misspelt.output) == (
        4,
        "there is no lesson 'one-after-other', did you mean one-after-the-other?\n",
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_is_the_same_story_step_by_step(name):
    told, said = frames(name), "\n".join(play(name))
    steps = [frame.text for frame in told if frame.text]
    assert steps == re.findall(r"^ ?\d+\. (.*)$", said, re.MULTILINE)
    assert len({frame.part for frame in told}) == said.count("\n== ")


def test_a_step_shows_what_is_there_after_it_and_not_before():
    for frame in frames("one-after-the-other"):
        leader = next(lane for lane in frame.lanes if lane.broker == frame.leader)
        if found := re.match(r"a producer sends (m\d) ", frame.text):
            assert leader.values[-1] == found[1]
        elif frame.text.startswith("B fetches from A: offset 0"):
            assert leader.values == ["m1"], "m2 is not there yet"
