"""Rules about who may do what: what may be one, how they come and go, and that they stay.

Goal: what is no rule is refused with its sentence, and spoils no other; a filter means what it says
and nothing else; an image keeps the rules through a snapshot and a copy, down to their order.
Method: tables of requests about a few rules that are there; answers and records are compared whole,
and records are replayed from their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol import access_messages as a
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster import acl_changes
from hightide_broker.core.cluster.acls import (
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
    acl_of,
    check_filter,
    is_wanted,
)
from hightide_broker.core.cluster.authorizer import Authorizer
from hightide_broker.core.cluster.changes import (
    AnyChange,
    CreateAcl,
    CreateTopic,
    RemoveAcl,
    decode_change,
    encode_change,
)
from hightide_broker.core.cluster.image import ClusterImage

E = ErrorCode
KINDS = "expected one of topic, group, cluster"
OPERATIONS = f"expected one of {', '.join(Operation)}"
PATTERNS = "expected one of LITERAL, PREFIXED"
PERMISSIONS = "expected one of ALLOW, DENY"
ADDRESS = "expected one address of IPv4 or IPv6, or *"
PRINTS = "expected 1 to 256 characters that print"
USERS = "expected User:<name> or User:*"


def rule(name: str = "a", **facts: str) -> a.AclRule:
    return a.AclRule(
        **{"resource": "topic", "principal": "User:alice", "operation": "READ", **facts}, name=name
    )


def table(names: str, rows: dict[str, tuple[Any, ...]]) -> Any:
    """A test for each row, named by what it is about."""
    return pytest.mark.parametrize(names.split(), rows.values(), ids=rows)


def said(do: Callable[..., Any], *args: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(Refused) as caught:
        do(*args)
    return caught.value.code, caught.value.message


# What may be a rule.


def words_of(acl: Acl) -> list[type]:
    return [*map(type, (acl.resource, acl.pattern, acl.operation, acl.permission))]


def test_a_rule_is_what_was_asked_for() -> None:
    asked = rule("a", pattern="PREFIXED", host="10.0.0.1", permission="DENY")
    acl = acl_of(asked)
    assert acl == ("topic", "a", "PREFIXED", "User:alice", "10.0.0.1", "READ", "DENY")
    assert words_of(acl) == [Resource, Pattern, Operation, Permission]
    assert acl.told("7") == msgspec.structs.replace(asked, id="7")


@table(
    "facts",
    {
        "everything": ({"name": "*"},),
        "everybody": ({"principal": "User:*"},),
        "as long as may be": ({"name": 256 * "x", "resource": "group"},),
        "a long principal": ({"principal": "User:" + 251 * "x"},),
        "one letter": ({"principal": "User:x", "host": "::1"},),
        "what a certificate says": ({"principal": "User:CN=jürgen, O=tide: 1"},),
        "the cluster": ({"resource": "cluster", "name": "cluster"},),
        "a topic called cluster": ({"name": "cluster", "pattern": "PREFIXED"},),
        "a group": ({"resource": "group", "name": "any letters, / and ü"},),
    },
)
def test_a_rule_may_be(facts: dict[str, str]) -> None:
    asked = rule(**facts)
    assert acl_of(asked).told() == asked


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("kind", Resource)
def test_every_operation_goes_with_every_resource(kind: Resource, operation: Operation) -> None:
    asked = rule("cluster", resource=str(kind), operation=str(operation))
    assert acl_of(asked).told() == asked


@table(
    "facts sentence",
    {
        "a resource": ({"resource": "queue"}, f"resource 'queue', {KINDS}"),
        "a resource's letters": ({"resource": "TOPIC"}, f"resource 'TOPIC', {KINDS}"),
        "any resource": ({"resource": "ANY"}, f"resource 'ANY', {KINDS}"),
        "a pattern": ({"pattern": "MATCH"}, f"pattern 'MATCH', {PATTERNS}"),
        "any pattern": ({"pattern": "ANY"}, f"pattern 'ANY', {PATTERNS}"),
        "an operation": ({"operation": "read"}, f"operation 'read', {OPERATIONS}"),
        "any operation": ({"operation": "ANY"}, f"operation 'ANY', {OPERATIONS}"),
        "a long word": ({"operation": 99 * "x"}, f"operation '{60 * 'x'}', {OPERATIONS}"),
        "a permission": ({"permission": ""}, f"permission '', {PERMISSIONS}"),
        "no name": ({"name": ""}, f"name '', {PRINTS}"),
        "a name too long": ({"name": 257 * "x"}, f"name '{60 * 'x'}', {PRINTS}"),
        "a name of two lines": ({"name": "a\nb"}, f"name 'a\\nb', {PRINTS}"),
        "half a letter": ({"name": "\ud83d"}, f"name '\\ud83d', {PRINTS}"),
        "no principal": ({"principal": ""}, f"principal '', {PRINTS}"),
        "a long one": ({"principal": 252 * "User:"}, f"principal '{12 * 'User:'}', {PRINTS}"),
        "a turned user": ({"principal": "User:\u202ea"}, f"principal 'User:\\u202ea', {PRINTS}"),
        "no host": ({"host": ""}, f"host '', {ADDRESS}"),
        "a name for a host": ({"host": "localhost"}, f"host 'localhost', {ADDRESS}"),
        "a network": ({"host": "10.0.0.0/8"}, f"host '10.0.0.0/8', {ADDRESS}"),
        "a user's name alone": ({"principal": "alice"}, f"principal 'alice', {USERS}"),
        "a user without a name": ({"principal": "User:"}, f"principal 'User:', {USERS}"),
        "a user's letters": ({"principal": "user:alice"}, f"principal 'user:alice', {USERS}"),
        "a group of users": ({"principal": "Group:crew"}, f"principal 'Group:crew', {USERS}"),
        "everybody by a star": ({"principal": "*"}, f"principal '*', {USERS}"),
        "the cluster by another name": (
            {"resource": "cluster", "name": "kafka-cluster"},
            "the cluster's name is 'cluster', LITERAL, not 'kafka-cluster', LITERAL",
        ),
        "all clusters": (
            {"resource": "cluster", "name": "*"},
            "the cluster's name is 'cluster', LITERAL, not '*', LITERAL",
        ),
        "how the cluster begins": (
            {"resource": "cluster", "name": "cluster", "pattern": "PREFIXED"},
            "the cluster's name is 'cluster', LITERAL, not 'cluster', PREFIXED",
        ),
    },
)
def test_what_is_no_rule_is_refused(facts: dict[str, str], sentence: str) -> None:
    asked = rule(**facts)
    assert said(acl_of, asked) == (E.INVALID_REQUEST, sentence)
    changes, results = created({}, rule("before"), asked, rule("after"))
    refused = a.AclResult(number=1, error=E.INVALID_REQUEST, message=sentence)
    assert results == [a.AclResult(number=0), refused, a.AclResult(number=2)]
    assert [change.name for change in changes] == ["before", "after"]


@table(
    "facts text",
    {
        "a name": ({}, "allow User:alice READ topic:a"),
        "a prefix": ({"pattern": "PREFIXED"}, "allow User:alice READ topic:a*"),
        "everything": ({"name": "*", "principal": "User:*"}, "allow User:* READ topic:*"),
        "from a host": (
            {"resource": "group", "permission": "DENY", "host": "10.0.0.9"},
            "deny User:alice from 10.0.0.9 READ group:a",
        ),
    },
)
def test_a_rule_in_one_line(facts: dict[str, str], text: str) -> None:
    assert str(acl_of(rule(**facts))) == text


# Making rules.


def image_of(changes: Iterable[AnyChange], image: ClusterImage | None = None) -> ClusterImage:
    """What becomes of an image, by the bytes of the records."""
    image = ClusterImage() if image is None else image
    for change in changes:
        image.replay(decode_change(encode_change(change)), image.offset)
    return image


Created = tuple[list[CreateAcl], list[a.AclResult]]


def created(known: dict[str, Acl], *asked: a.AclRule) -> Created:
    """The records and the answers; ids are `id-1`, `id-2` and so on, where they are free."""
    ids = (free for number in count(1) if (free := f"id-{number}") not in known)
    request = a.CreateAclsRequest(acls=list(asked))
    changes, response = acl_changes.create(known, request, lambda: next(ids))
    assert all(isinstance(change, CreateAcl) for change in changes)
    return changes, response.acls


def image_with(*asked: a.AclRule) -> ClusterImage:
    return image_of(created({}, *asked)[0])


def test_rules_get_ids_and_are_there() -> None:
    asked = [rule("a", id="mine"), rule("a", permission="DENY"), rule("b", pattern="PREFIXED")]
    changes, results = created({}, *asked)
    assert results == [a.AclResult(number=number) for number in range(3)]
    assert [change.id for change in changes] == ["id-1", "id-2", "id-3"]
    image = image_of(changes)
    assert image.acls == dict(zip(["id-1", "id-2", "id-3"], map(acl_of, asked), strict=True))


def test_a_rule_that_is_there_already_is_no_error_and_makes_no_record() -> None:
    known = image_with(rule("a")).acls
    changes, results = created(known, rule("a"), rule("b"), rule("b"), rule("a", id="x"))
    assert results == [a.AclResult(number=number) for number in range(4)]
    assert [(change.id, change.name) for change in changes] == [("id-2", "b")]


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("resource", "group"),
        ("name", "b"),
        ("pattern", "PREFIXED"),
        ("principal", "User:*"),
        ("host", "10.0.0.9"),
        ("operation", "WRITE"),
        ("permission", "DENY"),
    ],
)
def test_a_rule_that_differs_in_one_word_is_another_one(field: str, word: str) -> None:
    image = image_with(rule("a"))
    other = rule(**{field: word})
    changes, _ = created(image.acls, other)
    assert image_of(changes, image).acls == {"id-1": acl_of(rule("a")), "id-2": acl_of(other)}


def test_one_request_makes_so_many_rules_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "CHANGES_MAX", 2)
    changes, _ = created({}, rule("a"), rule("b"))
    assert len(changes) == 2
    assert said(created, {}, rule("a"), rule("a"), rule("")) == (
        E.INVALID_REQUEST,
        "3 rules in one request, expected 2 or less",
    )


def test_a_cluster_has_so_many_rules_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "ACLS_MAX", 2)
    known = image_with(rule("a")).acls
    asked = [rule("a"), rule("b"), rule("c"), rule("b"), rule("a"), rule("")]
    changes, results = created(known, *asked)
    assert [change.name for change in changes] == ["b"]
    full = "there are 2 rules, and may be no more"
    assert [each.message for each in results] == ["", "", full, "", "", f"name '', {PRINTS}"]
    assert results[2].error == E.INVALID_REQUEST


# What a filter means.

THERE = {
    "a": rule("a"),
    "ab": rule("ab", operation="ALL"),
    "a…": rule("a", pattern="PREFIXED", principal="User:bob"),
    "all": rule("*", principal="User:*", permission="DENY"),
    "group": rule("a", resource="group", host="10.0.0.9"),
    "group…": rule("a", resource="group", pattern="PREFIXED", operation="DESCRIBE"),
    "cluster": rule("cluster", resource="cluster", operation="ALTER"),
}
ACLS = {number: acl_of(asked) for number, asked in THERE.items()}
TOPICS = "a ab a… all"
EVERY = " ".join(THERE)


which = partial(a.AclFilter, resource=a.ANY)


def deleted(known: dict[str, Acl], *filters: a.AclFilter) -> tuple[list[AnyChange], list[Any]]:
    changes, response = acl_changes.delete(known, a.DeleteAclsRequest(filters=list(filters)))
    return changes, response.acls


@table(
    "facts found",
    {
        "nothing said": ({}, EVERY),
        "topics": ({"resource": "topic"}, TOPICS),
        "the cluster": ({"resource": "cluster"}, "cluster"),
        "a name, however": ({"name": "a"}, "a a… group group…"),
        "a name that is part of others": ({"name": "abc"}, ""),
        "a star is a name": ({"name": "*"}, "all"),
        "LITERAL": ({"pattern": "LITERAL"}, "a ab all group cluster"),
        "LITERAL by name": ({"pattern": "LITERAL", "name": "a"}, "a group"),
        "LITERAL, and all is not meant": ({"pattern": "LITERAL", "name": "b"}, ""),
        "PREFIXED": ({"pattern": "PREFIXED"}, "a… group…"),
        "PREFIXED by name": ({"pattern": "PREFIXED", "name": "a"}, "a… group…"),
        "PREFIXED as written": ({"pattern": "PREFIXED", "name": "ab"}, ""),
        "MATCH without a name": ({"pattern": "MATCH"}, EVERY),
        "MATCH by name": ({"pattern": "MATCH", "name": "a"}, "a a… all group group…"),
        "MATCH by a longer name": ({"pattern": "MATCH", "name": "ab"}, "ab a… all group…"),
        "MATCH by another name": ({"pattern": "MATCH", "name": "b"}, "all"),
        "MATCH by a star": ({"pattern": "MATCH", "name": "*"}, "all"),
        "MATCH of a kind": ({"pattern": "MATCH", "name": "ab", "resource": "group"}, "group…"),
        "a principal": ({"principal": "User:bob"}, "a…"),
        "everybody as written": ({"principal": "User:*"}, "all"),
        "a principal is no pattern": ({"principal": "User:bob", "pattern": "MATCH"}, "a…"),
        "a host": ({"host": "10.0.0.9"}, "group"),
        "any host as written": ({"host": "*"}, "a ab a… all group… cluster"),
        "an operation": ({"operation": "READ"}, "a a… all group"),
        "ALL as written": ({"operation": "ALL"}, "ab"),
        "no implied operation": ({"operation": "DESCRIBE"}, "group…"),
        "DENY": ({"permission": "DENY"}, "all"),
        "ALLOW": ({"permission": "ALLOW", "resource": "topic"}, "a ab a…"),
        "several words": ({"name": "a", "operation": "READ", "host": "*"}, "a a…"),
        "an empty name": ({"name": ""}, ""),
        "an empty principal": ({"principal": ""}, ""),
        "an empty host": ({"host": ""}, ""),
    },
)
def test_a_filter_means(facts: dict[str, str], found: str) -> None:
    wanted = which(**facts)
    check_filter(wanted)
    assert [number for number, acl in ACLS.items() if is_wanted(acl, wanted)] == found.split()
    changes, told = deleted(ACLS, wanted)
    assert changes == [RemoveAcl(id=number) for number in found.split()]
    assert told == [ACLS[number].told(number) for number in found.split()]


@table(
    "facts sentence",
    {
        "a resource": ({"resource": "queue"}, f"resource 'queue', {KINDS}"),
        "a resource's letters": ({"resource": "any"}, f"resource 'any', {KINDS}"),
        "a pattern": ({"pattern": "REGEX"}, f"pattern 'REGEX', {PATTERNS}"),
        "a pattern's letters": ({"pattern": "match"}, f"pattern 'match', {PATTERNS}"),
        "an operation": ({"operation": "LOOK"}, f"operation 'LOOK', {OPERATIONS}"),
        "a match of operations": ({"operation": "MATCH"}, f"operation 'MATCH', {OPERATIONS}"),
        "a permission": ({"permission": "FORBID"}, f"permission 'FORBID', {PERMISSIONS}"),
        "a long word": ({"permission": 99 * "x"}, f"permission '{60 * 'x'}', {PERMISSIONS}"),
    },
)
def test_a_filter_of_other_words_is_refused_and_removes_nothing(
    facts: dict[str, str], sentence: str
) -> None:
    """Not even what the filters beside it mean."""
    bad, good = which(**facts), which(name="a")
    assert said(check_filter, bad) == (E.INVALID_REQUEST, sentence)
    for filters in ([bad], [good, bad], [bad, good]):
        assert said(deleted, ACLS, *filters) == (E.INVALID_REQUEST, sentence)
    assert said(deleted, {}, bad) == (E.INVALID_REQUEST, sentence), "where there is no rule, too"


@given(
    st.lists(
        st.builds(
            rule,
            st.sampled_from(["a", "ab", "b", "*"]),
            resource=st.sampled_from(["topic", "group"]),
            pattern=st.sampled_from(["LITERAL", "PREFIXED"]),
            permission=st.sampled_from(["ALLOW", "DENY"]),
        ).filter(lambda each: (each.name, each.pattern) != ("*", "PREFIXED")),
        max_size=6,
    ),
    st.sampled_from(Resource),
    st.sampled_from(["a", "ab", "abc", "b", "c", "*"]),
)
@settings(max_examples=tries(200), deadline=None)
def test_what_matches_decides_and_what_does_not_decides_nothing(
    asked: list[a.AclRule], kind: Resource, name: str
) -> None:
    acls = [acl_of(each) for each in asked]
    wanted = a.AclFilter(resource=str(kind), name=name, pattern="MATCH")
    matching = [acl for acl in acls if is_wanted(acl, wanted)]
    question = ("User:alice", "10.0.0.9", Operation.READ, kind, name)

    def verdict(some: list[Acl]) -> Any:
        return Authorizer(some, super_users=frozenset(), everyone_if_none=True).verdict(*question)

    assert verdict(matching) == verdict(acls)
    assert all(verdict([acl]).rule == acl for acl in matching)
    assert verdict([acl for acl in acls if acl not in matching]) == verdict([])


# Removing rules.


def test_what_some_filter_means_goes_once_and_the_others_stay() -> None:
    image = image_with(*THERE.values())
    filters = [which(name="ab"), which(pattern="MATCH", name="ab")]
    changes, told = deleted(image.acls, *filters, which(name="nothing"))
    for found in (changes, told):
        assert [each.id for each in found] == ["id-2", "id-3", "id-4", "id-6"]
    assert told[1] == msgspec.structs.replace(THERE["a…"], id="id-3")
    kept = {"id-1": ACLS["a"], "id-5": ACLS["group"], "id-7": ACLS["cluster"]}
    assert image_of(changes, image).acls == kept


def test_without_a_filter_nothing_goes() -> None:
    assert deleted(ACLS) == ([], [])


def test_with_a_filter_that_says_nothing_everything_goes() -> None:
    image = image_with(*THERE.values())
    changes, told = deleted(image.acls, which())
    assert (len(told), image_of(changes, image).acls) == (len(THERE), {})


def test_what_was_removed_may_be_made_again() -> None:
    image = image_with(rule("a"), rule("b"))
    changes, _ = deleted(image.acls, which(name="a"))
    (again,), _ = created(image_of(changes, image).acls, rule("a"))
    assert again.name == "a"


def test_one_request_removes_so_many_rules_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "CHANGES_MAX", 4)
    assert len(deleted(ACLS, a.AclFilter(resource="topic"))[0]) == 4
    assert len(deleted(ACLS, *[a.AclFilter(resource="topic")] * 5)[0]) == 4
    sentence = "7 rules in one request, expected 4 or less"
    assert said(deleted, ACLS, which()) == (E.INVALID_REQUEST, sentence)


# In the image.


def test_an_image_with_rules_survives_a_snapshot() -> None:
    topic = CreateTopic(topic="a", topic_id="id-1")
    image = image_of([topic], image_with(*THERE.values()))
    image_of([RemoveAcl(id="id-2")], image)
    image_of(created(image.acls, rule("z"))[0], image)
    values = [encode_change(change) for change in image.changes()]
    for changes in (image.changes(), map(decode_change, values)):
        again = ClusterImage.of_snapshot(changes, image.offset)
        assert again == image
        assert [*again.acls] == [*image.acls], "in the same order"
        for acl in again.acls.values():
            assert words_of(acl) == [Resource, Pattern, Operation, Permission]


def test_an_image_without_its_rules_is_another_one() -> None:
    image = image_with(rule("a"))
    for other in ([], [rule("b")], [rule("a"), rule("b")]):
        assert ClusterImage(offset=image.offset, acls=image_with(*other).acls) != image


def test_a_copy_has_the_same_rules_and_keeps_its_own() -> None:
    image = image_with(rule("a"), rule("b"))
    copied, before = image.copy(), image_with(rule("a"), rule("b"))
    assert copied == before
    image_of([RemoveAcl(id="id-1")], image)
    image_of(created(copied.acls, rule("z"))[0], copied.copy())
    assert copied == before, "neither the original nor a copy of it reaches the copy"
    image_of([RemoveAcl(id="id-2")], copied)
    assert [*image.acls] == ["id-2"]
    assert [*copied.acls] == ["id-1"]


def test_a_version_rises_with_each_rule_that_comes_or_goes_and_with_nothing_else() -> None:
    image = ClusterImage()
    versions = [image.acls_version]
    for change in (
        *created({}, rule("a"), rule("b"))[0],
        CreateTopic(topic="a", topic_id="id-1"),
        RemoveAcl(id="id-1"),
    ):
        image_of([change], image)
        versions.append(image.acls_version)
    assert versions == [0, 1, 2, 2, 3]


def test_a_rule_comes_once_and_goes_once() -> None:
    image = image_with(rule("a"))
    (again,), _ = created({}, rule("b"))
    with pytest.raises(AssertionError, match="rule id-1 exists"):
        image_of([again], image)
    with pytest.raises(KeyError, match="id-2"):
        image_of([RemoveAcl(id="id-2")], image)
    assert image == image_with(rule("a"))


def test_what_is_written_stays_readable() -> None:
    """Logs keep these names and words."""
    (made,), _ = created({}, rule("a", pattern="PREFIXED"))
    assert msgspec.msgpack.decode(encode_change(made)) == {
        "type": "acl",
        "id": "id-1",
        "resource": "topic",
        "name": "a",
        "pattern": "PREFIXED",
        "principal": "User:alice",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    removed = msgspec.msgpack.decode(encode_change(RemoveAcl(id="id-1")))
    assert removed == {"type": "remove_acl", "id": "id-1"}
