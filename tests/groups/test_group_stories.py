"""Consumer groups as stories in `scenarios/groups`: who comes, who goes, and who gets what.

Goal: what users of a group see, from the first join to the last leave, is what Kafka would show
them; nothing is given twice, nobody waits for ever, and those that are late are told so (KIP-62,
134, 345, 394, 814). Method: transcripts told to one group with a clock that is moved by hand;
`GroupStory` checks after each step that its fields fit together and that everybody has what their
leader gave.
"""

import pytest
import transcripts
from group_story import GroupStory


@pytest.mark.parametrize("path", transcripts.stories("groups"), ids=lambda path: path.stem)
def test_a_group_does_what_the_story_says(path, rewrite):
    transcripts.play(path, GroupStory(), rewrite=rewrite)
