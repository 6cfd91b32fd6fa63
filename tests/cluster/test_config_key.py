"""One key of a configuration: each kind has the limits it is made with, reads its texts, and says
what it expected of another one."""

from __future__ import annotations

from typing import Any

import pytest

from hightide_broker.core.cluster import config_key
from hightide_broker.core.cluster.config_key import I64_MAX, Key, Unfit

TOPIC = config_key.count("of.topic", "1", "a topic's")


def facts(key: Key[Any]) -> tuple[Any, ...]:
    return key.name, key.default, key.doc, key.low, key.high, key.unit, key.choices, key.topic_key


def test_a_text_is_taken_as_it_is() -> None:
    key = config_key.text("host", "here", "a name")
    assert facts(key) == ("host", "here", "a name", 0, I64_MAX, "", (), None)
    assert key.parse(" any ") == " any "


def test_a_count_has_the_limits_and_the_unit_that_it_is_made_with() -> None:
    plain = config_key.count("n", "3", "how many")
    assert facts(plain) == ("n", "3", "how many", 0, I64_MAX, "", (), None)
    assert (plain.parse("0"), plain.parse(str(I64_MAX))) == (0, I64_MAX)
    key = config_key.count("ms", "7d", "an age", low=2, high=9000, unit="ms", topic_key=TOPIC)
    assert facts(key) == ("ms", "7d", "an age", 2, 9000, "ms", (), TOPIC)
    assert key.parse("9s") == 9000
    for text, expected in (
        ("1", "2 or more"),
        ("10s", "9000 or less"),
        ("x", "a whole number, units ms, s, m, h, d"),
    ):
        with pytest.raises(Unfit, match=f"^ms is {text!r}, expected {expected}$"):
            key.parse(text)


def test_a_ratio_is_a_number_from_0_to_1() -> None:
    key = config_key.ratio("part", "0.5", "a share", topic_key=TOPIC)
    assert facts(key) == ("part", "0.5", "a share", 0, 1, "", (), TOPIC)
    assert [key.parse(text) for text in ("0", "0.25", "1")] == [0, 0.25, 1]
    for text, expected in (("1.5", "1 or less"), ("-0.1", "0 or more"), ("half", "a number")):
        with pytest.raises(Unfit, match=f"^part is {text!r}, expected {expected}$"):
            key.parse(text)


def test_a_switch_is_true_or_false() -> None:
    key = config_key.switch("on", "true", "whether", topic_key=TOPIC)
    assert facts(key) == ("on", "true", "whether", 0, I64_MAX, "", ("true", "false"), TOPIC)
    assert (key.parse("true"), key.parse(" false")) == (True, False)
    with pytest.raises(Unfit, match=r"^on is 'True', expected one of true, false$"):
        key.parse("True")


def test_words_are_of_a_few() -> None:
    one = config_key.word("flush", "a", "when", choices=("a", "b"), topic_key=TOPIC)
    assert facts(one) == ("flush", "a", "when", 0, I64_MAX, "", ("a", "b"), TOPIC)
    assert one.parse("b ") == "b"
    some = config_key.words("roles", "a", "which", choices=("a", "b"), topic_key=TOPIC)
    assert facts(some) == ("roles", "a", "which", 0, I64_MAX, "", ("a", "b"), TOPIC)
    assert some.parse("b, a") == {"a", "b"}
    for key, text in ((one, "c"), (some, "a,c")):
        with pytest.raises(Unfit, match=f"^{key.name} is {text!r}, expected one of a, b$"):
            key.parse(text)


@pytest.mark.parametrize(
    ("name", "text", "sent"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "-1", "-1"),
        ("segment.bytes", " 64MiB", "67108864"),
        ("segment.bytes", "64MB", "64000000"),
        ("retention.ms", "-1h", "-1"),
        ("min.insync.replicas", "2", "2"),
        ("flush", "7d", "7d"),
        ("of.a.later.version.ms", "2s", "2000"),
    ],
)
def test_a_time_or_a_size_with_a_unit_is_sent_as_a_number(name: str, text: str, sent: str) -> None:
    assert config_key.as_sent(name, text) == sent


@pytest.mark.parametrize("text", ["soon", "1.5h", "7dd", "", "64MiB", "1e3"])
def test_a_time_that_is_none_is_not_sent(text: str) -> None:
    expected = f"^retention.ms is '{text}', expected a whole number, units ms, s, m, h, d$"
    with pytest.raises(Unfit, match=expected):
        config_key.as_sent("retention.ms", text)
