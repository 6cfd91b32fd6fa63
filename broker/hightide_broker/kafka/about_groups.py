"""Members of groups, by Kafka's classic protocol (KIP-62, 345, 394); what members say of themselves
passes through as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode
from hightide_broker.kafka.asked import Asked, errand, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Ask, Heard

TWO_STEPS_FROM = 4
"""The first version of join_group in which a new member joins with the id that it was given."""
NULL_PROTOCOL_FROM = 7
CLASSIC = "classic"
"""The type of all groups here."""
SKIPS_FROM = 9
"""The first version whose leader may be told that nothing changes (KIP-814)."""


def join_group(asked: Asked, _facts: Facts) -> Heard:
    """Become a member, or join the next generation."""
    fields = asked.fields
    session_ms: int = fields["session_timeout_ms"]
    rebalance_ms: int = fields.get("rebalance_timeout_ms", -1)
    member_id: str = fields["member_id"]
    protocols = [
        g.Protocol(name=each["name"], metadata=each["metadata"]) for each in fields["protocols"]
    ]

    def joining(member_id: str) -> g.JoinGroupRequest:
        return g.JoinGroupRequest(
            group=fields["group_id"],
            protocols=protocols,
            member_id=member_id,
            instance_id=fields.get("group_instance_id") or "",
            client_id=asked.client_id,
            protocol_type=fields["protocol_type"],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms if rebalance_ms < 0 else rebalance_ms,
            reason=fields.get("reason") or "",
        )

    def refuse(number: int, _message: str) -> Fields:
        return _joined(asked, g.JoinGroupResponse(member_id=member_id), number)

    def answer(body: g.JoinGroupResponse, _parts: Sequence[Attached] = ()) -> Fields:
        return _joined(asked, body, number_of(body.error))

    if asked.version >= TWO_STEPS_FROM or member_id:
        return question(asked, joining(member_id), answer, refuse)

    async def run(ask: Ask) -> Fields:
        body: Any = (await ask(joining(""))).body
        if body.error == ErrorCode.MEMBER_ID_REQUIRED:
            body = (await ask(joining(body.member_id))).body
        return answer(body)

    return errand(asked, run, refuse)


def _joined(asked: Asked, body: g.JoinGroupResponse, number: int) -> Fields:
    nothing = None if asked.version >= NULL_PROTOCOL_FROM else ""
    # An older leader that is told of the others would share out anew what stays as it is.
    is_kept = body.skip_assignment and asked.version < SKIPS_FROM
    return {
        "error_code": number,
        "generation_id": body.generation,
        "protocol_type": None if number else asked.fields["protocol_type"],
        "protocol_name": body.protocol or nothing,
        "leader": body.leader,
        "skip_assignment": body.skip_assignment,
        "member_id": body.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id or None,
                "metadata": member.metadata,
            }
            for member in (() if is_kept else body.members)
        ],
    }


def sync_group(asked: Asked, _facts: Facts) -> Heard:
    """Hear one's assignment; the leader brings everybody's."""
    fields = asked.fields
    request = g.SyncGroupRequest(
        group=fields["group_id"],
        member_id=fields["member_id"],
        generation=fields["generation_id"],
        instance_id=fields.get("group_instance_id") or "",
        protocol=fields.get("protocol_name") or "",
        assignments=[
            g.MemberAssignment(member_id=each["member_id"], assignment=each["assignment"])
            for each in fields["assignments"]
        ],
    )

    def answer(body: g.SyncGroupResponse, _parts: Sequence[Attached]) -> Fields:
        number = number_of(body.error)
        return {
            "error_code": number,
            "protocol_type": None if number else fields.get("protocol_type"),
            "protocol_name": body.protocol or fields.get("protocol_name"),
            "assignment": body.assignment,
        }

    def refuse(number: int, _message: str) -> Fields:
        return {"error_code": number, "assignment": b""}

    return question(asked, request, answer, refuse)


def heartbeat(asked: Asked, _facts: Facts) -> Heard:
    """A member is still there."""
    fields = asked.fields
    request = g.GroupHeartbeatRequest(
        group=fields["group_id"],
        member_id=fields["member_id"],
        generation=fields["generation_id"],
        instance_id=fields.get("group_instance_id") or "",
    )
    return question(asked, request, _error_alone, _number_alone)


def _error_alone(body: g.GroupHeartbeatResponse, _parts: Sequence[Attached]) -> Fields:
    return {"error_code": number_of(body.error)}


def _number_alone(number: int, _message: str) -> Fields:
    return {"error_code": number}


def leave_group(asked: Asked, _facts: Facts) -> Heard:
    """Members leave: one, and from version 3 on several (KIP-345)."""
    fields = asked.fields
    leaving = fields.get("members") or [{"member_id": fields.get("member_id", "")}]
    request = g.LeaveGroupRequest(
        group=fields["group_id"],
        members=[
            g.LeavingMember(
                member_id=each["member_id"],
                instance_id=each.get("group_instance_id") or "",
                reason=each.get("reason") or "",
            )
            for each in leaving
        ],
    )
    return question(asked, request, _left_alone if asked.version < 3 else _left, _nobody_left)


def _left_alone(body: g.LeaveGroupResponse, _parts: Sequence[Attached]) -> Fields:
    (member,) = body.members or [g.LeaveResult(member_id="", error=body.error)]
    return {"error_code": number_of(body.error or member.error)}


def _left(body: g.LeaveGroupResponse, _parts: Sequence[Attached]) -> Fields:
    return {
        "error_code": number_of(body.error),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id or None,
                "error_code": number_of(member.error),
            }
            for member in body.members
        ],
    }


def _nobody_left(number: int, _message: str) -> Fields:
    return {"error_code": number, "members": []}


def describe_groups(asked: Asked, _facts: Facts) -> Heard:
    """Members of groups, and what they were given."""
    groups: list[str] = asked.fields["groups"]
    has_errors = asked.version >= 6

    def one(group: g.DescribedGroup) -> Fields:
        is_unknown = group.error == ErrorCode.GROUP_ID_NOT_FOUND
        return {
            "error_code": 0 if is_unknown and not has_errors else number_of(group.error),
            "error_message": told(group.message) or None,
            "group_id": group.group,
            "group_state": "Dead" if is_unknown else group.state,
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol,
            "members": [_described(member) for member in group.members],
        }

    def refuse(number: int, message: str) -> Fields:
        nothing = {"group_state": "", "protocol_type": "", "protocol_data": "", "members": []}
        why = {"error_code": number, "error_message": message}
        return {"groups": [{"group_id": name, **why, **nothing} for name in groups]}

    def answer(body: g.DescribeGroupsResponse, _parts: Sequence[Attached]) -> Fields:
        return {"groups": [*map(one, body.groups)]}

    return question(asked, g.DescribeGroupsRequest(groups=groups), answer, refuse)


def _described(member: g.DescribedMember) -> Fields:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id or None,
        "client_id": member.client_id,
        "client_host": member.host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }


def list_groups(asked: Asked, _facts: Facts) -> Heard:
    """The groups that this broker coordinates, of some states and types (KIP-518, KIP-848)."""
    states = {state.lower() for state in asked.fields.get("states_filter", ())}
    types = {kind.lower() for kind in asked.fields.get("types_filter", ())}

    def answer(body: g.ListGroupsResponse, _parts: Sequence[Attached]) -> Fields:
        listed = [] if types and CLASSIC not in types else body.groups
        return {
            "error_code": number_of(body.error),
            "groups": [
                {
                    "group_id": group.group,
                    "protocol_type": group.protocol_type,
                    "group_state": group.state,
                    "group_type": CLASSIC,
                }
                for group in listed
                if not states or group.state.lower() in states
            ],
        }

    def refuse(number: int, _message: str) -> Fields:
        return {"error_code": number, "groups": []}

    return question(asked, g.ListGroupsRequest(), answer, refuse)


def delete_groups(asked: Asked, _facts: Facts) -> Heard:
    """Forget groups that nobody is in."""
    names: list[str] = asked.fields["groups_names"]

    def answer(body: g.DeleteGroupsResponse, _parts: Sequence[Attached]) -> Fields:
        return {
            "results": [
                {"group_id": group.group, "error_code": number_of(group.error)}
                for group in body.groups
            ]
        }

    def refuse(number: int, _message: str) -> Fields:
        return {"results": [{"group_id": name, "error_code": number} for name in names]}

    return question(asked, g.DeleteGroupsRequest(groups=names), answer, refuse)


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    11: join_group,
    12: heartbeat,
    13: leave_group,
    14: sync_group,
    15: describe_groups,
    16: list_groups,
    42: delete_groups,
}
