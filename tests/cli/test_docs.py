"""Goal: what the documents show can be done as it is shown, and the reference names all there is.

Method: each command in a document is taken apart as the command line does it; the blocks of those
that tell one story are pasted into a shell, in order; pages are built, and their links followed.
"""

import importlib
import inspect
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import click
import pytest
from commands import environment
from commands import hightide as run
from patience import PATIENCE_S
from secure_run import WORDS
from tries import few

import hightide
from hightide_cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "deploy/docs/guide"
PAGES = [ROOT / "README.md", ROOT / "deploy/SPARK.md", ROOT / "deploy/CONSOLE.md"]
DOCUMENTS = [*PAGES, *sorted(GUIDE.glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shell_of(document):
    """Everything a reader would paste into a shell."""
    blocks = FENCED.findall(document.read_text(encoding="utf-8"))
    return "".join(block for language, block in blocks if language in ("", "sh"))


# -- commands --------------------------------------------------------------------------------------


def commands_of(document):
    """The words of each `hightide …` in blocks and in the text."""
    text = document.read_text(encoding="utf-8")
    shell = shell_of(document).replace("\\\n", " ")
    inline = re.findall(r"`(hightide [^`\n]+)`", text)
    for line in [*shell.splitlines(), *inline]:
        for part in re.split(r"&&|\||;", line.partition(" #")[0]):
            if re.match(r"\s*(\S*/)?hightide ", part):
                yield shlex.split(part)[1:]


def parsed(words):
    """Go by the words to the command; raises `click.ClickException` for what there is not."""
    command, context = cli, None
    while isinstance(command, click.Group):
        if command.invoke_without_command and words[:1] != [] and words[0].startswith("-"):
            break  # what it does by itself
        context = click.Context(command, parent=context, info_name="hightide")
        name, *words = words
        assert name in command.list_commands(context), f"no command {name!r}"
        command = command.get_command(context, name)
    return command.make_context("hightide", list(words), parent=context)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_a_document_is_one(document):
    found = list(commands_of(document))
    assert found or document.name == "spark.md"
    for words in found:
        if words[-1] in ("--help", "…"):
            words = words[:-1]
        if not words or any(word.isupper() or "|" in word or "…" in word for word in words):
            continue  # a form of words, with places to fill in
        if words in (["lab"], ["groups"]):
            continue
        try:
            parsed(words)
        except click.MissingParameter:
            pass  # it is spoken of, not shown
        except click.UsageError as error:
            param = getattr(error, "param", None)
            if param is not None and isinstance(param.type, click.Path):
                continue  # the file is not here
            pytest.fail(f"hightide {' '.join(words)}: {error.format_message()}")


@pytest.mark.live
def test_the_configuration_of_three_hosts_is_one(tmp_path):
    (toml,) = re.findall(r"```toml\n(.*?)```", (GUIDE / "operating.md").read_text(), re.DOTALL)
    path = tmp_path / "broker.toml"
    certificates = tmp_path / "certs"
    run("certs", "create", certificates, "--node", "1=10.0.0.1")
    path.write_text(toml.replace("/etc/hightide/certs", str(certificates)))
    run("server", "start", "-c", path, "--check-config")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_who_is_shown_certificates_and_users_is_told_to_install_what_makes_them(document):
    shown = [
        words[0] in ("certs", "users") or "--secure" in words for words in commands_of(document)
    ]
    installs = [line for line in shell_of(document).splitlines() if "pip install" in line]
    if any(shown) and installs:
        assert any("secure" in line for line in installs)


# -- stories ---------------------------------------------------------------------------------------

PRELUDE = """
set -euo pipefail
hightide() {
    if [ "$1" = up ]; then
        shift
        "$PYTHON" -m hightide_cli.main up --port 0 $UP_WORDS "$@"
    elif [ "$1" = doctor ]; then
        "$PYTHON" -m hightide_cli.main "$@" --port 0
    else
        "$PYTHON" -m hightide_cli.main "$@"
    fi
}
trap 'for data in .hightide three; do [ ! -d $data ] || hightide down --data $data; done' EXIT
"""
NOT_HERE = ("deploy/", "python3 -m venv", "hightide sim run")
"""Beginnings of lines that would test, or install, what is tested and installed: the same seeds
are run in `simulation/`."""


def pasted(document):
    """A document's shell blocks as a script; a line that is to be refused has to be."""
    lines = []
    for line in shell_of(document).splitlines():
        if line.startswith(NOT_HERE):
            continue
        code, _, comment = line.partition(" #")
        lines.append(f"if {code}; then exit 99; fi" if "refuses" in comment else code)
    return "\n".join(lines)


def until(text, end):
    """What comes before a line of a script."""
    return text[: text.index(end)]


STORIES = {
    "README": until(pasted(ROOT / "README.md"), "hightide topics create sales"),
    "first_cluster": pasted(GUIDE / "first_cluster.md"),
    "replication": pasted(GUIDE / "replication.md"),
}


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("story", few(STORIES, 1))
def test_a_story_can_be_pasted(story, tmp_path):
    told = subprocess.run(
        ["bash", "-c", PRELUDE + STORIES[story]],
        cwd=tmp_path,
        env=environment() | {"PYTHON": sys.executable, "UP_WORDS": " ".join(WORDS)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Traceback" not in told.stderr


# -- pages -----------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The links of a page and what may be linked to."""

    def __init__(self, page):
        super().__init__()
        self.hrefs, self.anchors = [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        if tag == "a" and known.get("href"):
            self.hrefs.append(known["href"])
        if known.get("id"):
            self.anchors.add(known["id"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    build = [sys.executable, str(ROOT / "deploy/docs/build.py"), str(target)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return target


@pytest.mark.slow
def test_the_reference_names_all_there_is(site):
    anchors = Links(site / "hightide.html").anchors
    modules = {"blocking"}
    assert {*hightide.__all__} - modules <= anchors
    assert "ProducerOptions.linger_ms" in anchors
    assert "Producer.send" in Links(site / "hightide/blocking.html").anchors


@pytest.mark.slow
@pytest.mark.parametrize("room", ["hightide", "hightide.blocking", "hightide.testing"])
def test_the_reference_shows_what_a_class_has_from_one_that_is_not_shown(site, room):
    package = importlib.import_module(room)
    classes = {name: getattr(package, name) for name in package.__all__ if name != "blocking"}
    methods = {
        f"{name}.{method}"
        for name, each in classes.items()
        if isinstance(each, type)
        for base in each.__mro__
        if base.__module__.startswith("hightide.")
        for method, function in vars(base).items()
        if inspect.isfunction(function) and method[0] != "_"
    }
    assert methods
    assert sorted(methods - Links(site / f"{room.replace('.', '/')}.html").anchors) == []


@pytest.mark.slow
def test_the_guide_shows_pictures_that_a_script_made(site):
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (GUIDE / "replication.md").read_text())
    assert shown
    made = {path.resolve() for path in (ROOT / "deploy/pictures").glob("*.png")}
    assert {(GUIDE / each).resolve() for each in shown} <= made
    page = (site / "guide/replication.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/png;base64,') == len(shown)


@pytest.mark.slow
def test_every_link_leads_somewhere(site):
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 8
    for page, links in pages.items():
        for href in links.hrefs:
            if href.startswith("http"):
                continue
            path, anchor = urldefrag(unquote(href))
            target = (page.parent / path).resolve() if path else page
            assert target in pages, f"{page.name}: {href}"
            if anchor:
                assert anchor in pages[target].anchors, f"{page.name}: {href}"
