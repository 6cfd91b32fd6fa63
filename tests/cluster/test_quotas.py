"""Whose quota holds, what may be one, and how long who is too fast waits.

Method: the pure rules, on quotas and times that the test makes up.
"""

import pytest

from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster import quotas
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.rates import BURST_S, Rate

KEY = k.PRODUCER_BYTE_RATE
WHO = ("alice", "etl")
ORDER = [
    *(("alice", "etl"), ("alice", k.DEFAULT), ("alice", None)),
    *((k.DEFAULT, "etl"), (k.DEFAULT, k.DEFAULT), (k.DEFAULT, None)),
    *((None, "etl"), (None, k.DEFAULT)),
]
"""From the most specific one on (KIP-13)."""


def altered(image, *wishes):
    changes, answer = quotas.alter(image.quotas, k.AlterClientQuotasRequest(quotas=list(wishes)))
    for change in changes:
        image.replay(change, image.offset)
    return [each.error for each in answer.quotas]


def wish(user=None, client_id=None, value=1, key=KEY):
    return k.QuotaSetting(key=key, user=user, client_id=client_id, value=value)


@pytest.mark.parametrize("at", range(len(ORDER)))
def test_the_most_specific_quota_that_is_set_holds(at):
    image = ClusterImage()
    for number, holder in enumerate(ORDER[at:]):
        assert altered(image, wish(*holder, value=1 + number)) == [None]
    found = quotas.quota_for(image.quotas, *WHO, KEY)
    assert found.value == 1
    assert found.holder == tuple(
        own if named is not None else None for own, named in zip(WHO, ORDER[at], strict=True)
    )
    assert quotas.quota_for(image.quotas, *WHO, k.CONSUMER_BYTE_RATE) is None


def test_a_quota_that_is_removed_is_none_and_what_is_kept_is_kept():
    image = ClusterImage()
    altered(image, wish("alice"), wish("bob", value=2))
    assert ClusterImage.of_snapshot(image.changes(), image.offset) == image == image.copy()
    assert {each.user for each in quotas.described(image.quotas).quotas} == {"alice", "bob"}
    assert altered(image, wish("alice", value=None), wish("carol", value=None)) == [None, None]
    assert list(image.quotas) == [("bob", None)]


@pytest.mark.parametrize(
    "bad",
    [
        wish(),
        wish(""),
        wish("a\nb"),
        wish("alice", value=0),
        wish("alice", value=-1),
        wish("alice", key="request_percentage"),
        wish("x" * 257),
    ],
)
def test_what_can_be_no_quota_is_refused_and_spoils_no_other(bad):
    image = ClusterImage()
    assert altered(image, bad, wish("bob")) == [ErrorCode.INVALID_REQUEST, None]
    assert list(image.quotas) == [("bob", None)]


def test_who_is_slow_enough_does_not_wait():
    rate = Rate()
    for second in range(100):
        rate.record(100, 100, second)
        assert rate.delay_s(second) == 0


@pytest.mark.parametrize(("size", "gap_s"), [(1000, 0.01), (50_000, 0.5), (4_000_000, 0.0)])
def test_over_a_long_time_who_waits_as_told_is_as_fast_as_the_quota(size, gap_s):
    rate, now, sent, limit = Rate(), 0.0, 0, 100_000
    while now < 300:
        rate.record(size, limit, now)
        sent += size
        now += rate.delay_s(now) or gap_s or 0.001
    assert 0.95 * limit * now - size <= sent <= limit * (now + BURST_S) + size


def test_a_debt_goes_by_with_time_and_no_faster():
    rate = Rate()
    rate.record(10_000_000, 1000, 0)
    for now in (0, 1, 5_000, 9_989):
        assert rate.delay_s(now) == pytest.approx(10_000 - BURST_S - now)
    assert rate.delay_s(9_990) == 0
