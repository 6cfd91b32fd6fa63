"""What `import hightide` offers: each name of `__all__`, each exception that a docstring names."""

import inspect
import re
from importlib import import_module, metadata

import pytest

import hightide
from hightide import blocking
from hightide.admin import descriptions
from hightide.protocol import errors
from hightide.protocol import messages as m

CLIENTS = [hightide.Producer, hightide.Consumer, hightide.Admin]
CLIENTS += [blocking.Producer, blocking.Consumer, blocking.Admin]


def test_every_name_is_there_and_has_a_home():
    assert {*hightide.__all__} == {*hightide._HOME, "blocking"}
    assert {*hightide.__all__} <= {*dir(hightide)}
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


WIRE = ("messages", "group_messages", "quorum_messages", "controller_messages")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_what_methods_return_is_not_what_the_wire_has(client):
    for name, method in inspect.getmembers(client, inspect.isfunction):
        told = str(method.__annotations__.get("return", "")) if name[0] != "_" else ""
        assert not re.search(r"\b[mgqc]\.\w", told), f"{name} -> {told}"
        for word in re.findall(r"[A-Z]\w+", told):
            home = getattr(import_module(client.__module__), word, None)
            assert getattr(home, "__module__", "").split(".")[-1] not in WIRE, f"{name} -> {told}"


FOR_THE_TWIN = {
    *("send_run", "send_at_once", "knows", "run_record_max"),
    *("lend", "lend_arrow", "cluster"),
}
"""What the blocking clients stand on, in place of calls for each record."""


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_the_blocking_twin_has_all_of_it(name):
    one, twin = ({*dir(getattr(where, name))} for where in (hightide, blocking))
    assert {each for each in one - twin if each[0] != "_"} <= FOR_THE_TWIN


def test_every_part_of_a_description_is_public():
    for name in descriptions.__dict__:
        kind = getattr(descriptions, name)
        if isinstance(kind, type) and kind.__module__ == descriptions.__name__:
            assert name in hightide.__all__


def test_a_description_has_the_fields_of_its_message():
    brokers = [m.BrokerInfo(id=3, host="h", port=1, roles=["broker"], fenced=True, epoch=8)]
    answer = m.DescribeClusterResponse(cluster_id="c", controller=3, brokers=brokers)
    found = descriptions.described(hightide.ClusterDescription, answer)
    (broker,) = found.brokers
    assert (found.cluster_id, found.controller, broker.id, broker.fenced) == ("c", 3, 3, True)
    assert isinstance(broker, hightide.BrokerDescription)
