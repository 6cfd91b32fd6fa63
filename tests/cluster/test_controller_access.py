"""Users, quotas and rules by way of the controller: it decides on what is in its image.

Goal: of two requests the second one sees what the first one made. What may be one of them, and how
it is refused, is in the tests of each. Method: requests to a controller whose decisions are
committed at once, as bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controller_cluster import ControlledCluster
from logins import wish

from hightide.protocol import access_messages as a
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster import users
from hightide_broker.core.cluster.changes import RemoveAcl, SetQuota, SetUsersSecret
from hightide_broker.core.cluster.quotas import Entity

RULE = {"resource": "topic", "name": "a", "principal": "User:alice", "operation": "READ"}


def alter_users(cluster: ControlledCluster, secret: bytes, **asked: list) -> list[ErrorCode | None]:
    request = u.AlterUserScramCredentialsRequest(**asked)
    answer = cluster.commit(cluster.controller.alter_users(request, lambda: secret))
    return [each.error for each in answer.users]


def test_the_secret_of_a_cluster_is_made_with_its_first_user_and_stays() -> None:
    """What is answered about users that there are not would change with it."""
    cluster = ControlledCluster(1)
    first, second = (letter * users.SECRET_BYTES for letter in (b"1", b"2"))
    assert alter_users(cluster, first, upsertions=[wish("alice")]) == [None]
    assert cluster.changes[0] == SetUsersSecret(secret=first)
    assert alter_users(cluster, second, upsertions=[wish("bob")]) == [None]
    assert cluster.image.users_secret == first
    assert [user for user, _ in cluster.image.users] == ["alice", "bob"]
    gone = u.ScramDeletion(user="alice", mechanism="SCRAM-SHA-256")
    assert alter_users(cluster, second, deletions=[gone]) == [None]
    assert alter_users(cluster, second, deletions=[gone]) == [ErrorCode.RESOURCE_NOT_FOUND]
    assert cluster.replayed() == cluster.image


def test_quotas_count_those_that_the_cluster_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hightide_broker.core.cluster.quotas.QUOTAS_MAX", 1)
    cluster = ControlledCluster(1)

    def alter(user: str, value: int) -> ErrorCode | None:
        setting = k.QuotaSetting(key=k.PRODUCER_BYTE_RATE, user=user, value=value)
        request = k.AlterClientQuotasRequest(quotas=[setting])
        (result,) = cluster.commit(cluster.controller.alter_quotas(request)).quotas
        return result.error

    assert alter("alice", 1) is None
    assert [type(change) for change in cluster.changes] == [SetQuota]
    assert alter("bob", 1) == ErrorCode.INVALID_REQUEST
    assert alter("alice", 2) is None
    assert cluster.image.quotas == {Entity("alice"): {k.PRODUCER_BYTE_RATE: 2}}


def test_a_rule_is_made_once_and_removed_once() -> None:
    cluster = ControlledCluster(1)
    create = a.CreateAclsRequest(acls=[a.AclRule(**RULE)])
    delete = a.DeleteAclsRequest(filters=[a.AclFilter(resource="topic", name="a")])
    for made in (["id-1"], []):
        answer = cluster.commit(cluster.controller.create_acls(create, lambda: "id-1"))
        assert answer.acls == [a.AclResult(number=0)]
        assert [change.id for change in cluster.changes] == made
    (acl,) = cluster.image.acls.values()
    for removed in ([RemoveAcl(id="id-1")], []):
        answer = cluster.commit(cluster.controller.delete_acls(delete))
        assert (cluster.changes, answer.acls) == (removed, [acl.told("id-1")] if removed else [])
    assert cluster.image.acls == {}


def test_one_request_has_so_many_filters_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hightide_broker.core.cluster.acl_changes.FILTERS_MAX", 2)
    cluster = ControlledCluster(1)
    create = a.CreateAclsRequest(acls=[a.AclRule(**RULE)])
    cluster.commit(cluster.controller.create_acls(create, lambda: "id-1"))
    of_nothing = a.AclFilter(resource="group")
    with pytest.raises(Refused) as caught:
        cluster.controller.delete_acls(a.DeleteAclsRequest(filters=[of_nothing] * 3))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message == "3 filters in one request, expected 2 or less"
    both = a.DeleteAclsRequest(filters=[of_nothing, a.AclFilter(resource="topic")])
    assert len(cluster.commit(cluster.controller.delete_acls(both)).acls) == 1


def test_a_topic_too_many_for_a_quota_does_not_spoil_those_behind_it() -> None:
    """Each one is deleted or refused by itself."""
    cluster = ControlledCluster(1)
    for name, count in (("a", 1), ("b", 5), ("c", 1)):
        cluster.create(name, partitions=count)
    asked = take_at_most(3)
    request = m.DeleteTopicsRequest(topics=["a", "b", "c"])
    answer = cluster.commit(cluster.controller.delete_topics(request, take=asked))
    late = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert [each.error for each in answer.topics] == [None, late, None]
    assert set(cluster.image.topics) == {"b"}


def take_at_most(count: int) -> Callable[[int], None]:
    """Who asks may change so many partitions at a time."""

    def take(asked: int) -> None:
        if asked > count:
            raise Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{asked} of {count}")

    return take


@pytest.mark.parametrize("validate_only", [True, False])
def test_partitions_that_are_added_count_and_not_those_that_are_there(validate_only: bool) -> None:
    """What is only tried out counts for nothing."""
    cluster = ControlledCluster(1)
    cluster.create("a", partitions=4)
    for count, error in ((6, None), (9, ErrorCode.THROTTLING_QUOTA_EXCEEDED)):
        request = m.CreatePartitionsRequest(
            topics=[m.MorePartitions(topic="a", count=count)], validate_only=validate_only
        )
        decide = cluster.controller.create_partitions
        (result,) = cluster.commit(decide(request, shift=lambda _: 0, take=take_at_most(2))).topics
        assert result.error == (None if validate_only else error)
    assert len(cluster.partitions("a")) == (4 if validate_only else 6)
