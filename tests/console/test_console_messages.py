"""Records as text: whatever bytes they are made of, a page can show them.

Goal: text is shown as it is, what is none in hex, and a cut is told; method: the pure functions.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide import Record
from hightide_console import messages
from hightide_console.messages import TEXT_MAX, shown, text_of


@pytest.mark.parametrize(
    "text", ["", "hello", "ünïcödé 🌊", "<img src=x onerror=alert(1)>", "\0\1"]
)
def test_text_is_shown_as_it_is(text):
    data = text.encode()
    assert text_of(data) == {"text": text, "size": len(data), "cut": False}


def test_nothing_is_nothing():
    assert text_of(None) is None


def test_bytes_that_are_no_text_are_shown_in_hex():
    assert text_of(b"\xff\x00a") == {"hex": "ff 00 61", "size": 3, "cut": False}


@pytest.mark.parametrize("character", ["é", "€", "🌊"])
@pytest.mark.parametrize("off", [0, 1, 2, 3])
def test_a_cut_inside_of_a_character_leaves_it_out(character, off):
    data = b"a" * off + character.encode() * TEXT_MAX
    found = text_of(data)
    assert found["cut"]
    assert found["size"] == len(data)
    assert set(found["text"]) <= {"a", character}
    assert TEXT_MAX - 4 < len(found["text"].encode()) <= TEXT_MAX


def test_long_bytes_that_are_no_text_are_cut_too():
    found = text_of(b"\xff" * (TEXT_MAX + 1))
    assert (found["cut"], len(bytes.fromhex(found["hex"]))) == (True, TEXT_MAX)


@given(st.binary(max_size=40), st.integers(1, 12))
def test_whatever_the_bytes_nothing_is_made_up(data, most):
    before, messages.TEXT_MAX = messages.TEXT_MAX, most
    try:
        found = text_of(data)
    finally:
        messages.TEXT_MAX = before
    piece = bytes.fromhex(found["hex"]) if "hex" in found else found["text"].encode()
    assert data.startswith(piece)
    assert found["size"] == len(data)
    assert found["cut"] == (len(data) > most)
    assert len(piece) <= most
    assert len(piece) > min(len(data), most) - 4


def test_a_record_is_shown_whole():
    record = Record("t", 0, 7, 1000, b"k", None, [("h", b"\xff"), ("h", None)])
    assert shown(record) == {
        "offset": 7,
        "timestamp": 1000,
        "key": {"text": "k", "size": 1, "cut": False},
        "value": None,
        "headers": [["h", {"hex": "ff", "size": 1, "cut": False}], ["h", None]],
    }
