"""What the tests of `hightide bench` share: one measurement, of which nothing is left.

No test lives here, but a fixture, which is imported by name.
"""

import json
from pathlib import Path

import pytest
from commands import hightide
from secure_run import WORDS

MAY_BE_SECURE = (
    *("produce", "consume", "e2e"),
    *("client", "connections", "failover", "groups", "growth"),
)


def commands_below(directory):
    """The living processes whose command line names something below a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(directory).encode() in command:
            found.append(command)
    return found


@pytest.fixture
def bench(tmp_path):
    """Run one measurement; its JSON, once it is certain that nothing of it is left."""

    def run(*words):
        data = tmp_path / "data"
        data.mkdir()
        (data / "kept").write_text("somebody else's")
        how = WORDS if words[0] in MAY_BE_SECURE and "--secure" not in words else ()
        ended = hightide("bench", *words, *how, "-o", "json", "--data", data)
        assert [path.name for path in data.iterdir()] == ["kept"]
        assert commands_below(data) == []
        return json.loads(ended.out)

    return run
