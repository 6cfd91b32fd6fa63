"""What decisions cost: those that were made are remembered, within a measure, and rules that cannot
matter are not looked at.

Method: decisions are counted, and held against the naive ones of `test_authorizer.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_authorizer import (
    ALICE,
    HISTORIES,
    QUESTIONS,
    READS,
    SUPER_USERS,
    History,
    Question,
    acl,
    authorizer_of,
    may,
    naive,
    question,
    replayed,
)
from tries import tries

from hightide_broker.core.cluster import authorizer
from hightide_broker.core.cluster.acls import Acl, Operation, Resource
from hightide_broker.core.cluster.authorizer import Authorizer


def test_whether_somebody_may_anything_is_no_question_to_the_rules_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [f"allow bob{number} READ topic:a" for number in range(100)]
    deciding = authorizer_of([acl(line) for line in (READS, "deny * READ topic:b", *others)])
    asked, is_about = [], Acl.is_about

    def counted(rule: Acl, *about: Any) -> bool:
        asked.append(rule)
        return is_about(rule, *about)

    monkeypatch.setattr(Acl, "is_about", counted)
    assert deciding.allows_any(ALICE, "elsewhere", Operation.READ, Resource.TOPIC)
    assert len(asked) == 2


class Counting(Authorizer):
    decided = 0

    def _decided(self, *asked: Any) -> tuple[bool, Acl | None]:
        self.decided += 1
        return super()._decided(*asked)


def test_what_was_asked_before_is_not_decided_again() -> None:
    deciding = Counting([acl(READS)], super_users=SUPER_USERS)
    for _ in range(3):
        assert deciding.allows(*question("alice: READ topic:a"))
        assert not deciding.allows(*question("alice: READ topic:b"))
    assert deciding.decided == 2
    assert sorted(deciding._known.values()) == [False, True]


@given(HISTORIES, st.lists(st.sampled_from(QUESTIONS[::61]), max_size=40))
@settings(max_examples=tries(50), deadline=None)
def test_a_full_memory_is_emptied_and_answers_stay_right(
    history: History, questions: list[Question]
) -> None:
    image, there = replayed(history)
    deciding = authorizer_of(image.acls.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authorizer, "REMEMBERED_MAX", 3)
        for asked in questions:
            right = may(naive([*there.values()], asked, everyone_if_none=False))
            assert deciding.allows(*asked) is right
            assert deciding._known[asked] is right
            assert len(deciding._known) <= 3


def test_a_memory_holds_so_many_decisions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "REMEMBERED_MAX", 3)
    deciding, sizes = authorizer_of([]), []
    for name in ("a", "b", "c", "c", "d", "a"):
        deciding.allows(*question(f"alice: READ topic:{name}"))
        deciding.allows_any(f"User:{name}", "10.0.0.1", Operation.READ, Resource.TOPIC)
        sizes.append((len(deciding._known), len(deciding._known_any)))
    assert sizes == [(count, count) for count in (1, 2, 3, 3, 1, 2)]
