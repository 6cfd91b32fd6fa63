"""A page is what strict readers of both formats read, and says what happened.

Method: Prometheus's own parsers, on pages of a real node and on families that a test makes up.
"""

import urllib.request

import pytest
import trio
from brokers import batch, client_of, new_node
from brokers import settings as config_of
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_text

from hightide.protocol import messages as m
from hightide_broker.core.cluster.features import ROWS
from hightide_broker.runtime.base.measures import BOUNDS_S, Histogram
from hightide_broker.runtime.metrics import page
from hightide_broker.runtime.metrics.page import Measured, counter, gauge, histogram
from hightide_broker.simulation.disk import SimDisk

OPEN = "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
WATCHED = config_of({"metrics.listen": "0"})


def asked(node, path, accept=OPEN):
    """The answer's status, content type and text."""
    request = urllib.request.Request(f"http://127.0.0.1:{node.metrics_port}{path}")
    request.add_header("Accept", accept)
    with urllib.request.urlopen(request) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


async def samples(node, path="/metrics"):
    """(name, labels) → value, as a strict reader has them."""
    _, text = await trio.to_thread.run_sync(asked, node, path)
    return {
        (sample.name.removeprefix("hightide_"), *sample.labels.values()): sample.value
        for family in read_open(text)
        for sample in family.samples
    }


async def test_both_formats_are_read_by_their_own_parsers_and_say_the_same():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        kind, text = await trio.to_thread.run_sync(asked, node, "/metrics/detail")
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert text.endswith("# EOF\n")
        opened = {family.name: family.type for family in read_open(text)}
        kind, text = await trio.to_thread.run_sync(asked, node, "/metrics/detail", "text/plain")
        assert kind.startswith("text/plain; version=0.0.4")
        assert "# EOF" not in text
        plain = {family.name: family.type for family in read_text(text)}
    assert opened == plain
    assert {"hightide_requests", "hightide_fsync_seconds", "hightide_partition_offset"} <= {*opened}


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (OPEN, True),
        ("application/openmetrics-text;version=1.0.0;q=0.6, text/plain;version=0.0.4;q=0.4", True),
        ("text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5", False),
        ("Application/OpenMetrics-Text", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_who_would_rather_have_text_is_given_text(accept, is_open):
    assert page.is_open_wanted(accept) is is_open


async def test_what_happened_is_counted():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        for _ in range(3):
            await client.produce(b"x" * 100)
        size = 3 * len(batch(b"x" * 100))
        fetch = [m.FetchPartition(topic="t", partition=0, fetch_offset=0)]
        await client.call(m.FetchRequest(max_wait_ms=0, partitions=fetch))
        unknown = [m.FetchPartition(topic="nowhere", partition=0, fetch_offset=0)]
        await client.call(m.FetchRequest(max_wait_ms=0, partitions=unknown))
        far = [m.FetchPartition(topic="t", partition=0, fetch_offset=99)]
        await client.call(m.FetchRequest(max_wait_ms=0, partitions=far))
        found = await samples(node, "/metrics/detail")
    assert found["requests_total", "produce", "NONE"] == 3
    assert found["requests_total", "fetch", "NONE"] == 3
    assert found["request_seconds_count", "produce"] == 3
    assert found["topic_records_in_total", "t"] == 3
    assert found["topic_bytes_total", "t", "in"] == size
    assert found["topic_bytes_total", "t", "out"] == size
    assert found["topic_bytes_total", "t", "replication_out"] == 0
    assert found["topic_failures_total", "t", "fetch"] == 1
    assert found["log_bytes", "t"] == size
    assert found["partition_offset", "t", "0", "high_watermark"] == 3
    assert found["partition_offset", "t", "0", "start"] == 0
    assert found["fsync_seconds_count", "data"] > 0 < found["fsync_seconds_count", "metadata"]
    assert found["connections", "client"] == 1
    assert found["buffer_bytes", "used"] == 0 < found["buffer_bytes", "limit"]
    assert found["feature_level", ROWS, "known"] == found["feature_level", ROWS, "cluster"] == 1
    assert found["controller_active",] == found["node_state", "running"] == 1
    assert not [name for name in found if "nowhere" in name]


async def test_what_is_only_asked_for_makes_no_series():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        await samples(node)
        before = {*await samples(node)}
        for number in range(200):
            part = m.FetchPartition(topic=f"no-{number}", partition=number, fetch_offset=0)
            await client.call(m.FetchRequest(max_wait_ms=0, partitions=[part]))
            await client.connection.call(m.MetadataRequest(topics=[f"no-{number}"]))
        added = {*await samples(node)} - before
    assert {name[1] for name in added} <= {"fetch", "metadata"}


async def test_a_topic_that_is_deleted_takes_its_series_along():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        await client.produce(b"x")
        assert ("topic_records_in_total", "t") in await samples(node)
        await client.call(m.DeleteTopicsRequest(topics=["t"]))
        assert not [name for name in await samples(node) if "t" in name[1:]]


# -- the text alone --------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(st.tuples(texts, texts), st.integers(0, 2**53)))
def test_any_label_is_read_back_as_it_was(values):
    family = counter("things", "Any.", "one", "other")
    found = [Measured(family, list(values.items()))]
    text = "".join(page.lines(found, is_open=True))
    (read,) = read_open(text)
    assert {(*each.labels.values(),): each.value for each in read.samples} == values


@given(st.lists(st.floats(0, 100)))
def test_steps_add_up_to_all_that_was_observed(seconds):
    found = Histogram()
    for each in seconds:
        found.observe(each)
    family = histogram("waits_seconds", "Any.")
    (read,) = read_open("".join(page.lines([page.one(family, found)], is_open=True)))
    steps = {s.labels["le"]: s.value for s in read.samples if s.name.endswith("_bucket")}
    for bound in BOUNDS_S:
        assert steps[str(bound)] == sum(each <= bound for each in seconds)
    assert steps["+Inf"] == len(seconds)


@pytest.mark.parametrize(("is_open", "end"), [(True, "# EOF\n"), (False, "")])
def test_a_family_without_values_is_told_all_the_same(is_open, end):
    text = "".join(page.lines([Measured(gauge("none", "Any.", "x"), [])], is_open=is_open))
    assert text == f"# HELP hightide_none Any.\n# TYPE hightide_none gauge\n{end}"
