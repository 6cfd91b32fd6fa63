"""Goal: a story says what happened, fits on a page, and a reader can look up each of its words.

Method: the runner on small stories; every story in `scenarios` is measured, and every command that
there is must be in the legend of its folder.
"""

import inspect
import re

import pytest
import transcripts
from election_story import ElectionStory
from group_story import GroupStory
from quorum_story import QuorumStory
from table_story import TableStory
from test_log import LogWorld

WORLDS = {
    "elections": ElectionStory,
    "groups": GroupStory,
    "log": LogWorld,
    "quorum": QuorumStory,
    "replication": TableStory,
}


def test_no_line_is_too_long_for_a_page():
    long = [
        f"{path.parent.name}/{path.name}:{number}"
        for path in transcripts.SCENARIOS.rglob("*.txt")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) >= 120
    ]
    assert not long


@pytest.mark.parametrize("folder", [path.name for path in transcripts.SCENARIOS.iterdir()])
def test_every_folder_has_a_legend(folder):
    legend = (transcripts.SCENARIOS / folder / "README.md").read_text(encoding="utf-8")
    if folder == "lab":
        return  # what the lessons say, in sentences
    explained = set(re.findall(r"`([a-z-]+)", legend))
    commands = {
        name.replace("_", "-")
        for name, _ in inspect.getmembers(WORLDS[folder], inspect.isfunction)
        if not name.startswith("_") and name != "check_invariants"
    }
    assert commands <= explained


TOLD = """\
# A story.
create  segment_bytes=600 -> start=0 end=0
append  2                 -> 0..1 segments=0  # why

read    7                 -> OffsetOutOfRange: offset 7 is outside the log, which holds 0 to 2
"""


def test_a_story_without_answers_is_refilled_and_then_holds(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("# A story.\ncreate  segment_bytes=600\nappend  2  # why\n\nread    7\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-append.*\+append.*0\.\.1"):
        transcripts.play(path, LogWorld(), rewrite=False)
    transcripts.play(path, LogWorld(), rewrite=True)
    assert path.read_text() == TOLD
    transcripts.play(path, LogWorld(), rewrite=False)


def test_a_wrong_answer_fails_with_both_answers_and_leaves_the_file(tmp_path):
    path = tmp_path / "story.txt"
    wrong = TOLD.replace("0..1", "0..2")
    path.write_text(wrong)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-append.*0\.\.2.*\+append.*0\.\.1"):
        transcripts.play(path, LogWorld(), rewrite=False)
    assert path.read_text() == wrong


def test_an_unknown_command_is_named_with_its_place(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("create\n\nfly 3 -> high\n")
    with pytest.raises(AttributeError, match="fly") as caught:
        transcripts.play(path, LogWorld(), rewrite=True)
    assert caught.value.__notes__ == [f"{path}:3: fly 3"]


class Talkative:
    """Answers with as many words, in as many parts, as it is told to."""

    refusals = ()

    def check_invariants(self):
        """There are none."""

    def talk(self, *sizes):
        return "; ".join(" ".join(f"w{n}" for n in range(int(size))) for size in sizes)


def test_a_long_answer_has_a_line_for_each_part_and_is_read_back(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("talk 3 2  # short\ntalk 60 2 50\ntalk 3 2\n")
    transcripts.play(path, Talkative(), rewrite=True)
    lines = path.read_text().splitlines()
    assert lines[0] == "talk 3 2     -> w0 w1 w2; w0 w1  # short"
    assert sum(line.strip().startswith("; ") for line in lines) == 2
    assert max(map(len, lines)) <= transcripts.WIDTH_MAX
    transcripts.play(path, Talkative(), rewrite=False)
    told = path.read_text()
    transcripts.play(path, Talkative(), rewrite=True)
    assert path.read_text() == told
    path.write_text(told.replace("w49", "w99"))
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-.*w99.*\+.*w49"):
        transcripts.play(path, Talkative(), rewrite=False)
