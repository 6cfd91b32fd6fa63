"""A rule that can never match anything is refused: one that denies would deny nothing."""

import msgspec
import pytest

from hightide.protocol import access_messages as a
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.acls import acl_of

RULE = a.AclRule(resource="topic", name="t", principal="User:alice", operation="READ")


@pytest.mark.parametrize("name", ["a*b", "or ders", "ä", "a/b", " a"])
@pytest.mark.parametrize("pattern", ["LITERAL", "PREFIXED"])
def test_a_rule_that_can_never_match_is_refused(name: str, pattern: str) -> None:
    with pytest.raises(Refused, match="would never match anything") as caught:
        acl_of(msgspec.structs.replace(RULE, name=name, pattern=pattern))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_beginning_is_no_star() -> None:
    with pytest.raises(Refused, match="would never match anything"):
        acl_of(msgspec.structs.replace(RULE, name="*", pattern="PREFIXED"))
