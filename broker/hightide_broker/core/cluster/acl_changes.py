"""What becomes of requests to change the rules about who may do what. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hightide.protocol import access_messages as a
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker.core.cluster.acls import ACLS_MAX, Acl, acl_of, check_filter, is_wanted
from hightide_broker.core.cluster.changes import AnyChange, CreateAcl, RemoveAcl
from hightide_broker.core.cluster.limits import check_count

FILTERS_MAX = 100
LOOKS_MAX = 50_000
"""How often one request with several filters may compare one with a rule."""
CHANGES_MAX = 10_000
"""Rules that one request may make or remove."""


def create(
    known: Mapping[str, Acl], request: a.CreateAclsRequest, new_id: Callable[[], str]
) -> tuple[list[AnyChange], a.CreateAclsResponse]:
    """Each rule succeeds or fails by itself; one that is there already is there."""
    check_count(len(request.acls), CHANGES_MAX, "rules")
    changes: list[AnyChange] = []
    results, there = [], set(known.values())
    for number, rule in enumerate(request.acls):
        try:
            acl = acl_of(rule)
            if acl not in there and len(there) >= ACLS_MAX:
                raise Refused(
                    ErrorCode.INVALID_REQUEST, f"there are {ACLS_MAX} rules, and may be no more"
                )
        except Refused as refusal:
            results.append(a.AclResult(number=number, error=refusal.code, message=refusal.message))
            continue
        results.append(a.AclResult(number=number))
        if acl not in there:
            there.add(acl)
            changes.append(CreateAcl(id=new_id(), **acl._asdict()))
    return changes, a.CreateAclsResponse(acls=results)


def delete(
    known: Mapping[str, Acl], request: a.DeleteAclsRequest
) -> tuple[list[AnyChange], a.DeleteAclsResponse]:
    """All rules that some filter means. Raises `Refused`, and then none is removed."""
    check_count(len(request.filters), FILTERS_MAX, "filters")
    filters = [*dict.fromkeys(request.filters)]
    for each in filters:
        check_filter(each)
    if len(filters) > 1 and len(filters) * len(known) > LOOKS_MAX:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"{len(filters)} filters in one request beside {counted(len(known), 'rule')}, expected "
            f"{max(1, LOOKS_MAX // len(known))} or less",
        )
    found = {
        number: acl
        for number, acl in known.items()
        if any(is_wanted(acl, each) for each in filters)
    }
    check_count(len(found), CHANGES_MAX, "rules")
    changes: list[AnyChange] = [RemoveAcl(id=number) for number in found]
    told = [acl.told(number) for number, acl in found.items()]
    return changes, a.DeleteAclsResponse(acls=told)
