"""What browsers load is what lies here, unchanged, and from nowhere else.

Goal: no page needs the internet; method: the files themselves.
"""

import hashlib
import json
import re
from pathlib import Path

import click
import pytest

from hightide_cli.main import cli
from hightide_console.app import STATIC

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VENDOR = STATIC / "vendor"
LOCK = json.loads((VENDOR / "vendor.lock").read_text())
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
OURS = [path for path in FILES if path.parent == STATIC]
NAMES_NOT_PLACES = {"http://www.w3.org/2000/svg"}
"""What XML calls a language; nobody goes there."""


@pytest.mark.parametrize("name", LOCK)
def test_a_file_of_others_is_the_one_that_was_taken_over(name):
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == LOCK[name]["sha256"]
    assert (VENDOR / LOCK[name]["license"]).stat().st_size > 500
    assert LOCK[name]["integrity"].startswith("sha512-")


def test_every_file_of_others_is_in_the_list():
    licenses = {each["license"] for each in LOCK.values()}
    assert {path.name for path in VENDOR.iterdir()} == {*LOCK, *licenses, "vendor.lock"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_file_of_ours_names_a_foreign_place(path):
    places = re.findall(r"""(?:https?:)?//[\w.-]+\.\w+[^\s"'`<)]*""", path.read_text())
    assert {each for each in places if each.startswith(("http", "//"))} <= NAMES_NOT_PLACES


@pytest.mark.parametrize("name", LOCK)
def test_no_file_of_others_loads_anything(name):
    remarks = re.compile(r"^\s*(//|\*).*$", re.MULTILINE)
    text = remarks.sub("", (VENDOR / name).read_text())
    assert not re.search(r"""import\s*\(|from\s*["']|importScripts|fetch\(""", text)
    assert set(re.findall(r"https?://[^\"'` ]+", text)) <= {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1998/Math/MathML",
    }


def test_what_a_module_imports_is_here():
    for path in OURS:
        for name in re.findall(r"""from ["']([^"']+)["']""", path.read_text()):
            assert name.startswith("./"), f"{path.name} imports {name}"
            assert (path.parent / name).exists(), f"{path.name} imports {name}"


def test_pages_have_no_script_or_style_that_the_policy_would_not_run():
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    for path in OURS:
        if path.suffix == ".js":
            unsafe = re.search(r"\beval\(|innerHTML|dangerouslySet|\sstyle=", path.read_text())
            assert unsafe is None, f"{path.name}: {unsafe}"


@pytest.mark.parametrize(
    "line",
    sorted(
        {line for path in OURS for line in re.findall('hightide [a-z][^`"]*', path.read_text())}
    ),
)
def test_a_command_that_a_page_names_is_one(line):
    command, rest = cli, line.split()[1:]
    while isinstance(command, click.Group) and rest and rest[0].isalpha():
        command = command.get_command(click.Context(command), rest.pop(0))
        assert command is not None, line
    options = {option for each in command.params for option in each.opts}
    assert {word for word in rest if word.startswith("-") and "$" not in word} <= options


def test_the_document_shows_every_picture_and_none_is_large():
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (DEPLOY / "CONSOLE.md").read_text())
    pictures = {path: path.stat().st_size for path in (DEPLOY / "pictures").iterdir()}
    assert sorted(DEPLOY / each for each in shown) == sorted(pictures)
    assert max(pictures.values()) < 120 << 10
