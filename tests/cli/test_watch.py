"""Goal: `--watch` shows what there is again and again, whatever goes wrong meanwhile, and Ctrl-C
ends it as a wish that was granted.

Method: commands that say what round it is, in this process; the terminal is a file that says so.
"""

import io
import subprocess
import sys

import click
import pytest

from hightide.protocol.errors import BrokerUnreachable, UsageError
from hightide_cli.watching import watchable

SOON = "0.1"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watched(rounds, *words):
    """What a command printed whose rounds are these: words to print, or an exception. Ctrl-C
    comes behind the last."""
    left = iter([*rounds, KeyboardInterrupt()])

    @click.command()
    @watchable
    @click.option("--greeting", default="round")
    def shown(greeting):
        now = next(left)
        if isinstance(now, BaseException):
            raise now
        click.echo(f"{greeting} {now}")

    shown.main(["--watch", SOON, *words], standalone_mode=False)


def test_each_round_is_printed(capsys):
    watched(["one", "two"], "--greeting", "hello")
    assert capsys.readouterr().out == "hello one\nhello two\n"


def test_trouble_is_told_and_may_be_over_the_next_time(capsys):
    watched(["one", BrokerUnreachable("nobody is there"), click.exceptions.Exit(6), "two"])
    told = capsys.readouterr()
    assert told.out == "round one\nround two\n"
    assert told.err.startswith("hightide: nobody is there")


@pytest.mark.parametrize(
    "wrong", [UsageError("wrong"), click.UsageError("wrong"), ZeroDivisionError()]
)
def test_what_cannot_get_better_ends_it(wrong):
    with pytest.raises(type(wrong)):
        watched(["one", wrong, "two"])


def test_ctrl_c_inside_of_trio_is_ctrl_c(capsys):
    watched(["one", BaseExceptionGroup("trio's", [KeyboardInterrupt()])])
    assert capsys.readouterr().out == "round one\n"
    with pytest.raises(BaseExceptionGroup):
        watched([BaseExceptionGroup("another", [SystemExit()])])


def test_a_terminal_shows_a_page_at_once_with_what_was_said_beside_it(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    watched(["one", BrokerUnreachable("nobody is there"), "two"])
    pages = terminal.getvalue().split("(Ctrl-C ends this)\n\n")[1:]
    assert [page.splitlines()[0].partition(" [")[0] for page in pages] == [
        "round one",
        "hightide: nobody is there",
        "round two",
    ]


@pytest.mark.parametrize("output", ["table", "json", "quiet"])
def test_a_reader_that_goes_ends_it(output):
    """As `| head -1` does: nothing is wrong."""
    program = WATCHER.format(output=output)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:
        assert watching.stdout.readline()
        watching.stdout.close()
        assert watching.stderr.read() == b""
    assert watching.returncode == 0


WATCHER = """
import sys
from types import SimpleNamespace
import hightide_cli.groups as groups
groups.ask = lambda *_: [{{"group": "g" * 5000, "state": "Empty", "members": 0}}] * 50
sys.argv = ["hightide", "groups", "list", "-o", "{output}", "--watch", "0.1"]
from hightide_cli.main import main
main()
"""


def test_without_it_a_command_runs_once(capsys):
    @click.command()
    @watchable
    def shown():
        click.echo("once")

    shown.main([], standalone_mode=False)
    assert capsys.readouterr().out == "once\n"
