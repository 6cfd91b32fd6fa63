"""What clients may be told: each option explained once, by the same name in both worlds and in
Kafka's configuration.

Method: the structs themselves, their source, and constructors that open nothing; and mypy over a
user's program, as an editor sees it.
"""

import ast
import inspect
import os
import pydoc
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from patience import PATIENCE_S
from tries import LONG

import hightide
from hightide import AdminOptions, ConsumerOptions, ProducerOptions, UsageError, blocking
from hightide.net.options import ClientOptions

WORLDS = {
    ProducerOptions: (hightide.Producer, blocking.Producer),
    ConsumerOptions: (hightide.Consumer, blocking.Consumer),
    AdminOptions: (hightide.Admin, blocking.Admin),
}
CLIENTS = [client for pair in WORLDS.values() for client in pair]
PAIRS = WORLDS.values()


def name_of(client):
    return f"{client.__module__}.{client.__name__}"


def explained(options):
    """Option → what its struct says of it, without those of the struct below."""
    (found,) = ast.parse(inspect.getsource(options)).body
    pairs = zip(found.body, found.body[1:], strict=False)
    return {
        each.target.id: text.value.value if isinstance(text, ast.Expr) else ""
        for each, text in pairs
        if isinstance(each, ast.AnnAssign) and each.target.id != "_"
    }


@pytest.mark.parametrize("options", [ClientOptions, *WORLDS])
def test_every_option_says_what_it_is(options):
    known = {**explained(ClientOptions), **explained(options)}
    known["client_id"] = explained(ClientOptions)["client_id"]
    assert {*known} == {field.name for field in fields(options)}
    for name, text in known.items():
        assert len(text.split()) > 3, name
        kafka = re.search(r"Kafka:\s+([a-z.]+[a-z])", text)
        assert kafka is None or kafka[1] in (name.replace("_", "."), "partitioner.class"), name
    assert sum("Kafka:" in text for text in known.values()) >= 4


@pytest.mark.parametrize("options", WORLDS)
def test_both_worlds_show_the_options_and_their_defaults(options):
    shown = [inspect.signature(client) for client in WORLDS[options]]
    assert shown[0] == shown[1]
    assert list(shown[0].parameters) == [field.name for field in fields(options)]
    for field in fields(options):
        assert shown[0].parameters[field.name].default == field.default


def bare(signature):
    """Parameters without their types, which are mypy's matter."""
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


@pytest.mark.parametrize(("plain", "threaded"), PAIRS, ids=lambda c: c.__name__)
def test_the_methods_of_both_worlds_take_the_same(plain, threaded):
    common = {n for n in vars(threaded) if n[0] != "_" and callable(getattr(plain, n, None))}
    assert common
    for name in common:
        here, there = (inspect.signature(getattr(c, name)) for c in (plain, threaded))
        assert bare(here) == bare(there), name


@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_kafkas_dotted_names_make_the_same_client(client):
    config = {"bootstrap.servers": "h:1,h:2", "client.id": "me", "request.timeout.ms": "1500"}
    made = client.from_config(config, metadata_max_age_ms=7)
    options = getattr(made, "_async", made)._options
    assert (options.bootstrap_servers, options.client_id) == ("h:1,h:2", "me")
    assert (options.request_timeout_ms, options.metadata_max_age_ms) == (1500, 7)


def test_text_becomes_what_the_option_is():
    made = hightide.Consumer.from_config(
        {"enable.auto.commit": "False", "max.poll.records": "7", "group.id": "5", "topics": "t"}
    )
    options = made._options
    assert (options.enable_auto_commit, options.max_poll_records) == (False, 7)
    assert (options.group_id, options.topics) == ("5", ("t",))
    made = blocking.Producer.from_config(
        {"acks": "1", "linger.ms": "2.5", "compression.type": "lz4"}
    )
    options = made._async._options
    assert (options.required_acks, options.linger_ms, options.compression_type) == (1, 2.5, "lz4")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"linger_ms": 5}, "did you mean linger.ms"),
        ({"bootstrap.server": "h:1"}, "did you mean bootstrap.servers"),
        ({"compression.codec": "lz4"}, "did you mean compression.type"),
        ({"metric.reporters": "mine"}, "ProducerOptions has no option 'metric.reporters'"),
        ({"batch.size": "many"}, "batch.size is 'many', expected a number"),
        ({"batch.size": "1.5"}, "batch.size is '1.5', expected a number"),
        ({"enable.idempotence": "perhaps"}, "expected true or false"),
    ],
)
def test_a_config_that_cannot_be_says_why(config, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        hightide.Producer.from_config(config)


def test_whoever_configures_in_text_is_told_what_text_can_say():
    with pytest.raises(UsageError, match=r"it has bootstrap\.servers, client\.id,") as told:
        hightide.Producer.from_config({"xyzzy": "1"})
    assert not re.search(r"network|random|clock|on\.retry|partitioner", str(told.value))
    with pytest.raises(UsageError, match=r"no option 'partitoner'; it has bootstrap\.servers"):
        hightide.Consumer.from_config({"partitoner": "1"})  # partitions are no text
    with pytest.raises(UsageError, match=r"did you mean on\.assigned"):
        hightide.Consumer.from_config({"on.asigned": lambda _: None})


@pytest.mark.parametrize(
    ("client", "option", "meant"),
    [
        (hightide.Consumer, "group", "group_id"),
        (blocking.Consumer, "bootstrap", "bootstrap_servers"),
        (blocking.Consumer, "partition_assignor", "partition_assignment_strategy"),
        (hightide.Producer, "compression", "compression_type"),
        (blocking.Producer, "max_in_flight", "max_in_flight_requests_per_connection"),
        (hightide.Admin, "timeout_ms", "request_timeout_ms"),
    ],
)
def test_a_name_that_is_no_option_says_which_was_meant(client, option, meant):
    with pytest.raises(
        UsageError, match=f"{client.__name__} has no option '{option}', did you mean {meant}"
    ):
        client(**{option: 1})


@pytest.mark.parametrize(
    ("client", "options", "said"),
    [
        (hightide.Producer, {"batch_size": "abc"}, "batch_size is 'abc'"),
        (hightide.Producer, {"batch_size": 1.5}, "batch_size is 1.5"),
        (hightide.Producer, {"request_timeout_ms": "soon"}, "request_timeout_ms is 'soon'"),
        (hightide.Producer, {"acks": [1]}, "acks is [1]"),
        (hightide.Consumer, {"fetch_max_wait_ms": float("nan")}, "fetch_max_wait_ms is nan"),
        (blocking.Consumer, {"session_timeout_ms": -5}, "session_timeout_ms is -5"),
        (blocking.Consumer, {"topics": None}, "topics are None"),
        (hightide.Consumer, {"topics": [3]}, "topic is 3"),
        (hightide.Consumer, {"partition_assignment_strategy": "range,best"}, "'best'"),
        (blocking.Admin, {"default_api_timeout_ms": None}, "default_api_timeout_ms is None"),
        # "false" would be true, and "5" no number for who calculates with it.
        (hightide.Consumer, {"enable_auto_commit": "false"}, "expected True or False"),
        (hightide.Consumer, {"check_crcs": None}, "check_crcs is None, expected True or False"),
        (blocking.Producer, {"enable_idempotence": "no"}, "expected True, False or None"),
        (hightide.Producer, {"linger_ms": "5"}, "linger_ms is '5', expected a number"),
        (hightide.Producer, {"client_id": 1}, "client_id is 1, expected text"),
        (blocking.Consumer, {"group_id": 5}, "group_id is 5, expected text"),
    ],
)
def test_a_value_that_cannot_be_is_refused_at_once(client, options, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        client(**options)


def test_a_strategy_may_be_a_list_in_text():
    made = hightide.Consumer.from_config(
        {"partition.assignment.strategy": "range, cooperative-sticky"}
    )
    assert made._options.partition_assignment_strategy == "range, cooperative-sticky"


def test_what_is_given_twice_is_refused():
    with pytest.raises(UsageError, match=r"group\.id is given twice, as group_id too"):
        hightide.Consumer.from_config({"group.id": "g"}, group_id="h")


def test_options_are_frozen():
    options = ProducerOptions(linger_ms=1)
    with pytest.raises(AttributeError):
        options.linger_ms = 2


GOOD = """
import hightide
from hightide import blocking

producer = hightide.Producer("h:1", acks="all", linger_ms=5, compression_type="zstd")
consumer = blocking.Consumer(["h:1"], topics=["t"], group_id="g", max_poll_records=10)
with blocking.Admin(default_api_timeout_ms=5) as admin, blocking.Producer() as sender:
    admin.create_topic("t", partitions=3)
    offset: int = sender.send("t", b"x").result().offset
from_config = blocking.Producer.from_config({"linger.ms": 5})
"""
WRONG = {
    'hightide.Producer("h:1", linger=5)': "linger",
    'blocking.Producer("h:1", linger_ms="5")': "linger_ms",
    "blocking.Consumer(group_id=5)": "group_id",
    "blocking.Consumer(topics=3)": "topics",
    'blocking.Admin().create_topic("t", partition=3)': "partition",
}


@LONG
@pytest.mark.slow
def test_an_editor_sees_every_option_of_both_worlds(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(GOOD + "".join(f"{line}\n" for line in WRONG))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)]
    home = Path(hightide.__file__).parents[1]
    # A linked checkout is no installed package to mypy; where it is one, it proves `py.typed`.
    linked = {} if home.name == "site-packages" else {"MYPYPATH": str(home)}
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **linked},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    first = GOOD.count("\n") + 1
    found = dict(re.findall(r"program\.py:(\d+): error: (.*)", ended.stdout))
    assert {int(line) for line in found} == {first + n for n in range(len(WRONG))}, ended.stdout
    for number, meant in enumerate(WRONG.values()):
        assert f'"{meant}"' in found[str(first + number)]


@pytest.mark.parametrize("options", [ProducerOptions, ConsumerOptions, AdminOptions])
def test_help_tells_what_each_option_means(options):
    told = pydoc.render_doc(options, renderer=pydoc.plaintext)
    for field in fields(options):
        _, found, after = told.partition(f" {field.name}: {field.type}")
        assert found, field.name
        assert after.splitlines()[1].startswith(" |      "), f"{field.name} has no meaning"
    assert "Kafka: request.timeout.ms." in told
