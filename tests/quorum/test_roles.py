"""What a node is, and who the controllers are: `process.roles` and `controller.quorum.voters`.

Goal: a node that could not take its part is refused at its start, with key, value and expectation,
and never guesses. Method: tables of good and of wrong values, with the whole message.
"""

import pytest

from hightide_broker import config_keys as keys
from hightide_broker.config import ConfigError, make_config

THREE = "1@a:1,2@b:2,3@c:3"


def configured(node=1, roles="broker,controller", voters="", cluster="ours", **keys):
    return make_config(
        {
            "node.id": str(node),
            "process.roles": roles,
            "controller.quorum.voters": voters,
            "cluster.id": cluster,
            **keys,
        }
    )


def refusal(**keys):
    with pytest.raises(ConfigError) as caught:
        configured(**keys)
    return str(caught.value)


# Roles.


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("broker,controller", ("broker", "controller")),
        ("controller,broker", ("controller", "broker")),
        (" broker , controller ", ("broker", "controller")),
        ("controller", ("controller",)),
    ],
)
def test_roles_are_a_list_in_any_order(text, roles):
    assert configured(roles=text, voters=THREE).roles == roles


def test_a_broker_alone_follows_the_controllers_of_other_nodes():
    config = configured(node=4, roles="broker", voters=THREE)
    assert config.roles == ("broker",)
    assert list(config.voters) == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "brokers",
        "Broker",
        "broker controller",
        "broker;controller",
        "broker,",
        ",controller",
        "broker,broker",
        "controller,broker,controller",
        "broker,controller,observer",
    ],
)
def test_what_is_no_role_is_refused_who_the_voters_are(text):
    why = f"process.roles is {text!r}, expected broker, controller, or broker,controller"
    assert refusal(roles=text) == why
    assert refusal(roles=text, voters=THREE) == why


# Voters.


def test_a_node_on_its_own_is_its_only_voter_where_clients_find_it():
    keys = {"listen.host": "0.0.0.0", "listen.port": "7", "advertised.host": "me.example"}
    assert configured(node=5, **keys).voters == {5: ("me.example", 7)}
    assert configured(node=5, **{"listen.port": "7"}).voters == {5: ("127.0.0.1", 7)}


@pytest.mark.parametrize(
    ("text", "voters"),
    [
        ("1@a:1", {1: ("a", 1)}),
        (THREE, {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}),
        ("3@c:3, 1@a:1 ,2@b:2", {3: ("c", 3), 1: ("a", 1), 2: ("b", 2)}),
        ("1@[::1]:9,2@::1:9", {1: ("[::1]", 9), 2: ("::1", 9)}),
        ("01@a:019", {1: ("a", 19)}),
    ],
)
def test_voters_are_ids_with_the_addresses_that_are_written(text, voters):
    found = configured(voters=text).voters
    assert found == voters
    assert list(found) == list(voters)


@pytest.mark.parametrize(
    "entry",
    [
        "1",
        "1@",
        "1@a",
        "1@:1",
        "1@a:",
        "1@a:port",
        "1@a:-1",
        "a:1",
        "@a:1",
        "one@a:1",
        "-1@a:1",
        "1 @a:1",
        "1.0@a:1",
        "1:a@1",
        " ",
    ],
)
def test_a_voter_that_is_not_id_host_port_is_refused_with_what_was_written(entry):
    why = f"controller.quorum.voters has {entry!r}, expected ID@HOST:PORT"
    assert refusal(voters=entry) == why
    assert refusal(voters=f"1@a:1,{entry},3@c:3") == why
    assert refusal(node=9, roles="broker", voters=f"1@a:1,{entry}") == why


@pytest.mark.parametrize("text", ["1@a:1,1@b:2", "2@b:2,1@a:1,2@c:3", "1@a:1,01@a:1"])
def test_a_voter_may_be_named_once_only(text):
    twice = "2" if text.startswith("2") else text.split(",")[1].partition("@")[0]
    assert refusal(voters=text) == f"controller.quorum.voters names node {twice} twice"


@pytest.mark.parametrize(
    ("node", "roles", "voters"),
    [
        (4, "controller", THREE),
        (4, "broker,controller", THREE),
        (4, "broker,controller", "1@a:1"),
        (2, "broker", THREE),
        (1, "broker", "1@a:1"),
        (1, "broker", ""),
    ],
)
def test_exactly_the_controllers_are_voters(node, roles, voters):
    assert refusal(node=node, roles=roles, voters=voters) == (
        f"node {node} has process.roles={roles} and controller.quorum.voters={voters!r}: "
        f"exactly the controllers are voters"
    )


# The cluster's id.


@pytest.mark.parametrize(("node", "roles"), [(1, "broker,controller"), (3, "controller")])
def test_several_voters_need_an_id_that_they_share(node, roles):
    why = (
        "cluster.id is empty, expected the id that all nodes of controller.quorum.voters share "
        "(hightide storage id makes one)"
    )
    assert refusal(node=node, roles=roles, voters=THREE, cluster="") == why
    assert refusal(node=4, roles="broker", voters=THREE, cluster="") == why
    assert configured(node=node, roles=roles, voters=THREE)[keys.CLUSTER_ID] == "ours"


@pytest.mark.parametrize("voters", ["", "1@a:1"])
def test_a_voter_on_its_own_may_find_its_id_in_its_directory(voters):
    assert configured(voters=voters, cluster="")[keys.CLUSTER_ID] == ""
