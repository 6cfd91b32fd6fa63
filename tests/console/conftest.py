"""What tests of pages share: a browser, a cluster of three nodes and a console beside it, a tab."""

import pytest
from browserkit import Tab, browser
from console_run import Console
from three_nodes import Nodes


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    data = tmp_path_factory.mktemp("cluster") / "data"
    made = Nodes(data, "-n", "3", "--topic", "orders:1:3")
    try:
        made.run("produce", "orders", stdin=b"".join(b"%d\n" % n for n in range(40)))
        made.run("consume", "orders", "--group", "readers", "--from", "start", "-c", "40")
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def console(cluster):
    made = Console(cluster.address, "--allow-changes")
    yield made
    made.end()


@pytest.fixture
def tab(chromium, console):
    made = Tab(chromium, console.address)
    yield made
    made.close()
    assert made.complaints == []


@pytest.fixture
def a_console():
    """Starts consoles; those that a test did not end are gone after it."""
    made = []

    def start(*words, **told):
        made.append(Console(*words, **told))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()
