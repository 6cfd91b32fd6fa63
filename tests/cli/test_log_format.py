"""A node's log as JSON: a line is an object, whatever is in the message."""

import ast
import json
import logging
from collections import Counter
from pathlib import Path

import pytest

from hightide_cli.log_format import FOR_PEOPLE, JsonLines

HOUSE = Path(__file__).parents[2]
SOURCES = [
    *(HOUSE / "broker/hightide_broker").rglob("*.py"),
    HOUSE / "cli/hightide_cli/serving.py",
]
LOGGING = {"debug", "info", "warning", "error", "exception"}


def record(message, *args, exc_info=None):
    return logging.LogRecord(
        "hightide.test", logging.INFO, "/x/fetcher.py", 1, message, args, exc_info, "_take"
    )


def test_a_line_is_an_object_with_its_place_in_the_house():
    told = json.loads(JsonLines(3).format(record("%s says\n%r", "somebody", '"')))
    assert told.pop("ts").endswith("+00:00")
    assert told == {
        "level": "info",
        "node": 3,
        "logger": "hightide.test",
        "event": "fetcher.take",
        "message": "somebody says\n'\"'",
    }


def test_a_line_is_one_line():
    assert "\n" not in JsonLines(1).format(record("two\nlines"))


def test_a_failure_is_in_the_line():
    try:
        raise ValueError("no")
    except ValueError as error:
        told = JsonLines(1).format(record("x", exc_info=(ValueError, error, error.__traceback__)))
    assert "ValueError: no" in json.loads(told)["exception"]


def test_people_read_the_level_and_the_logger():
    assert "INFO hightide.test x" in logging.Formatter(FOR_PEOPLE).format(record("x"))


# -- one name for one event ------------------------------------------------------------------------


def events_of(path, text):
    """The name of each event that a module logs, as its lines have it in JSON."""
    found = []

    def visit(node, function):
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else ""
            match child:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attr)) if (
                    attr in LOGGING
                ):
                    extra = {each.arg: each.value for each in child.keywords}.get("extra")
                    place = f"{path.stem}.{function.lstrip('_')}"
                    found.append(ast.unparse(extra.values[0]) if extra else place)
            visit(child, inner or function)

    visit(ast.parse(text), "")
    return found


def twice(path, text):
    return [name for name, count in Counter(events_of(path, text)).items() if count > 1]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_what_a_place_tells_of_different_things_has_different_names(path):
    assert twice(path, path.read_text(encoding="utf-8")) == []


def test_events_are_found_in_the_sources():
    found = [name for path in SOURCES for name in events_of(path, path.read_text(encoding="utf-8"))]
    assert len(found) > 50
    assert {"door.renew", "'door.renewal_failed'"} <= {*found}


def test_a_place_that_tells_of_two_things_is_found():
    two = "def _f():\n    log.info('a')\n    log.error('b'{})\n"
    assert twice(Path("x.py"), two.format("")) == ["x.f"]
    assert twice(Path("x.py"), two.format(", extra={'event': 'x.g'}")) == []


def test_an_event_has_the_name_that_it_is_given():
    named = record("x")
    named.event = "door.renewal_failed"
    assert json.loads(JsonLines(1).format(named))["event"] == "door.renewal_failed"
