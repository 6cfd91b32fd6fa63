"""Who may do what: decisions over all rules, as Kafka's StandardAuthorizer makes them.

Goal: a decision is what Kafka's rules say, read one by one, whatever rules came and went, and in
whatever order; what is remembered is what would be decided again. Method: Hypothesis writes
histories of rules over names that begin like one another, an image replays them, and every question
there is gets compared with an evaluation that knows no index; tables tell single cases by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tries import tries

from hightide_broker.core.cluster.acls import Acl, Operation, Pattern, Permission, Resource
from hightide_broker.core.cluster.authorizer import Authorizer, Verdict
from hightide_broker.core.cluster.changes import CreateAcl, RemoveAcl
from hightide_broker.core.cluster.image import ClusterImage

ALICE, BOB, ROOT = "User:alice", "User:bob", "User:root"
SUPER_USERS = frozenset({ROOT})
NAMES = ["a", "ab", "abc", "b", "*"]
FRESH = "~"
"""No rule has it in its name."""

IS_SUPER = f"{ROOT} is one of super.users"
DENIED = "a rule denies it"
ALLOWED = "a rule allows it, and none denies it"
OPEN = "no rule names the resource, and allow.everyone.if.no.acl.found is true"
NO_RULE = "no rule allows it"


class Question(NamedTuple):
    principal: str
    host: str
    operation: Operation
    resource: Resource
    name: str


# Kafka's rules, read one by one.

IMPLYING = {
    "DESCRIBE": {"READ", "WRITE", "DELETE", "ALTER"},
    "DESCRIBE_CONFIGS": {"ALTER_CONFIGS"},
}


def is_named(rule: CreateAcl, asked: Question) -> bool:
    if rule.resource != asked.resource:
        return False
    if rule.pattern == "PREFIXED":
        return asked.name[: len(rule.name)] == rule.name
    return rule.name == "*" or rule.name == asked.name


def concerns(rule: CreateAcl, asked: Question) -> bool:
    operations = {"ALL", str(asked.operation)}
    if rule.permission == "ALLOW":
        operations |= IMPLYING.get(asked.operation, set())
    return (
        is_named(rule, asked)
        and rule.principal in {asked.principal, "User:*"}
        and rule.host in {asked.host, "*"}
        and rule.operation in operations
    )


def naive(rules: Iterable[CreateAcl], asked: Question, *, everyone_if_none: bool) -> str:
    """What decides."""
    if asked.principal in SUPER_USERS:
        return IS_SUPER
    permissions = {rule.permission for rule in rules if concerns(rule, asked)}
    if "DENY" in permissions:
        return DENIED
    if "ALLOW" in permissions:
        return ALLOWED
    is_open = everyone_if_none and not any(is_named(rule, asked) for rule in rules)
    return OPEN if is_open else NO_RULE


def may(reason: str) -> bool:
    return reason in (IS_SUPER, ALLOWED, OPEN)


# Histories.

KINDS = [Resource.TOPIC, Resource.GROUP]
QUESTIONS = [
    Question(*asked)
    for asked in product(
        [ALICE, BOB], ["h", "g"], Operation, KINDS, [*NAMES, f"a{FRESH}", f"ab{FRESH}", FRESH]
    )
]
QUESTIONS += [Question(ROOT, "h", Operation.READ, kind, name) for kind in KINDS for name in NAMES]


def rules(patterns: list[tuple[str, str]]) -> st.SearchStrategy[CreateAcl]:
    """Many of them are about the same, so that several meet in one question."""
    words = [*map(str, Operation), *["ALL", "READ", "DESCRIBE", "ALTER_CONFIGS"] * 2]
    return st.builds(
        lambda pattern, **facts: CreateAcl(id="", pattern=pattern[0], name=pattern[1], **facts),
        st.sampled_from(patterns),
        resource=st.sampled_from(["topic", "topic", "group"]),
        principal=st.sampled_from([ALICE, ALICE, BOB, ROOT, "User:*"]),
        host=st.sampled_from(["*", "*", "h"]),
        operation=st.sampled_from(words),
        permission=st.sampled_from(["ALLOW", "ALLOW", "DENY"]),
    )


PATTERNS = list(product(["LITERAL", "PREFIXED"], NAMES))
RULES = rules(PATTERNS)
History = list[CreateAcl | int]
"""Rules that are made; a number: one that there is, is removed."""

HISTORIES: st.SearchStrategy[History] = st.builds(
    lambda first, then: [*first, *then],
    st.lists(RULES, min_size=3, max_size=8),
    st.lists(RULES | st.integers(0, 9), max_size=8),
)


def replayed(history: History) -> tuple[ClusterImage, dict[str, CreateAcl]]:
    """What an image made of it, and what is there by the simplest account."""
    image, there = ClusterImage(), dict[str, CreateAcl]()
    for offset, step in enumerate(history):
        if isinstance(step, CreateAcl):
            made = msgspec.structs.replace(step, id=f"id-{offset}")
            there[made.id] = made
            image.replay(made, offset)
        elif there:
            gone = sorted(there)[step % len(there)]
            del there[gone]
            image.replay(RemoveAcl(id=gone), offset)
    return image, there


def authorizer_of(acls: Iterable[Acl], *, everyone_if_none: bool = False) -> Authorizer:
    return Authorizer(acls, super_users=SUPER_USERS, everyone_if_none=everyone_if_none)


@given(HISTORIES, st.booleans())
@settings(max_examples=tries(200), deadline=None)
def test_every_decision_is_that_of_the_rules_read_one_by_one(
    history: History, everyone_if_none: bool
) -> None:
    image, there = replayed(history)
    deciding = authorizer_of(image.acls.values(), everyone_if_none=everyone_if_none)
    known = [*there.values()]
    for asked in QUESTIONS:
        reason = naive(known, asked, everyone_if_none=everyone_if_none)
        allowed, told, rule = deciding.verdict(*asked)
        assert (allowed, told) == (may(reason), reason)
        if rule is not None:
            made = CreateAcl(id="", **rule._asdict())
            assert concerns(made, asked)
            assert rule.permission == {ALLOWED: "ALLOW", DENIED: "DENY"}[reason]
            assert rule in image.acls.values()
        assert (rule is None) is (reason not in (ALLOWED, DENIED))
        assert deciding.allows(*asked) is allowed
        assert deciding.allows(*asked) is allowed, "and again, when it is remembered"


# Single cases.


def acl(text: str) -> Acl:
    """`allow alice from h READ topic:a*`, or of `*`: everybody; `topic:*` is LITERAL."""
    permission, principal, *host, operation, resource = text.split()
    kind, _, name = resource.partition(":")
    is_prefix = len(name) > 1 and name.endswith("*")
    return Acl(
        Resource(kind),
        name[:-1] if is_prefix else name,
        Pattern.PREFIXED if is_prefix else Pattern.LITERAL,
        f"User:{principal}",
        host[-1] if host else "*",
        Operation(operation),
        Permission(permission.upper()),
    )


def question(text: str) -> Question:
    """`alice from h: READ topic:a`."""
    who, _, what = text.partition(": ")
    principal, *host = who.split()
    operation, resource = what.split()
    kind, _, name = resource.partition(":")
    where = host[-1] if host else "elsewhere"
    return Question(f"User:{principal}", where, Operation(operation), Resource(kind), name)


def table(names: str, rows: dict[str, tuple[Any, ...]]) -> Any:
    """A test for each row, named by what it is about."""
    return pytest.mark.parametrize(names.split(), rows.values(), ids=rows)


def check_verdict(lines: list[str], asked: str, reason: str, **facts: bool) -> None:
    """The first rule decides, in whatever order they are."""
    acls = [acl(line) for line in lines]
    rule = acls[0] if reason in (ALLOWED, DENIED) else None
    for each in (acls, acls[::-1]):
        deciding = authorizer_of(each, **facts)
        assert deciding.verdict(*question(asked)) == Verdict(may(reason), reason, rule)
        assert deciding.allows(*question(asked)) is may(reason)


READS = "allow alice READ topic:a"


@table(
    "lines asked reason",
    {
        "nothing is allowed without a rule": ([], "alice: READ topic:a", NO_RULE),
        "who is allowed may": ([READS], "alice: READ topic:a", ALLOWED),
        "nobody else may": ([READS], "bob: READ topic:a", NO_RULE),
        "nothing else may be done": ([READS], "alice: WRITE topic:a", NO_RULE),
        "no other topic is meant": ([READS], "alice: READ topic:ab", NO_RULE),
        "no group is meant": ([READS], "alice: READ group:a", NO_RULE),
        "everybody": (["allow * READ topic:a"], "bob: READ topic:a", ALLOWED),
        "everything": (["allow alice READ topic:*"], "alice: READ topic:b", ALLOWED),
        "everything of its kind": (["allow * READ topic:*"], "bob: READ group:b", NO_RULE),
        "a group of that name": (["allow * READ group:*"], "bob: READ group:*", ALLOWED),
        "all operations": (["allow alice ALL topic:a"], "alice: CREATE topic:a", ALLOWED),
        "from its host": (["allow * from h READ topic:a"], "bob from h: READ topic:a", ALLOWED),
        "from elsewhere": (["allow * from h READ topic:a"], "bob from hh: READ topic:a", NO_RULE),
        "a prefix is of itself": (["allow * READ topic:a*"], "bob: READ topic:a", ALLOWED),
        "how it begins": (["allow * READ topic:a*"], "bob: READ topic:abc", ALLOWED),
        "less than a prefix": (["allow * READ topic:ab*"], "bob: READ topic:a", NO_RULE),
        "in its middle": (["allow * READ topic:b*"], "bob: READ topic:ab", NO_RULE),
        "the cluster": (["allow * CREATE cluster:cluster"], "bob: CREATE cluster:cluster", ALLOWED),
    },
)
def test_what_a_rule_allows(lines: list[str], asked: str, reason: str) -> None:
    check_verdict(lines, asked, reason)


@pytest.mark.parametrize("asked", Operation)
@pytest.mark.parametrize("ruled", Operation)
def test_what_is_implied_is_allowed_and_never_denied(ruled: Operation, asked: Operation) -> None:
    is_said = ruled in (asked, "ALL")
    is_implied = ruled in IMPLYING.get(asked, set())
    line, ask = f"alice {ruled} topic:a", f"alice: {asked} topic:a"
    check_verdict([f"allow {line}"], ask, ALLOWED if is_said or is_implied else NO_RULE)
    lines = [f"deny {line}", "allow alice ALL topic:a"]
    if is_said:
        check_verdict(lines, ask, DENIED)
    else:
        check_verdict(lines[::-1], ask, ALLOWED)


@table(
    "lines asked reason",
    {
        "DENY READ does not deny DESCRIBE": (
            ["allow alice DESCRIBE topic:a", "deny alice READ topic:a"],
            "alice: DESCRIBE topic:a",
            ALLOWED,
        ),
        "DENY ALTER_CONFIGS does not deny DESCRIBE_CONFIGS": (
            ["allow * ALL topic:a", "deny * ALTER_CONFIGS topic:a"],
            "alice: DESCRIBE_CONFIGS topic:a",
            ALLOWED,
        ),
        "DENY DESCRIBE denies what READ implies": (
            ["deny alice DESCRIBE topic:a", READS],
            "alice: DESCRIBE topic:a",
            DENIED,
        ),
        "DENY DESCRIBE does not deny READ": (
            [READS, "deny alice DESCRIBE topic:a"],
            "alice: READ topic:a",
            ALLOWED,
        ),
        "DENY ALL denies all": (["deny alice ALL topic:a", READS], "alice: READ topic:a", DENIED),
        "DENY of everybody": (["deny * READ topic:a", READS], "alice: READ topic:a", DENIED),
        "DENY of another": ([READS, "deny bob READ topic:a"], "alice: READ topic:a", ALLOWED),
        "DENY of everything": (["deny * ALL topic:*", READS], "alice: READ topic:a", DENIED),
        "DENY of a short prefix, ALLOW of a longer one": (
            ["deny alice READ topic:a*", "allow alice READ topic:ab*"],
            "alice: READ topic:abc",
            DENIED,
        ),
        "DENY of a long prefix, ALLOW of a shorter one": (
            ["deny alice READ topic:ab*", "allow alice READ topic:a*"],
            "alice: READ topic:abc",
            DENIED,
        ),
        "beside a long prefix that is denied": (
            ["allow alice READ topic:a*", "deny alice READ topic:ab*"],
            "alice: READ topic:ac",
            ALLOWED,
        ),
        "DENY of a prefix, ALLOW of the name": (
            ["deny alice READ topic:a*", "allow alice READ topic:ab"],
            "alice: READ topic:ab",
            DENIED,
        ),
        "DENY of the name, ALLOW of everything": (
            ["deny alice READ topic:ab", "allow alice ALL topic:*"],
            "alice: READ topic:ab",
            DENIED,
        ),
        "DENY from h": (["deny * from h ALL topic:*", READS], "alice from h: READ topic:a", DENIED),
        "DENY from h alone": ([READS, "deny * from h ALL topic:*"], "alice: READ topic:a", ALLOWED),
        "a super user beats DENY": (["deny * ALL topic:*"], "root: READ topic:a", IS_SUPER),
        "a super user needs no rule": ([], "root: ALTER cluster:cluster", IS_SUPER),
    },
)
def test_who_is_denied(lines: list[str], asked: str, reason: str) -> None:
    check_verdict(lines, asked, reason)


@table(
    "lines asked reason",
    {
        "no rule": ([], "bob: READ topic:a", OPEN),
        "a rule about another topic": ([READS], "bob: READ topic:ab", OPEN),
        "a rule about a group": (["allow alice READ group:a"], "bob: READ topic:a", OPEN),
        "a longer prefix": (["allow alice READ topic:ab*"], "bob: READ topic:a", OPEN),
        "a rule for another": ([READS], "bob: READ topic:a", NO_RULE),
        "a rule about another operation": ([READS], "alice: WRITE topic:a", NO_RULE),
        "a rule from a host": (["allow * from h READ topic:a"], "bob: READ topic:a", NO_RULE),
        "a prefix for another": (["allow alice READ topic:a*"], "bob: READ topic:ab", NO_RULE),
        "everything for another": (["allow alice READ topic:*"], "bob: READ topic:b", NO_RULE),
        "DENY of another": (["deny alice READ topic:a"], "bob: READ topic:a", NO_RULE),
        "DENY": (["deny bob READ topic:a"], "bob: READ topic:a", DENIED),
        "ALLOW": ([READS], "alice: READ topic:a", ALLOWED),
        "a super user": ([READS], "root: READ topic:a", IS_SUPER),
    },
)
def test_what_no_rule_names_is_open_if_it_is_configured_so(
    lines: list[str], asked: str, reason: str
) -> None:
    check_verdict(lines, asked, reason, everyone_if_none=True)


@pytest.mark.parametrize("gone", range(4))
def test_of_several_rules_of_a_resource_one_is_removed_and_the_others_stay(gone: int) -> None:
    """CVE-2024-27309: with one of them, all others were gone, and what was denied was open."""
    lines = [f"deny {who} READ topic:{which}" for which in ("a", "a*") for who in ("x", "y")]
    image = ClusterImage()
    for offset, line in enumerate(lines):
        image.replay(CreateAcl(id=f"id-{offset}", **acl(line)._asdict()), offset)
    image.replay(RemoveAcl(id=f"id-{gone}"), 4)
    del lines[gone]
    assert [*image.acls.values()] == [acl(line) for line in lines]
    deciding = authorizer_of(image.acls.values(), everyone_if_none=True)
    for who, name in product("xy", ["a", "ab"]):
        denying = {f"deny {who} READ topic:{which}" for which in ("a*", name)}
        reason = DENIED if denying & {*lines} else NO_RULE
        assert deciding.verdict(*question(f"{who}: READ topic:{name}")).reason == reason


# Any resource of a kind.

SOME_NAMES = [*NAMES, *(name + FRESH for name in NAMES), FRESH]


def allowed_somewhere(
    known: list[CreateAcl], asked: tuple[Any, ...], *, everyone_if_none: bool
) -> bool:
    """Names of which no rule knows stand for all that there could be."""
    return any(
        may(naive(known, Question(*asked, name), everyone_if_none=everyone_if_none))
        for name in SOME_NAMES
    )


ANYWHERE = list(product([ALICE, BOB, ROOT], ["h", "g"], Operation, KINDS))


@given(HISTORIES)
@settings(max_examples=tries(100), deadline=None)
def test_any_resource_means_that_there_could_be_one(history: History) -> None:
    """Exactly. If a name is allowed, the rule that allows it is covered by no denial, else the
    denial would be about that name too. And if no single denial covers a rule, they do not do it
    together either: its prefix with something fresh behind it is about none of them."""
    image, there = replayed(history)
    deciding = authorizer_of(image.acls.values())
    known = [*there.values()]
    for asked in ANYWHERE:
        somewhere = allowed_somewhere(known, asked, everyone_if_none=False)
        assert deciding.allows_any(*asked) is somewhere


@given(st.lists(rules([each for each in PATTERNS if each != ("PREFIXED", "*")]), max_size=6))
@settings(max_examples=tries(100), deadline=None)
@example([])
def test_any_resource_is_not_refused_while_one_is_open(history: History) -> None:
    """Where what no rule names is open, this way only: who may do it somewhere is told so. Who is
    told so and may do it nowhere has met a rule about everything, which leaves nothing open."""
    image, there = replayed(history)
    deciding = authorizer_of(image.acls.values(), everyone_if_none=True)
    known = [*there.values()]
    for asked in ANYWHERE:
        somewhere = allowed_somewhere(known, asked, everyone_if_none=True)
        if deciding.allows_any(*asked) is not somewhere:
            assert not somewhere
            kind = asked[-1]
            assert any(rule.name == "*" and rule.resource == kind for rule in known)


@table(
    "lines expected",
    {
        "no rule": ([], False),
        "a name": ([READS], True),
        "a prefix": (["allow alice READ topic:a*"], True),
        "everything": (["allow * ALL topic:*"], True),
        "for another": (["allow bob READ topic:a"], False),
        "of another kind": (["allow alice READ group:a"], False),
        "another operation": (["allow alice DESCRIBE topic:a"], False),
        "from another host": (["allow alice from h READ topic:a"], False),
        "a name, denied": ([READS, "deny alice READ topic:a"], False),
        "a name, its prefix denied": ([READS, "deny * ALL topic:a*"], False),
        "a name, everything denied": ([READS, "deny alice READ topic:*"], False),
        "a name, another denied": ([READS, "deny alice READ topic:b"], True),
        "a name, denied for another operation": ([READS, "deny * DESCRIBE topic:a"], True),
        "a prefix, denied": (["allow * READ topic:a*", "deny * READ topic:a*"], False),
        "a prefix, a longer one denied": (["allow * READ topic:a*", "deny * READ topic:ab*"], True),
        "a prefix, its own name denied": (["allow * READ topic:a*", "deny * READ topic:a"], True),
        "everything, but for a prefix": (["allow * READ topic:*", "deny * READ topic:a*"], True),
        "two names, one of them denied": (
            [READS, "deny * READ topic:a*", "allow * READ topic:b"],
            True,
        ),
    },
)
def test_whether_alice_may_read_any_topic(lines: list[str], expected: bool) -> None:
    acls = [acl(line) for line in lines]
    asked = (ALICE, "elsewhere", Operation.READ, Resource.TOPIC)
    assert authorizer_of(acls).allows_any(*asked) is expected
    assert authorizer_of(acls[::-1]).allows_any(*asked) is expected
    assert authorizer_of(acls).allows_any(ROOT, *asked[1:])
    if_open = authorizer_of(acls, everyone_if_none=True).allows_any(*asked)
    assert if_open is ("deny alice READ topic:*" not in lines)


def test_names_that_begin_with_a_star_are_not_everything() -> None:
    allow, deny = "allow * READ topic:", "deny * READ topic:"
    check_verdict([f"{allow}**"], "alice: READ topic:*a", ALLOWED)
    check_verdict([f"{allow}**"], "alice: READ topic:a", NO_RULE)
    asked = (ALICE, "elsewhere", Operation.READ, Resource.TOPIC)
    assert authorizer_of([acl(f"{allow}*"), acl(f"{deny}**")]).allows_any(*asked)
    assert not authorizer_of([acl(f"{allow}**"), acl(f"{deny}**")]).allows_any(*asked)
