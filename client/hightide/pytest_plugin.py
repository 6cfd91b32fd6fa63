"""The pytest fixture `hightide_cluster`: three brokers for one test, for code without an event
loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hightide.testing import BlockingCluster


@pytest.fixture
def hightide_cluster() -> Iterator[BlockingCluster]:
    """Three brokers in this process; see `hightide.testing`."""
    # Imported when it is used: pytest loads this file whether or not somebody does.
    from hightide.testing import BlockingCluster

    with BlockingCluster(brokers=3) as cluster:
        yield cluster
