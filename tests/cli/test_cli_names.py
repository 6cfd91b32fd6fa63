"""What newcomers type: error codes, environment variables, numbers, a shell's completion.

No broker is started. Commands run in this process as `test_cli.py` runs them.
"""

# ruff: noqa: F811 - fixtures are imported by name

import subprocess
import sys

import pytest
from test_cli import command  # noqa: F401

from hightide.protocol.errors import ERRORS, UsageError
from hightide.protocol.quorum_messages import RemoveVoterRequest
from hightide.protocol.wire import encode_request


@pytest.mark.parametrize("word", ["NOT_ENOUGH_REPLICAS", "not-enough-replicas", "19"])
def test_a_code_is_explained_by_its_name_and_its_number(command, word):
    ended = command("errors", word)
    assert ended.code == 0
    assert "the ISR is below min.insync.replicas" in ended.out
    assert "clients try again" in ended.out


def test_all_codes_are_listed_and_a_wrong_one_has_a_hint(command):
    assert command("errors", "-o", "quiet").out.split() == [*ERRORS]
    ended = command("errors", "NOT_ENOUGH_REPLICA")
    assert (ended.code, ended.out) == (4, "")
    assert "did you mean NOT_ENOUGH_REPLICAS?" in ended.err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("HIGHTIDE_BOOTSTRP", "did you mean HIGHTIDE_BOOTSTRAP?"),
        ("HIGHTIDE_LOG_DIR", "did you mean HIGHTIDE_LOG_DIRS?"),
        ("HIGHTIDE_Q", "HIGHTIDE_Q is set, and nothing reads it"),
        ("HIGHTIDE_BOOTSTRAP", ""),
        ("HIGHTIDE_LOG_DIRS", ""),
        ("HIGHTIDE_TOPICS_LIST_TIMEOUT_S", ""),
        ("HIGHTIDE_CONSUME_COUNT", ""),
    ],
)
def test_a_variable_that_nothing_reads_is_told_of(command, name, told):
    ended = command("errors", "19", **{name: "5"})
    assert ended.code == 0
    assert told in ended.err
    assert bool(told) == bool(ended.err)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_what_completes_commands(command, shell):
    ended = command("completion", shell)
    assert ended.code == 0
    assert "_HIGHTIDE_COMPLETE" in ended.out


def test_the_module_is_the_command():
    told = [sys.executable, "-m", "hightide", "errors", "19", "-o", "json"]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    assert '"code": "NOT_ENOUGH_REPLICAS"' in done.stdout


def test_a_number_that_has_no_place_in_a_request_is_a_usage_error():
    request = RemoveVoterRequest(id=1 << 70)
    with pytest.raises(UsageError, match="RemoveVoterRequest does not fit into 64 bits"):
        encode_request(request, request_id=1, client="c")
