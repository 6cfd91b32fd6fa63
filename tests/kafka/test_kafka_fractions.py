"""Quotas that are no whole numbers: Kafka keeps doubles, of which one kind may be a fraction
(ClientQuotaControlManager)."""

import pytest
from kafkakit import both
from test_kafka_access import ALICES, PRODUCE, alter, entry, quotas

from hightide import Admin
from hightide.admin.descriptions import Quota


@pytest.mark.parametrize("version", range(2))
async def test_partitions_a_second_may_be_a_fraction(version):
    rate = "controller_mutation_rate"
    async with both() as (ours, client):
        assert await alter(client, version, entry({rate: 0.25}, user="alice")) == [0]
        assert await quotas(client, version) == {ALICES: {rate: 0.25}}
        async with Admin(ours.connection.address) as admin:
            assert Quota(rate, 0.25, "alice") in await admin.describe_quotas()
        wrong = [{PRODUCE: 0.5}, {rate: float("nan")}, {rate: float("inf")}, {rate: -0.5}]
        for each in wrong:
            assert await alter(client, version, entry(each, user="bob")) == [42]
        assert await quotas(client, version) == {ALICES: {rate: 0.25}}
