"""What `import hightide` offers: each name of `__all__`, each exception that a docstring names."""

import re
from importlib import import_module, metadata

import pytest

import hightide
from hightide import blocking
from hightide.protocol import errors

CLIENTS = [hightide.Producer, hightide.Consumer, hightide.Admin]
CLIENTS += [blocking.Producer, blocking.Consumer, blocking.Admin]


def test_every_name_is_there_and_has_a_home():
    assert {*hightide.__all__} == {*hightide._HOME, "blocking"}
    for name in hightide.__all__:
        assert getattr(hightide, name) is not None
    assert hightide.__version__ == metadata.version("hightide")
    with pytest.raises(AttributeError, match="Prodcer"):
        hightide.Prodcer  # noqa: B018 - the look-up is the test


@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_exceptions_that_docstrings_name_can_be_imported_from_the_top(client):
    texts = [client.__doc__ or "", import_module(client.__module__).__doc__ or ""]
    texts += [getattr(client, name).__doc__ or "" for name in dir(client) if name[0] != "_"]
    known = {n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, Exception)}
    named = {word for text in texts for word in re.findall(r"`(\w+)`", text)} & known
    assert named <= {*hightide.__all__}
