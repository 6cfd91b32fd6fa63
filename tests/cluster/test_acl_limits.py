"""How much one request about rules may cost. Method: the pure rules of changes."""

import pytest
from test_acl_changes import ACLS, E, deleted, said

from hightide.protocol import access_messages as a
from hightide_broker.core.cluster import acl_changes


def test_several_filters_of_a_request_are_compared_with_so_many_rules_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One filter is always looked for, and equal ones are one."""
    monkeypatch.setattr(acl_changes, "LOOKS_MAX", len(ACLS) * 2)
    one, other, third = (a.AclFilter(resource="topic", name=name) for name in "xyz")
    assert deleted(ACLS, one, other, one)[0] == []
    sentence = f"3 filters in one request beside {len(ACLS)} rules, expected 2 or less"
    assert said(deleted, ACLS, one, other, third) == (E.INVALID_REQUEST, sentence)
    monkeypatch.setattr(acl_changes, "LOOKS_MAX", 1)
    assert deleted(ACLS, one, one)[0] == []
