"""Tables as people see them: no value is cut, however narrow the terminal.

Goal: anybody who copies a pid, a group's or a topic's name out of a table has all of it. Method: a
process of its own that writes to a terminal of 50, 80 or 200 columns.
"""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from hightide_cli.output import _block, print_table, show_one

COLUMNS = ["group", "topic", "partition", "committed", "log_end_offset", "lag"]
ROWS = [
    ["live-orders-of-the-day", "orders", "0", "4", "1234567890123", "1234567890119"],
    ["mail", "a-topic-with-a-rather-long-name", "12", "", "0", "0"],
]
PROGRAM = "from hightide_cli.output import print_table; print_table({}, {})"


def shown(columns, rows=ROWS):
    """What the program shows on a terminal so wide, or in a pipe."""
    command = [sys.executable, "-c", PROGRAM.format(rows, COLUMNS)]
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    plain["NO_COLOR"], plain["TERM"] = "1", "dumb"
    if columns is None:
        done = subprocess.run(command, env=plain, capture_output=True, check=True, text=True)
        return done.stdout
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(ours, "rb", closefd=True, buffering=0) as terminal:
        subprocess.run(command, env=plain, stdout=theirs, check=True, timeout=PATIENCE_S)
        text = terminal.read(65536)
        os.close(theirs)
    return text.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [50, 80, 200, None])
def test_every_value_is_there_in_one_piece_on_any_terminal(columns):
    text = shown(columns)
    words = text.split()
    for value in (cell for row in ROWS for cell in row if cell):
        assert value in words
    for title in ("GROUP", "TOPIC", "LAG"):
        assert title in words
    is_table = columns in (200, None)
    assert words.count("GROUP") == (1 if is_table else len(ROWS))
    if is_table:
        assert len(text.splitlines()) == 1 + len(ROWS)


def test_before_rows_become_blocks_the_columns_without_a_value_are_left_out():
    rows = [[*row[:3], "", "", *row[5:]] for row in ROWS]
    assert shown(85, rows).splitlines()[0].split() == ["GROUP", "TOPIC", "PARTITION", "LAG"]
    assert "COMMITTED" in shown(200, rows).split()
    assert "COMMITTED" in shown(None, rows).split(), "for who reads it by place"
    assert shown(50, rows).split().count("COMMITTED") == len(rows)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "a\r", "\x9b2J", "a\u2028b", "\u202eb"])
def test_a_name_that_others_gave_themselves_does_nothing_to_a_terminal(name, capsys):
    print_table([[name, "é"]], ["member", "host"])
    show_one({"protocol": name}, "table")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert "é" in lines[1]


def test_a_row_that_is_too_wide_is_a_block_of_a_line_for_each_column():
    assert shown(50).split("\n\n")[1].splitlines() == [
        "GROUP           mail",
        "TOPIC           a-topic-with-a-rather-long-name",
        "PARTITION       12",
        "COMMITTED       ",
        "LOG END OFFSET  0",
        "LAG             0",
    ]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=200)))
def test_a_block_holds_every_value_as_it_is(row):
    titles = [f"T{number}" for number in range(len(row))]
    lines = _block(titles, row).split("\n") if row else []
    assert [line.partition("  ")[2].lstrip(" ") for line in lines] == [c.lstrip(" ") for c in row]
