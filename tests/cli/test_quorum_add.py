"""`hightide quorum add` says what became of an addition whose answer was lost.

Method: the admin client is a script of answers.
"""

from types import SimpleNamespace

import pytest

from hightide.protocol.errors import ApiError, ErrorCode
from hightide_cli import quorum

PLACE = ("10.0.0.4", 19092)
LOST = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not caught up, or not heard of")
THERE = ApiError(ErrorCode.DUPLICATE_VOTER, "node 4 is a voter")


def voters(**fields):
    voter = {"id": 4, "directory": "new", "host": PLACE[0], "port": PLACE[1], **fields}
    return SimpleNamespace(voters=[SimpleNamespace(**voter)])


@pytest.fixture
def add(monkeypatch):
    """Add node 4, where these are the answers."""

    def add(*answers):
        left = iter(answers)

        def ask(*_):
            if isinstance(answer := next(left), Exception):
                raise answer
            return answer

        monkeypatch.setattr(quorum, "ask", ask)
        monkeypatch.setattr(quorum, "AGAIN_S", 0)
        return quorum._add("b:1", 60, 4, PLACE)

    return add


def test_it_waits_until_it_has_caught_up(add):
    assert add(LOST, LOST, "new") == "new"


def test_an_addition_that_came_to_be_is_one_though_its_answer_was_lost(add):
    assert add(LOST, THERE, voters()) == "new"


@pytest.mark.parametrize(
    "answers", [(THERE,), (LOST, THERE, voters(port=1)), (LOST, THERE, voters(id=3))]
)
def test_who_votes_already_is_not_added(add, answers):
    with pytest.raises(ApiError, match="is a voter"):
        add(*answers)
