"""A signal ends a block that holds something, wherever it strikes; and a command, while it is being
imported, or asks the cluster.

Method: signals to this process; interpreters in which an import is interrupted, or a command
between any two of its instructions.
"""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from patience import PATIENCE_S
from strikes import STRIKES

from hightide_cli.signals import ended_by, told_to_stop


def test_a_signal_ends_the_block_where_it_is_and_leaves_the_handlers_as_they_were():
    before = signal.getsignal(signal.SIGTERM)
    reached = []

    def work():
        with ended_by(signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(signal.SIGTERM)
            reached.append("the next line")

    with pytest.raises(SystemExit) as ended:
        work()
    assert (ended.value.code, reached) == (128 + signal.SIGTERM, [])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_goes_unheard_ends_it_at_its_end(number):
    """A finaliser swallows it, or a library has put its own handler there."""

    def work():
        with ended_by(signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
            signal.raise_signal(number)

    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 128 + number


def test_what_ends_the_block_otherwise_is_not_another_signal():
    with ended_by(signal.SIGTERM), told_to_stop(signal.SIGINT) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
    with pytest.raises(ZeroDivisionError), ended_by(signal.SIGTERM):
        _ = 1 // 0


STRUCK_BETWEEN_INSTRUCTIONS = """
from hightide_cli.options import ask

strike = Strike({"opcode"}, {"ask_admin", "ask", "run"})


async def work(_):
    await trio.lowlevel.checkpoint()


def question(number):
    strike.aim(number)
    ask("127.0.0.1:1", 1, work)
    sys.settrace(None)


strike.at_every_place(question, least=41)
"""


def test_an_interruption_between_any_two_instructions_ends_a_question_to_the_cluster():
    program = [sys.executable, "-c", STRIKES + STRUCK_BETWEEN_INSTRUCTIONS]
    ended = subprocess.run(program, capture_output=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


PROJECT = Path(__file__).parents[2] / "pyproject.toml"
INTERRUPTED = """
import signal
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
from {package} import {attribute}
{attribute}()
"""


def interrupted(module, *words, before=""):
    """How the script `hightide` ends that gets a Ctrl-C when it imports a module."""
    scripts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
    package, attribute = scripts["hightide"].split(":")
    script = INTERRUPTED.format(module=module, package=package, attribute=attribute)
    command = [sys.executable, "-c", before + script, *words]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("module", ["click", "hightide_cli.main", "hightide_cli.topics"])
def test_a_command_that_is_interrupted_while_it_is_imported_ends_quietly(module):
    ended = interrupted(module, "topics", "list")
    assert ended.returncode in (-signal.SIGINT, 130)  # 130 to a shell, both
    assert (ended.stdout, ended.stderr.strip()) == (b"", b"")


def test_who_was_told_to_ignore_ctrl_c_does_so_from_the_first_moment():
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    ended = interrupted("click", "--version", before=ignoring)
    assert (ended.returncode, ended.stderr) == (0, b"")
