"""What METRICS.md, the alerts and the board name exists on a node's page, and means something.

Method: the page of a real node, with nothing but its families; PromQL by a parser of its own.
"""

import json
import re
from pathlib import Path

import promql_parser
import pytest
import trio
import yaml
from brokers import new_node
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from test_metrics_page import WATCHED, asked

from hightide_broker.runtime.metrics.watching import Watching
from hightide_broker.simulation.disk import SimDisk

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCUMENT = (DEPLOY / "METRICS.md").read_text()
RULES = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
TARGETS = [target for panel in BOARD["panels"] for target in panel["targets"]]
OF_PROMETHEUS = {"up"}
TOLD = {
    name: tuple(labels.split(",")) if labels else ()
    for row in re.findall(r"^\| (`[^|]+`) \|", DOCUMENT, re.MULTILINE)
    for name, labels in re.findall(r"`([a-z_]+)(?:\{([a-z_,]+)\})?`", row)
}
"""Metric → its labels, as METRICS.md has them."""
NOT_ON_THE_BOARD = {
    "build_info",
    "feature_level",
    "coordinator_partitions",
    "buffer_bytes",
    "controller_topics",
    "controller_partitions",
    "partition_offset",
    "quorum_leader_id",
    "quorum_state",
    "quorum_voters",
    "replicas",
    "at_min_isr_partitions",
    "certificate_reloads",
    "listener_insecure",
    "node_start_time_seconds",
    "producer_ids",
    "quorum_elections",
    "tasks",
}
"""For whom who asks."""


@pytest.fixture
async def families():
    """Name → type and labels, of all that a node tells."""
    async with new_node(SimDisk(), WATCHED) as node:
        _, text = await trio.to_thread.run_sync(asked, node, "/metrics/detail")
    return {each.name.removeprefix("hightide_"): each.type for each in text_families(text)}


def text_families(text):
    return text_string_to_metric_families(text)


def selected(expression):
    """The names of metrics that a PromQL expression reads."""
    found = set()

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            found.add(node.name)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def family_of(name, families):
    """The family that a series is of; fails if there is none."""
    plain = name.removeprefix("hightide_")
    ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    return next(
        family for family, kind in families.items() for end in ends[kind] if plain == family + end
    )


async def test_each_metric_is_explained_and_each_explained_one_exists(families):
    ends = {"counter": "_total", "histogram": "", "gauge": ""}
    assert {*TOLD} == {name + ends[kind] for name, kind in families.items()}


async def test_a_metric_has_the_labels_that_are_told_of_it():
    async with new_node(SimDisk(), WATCHED) as node:
        found = [each for each in Watching(node).measured(in_detail=True) if each is not None]
    ends = {"counter": "_total", "histogram": "", "gauge": ""}
    assert {each.name + ends[each.kind]: each.labels for each, _ in found} == TOLD


def test_a_legend_names_what_its_panel_tells_apart():
    legends = [target for target in TARGETS if "{{" in target["legendFormat"]]
    assert legends
    for target in legends:
        by = re.findall(r"\bby \(([^)]*)\)", target["expr"])
        apart = {name for names in by for name in names.split(", ")} - {"le"}
        named = {*re.findall(r"{{(\w+)}}", target["legendFormat"])}
        assert named <= (apart or {"instance", *_labels_of(target["expr"])}), target


def _labels_of(expression):
    names = {name.removeprefix("hightide_") for name in selected(expression)}
    return {label for name in names for label in TOLD.get(name, ())}


async def test_what_alerts_and_board_read_exists(families):
    expressions = [rule["expr"] for rule in RULES] + [target["expr"] for target in TARGETS]
    names = {name for each in expressions for name in selected(each)} - OF_PROMETHEUS
    assert names
    for name in names:
        assert name.startswith("hightide_")
        assert family_of(name, families)


async def test_the_board_shows_all_but_what_is_listed_here(families):
    shown = {family_of(name, families) for target in TARGETS for name in selected(target["expr"])}
    assert {*families} - shown == NOT_ON_THE_BOARD


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_is_and_what_to_do(rule):
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page == "METRICS.md"
    assert f'<a id="{anchor}"></a>' in DOCUMENT
    assert f"**{rule['alert']}**" in DOCUMENT


def test_no_two_panels_are_in_the_same_place():
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in BOARD["panels"]]
    assert len({*places}) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in BOARD["panels"])
