"""Feature levels: nothing is written that a registered broker could not read, and none comes back
that could not.

Goal: the cluster's level is the lowest of all brokers', fenced ones too; it never sinks; records
from before there were levels read as none. Method: a controller whose decisions are committed at
once; images that went through a snapshot.
"""

from __future__ import annotations

import pytest
from controller_cluster import ControlledCluster, refusal

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.changes import RegisterBroker, decode_change, encode_change
from hightide_broker.core.cluster.features import FEATURES_MAX, KNOWN_LEVELS, ROWS, check_levels
from hightide_broker.core.cluster.image import ClusterImage


def test_the_cluster_has_the_lowest_level_of_all_brokers_fenced_or_not() -> None:
    cluster = ControlledCluster()
    assert cluster.image.feature_levels() == {}
    cluster.register(1, features={ROWS: 1})
    assert cluster.image.feature_levels() == {ROWS: 1}
    cluster.register(2, features={ROWS: 2, "other": 1})
    assert cluster.image.feature_levels() == {ROWS: 1}
    cluster.register(1, features={ROWS: 2})
    assert cluster.image.brokers[2].fenced
    assert cluster.image.feature_levels() == {ROWS: 2}


def test_the_level_rises_with_the_last_broker_that_is_upgraded() -> None:
    cluster = ControlledCluster(1, 2)
    assert cluster.image.feature_levels() == {}
    cluster.register(1, features=dict(KNOWN_LEVELS))
    assert cluster.image.feature_levels().get(ROWS, 0) == 0
    cluster.register(1)
    cluster.register(1, features=dict(KNOWN_LEVELS))
    cluster.register(2, features=dict(KNOWN_LEVELS))
    assert cluster.image.feature_levels() == KNOWN_LEVELS


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_broker_that_knows_less_than_all_others_is_refused(broker: int) -> None:
    cluster = ControlledCluster()
    for each in (1, 2):
        cluster.register(each, features={ROWS: 1})
    size = len(cluster.log)
    assert refusal(cluster.register, broker) == ErrorCode.UNSUPPORTED_VERSION
    assert len(cluster.log) == size
    cluster.register(broker, features={ROWS: 1, "new": 1})
    assert cluster.image.feature_levels()[ROWS] == 1


def test_the_refusal_names_both_levels() -> None:
    with pytest.raises(Refused, match=r"broker 4 .* up to level 1: start a newer one"):
        check_levels(4, {ROWS: 1}, {ROWS: 2})


def test_a_broker_may_say_so_many_features_and_no_more() -> None:
    told = {f"f{number}": 1 for number in range(FEATURES_MAX)}
    check_levels(1, told, {})
    with pytest.raises(Refused) as caught:
        check_levels(1, {**told, "more": 1}, {})
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_a_registration_from_before_there_were_levels_reads_as_none() -> None:
    old = RegisterBroker(broker=1, incarnation="i", host="h", port=9)
    encoded = encode_change(old)
    assert b"features" not in encoded
    assert decode_change(encoded) == old
    image = ClusterImage()
    image.replay(decode_change(encoded), 0)
    image.replay(RegisterBroker(broker=2, incarnation="j", host="h", port=9, features={ROWS: 1}), 1)
    assert image.feature_levels().get(ROWS, 0) == 0


def test_levels_survive_a_snapshot_and_a_copy() -> None:
    cluster = ControlledCluster()
    cluster.register(1, features={ROWS: 1})
    changes = [decode_change(encode_change(change)) for change in cluster.image.changes()]
    again = ClusterImage.of_snapshot(changes, cluster.image.offset)
    assert again.brokers == cluster.image.brokers
    assert again.feature_levels() == cluster.image.copy().feature_levels() == {ROWS: 1}
