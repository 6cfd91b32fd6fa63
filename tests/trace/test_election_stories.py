"""How leaders were found, as stories in `scenarios/elections`.

Goal: an election is told as unclean if a record that was committed may be missing from the new
leader, and only then (KIP-966). Method: transcripts told to the real controller; a step
answers what the trace tells of it.
"""

import pytest
import transcripts
from election_story import ElectionStory


@pytest.mark.parametrize("path", transcripts.stories("elections"), ids=lambda path: path.stem)
def test_an_election_is_told_as_what_it_was(path, rewrite):
    transcripts.play(path, ElectionStory(), rewrite=rewrite)
