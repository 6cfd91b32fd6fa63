"""A node's log as JSON: a line is an object, whatever is in the message."""

import json
import logging

from hightide_cli.log_format import FOR_PEOPLE, JsonLines


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
