"""Answers that are put together in steps: what is attached to them is closed, whatever happens.

Method: the answers of one connection by hand, with descriptors of the test's own.
"""

import os
from types import SimpleNamespace

import pytest
import trio

from hightide.net.outbox import FilePart
from hightide_broker.runtime.server.answers import Answers, nothing


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def attached(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(b"records")
    return FilePart(os.open(path, os.O_RDONLY), 0, 7)


def answers_of():
    terms = SimpleNamespace(files_left=0, write_s=1.0)
    return Answers(terms, SimpleNamespace(can_send_file=False), begin=lambda _: None), terms


def breaking(pauses):
    """Work that meets a bug after so many steps."""
    for _ in range(pauses):
        yield
    raise ValueError("a bug")


async def test_a_bug_in_the_first_step_closes_what_is_attached(attached):
    answers, terms = answers_of()
    with pytest.raises(ValueError, match="a bug"):
        answers.frame(object(), breaking(0), nothing, [attached])
    assert (is_open(attached.descriptor), terms.files_left) == (False, 1)


async def test_a_bug_in_a_later_step_closes_what_is_attached(attached):
    answers, terms = answers_of()
    rest = answers.frame(object(), breaking(3), nothing, [attached])
    assert is_open(attached.descriptor)
    with pytest.raises(ValueError, match="a bug"):
        await rest()
    assert (is_open(attached.descriptor), terms.files_left) == (False, 1)


async def test_who_leaves_meanwhile_has_what_is_attached_closed(attached):
    answers, terms = answers_of()
    rest = answers.frame(object(), breaking(1000), nothing, [attached])
    with trio.CancelScope() as leaving:
        leaving.cancel()
        await rest()
    assert (is_open(attached.descriptor), terms.files_left) == (False, 1)
