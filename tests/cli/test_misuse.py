"""Goal: whatever a newcomer gets wrong is answered by one sentence that says what was wrong, and by
the exit code that a script can tell it by; and nothing is changed by it.

Method: a table of what people typed, each a command in this process as a shell would run it,
against a cluster of this process. What a command does right is tested elsewhere.
"""

# ruff: noqa: F811 - fixtures are imported by name

import io
import sys

import pytest
from secure_run import blocking_cluster, reaching, variables
from test_cli import Ended, command, nobody, spoken  # noqa: F401

from hightide import LATEST
from hightide.blocking import Admin, Consumer, Producer

pytestmark = [pytest.mark.live, pytest.mark.slow]

REFUSED, USAGE, UNREACHABLE, NOT_FOUND, CONFLICT = 1, 2, 3, 4, 5
RECORDS = 10

MISUSES = [
    # topics
    (["topics", "create"], USAGE, "TOPIC"),
    (["topics", "create", "orders"], CONFLICT, "orders"),
    (["topics", "create", "bad/name"], REFUSED, "bad/name"),
    (["topics", "create", ".."], REFUSED, "'..'"),
    (["topics", "create", ""], REFUSED, "''"),
    (["topics", "create", "t" * 250], REFUSED, "249"),
    (["topics", "create", "new", "-p", "0"], REFUSED, "0"),
    (["topics", "create", "new", "-p", "many"], USAGE, "'many'"),
    (["topics", "create", "new", "-p", str(10**30)], USAGE, "64 bits"),
    (["topics", "create", "new", "-r", "3"], REFUSED, "3"),
    (["topics", "create", "new", "--config", "retention=1"], USAGE, "retention.ms"),
    (["topics", "create", "new", "--config", "retention.ms=soon"], USAGE, "'soon'"),
    (["topics", "create", "new", "--config", "retention.ms=1.5h"], USAGE, "ms, s, m, h, d"),
    (["topics", "create", "new", "--config", "retention.ms=64MB"], USAGE, "ms, s, m, h, d"),
    (["topics", "create", "new", "--config", "segment.bytes=1"], USAGE, "segment.bytes"),
    (["topics", "create", "new", "--config", "cleanup.policy=burn"], USAGE, "burn"),
    (["topics", "create", "new", "--config", "c.toml"], USAGE, "hightide --config c.toml topics"),
    (["topics", "describe", "ordrs"], NOT_FOUND, "orders"),
    (["topics", "alter", "orders", "-p", "1"], REFUSED, "2"),
    (["topics", "alter", "ordrs", "-p", "4"], NOT_FOUND, "orders"),
    (["topics", "alter", "orders", "--config", "flush=maybe"], USAGE, "maybe"),
    (["topics", "delete", "orders"], USAGE, "--yes"),
    (["topics", "delete", "ordrs", "--yes"], NOT_FOUND, "orders"),
    (["topics", "delete", "__consumer_offsets", "--yes"], USAGE, "--internal"),
    (["topics", "offsets", "ordrs"], NOT_FOUND, "orders"),
    (["topics", "offsets", "orders", "--at", "2013-13-13"], USAGE, "2013-13-13"),
    # configurations
    (["configs", "describe", "topic", "ordrs"], NOT_FOUND, "ordrs"),
    (["configs", "describe", "broker", "99"], NOT_FOUND, "99"),
    (["configs", "describe", "table", "orders"], USAGE, "table"),
    (["configs", "alter", "cluster", "--set", "nonsense=1"], USAGE, "nonsense"),
    (["configs", "alter", "cluster", "orders", "--set", "flush=synced"], USAGE, "cluster"),
    (["configs", "alter", "topic", "orders", "--set", "flush"], USAGE, "flush"),
    (["configs", "alter", "topic", "orders", "--set", "segment.bytes=7d"], USAGE, "kib"),
    (["configs", "alter", "topic", "orders", "--set", "min.insync.replicas=2s"], USAGE, "2s"),
    # quotas
    (["quotas", "set", "--user", "al", "producer_byte_rate"], USAGE, "KEY=VALUE"),
    (["quotas", "set", "--user", "al", "producer_byte_rate=1 week"], USAGE, "kib"),
    (["quotas", "set", "--user", "al", "producer_byte_rate=-1"], REFUSED, "-1"),
    (["quotas", "set", "--user", "al", "controller_mutation_rate=1MiB"], USAGE, "'1MiB'"),
    (["users", "create", "al"], USAGE, "--password-file"),
    # records
    (["produce"], USAGE, "TOPIC"),
    (["produce", "ordrs"], NOT_FOUND, "orders"),
    (["produce", "orders", "-p", "7"], USAGE, "7"),
    (["produce", "orders", "-K", ","], USAGE, "line 1"),
    (["produce", "orders", "-K", ""], USAGE, "-K is empty"),
    (["produce", "orders", "-J"], USAGE, "line 1"),
    (["produce", "orders", "--acks", "two"], USAGE, "two"),
    (["produce", "orders", "-z", "gzip"], USAGE, "gzip"),
    (["produce", "orders", "-X", "linger.ms=soon"], USAGE, "soon"),
    (["produce", "orders", "-X", "linger=5"], USAGE, "linger.ms"),
    (["produce", "orders", "-X", "acks=0"], USAGE, "--acks"),
    (["produce", "orders", "-X", "partitioner=range"], USAGE, "programs alone"),
    (["produce", "orders", "-X", "clock=1"], USAGE, "programs alone"),
    (["consume", "orders", "-e", "-X", "topics=others"], USAGE, "TOPICS"),
    (["consume", "orders", "-e", "-X", "group.id=readers"], USAGE, "-g"),
    (["consume", "orders", "-e", "-X", "network=1"], USAGE, "programs alone"),
    (["consume", "orders", "-e", "-X", "prefetch.bytes=0"], USAGE, "1 or more"),
    (["consume", "orders", "-e", "-X", "max.poll.records=0"], USAGE, "1 or more"),
    (["logs", "-n", "-5"], USAGE, "-5"),
    (["trace", "--file", __file__], USAGE, "no trace"),
    (["produce", "orders", "-H", "header"], USAGE, "header"),
    (["consume", "ordrs", "-e"], NOT_FOUND, "orders"),
    (["consume", "orders", "-p", "7", "-e"], USAGE, "7"),
    (["consume", "orders", "--from", "middling"], USAGE, "middling"),
    (["consume", "orders", "-f", "%z"], USAGE, "%z"),
    (["consume", "orders", "-f", "%v{hexa}"], USAGE, "hexa"),
    (["consume", "orders", "-c", "-1"], USAGE, "-1"),
    (["consume", "orders", "-g", "g", "-p", "0"], USAGE, "-p"),
    (["consume", "orders", "-g", "", "-e"], USAGE, "leave -g out"),
    (["consume", "orders", "-f", "%v{foo}"], USAGE, "big32"),
    (["trace", "--since", "10x"], USAGE, "10m"),
    (["topics", "list", "-b", "127.0.0.1:99999"], USAGE, "65535"),
    # groups
    (["groups", "describe", "nobody"], NOT_FOUND, "nobody"),
    (["groups", "lag", "nobody"], NOT_FOUND, "nobody"),
    (["groups", "seek", "readers"], USAGE, "--to-start"),
    (["groups", "seek", "readers", "--to-start", "--to-end"], USAGE, "give one of"),
    (["groups", "seek", "readers", "--to-time", "noon"], USAGE, "noon"),
    (["groups", "seek", "readers", "--to-start", "--topic", "orders:9"], NOT_FOUND, "9"),
    (["groups", "seek", "readers", "--to-start", "--topic", "ordrs"], NOT_FOUND, "orders"),
    (["groups", "seek", "fresh", "--to-start"], USAGE, "--topic"),
    (["groups", "delete", "readers"], USAGE, "--yes"),
    (["groups", "delete", "nobody", "--yes"], NOT_FOUND, "nobody"),
    # brokers, partitions, quorum
    (["brokers", "describe", "9"], NOT_FOUND, "[1]"),
    (["brokers", "describe", "one"], USAGE, "one"),
    (["partitions", "describe", "orders"], USAGE, "TOPIC:PARTITION"),
    (["partitions", "describe", "orders:7"], NOT_FOUND, "7"),
    (["partitions", "elect"], USAGE, "--all"),
    (["partitions", "elect", "orders:0", "--unclean"], USAGE, "--yes"),
    (["partitions", "diff", "ordrs:0"], NOT_FOUND, "orders"),
    (["quorum", "add", "4"], USAGE, "ID@HOST:PORT"),
    (["quorum", "remove", "9"], NOT_FOUND, "9"),
    (["quorum", "replace", "1", "--timeout", "0.5"], REFUSED, "nothing to replace"),
    # clusters of this machine, and what is told of it
    (["up", "--data", "", "--detach"], USAGE, "'' is no directory"),
    (["up", "--data", "new", "--topic", "t:1:3"], USAGE, "-n 3"),
    (["up", "--data", "new", "--topic", "t:1:1:1"], USAGE, "NAME[:PARTITIONS[:REPLICAS]]"),
    (["up", "--data", "new", "--port", "99999"], USAGE, "99999"),
    (["up", "--data", "new", "-n", "nan"], USAGE, "nan"),
    (["down", "--data", "new", "--node", "1"], NOT_FOUND, "new"),
    (["logs", "--data", "new"], NOT_FOUND, "new"),
    (["doctor", "--port", "99999"], USAGE, "65535"),
    (["log", "dump", "nowhere"], USAGE, "nowhere"),
    (["storage", "format", "--cluster-id", "", "--set", "log.dirs=new"], USAGE, "storage id"),
    (["storage", "format", "--cluster-id", "a b", "--set", "log.dirs=new"], USAGE, "'a b'"),
    (["server", "start", "--set", "node.id=nan"], USAGE, "'nan'"),
    (["server", "start", "--set", "nodeid=1"], USAGE, "node.id"),
    (["server", "start", "--set", "listen.host=0.0.0.0"], USAGE, "0.0.0.0"),
    (["certs", "renew", "nothing"], USAGE, "no ca.pem"),
    (["certs", "create", "c", "--node", "x=1"], USAGE, "ID=HOST"),
    (["lab", "run", "nosuch"], NOT_FOUND, "nosuch"),
    (["sim", "replay", "-J", "many"], USAGE, "many"),
    (["sim", "run", "--seeds", "9..1"], USAGE, "9..1"),
    (["bench", "produce", "-n", "nan"], USAGE, "nan"),
    (["completion", "powershell"], USAGE, "powershell"),
    # what happened
    (["trace", "--since", "noon"], USAGE, "noon"),
    (["trace", "--file", "nowhere"], USAGE, "nowhere"),
    (["trace", "--file", "."], USAGE, "no trace is in it"),
    (["trace", "--data", "nowhere"], NOT_FOUND, "nowhere"),
    (["trace", "--node", "one"], USAGE, "one"),
    (["trace", "-f", "-o", "json"], USAGE, "ndjson"),
    (["trace", "--topic", "orders", "replay"], USAGE, "behind"),
    # how things are asked for
    (["topics", "list", "-o", "yaml"], USAGE, "yaml"),
    (["topics", "list", "--timeout", "-1"], USAGE, "-1"),
    (["topics", "list", "--watch", "0"], USAGE, "0"),
    (["topics", "list", "--watch", "inf"], USAGE, "inf"),
    (["topics", "lst"], USAGE, "list"),
    (["topics", "list", "-b", "http://localhost:19092"], USAGE, "http://localhost:19092"),
    (["errors", "NOT_ENOUGH_REPLICA"], NOT_FOUND, "NOT_ENOUGH_REPLICAS"),
]


@pytest.fixture(scope="module")
def cluster():
    with blocking_cluster(1) as made, Admin(**reaching(made.bootstrap)) as admin:
        to = reaching(made.bootstrap)
        admin.create_topic("orders", partitions=2)
        with Producer(**to) as producer:
            producer.send_many("orders", [b"%d" % n for n in range(RECORDS)]).result()
        options = {"group_id": "readers", "auto_offset_reset": "earliest"}
        with Consumer(**to, topics=["orders"], **options) as consumer:
            next(iter(consumer))
        yield made


def what_there_is(cluster):
    """All that a misuse might have changed."""
    with Admin(**reaching(cluster.bootstrap)) as admin:
        topics = admin.list_topics()
        configs = [e for e in admin.describe_configs("topic", "orders") if not e.default]
        places = [(t.topic, p.partition) for t in topics for p in t.partitions]
        quorum = admin.describe_quorum()
        return [
            {place: end.offset for place, end in admin.offsets(places, LATEST).items()},
            [each.id for each in (*quorum.voters, *quorum.observers)],
            configs + [e for e in admin.describe_configs("cluster", "") if not e.default],
            [(each.topic, each.partition, each.lag) for each in admin.group_lag("readers")],
            [each.group for each in admin.list_groups()],
        ]


@pytest.fixture(scope="module")
def untouched(cluster):
    """What there is as long as nothing changes it."""
    return what_there_is(cluster)


def misused(command, monkeypatch, words, address) -> Ended:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no-separator\n")))
    return command(*words, HIGHTIDE_BOOTSTRAP=address, **variables(address))


def test_there_are_sixty():
    assert len(MISUSES) >= 60
    assert len({tuple(words) for words, *_ in MISUSES}) == len(MISUSES)


@pytest.mark.parametrize(("words", "code", "named"), MISUSES, ids=spoken)
def test_a_misuse_is_one_sentence_and_changes_nothing(
    command, monkeypatch, cluster, untouched, words, code, named
):
    ended = misused(command, monkeypatch, words, cluster.bootstrap)
    assert ended.code == code, ended
    assert ended.out == "", "nothing that a script could take for a result"
    sentence = ended.err.strip().rpartition("\n\n")[2]  # behind how the command is used
    assert named in sentence, ended.err
    assert sentence.count("\n") <= 1, ended.err
    assert "Traceback" not in ended.err
    assert "Error(" not in ended.err
    assert what_there_is(cluster) == untouched


def test_that_there_was_nothing_to_do_is_said(command, cluster):
    at = {"HIGHTIDE_BOOTSTRAP": cluster.bootstrap, **variables(cluster.bootstrap)}
    ended = command("partitions", "elect", "--all", **at)
    assert (ended.code, ended.err.strip()) == (0, "no partition needs an election")


def test_what_was_set_and_that_nothing_is_is_said(command, cluster):
    at = {"HIGHTIDE_BOOTSTRAP": cluster.bootstrap, **variables(cluster.bootstrap)}
    whose = ["--user", "al", "--client-id", "etl"]
    told = command("quotas", "set", *whose, "producer_byte_rate=1MiB", **at)
    assert told.err.strip() == "set for client etl of user al: producer_byte_rate=1MiB"
    assert command("quotas", "delete", *whose, **at).code == 0
    told = command("configs", "describe", "topic", "orders", **at)
    assert told.err.strip() == (
        "nothing is set for topic orders: --all shows the defaults it goes by"
    )


@pytest.mark.parametrize(
    "words", [words for words, *_ in MISUSES if words[0] != "errors"][::9], ids=spoken
)
def test_without_a_cluster_the_sentence_names_the_address(command, monkeypatch, nobody, words):
    """Or the mistake, where that can be told without asking anybody."""
    ended = misused(command, monkeypatch, [*words, "--timeout", "0.3"], nobody)
    assert ended.code in (USAGE, UNREACHABLE)
    assert ended.code == USAGE or nobody in ended.err
    assert "Traceback" not in ended.err
