"""Whose quota holds, what may be one, and how long who is too fast waits.

Method: the pure rules, on quotas and times that the test makes up.
"""

import pytest
from controller_cluster import ControlledCluster

from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster import quotas
from hightide_broker.core.cluster.features import KNOWN_LEVELS
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.mutations import MutationQuotas
from hightide_broker.core.cluster.rates import BURST_S, HOLDERS_MAX, Rate, Rates
from hightide_broker.runtime.server.throttle import BYTES_BURST_S

KEY = k.PRODUCER_BYTE_RATE
WHO = ("alice", "etl")
ORDER = [
    *(("alice", "etl"), ("alice", k.DEFAULT), ("alice", None)),
    *((k.DEFAULT, "etl"), (k.DEFAULT, k.DEFAULT), (k.DEFAULT, None)),
    *((None, "etl"), (None, k.DEFAULT)),
]
"""From the most specific one on (KIP-13)."""


def altered(image, *wishes, levels=KNOWN_LEVELS):
    changes, answer = quotas.alter(
        image.quotas, k.AlterClientQuotasRequest(quotas=list(wishes)), levels
    )
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
    assert found.holder == quotas.Entity(
        *(own if named is not None else None for own, named in zip(WHO, ORDER[at], strict=True))
    )
    assert quotas.quota_for(image.quotas, *WHO, k.CONSUMER_BYTE_RATE) is None


def test_a_quota_that_is_removed_is_none_and_what_is_kept_is_kept():
    image = ClusterImage()
    altered(image, wish("alice"), wish("bob", value=2))
    assert ClusterImage.of_snapshot(image.changes(), image.offset) == image == image.copy()
    assert {each.user for each in quotas.described(image.quotas).quotas} == {"alice", "bob"}
    assert altered(image, wish("alice", value=None), wish("carol", value=None)) == [None, None]
    assert list(image.quotas) == [quotas.Entity("bob")]


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
    assert list(image.quotas) == [quotas.Entity("bob")]


def test_what_one_holder_is_given_is_set_whole_or_not_at_all():
    image = ClusterImage()
    wishes = wish("alice"), wish("bob"), wish("alice", key=k.CONSUMER_BYTE_RATE, value=0)
    assert altered(image, *wishes) == [ErrorCode.INVALID_REQUEST, None, ErrorCode.INVALID_REQUEST]
    assert list(image.quotas) == [quotas.Entity("bob")]


def test_a_fraction_is_set_once_all_brokers_can_read_it():
    half = wish("alice", value=0.5, key=k.CONTROLLER_MUTATION_RATE)
    image = ClusterImage()
    assert altered(image, half, levels={"rows": 1}) == ["UNSUPPORTED_VERSION"]
    assert not image.quotas
    assert altered(image, half, levels={"rows": 1, "quotas": 1}) == [None]
    found = quotas.quota_for(image.quotas, "alice", "c", k.CONTROLLER_MUTATION_RATE)
    assert found.value == 0.5
    assert altered(image, wish("alice", value=0.5, key=k.PRODUCER_BYTE_RATE)) == ["INVALID_REQUEST"]


def test_a_request_sets_so_many_quotas_and_no_more():
    wishes = [wish("alice", value=None)] * (quotas.CHANGES_MAX + 1)
    assert altered(ClusterImage(), *wishes[1:]) == [None] * quotas.CHANGES_MAX
    with pytest.raises(Refused, match="10001 quotas in one request"):
        altered(ClusterImage(), *wishes)


def test_holders_of_one_request_count_too(monkeypatch):
    monkeypatch.setattr("hightide_broker.core.cluster.quotas.QUOTAS_MAX", 2)
    image = ClusterImage()
    wishes = wish("alice"), wish("alice", key=k.CONSUMER_BYTE_RATE), wish("bob"), wish("carol")
    assert altered(image, *wishes) == [None, None, None, ErrorCode.INVALID_REQUEST]


def test_who_is_slow_enough_does_not_wait():
    rate = Rate()
    for second in range(100):
        rate.record(100, 100, second)
        assert rate.delay_s(100, second) == 0


@pytest.mark.parametrize(("size", "gap_s"), [(1000, 0.01), (50_000, 0.5), (4_000_000, 0.0)])
def test_over_a_long_time_who_waits_as_told_is_as_fast_as_the_quota(size, gap_s):
    rate, now, sent, limit = Rate(), 0.0, 0, 100_000
    while now < 300:
        rate.record(size, limit, now)
        sent += size
        now += rate.delay_s(limit, now) or gap_s or 0.001
    assert 0.95 * limit * now - size <= sent <= limit * (now + BURST_S) + size


def test_a_debt_goes_by_with_time_and_no_faster():
    rate = Rate()
    rate.record(10_000_000, 1000, 0)
    for now in (0, 1, 5_000, 9_989):
        assert rate.delay_s(1000, now) == pytest.approx(10_000 - BURST_S - now)
    assert rate.delay_s(1000, 9_990) == 0


def test_a_debt_goes_by_faster_once_the_quota_is_raised():
    rate = Rate()
    rate.record(10_000_000, 1000, 0)
    assert rate.delay_s(1000, 0) == pytest.approx(10_000 - BURST_S)
    assert rate.delay_s(100_000, 0) == pytest.approx(100 - BURST_S)


def test_a_debt_is_not_forgotten_for_the_many_who_come_after():
    rates = Rates()
    rates.record("a", 2000, 10, now=0.0)
    for number in range(2 * HOLDERS_MAX):
        rates.record(number, 1, 1000, now=number / 1000)
        assert len(rates) <= HOLDERS_MAX
    assert rates.delay_s("a", 10, now=20.0) == 2000 / 10 - 20 - BURST_S


def test_of_more_debtors_than_are_remembered_those_who_owe_most_are():
    rates = Rates()
    for number in range(2 * HOLDERS_MAX):
        rates.record(number, 1000 + (number % 1000 == 0), 10, now=0.0)
        assert len(rates) <= HOLDERS_MAX
    assert all(rates.delay_s(number, 10, now=0.0) for number in range(0, 2 * HOLDERS_MAX, 1000))


@pytest.mark.parametrize("size", [1000, 100_000])
def test_who_is_ten_times_faster_is_within_fifteen_percent_of_its_quota_over_half_a_minute(size):
    rate, now, sent, limit = Rate(BYTES_BURST_S), 0.0, 0, 100_000
    while now < 30:
        rate.record(size, limit, now)
        sent += size
        now += max(rate.delay_s(limit, now), size / (10 * limit))
    assert sent == pytest.approx(30 * limit, rel=0.15)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"10.0.0.1": 5, k.DEFAULT: 7}, 5),
        ({k.DEFAULT: 7}, 7),
        ({"10.0.0.2": 5}, None),
        ({}, None),
    ],
)
def test_an_address_has_its_own_quota_or_that_of_all_others(settings, found):
    image = ClusterImage()
    for ip, value in settings.items():
        assert altered(image, of_address(ip, value)) == [None]
    quota = quotas.quota_of_address(image.quotas, "10.0.0.1", k.CONNECTION_CREATION_RATE)
    assert quota == (None if found is None else (quotas.Entity(ip="10.0.0.1"), found))
    assert ClusterImage.of_snapshot(image.changes(), image.offset) == image


def of_address(ip, value=1, **over):
    facts = {"key": k.CONNECTION_CREATION_RATE, "ip": ip, "value": value}
    return k.QuotaSetting(**(facts | over))


@pytest.mark.parametrize(
    "bad",
    [
        of_address("10.0.0.0/8"),
        of_address("here"),
        of_address(""),
        of_address("::1", key=KEY),
        of_address("::1", user="alice"),
        wish("alice", key=k.CONNECTION_CREATION_RATE),
    ],
)
def test_connections_are_counted_of_addresses_and_of_nobody_else(bad):
    image = ClusterImage()
    assert altered(image, bad) == [ErrorCode.INVALID_REQUEST]
    assert not image.quotas


def test_an_address_is_kept_as_connections_have_it():
    image = ClusterImage()
    assert altered(image, of_address("0:0::1")) == [None]
    assert list(image.quotas) == [quotas.Entity(ip="::1")]


def test_partitions_over_a_quota_are_refused_until_the_debt_is_gone():
    image = ClusterImage()
    altered(image, wish("alice", key=k.CONTROLLER_MUTATION_RATE, value=2))
    mutations = MutationQuotas()

    def take(now, count, user="alice"):
        mutations.of(image.quotas, user, "etl", now)(count)

    take(0, 20)
    take(0, 5)  # what goes over it is done, what comes after it is not
    for now in (0, 2.4):
        with pytest.raises(Refused) as caught:
            take(now, 1)
        assert caught.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert caught.value.throttle_time_ms == pytest.approx((2.5 - now) * 1000, abs=2)
        take(now, 1000, user="bob")
    take(2.5, 1)


def test_each_topic_is_created_and_deleted_or_refused_by_itself():
    image = ClusterImage()
    altered(image, wish(client_id=k.DEFAULT, key=k.CONTROLLER_MUTATION_RATE, value=1))
    cluster, mutations = ControlledCluster(1), MutationQuotas()
    late = (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 2000)

    def done(decide, request, **how):
        allowed = mutations.of(image.quotas, "alice", "etl", cluster.now)
        topics = cluster.commit(decide(request, take=allowed, **how)).topics
        return [(each.topic, each.error, each.throttle_time_ms) for each in topics]

    def created(**over):
        new = [m.NewTopic(topic=name, partitions=n) for name, n in (("a", 5), ("b", 7), ("c", 1))]
        request = m.CreateTopicsRequest(topics=new, **over)
        ids, create = iter("xyz"), cluster.controller.create_topics
        return done(create, request, new_id=lambda: next(ids), shift=lambda _: 0)

    for _ in range(3):
        assert {error for _, error, _ in created(validate_only=True)} == {None}
    assert created() == [("a", None, 0), ("b", None, 0), ("c", *late)]
    more = m.CreatePartitionsRequest(topics=[m.MorePartitions(topic="a", count=6)])
    create = cluster.controller.create_partitions
    assert done(create, more, shift=lambda _: 0) == [("a", *late)]
    gone = m.DeleteTopicsRequest(topics=["a"])
    assert done(cluster.controller.delete_topics, gone) == [("a", *late)]
    cluster.now += 2.1
    assert done(cluster.controller.delete_topics, gone) == [("a", None, 0)]
    assert set(cluster.image.topics) == {"b"}


LONG = 61 * "x"


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (wish(""), "user '', expected 1 to 256 characters that print"),
        (wish(client_id="a\nb"), r"client id 'a\nb', expected 1 to 256 characters that print"),
        (wish(), "a quota is of a user, of a client, or of both; or of an address"),
        (
            of_address("::1", user="alice"),
            "a quota of an address is of no user, and of no client",
        ),
        (
            of_address("::1", client_id="etl"),
            "a quota of an address is of no user, and of no client",
        ),
        (
            of_address("::1", key=LONG),
            f"'{60 * 'x'}' of an address: only connection_creation_rate is of addresses, and it is "
            "of nobody else",
        ),
        (
            wish("alice", key=k.CONNECTION_CREATION_RATE),
            "'connection_creation_rate' of a user or client: only connection_creation_rate is of "
            "addresses, and it is of nobody else",
        ),
        (of_address(""), "ip '', expected one address of IPv4 or IPv6, or <default>"),
        (
            of_address(LONG),
            f"ip '{60 * 'x'}', expected one address of IPv4 or IPv6, or <default>",
        ),
        (
            wish("alice", key=LONG),
            f"quota '{60 * 'x'}', expected one of producer_byte_rate, consumer_byte_rate, "
            "controller_mutation_rate, connection_creation_rate",
        ),
        (wish("alice", value=0), "producer_byte_rate 0, expected more than 0"),
    ],
)
def test_a_refused_quota_is_told_by_its_place_what_came_and_what_was_expected(bad, sentence):
    request = k.AlterClientQuotasRequest(quotas=[wish("bob"), bad, wish("carol")])
    changes, answer = quotas.alter({}, request, KNOWN_LEVELS)
    refused = k.AlteredQuota(number=1, error=ErrorCode.INVALID_REQUEST, message=sentence)
    assert answer.quotas == [k.AlteredQuota(number=0), refused, k.AlteredQuota(number=2)]
    assert [change.user for change in changes] == ["bob", "carol"]


def test_a_cluster_has_quotas_of_so_many_and_no_more(monkeypatch):
    """Those that have one can be given others at any number of them."""
    monkeypatch.setattr(quotas, "QUOTAS_MAX", 2)
    image = ClusterImage()
    assert altered(image, wish("alice")) == [None]
    assert altered(image, wish("bob")) == [None]
    request = k.AlterClientQuotasRequest(quotas=[wish("carol")])
    changes, answer = quotas.alter(image.quotas, request, KNOWN_LEVELS)
    full = "2 have quotas, and may be no more"
    refused = k.AlteredQuota(number=0, error=ErrorCode.INVALID_REQUEST, message=full)
    assert (changes, answer.quotas) == ([], [refused])
    assert altered(image, wish("alice", value=5)) == [None]
    assert quotas.quota_for(image.quotas, "alice", "etl", KEY).value == 5


def test_quotas_are_described_as_they_were_set():
    image = ClusterImage()
    wishes = [
        wish("alice", "etl", value=3),
        wish(client_id=k.DEFAULT, key=k.CONSUMER_BYTE_RATE, value=4),
        of_address("10.0.0.1", 5),
    ]
    altered(image, *wishes)
    assert quotas.described(image.quotas).quotas == wishes


def test_nothing_more_and_part_of_one_are_amounts_and_a_debt_is_never_forgiven():
    rate = Rate(burst_s=0.0)
    rate.record(0, 10, 0.0)
    rate.record(0.5, 10, 0.0)
    assert rate.delay_s(10, 0.0) == pytest.approx(0.05)
    assert rate.free_at == pytest.approx(0.05)
    with pytest.raises(AssertionError, match="would forgive a debt"):
        rate.record(-1, 10, 0.0)
    with pytest.raises(AssertionError, match="a debt never goes by"):
        rate.record(1, 0, 0.0)


def test_who_is_free_again_is_forgotten_before_who_still_owes():
    rates = Rates()
    rates.record("owes", 1000, 10, now=0.0)
    for number in range(HOLDERS_MAX - 1):
        rates.record(number, 10, 10, now=0.0)
    rates.record("new", 10, 10, now=1.0)
    assert len(rates) == 2, "what was sent in the first second is paid when it is over"
    assert rates.delay_s("owes", 10, now=1.0) == 1000 / 10 - 1 - BURST_S


def test_where_all_owe_something_there_is_room_for_a_tenth_more():
    rates = Rates()
    for number in range(HOLDERS_MAX + 1):
        rates.record(number, 1000, 10, now=0.0)
    assert len(rates) == HOLDERS_MAX - HOLDERS_MAX // 10 + 1
