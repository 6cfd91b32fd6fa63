"""Fixtures for pytest: a real replicated cluster for one test, or for all of a run.

| fixture | for | lives |
|---|---|---|
| `hightide_cluster` | tests without an event loop | as long as its test |
| `hightide_trio_cluster` | trio's tests (pytest-trio) | as long as its test |
| `hightide_session_cluster` | tests without an event loop | as long as the run of pytest |

`@pytest.mark.hightide(brokers=1, secure=True, configs={…})` says which cluster one test gets,
`hightide_options` which one all get; both take what `hightide.testing.cluster` takes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hightide.testing import BlockingCluster, TestCluster

# `hightide.testing` is imported where it is used: pytest loads this file in every run.


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "hightide(brokers=3, configs={}): what hightide_cluster and hightide_trio_cluster make",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker that would change nothing: the cluster of all tests is not made for one."""
    names = getattr(item, "fixturenames", ())
    if "hightide_session_cluster" in names and item.get_closest_marker("hightide"):
        raise pytest.UsageError(
            f"@pytest.mark.hightide and hightide_session_cluster in {item.nodeid}: that cluster is "
            "made for all tests, by hightide_options; a test that needs another takes "
            "hightide_cluster"
        )


@pytest.fixture(scope="session")
def hightide_options() -> Mapping[str, Any]:
    """What every cluster is made with; define a fixture of this name to change it."""
    return {}


@pytest.fixture
def hightide_cluster(
    request: pytest.FixtureRequest, hightide_options: Mapping[str, Any]
) -> Iterator[BlockingCluster]:
    """Brokers in this process for one test, three unless it is marked."""
    from hightide.testing import BlockingCluster

    with BlockingCluster(**_options(request, hightide_options)) as cluster:
        yield cluster


@pytest.fixture
async def hightide_trio_cluster(
    request: pytest.FixtureRequest, hightide_options: Mapping[str, Any]
) -> AsyncIterator[TestCluster]:
    """The same for a test that is a trio program; needs pytest-trio."""
    from hightide.testing import cluster

    async with cluster(**_options(request, hightide_options)) as made:
        yield made


@pytest.fixture(scope="session")
def hightide_session_cluster(hightide_options: Mapping[str, Any]) -> Iterator[BlockingCluster]:
    """One cluster for all tests that name it: each makes topics and groups of its own, and starts
    again what it killed."""
    from hightide.testing import BlockingCluster

    with BlockingCluster(**hightide_options) as cluster:
        yield cluster


def _options(request: pytest.FixtureRequest, general: Mapping[str, Any]) -> dict[str, Any]:
    marker = request.node.get_closest_marker("hightide")
    if marker is None:
        return {**general}
    if marker.args:
        raise pytest.UsageError(
            f"@pytest.mark.hightide{marker.args} in {request.node.nodeid}: "
            "expected names, as in @pytest.mark.hightide(brokers=1)"
        )
    from inspect import signature

    from hightide.net.options import check_names
    from hightide.testing import cluster

    check_names(marker.kwargs, signature(cluster).parameters, of="@pytest.mark.hightide")
    configs = {**general.get("configs", {}), **marker.kwargs.get("configs", {})}
    return {**general, **marker.kwargs, "configs": configs}
