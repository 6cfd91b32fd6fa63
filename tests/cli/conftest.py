"""The cluster that a module of these tests asks for: `UP` are the words for `up`."""

import pytest
from commands import StartedCluster


@pytest.fixture(scope="module")
def cluster(request, tmp_path_factory):
    data = tmp_path_factory.mktemp("cluster") / "data"
    made = StartedCluster(data, "--port", "0", *request.module.UP)
    yield made
    made.end()
