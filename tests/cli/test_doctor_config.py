"""Goal: `hightide doctor -c` says of everything that a configuration names whether a node would
start with it and is safe with it, and what to do if not.

Method: the command in this process, on directories, ports and certificates as they may be; whoever
has a port or a directory is this process.
"""

import json
import os
import resource
import socket
import time
from contextlib import contextmanager

import pytest
from certificates import Authority
from click.testing import CliRunner

from hightide.net.ports import system_random
from hightide.net.tcp import free_ports
from hightide.protocol.columns import encode_columns
from hightide.protocol.records import encode_batch
from hightide_broker.certificates import create_authority
from hightide_broker.config import make_config
from hightide_broker.core.cluster.changes import SetVoters, encode_change
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.formatting import format_node
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.storage.directory import METADATA_DIRECTORY, lock_directory
from hightide_cli import doctor_config
from hightide_cli.doctor import doctor
from hightide_cli.listening import who_listens

ALWAYS = [
    *("python", "java", "spark", "open files", "listeners", "permissions", "data directory"),
    *("disk space", "client port", "voters", "max.connections", "clock", "sync time"),
]


class Place:
    """A node's directory and its file."""

    def __init__(self, path):
        self.path, self.data = path, path / "node-1"
        self.facts = {"log.dirs": str(self.data), "cluster.id": "ours", "listen.port": "0"}

    def config(self, **over):
        return make_config({**self.facts, **over})

    def format(self, **over):
        format_node(self.config(**over), RealDisk(), system_random())
        return self

    def examined(self, **over):
        """(exit code, check -> its row)"""
        file = self.path / "broker.toml"
        facts = self.facts | over
        file.write_text("\n".join(f"{key} = {json.dumps(facts[key])}" for key in facts))
        return examined(file)


def examined(file):
    ended = CliRunner().invoke(doctor, ["-c", str(file), "-o", "json"])
    assert ended.exception is None or ended.exit_code in (0, 6), ended.exception
    rows = {row["check"]: row for row in json.loads(ended.stdout)}
    for row in rows.values():
        assert (row["status"] == "ok") != bool(row["advice"]), row
    assert (ended.exit_code == 6) == any(row["status"] == "fail" for row in rows.values())
    return ended.exit_code, rows


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_node_that_would_start_is_fine(place):
    code, found = place.format().examined()
    assert code == 0
    assert [*found] == ALWAYS
    assert found["data directory"]["found"].startswith(f"{place.data} is of node 1 in cluster ours")
    assert found["disk space"]["found"].endswith("4 MiB of the disk are set aside for metadata")
    assert found["client port"]["found"] == "any free one of 127.0.0.1"
    assert found["voters"]["found"] == "node 1 alone"
    assert not (place.data / ".lock").exists(), "nothing is left behind"
    assert {*place.path.iterdir()} == {place.path / "broker.toml", place.data}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen.port = 'x'", "listen.port is 'x'"),
        ("listen", "no TOML"),
        ("log.dirs = ''", "empty"),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_else_of_it(tmp_path, text, said):
    file = tmp_path / "broker.toml"
    file.write_text(text)
    code, found = examined(file)
    assert code == 6
    assert [*found] == ALWAYS[:5]
    assert said in found["listeners"]["found"]


@pytest.mark.parametrize(
    ("facts", "status", "said"),
    [
        ({}, "ok", "nobody comes in"),
        ({"listen.host": "10.0.0.1"}, "fail", "where all who reach it may do anything"),
        (
            {"listen.host": "10.0.0.1", "allow.insecure.listener": "true"},
            "warn",
            "open to all: 10.0.0.1:0",
        ),
        ({"ssl.client.auth": "required"}, "fail", "without effect"),
        (
            {
                "internal.listen.port": "0",
                "security.protocol": "SSL",
                "ssl.certificate.location": "none.pem",
            },
            "fail",
            "is no certificate with its key",
        ),
    ],
)
def test_doors_that_are_open_or_of_no_use(place, facts, status, said):
    _, found = place.format().examined(**facts)
    assert found["listeners"]["status"] == status
    assert said in found["listeners"]["found"]


@pytest.mark.parametrize("where", ["0.0.0.0:0", "db1:0"])
def test_metrics_that_all_are_told_are_warned_of(place, where):
    _, found = place.format().examined(**{"metrics.listen": where})
    assert found["metrics"]["status"] == "warn"
    assert found["metrics"]["found"].startswith(f"all who reach {where} are told them")


# -- permissions -----------------------------------------------------------------------------------


def secure(path, **over):
    """Users by certificate, nodes by theirs."""
    nodes, clients = create_authority(path / "nodes"), create_authority(path / "clients")
    nodes.issue("node-1", hosts=("127.0.0.1",), days=300)
    clients.issue("broker", hosts=("127.0.0.1",), days=200)
    return {
        "internal.listen.port": "0",
        "internal.security.protocol": "SSL",
        "internal.ssl.certificate.location": str(path / "nodes" / "node-1.pem"),
        "internal.ssl.key.location": str(path / "nodes" / "node-1-key.pem"),
        "internal.ssl.ca.location": str(path / "nodes" / "ca.pem"),
        "security.protocol": "SSL",
        "ssl.client.auth": "required",
        "ssl.certificate.location": str(path / "clients" / "broker.pem"),
        "ssl.key.location": str(path / "clients" / "broker-key.pem"),
        "ssl.ca.location": str(path / "clients" / "ca.pem"),
        **over,
    }


ON = {"authorizer.enable": "true"}


@pytest.mark.parametrize(
    ("facts", "status", "said"),
    [
        ({}, "warn", "and then may do anything"),
        (ON, "warn", "nobody may make the first rule"),
        (ON | {"super.users": "User:admin"}, "ok", "User:admin may do anything"),
        (ON | {"super.users": "User:a;User:ANONYMOUS"}, "fail", "who proves nothing may do"),
        (
            ON | {"super.users": "User:a", "allow.everyone.if.no.acl.found": "true"},
            "warn",
            "is open to everybody",
        ),
    ],
)
def test_permissions_that_keep_nobody_from_anything(place, facts, status, said):
    _, found = place.format().examined(**secure(place.path, **facts))
    assert found["listeners"]["status"] == "ok", found["listeners"]
    assert found["permissions"]["status"] == status
    assert said in found["permissions"]["found"]


def test_each_listeners_certificate_is_told_with_its_days(place):
    _, found = place.format().examined(**secure(place.path))
    assert found["client certificate"]["status"] == "ok"
    assert found["client certificate"]["found"].endswith("broker.pem is good for 199 days")
    assert found["internal certificate"]["found"].endswith("node-1.pem is good for 299 days")


@pytest.mark.parametrize("state", ["soon", "expired", "open", "another key", "none"])
def test_certificates_that_are_of_no_use_or_not_for_long(place, state):
    facts = secure(place.path)
    pem, key = facts["ssl.certificate.location"], facts["ssl.key.location"]
    if state == "soon":
        os.remove(pem)
        os.remove(key)
        create_authority(place.path / "other").issue("broker", hosts=("127.0.0.1",), days=20)
        facts["ssl.certificate.location"] = str(place.path / "other" / "broker.pem")
        facts["ssl.key.location"] = str(place.path / "other" / "broker-key.pem")
    elif state == "expired":
        files = Authority(place.path / "old").issue("broker", expired=True)
        facts["ssl.certificate.location"] = files.certificate
        facts["ssl.key.location"] = files.key
        os.chmod(files.key or files.certificate, 0o600)
    elif state == "open":
        os.chmod(key, 0o644)
    elif state == "another key":
        facts["ssl.key.location"] = facts["internal.ssl.key.location"]
    else:
        os.remove(pem)
    _, found = place.format().examined(**facts)
    if state in ("another key", "none"):
        assert found["listeners"]["status"] == "fail"
        assert pem in found["listeners"]["found"]
        return
    row = found["client certificate"]
    told = {"soon": "good for 19 days", "expired": "has expired", "open": "others may read the key"}
    assert told[state] in row["found"]
    assert row["status"] == ("fail" if state == "expired" else "warn")


# -- the directory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state", ["absent", "empty", "another node's", "another cluster's", "torn"]
)
def test_a_directory_that_is_not_this_nodes(place, state):
    said = {
        "absent": "is not there",
        "empty": "is not formatted",
        "another node's": "belongs to node 2, this node is 1",
        "another cluster's": "belongs to cluster theirs",
        "torn": "meta.properties is damaged",
    }[state]
    if state == "empty":
        place.data.mkdir()
    elif state == "another node's":
        place.format(**{"node.id": "2"})
    elif state == "another cluster's":
        place.format(**{"cluster.id": "theirs"})
    elif state == "torn":
        place.format()
        (place.data / "meta.properties").write_text("version=1\n")
    code, found = place.examined()
    assert (code, found["data directory"]["status"]) == (6, "fail")
    assert said in found["data directory"]["found"]


def test_a_directory_of_another_user(place, monkeypatch):
    place.format()
    monkeypatch.setattr(os, "geteuid", lambda: place.data.stat().st_uid + 1)
    _, found = place.examined()
    assert found["data directory"]["status"] == "warn"
    assert f"belongs to user {place.data.stat().st_uid}" in found["data directory"]["found"]
    monkeypatch.setattr(os, "access", lambda path, _: path != place.data)
    _, found = place.examined()
    assert found["data directory"]["status"] == "fail"
    assert "not writable here" in found["data directory"]["found"]


# -- ports, and who is reached ---------------------------------------------------------------------


@contextmanager
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_taken_and_by_whom(place):
    with taken_port() as port:
        code, found = place.format().examined(**{"metrics.listen": str(port)})
        assert who_listens(port).process == os.getpid()
    assert (code, found["metrics port"]["status"]) == (6, "fail")
    assert "Address already in use" in found["metrics port"]["found"]
    assert f"taken by process {os.getpid()} (" in found["metrics port"]["found"]
    assert who_listens(port) is None


def test_a_port_and_a_directory_that_the_node_itself_has(place):
    place.format()
    lock = lock_directory(RealDisk(), str(place.data))
    try:
        with taken_port() as port:
            code, found = place.examined(**{"listen.port": str(port)})
    finally:
        lock.release()
    assert code == 0
    assert found["client port"]["found"].endswith(f"served by this node, process {os.getpid()}")
    assert found["data directory"]["found"].endswith(f"used by process {os.getpid()}")


def test_an_address_that_is_not_this_machines(place):
    over = {"listen.host": "192.0.2.1", "listen.port": "19092", "allow.insecure.listener": "true"}
    code, found = place.format().examined(**over)
    assert code == 6
    assert found["client port"]["found"].startswith("192.0.2.1:19092: Cannot assign")


def test_controllers_that_nobody_reaches(place):
    mine, silent = free_ports(2)
    with taken_port() as reached:
        voters = f"1@127.0.0.1:{mine},2@127.0.0.1:{reached},3@127.0.0.1:{silent}"
        _, found = place.format().examined(**{"controller.quorum.voters": voters})
        assert found["voters"]["status"] == "warn"
        assert found["voters"]["found"].endswith("no connection to 1 voter [3]")
        voters = f"1@127.0.0.1:{mine},2@127.0.0.1:{reached}"
        _, found = place.examined(**{"controller.quorum.voters": voters})
    assert (found["voters"]["status"], found["voters"]["found"][-7:]) == ("ok", "reached")


def keep_voters(place, name, *voters):
    """In a file of the metadata log."""
    kept = tuple(Voter(id=n, directory=f"{n}a", host="127.0.0.1", port=port) for n, port in voters)
    values = [encode_change(SetVoters(voters=kept))]
    columns = encode_columns([1], None, values, base_timestamp=1)
    batch = encode_batch(columns, record_count=1, base_timestamp=1, max_timestamp=1)
    (place.data / METADATA_DIRECTORY / name).write_bytes(bytes(batch) + b"torn")


def test_voters_that_the_metadata_has_otherwise(place):
    place.format()
    keep_voters(place, f"{7:020}-{1:010}.checkpoint", (1, 7))
    keep_voters(place, f"{0:020}.log", (1, 5), (2, 5))
    _, found = place.examined(**{"controller.quorum.voters": "1@127.0.0.1:7"})
    assert found["recorded voters"]["status"] == "ok", "the newest file that has some"
    keep_voters(place, f"{7:020}.log", (1, 7), (2, 9))
    _, found = place.examined(**{"controller.quorum.voters": "1@127.0.0.1:7"})
    assert found["recorded voters"]["status"] == "warn"
    assert found["recorded voters"]["found"] == (
        "the metadata has 1@127.0.0.1:7, 2@127.0.0.1:9, the configuration 1@127.0.0.1:7"
    )
    _, found = place.examined()
    assert found["recorded voters"]["status"] == "warn", "who names nobody is alone"


# -- limits and time -------------------------------------------------------------------------------


@pytest.mark.parametrize(("hard", "status"), [(1024, "warn"), (1 << 20, "ok"), (-1, "ok")])
def test_more_connections_than_files_may_be_open(place, monkeypatch, hard, status):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    _, found = place.format().examined(**{"max.connections": "5000"})
    assert found["max.connections"]["status"] == status
    assert found["max.connections"]["found"].startswith("5000, ")


def test_a_clock_that_is_behind_what_was_written(place, monkeypatch):
    place.format()
    ahead = time.time() + 3600
    os.utime(place.data / METADATA_DIRECTORY / "quorum-state", (ahead, ahead))
    code, found = place.examined()
    assert (code, found["clock"]["status"]) == (6, "fail")
    assert "before the newest file of" in found["clock"]["found"]
    monkeypatch.setattr(doctor_config, "BEGUN", ahead)
    _, found = place.examined()
    assert "no clock that is right says so" in found["clock"]["found"]
