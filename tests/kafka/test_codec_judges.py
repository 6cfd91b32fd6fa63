"""Every message of every version, in both directions, as two independent judges have it.

Goal: a wrong byte in one version of one message breaks one client only, and nobody here would
notice. Method: any values, written by us and read by each judge, written by each judge and read by
us: the same values come back.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from judges import (
    SIDES,
    comparable,
    kio_knows,
    kio_read,
    kio_written,
    messages,
    ours_read,
    ours_written,
    python_read,
    python_written,
    table_of,
)
from tries import tries

from hightide_broker.kafka.codec import API_VERSIONS_KEY
from hightide_broker.kafka.tables import API_BY_KEY

QUIET = settings(
    max_examples=tries(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
EVERY = [
    pytest.param(api, version, side, id=f"{api.name}-{version}-{side}")
    for api in API_BY_KEY.values()
    for version in range(api.versions.first, api.versions.last + 1)
    for side in SIDES
]


@pytest.mark.parametrize(("api", "version", "side"), EVERY)
def test_what_one_writes_the_others_read(api, version, side):
    others = [(python_read, python_written)]
    if kio_knows(api, side, version):
        others.append((kio_read, kio_written))

    @QUIET
    @given(values=messages(table_of(api, side), version))
    def judge(values):
        if api.key == API_VERSIONS_KEY and side == "response":
            values["error_code"] = 0  # a refusal is of version 0, whatever was asked
        expected = comparable(values)
        data = ours_written(api, side, version, values)
        assert comparable(ours_read(api, side, version, data)) == expected
        for read, written in others:
            assert comparable(read(api, side, version, data)) == expected
            its = written(api, side, version, values)
            assert comparable(ours_read(api, side, version, its)) == expected

    judge()


def test_kio_judges_all_but_the_versions_that_kafka_has_given_up():
    for api in API_BY_KEY.values():
        versions = range(api.versions.first, api.versions.last + 1)
        known = [v for v in versions if all(kio_knows(api, side, v) for side in SIDES)]
        assert known == [*versions[-len(known) :]], api.name
