"""Options and fixtures of every floor."""

import pytest
from hypothesis import settings

# No test judges by time: a busy machine is no fault.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="refill the results of the transcripts in tests/scenarios; read the diff afterwards",
    )


@pytest.fixture
def rewrite(request) -> bool:
    return request.config.getoption("--rewrite")
