"""Rules about who may do what: described, made and removed (KIP-140)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide.protocol import access_messages as a
from hightide.protocol.errors import Refused
from hightide_broker.core.cluster.acl_changes import CHANGES_MAX
from hightide_broker.core.cluster.acls import as_told, is_wanted
from hightide_broker.core.cluster.limits import check_count
from hightide_broker.kafka.acl_words import filter_of, permission_told, resource_told, rule_of
from hightide_broker.kafka.asked import Asked, at_once, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard


def describe_acls(asked: Asked, _facts: Facts) -> Heard:
    """The rules that a filter means, by what they are about."""

    def refuse(number: int, message: str) -> Fields:
        return {"error_code": number, "error_message": message, "resources": []}

    try:
        wanted = filter_of(asked.fields)
    except Refused as why:
        return at_once(asked, refuse(number_of(why.code), why.message))

    def answer(body: a.DescribeAclsResponse, _parts: Sequence[Attached]) -> Fields:
        found: dict[tuple[object, ...], Fields] = {}
        for rule in body.acls if wanted is not None else ():
            about = resource_told(rule)
            entry = found.setdefault((*about.values(),), {**about, "acls": []})
            entry["acls"].append(permission_told(rule))
        return {"error_code": 0, "resources": [*found.values()]}

    request = a.DescribeAclsRequest() if wanted is None else a.DescribeAclsRequest(filter=wanted)
    return question(asked, request, answer, refuse)


def create_acls(asked: Asked, _facts: Facts) -> Heard:
    """Make rules, each by itself; one that is there already is there."""
    creations: Sequence[Fields] = asked.fields["creations"]
    rules: list[a.AclRule] = []
    refused: dict[int, Fields] = {}

    def refuse(number: int, message: str) -> Fields:
        return {"results": [_result(number, message)] * len(creations)}

    try:
        check_count(len(creations), CHANGES_MAX, "rules")
    except Refused as why:
        return at_once(asked, refuse(number_of(why.code), why.message))
    for place, fields in enumerate(creations):
        try:
            rules.append(rule_of(fields))
        except Refused as why:
            refused[place] = _result(number_of(why.code), why.message)

    def answer(body: a.CreateAclsResponse, _parts: Sequence[Attached]) -> Fields:
        by_number = sorted(body.acls, key=lambda result: result.number)
        made = (_result(number_of(each.error), told(each.message)) for each in by_number)
        return {"results": [refused.get(n) or next(made) for n in range(len(creations))]}

    return question(asked, a.CreateAclsRequest(acls=rules), answer, refuse)


def _result(number: int, message: str) -> Fields:
    return {"error_code": number, "error_message": message or None}


def delete_acls(asked: Asked, _facts: Facts) -> Heard:
    """Remove the rules that filters mean, and tell which: one that two of them mean is told for
    each. A filter that is none removes nothing."""
    filters: list[a.AclFilter | None] = []
    refused: dict[int, Fields] = {}
    for place, fields in enumerate(asked.fields["filters"]):
        try:
            filters.append(filter_of(fields))
        except Refused as why:
            filters.append(None)
            refused[place] = _result(number_of(why.code), why.message)

    def answer(body: a.DeleteAclsResponse, _parts: Sequence[Attached]) -> Fields:
        removed = [(as_told(rule), rule) for rule in body.acls]

        def one(place: int, wanted: a.AclFilter | None) -> Fields:
            found = [_removed(rule) for acl, rule in removed if wanted and is_wanted(acl, wanted)]
            return {**(refused.get(place) or _result(0, "")), "matching_acls": found}

        return {"filter_results": [one(*each) for each in enumerate(filters)]}

    def refuse(number: int, message: str) -> Fields:
        result = {**_result(number, message), "matching_acls": []}
        return {"filter_results": [result] * len(filters)}

    request = a.DeleteAclsRequest(filters=[each for each in filters if each is not None])
    return question(asked, request, answer, refuse)


def _removed(rule: a.AclRule) -> Fields:
    return {**resource_told(rule), **permission_told(rule)}


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    29: describe_acls,
    30: create_acls,
    31: delete_acls,
}
