"""Options and fixtures of every floor."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="refill the results of the transcripts in tests/scenarios; read the diff afterwards",
    )


@pytest.fixture
def rewrite(request) -> bool:
    return request.config.getoption("--rewrite")
