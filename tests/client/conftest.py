"""Fixtures of the clients' tests."""

import pytest
from clients import one_node


@pytest.fixture
async def one():
    """A node with an empty topic `t` of one partition, and its clients."""
    async with one_node() as found:
        yield found
