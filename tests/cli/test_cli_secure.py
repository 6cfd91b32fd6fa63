"""A secure cluster on one machine: made by one flag, used by one file, closed to everybody else.

Method: `up -n 3 --secure` as a process, the commands that people type beside it; certificates that
`certs` makes.
"""

import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest
from certificates import Authority
from commands import StartedCluster, hightide
from patience import wait_until
from secure_run import open_only

import hightide as client
from hightide.protocol.errors import UsageError
from hightide_broker.certificates import (
    CA_DAYS,
    CertificatesRefused,
    create_authority,
    open_authority,
    show_certificates,
)
from hightide_broker.config import ConfigError, check_open, make_config

REFUSED, USAGE, NOT_FOUND, CONFLICT, UNHEALTHY, DENIED = 1, 2, 4, 5, 6, 8


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    data = tmp_path_factory.mktemp("secure") / "data"
    made = StartedCluster(data, "--port", "0", "-n", "3", "--secure", "--topic", "t:2:3")
    made.data = data
    yield made
    made.end()


def file_of(cluster):
    return cluster.data / "client.toml"


@pytest.mark.live
@pytest.mark.slow
def test_one_file_is_all_that_a_client_needs(secure):
    told = ("--config", file_of(secure))
    hightide("produce", "t", *told, stdin=b"a\nb\n")
    assert hightide("consume", "t", "--from", "start", "-e", *told).out in (b"a\nb\n", b"b\na\n")
    (row,) = json.loads(hightide(*told, "topics", "describe", "t", "-o", "json").out)
    assert [len(each["isr"]) for each in row["partitions"]] == [3, 3]
    assert "replicas agree" in hightide("partitions", "diff", "t:0", *told).err
    with client.blocking.Admin(**client.read_client_config(file_of(secure))) as admin:
        assert [each.topic for each in admin.list_topics() if not each.internal] == ["t"]


@pytest.mark.live
@pytest.mark.slow
def test_who_does_not_log_in_does_not_come_in(secure, tmp_path):
    address = client.read_client_config(file_of(secure))["bootstrap_servers"]
    plain = hightide("topics", "list", "-b", address, code=REFUSED)
    assert "SSL on the other side" in plain.err
    believes = f'ssl.ca.location = "{secure.data}/certs/ca.pem"\n'
    login = 'security.protocol = "SASL_SSL"\nsasl.username = "admin"\nsasl.password = "guess"\n'
    stranger = tmp_path / "stranger.toml"
    for lines, said in (
        ('security.protocol = "SSL"', "is not believed"),
        (f'security.protocol = "SSL"\n{believes}', "before it has logged in: users do, here"),
        (f"{login}{believes}", "the user is unknown, or the password is another"),
    ):
        stranger.write_text(lines)
        ended = hightide("topics", "list", "-b", address, "--config", stranger, code=DENIED)
        assert said in ended.err


@pytest.mark.live
@pytest.mark.slow
def test_a_user_may_do_what_rules_say(secure, tmp_path):
    told, certs = ("--config", file_of(secure)), secure.data / "certs"
    create = ("users", "create", "alice", "--password-file", "-")
    assert "user alice may log in" in hightide(*create, *told, stdin=b"first\n").err
    hightide(*create, *told, stdin=b"x", code=CONFLICT)
    (tmp_path / "password").write_text("second")
    hightide("users", "alter", "alice", "--password-file", tmp_path / "password", *told)
    rows = json.loads(hightide("users", "list", "-o", "json", *told).out)
    assert [row["user"] for row in rows] == ["admin", "alice"]
    alice = tmp_path / "alice.toml"
    text = file_of(secure).read_text().replace("certs/admin.password", f"{tmp_path}/password")
    text = text.replace('username = "admin"', 'username = "alice"')
    alice.write_text(text.replace("certs/", f"{certs}/"))
    reading = ("consume", "t", "--from", "start", "-e", "--config", alice)
    refused = hightide(*reading, code=DENIED)
    assert "User:alice may not DESCRIBE topic:'t'" in refused.err
    refused = hightide("trace", "--config", alice, code=DENIED)
    assert refused.out == b""
    assert refused.err.count("User:alice may not DESCRIBE cluster") == 1
    assert b"topic t is created" in hightide("trace", *told).out
    hightide("acls", "allow", "alice", "READ", "topic:t*", "group:billing", *told)
    hightide(*reading)
    hightide("acls", "deny", "alice", "write", "topic:t", *told)
    assert (
        "may not WRITE" in hightide("produce", "t", "--config", alice, stdin=b"x", code=DENIED).err
    )
    explain = ("acls", "explain", "alice", "write", "topic:t", "-o", "json", *told)
    found = json.loads(hightide(*explain, code=DENIED).out)
    assert (found["allowed"], found["rule"]) == (False, "DENY User:alice WRITE topic:t")
    rows = json.loads(hightide("acls", "list", "--concerning", "topic:t", "-o", "json", *told).out)
    assert [(row["permission"], row["pattern"]) for row in rows] == [
        ("ALLOW", "PREFIXED"),
        ("DENY", "LITERAL"),
    ]
    assert "--yes removes them" in hightide("acls", "delete", "--user", "alice", *told).err
    hightide("acls", "delete", "--user", "alice", "--yes", *told)
    hightide("acls", "delete", "--user", "alice", *told, code=NOT_FOUND)
    hightide(*reading, code=DENIED)
    quota = ("quotas", "set", "--user", "alice", "producer_byte_rate=1MiB", *told)
    hightide(*quota)
    (row,) = json.loads(hightide("quotas", "list", "-o", "json", *told).out)
    assert (row["user"], row["client_id"], row["value"]) == ("alice", None, 1 << 20)
    for no_quota in ("speed=1", "controller_mutation_rate=1MiB"):
        hightide("quotas", "set", "--user", "alice", no_quota, *told, code=USAGE)
    hightide("quotas", "set", "--ip", "0:0::1", "connection_creation_rate=1000", *told)
    hightide("quotas", "delete", "--ip", "0:0::1", *told)
    hightide("quotas", "delete", "--user", "alice", *told)
    hightide("quotas", "delete", "--user", "alice", *told, code=NOT_FOUND)
    hightide("users", "delete", "alice", *told)
    assert "the user is unknown" in hightide(*reading, code=DENIED).err
    hightide("users", "delete", "alice", *told, code=NOT_FOUND)


@pytest.mark.live
@pytest.mark.slow
def test_its_secrets_are_for_its_owner_alone(secure):
    certs = secure.data / "certs"
    for path in (file_of(secure), certs / "admin.password", *certs.glob("*-key.pem")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    secrets = [(certs / "admin.password").read_text()]
    metadata = secure.data / "broker-1" / "__cluster_metadata-0"
    dumped = hightide("log", "dump", metadata, "--records", "-J").out.decode()
    batches = [json.loads(line) for line in dumped.splitlines()]
    values = [each["value"] for batch in batches for each in batch.get("records", ())]
    (kept, *_) = [value for value in values if value.get("type") == "user_scram"]
    assert [kept[name] for name in ("salt", "stored_key", "server_key")] == ["…"] * 3
    secrets.append((certs / "node-1-key.pem").read_text().splitlines()[1])
    logs = [path.read_text() for path in (secure.data / "logs").iterdir()]
    assert len(logs) == 3
    assert not [secret for secret in secrets for log in logs if secret in log]


@pytest.mark.live
@pytest.mark.slow
def test_new_certificates_are_taken_on_sighup_and_a_node_comes_back(secure):
    told = ("--config", file_of(secure))
    before = (secure.data / "certs" / "node-1.pem").read_bytes()
    hightide("certs", "renew", secure.data / "certs")
    assert (secure.data / "certs" / "node-1.pem").read_bytes() != before
    rows = {row["node"]: row["pid"] for row in secure.ps()}
    os.kill(rows[1], signal.SIGHUP)
    log = secure.data / "logs" / "broker-1.log"
    wait_until(lambda: "certificates were replaced" in log.read_text(), "they are taken")
    os.kill(rows[2], signal.SIGKILL)
    wait_until(lambda: {r["node"]: r["alive"] for r in secure.ps()}[2] is False, "it is gone")
    up = hightide("up", "--detach", "--secure", "--data", secure.data)
    assert "clients log in" in up.err
    hightide("topics", "list", *told)

    def is_whole():
        (row,) = json.loads(hightide("topics", "describe", "t", "-o", "json", *told).out)
        return all(len(each["isr"]) == 3 for each in row["partitions"])

    wait_until(is_whole, "all are in sync again")


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--secure",)], ids=["open", "secure"])
def test_up_comes_to_its_own_cluster_whichever_the_environment_names(secure, tmp_path, words):
    start = ("up", "--detach", "--data", tmp_path / "other", "--port", "0", "--topic", "t", *words)
    try:
        up = hightide(*start, config=file_of(secure))
        again = hightide(*start[:4], "--topic", "late", config=file_of(secure))
        assert again.out == up.out
    finally:
        hightide("down", "--data", tmp_path / "other", "--kill")


@pytest.mark.live
@pytest.mark.slow
@open_only("it begins with a cluster that is open")
def test_an_open_cluster_is_not_made_a_secure_one(tmp_path):
    made = StartedCluster(tmp_path / "open", "--port", "0")
    try:
        ended = hightide("up", "--detach", "--secure", "--data", tmp_path / "open", code=USAGE)
        assert "is open" in ended.err
    finally:
        made.end()


# -- files and settings ----------------------------------------------------------------------------


def test_certificates_are_made_shown_and_renewed(tmp_path):
    place = tmp_path / "certs"
    made = hightide(
        "certs", "create", place, "--node", "1=db1.example.org,10.0.0.1", "--client", "a"
    )
    names = [line.rpartition(b"/")[2] for line in made.out.splitlines()]
    assert names == [b"ca.pem", b"node-1.pem", b"a.pem"]
    rows = json.loads(hightide("certs", "show", place, "-o", "json").out)
    shown = {row["name"]: row for row in rows}
    assert shown["node-1"]["hosts"] == ["db1.example.org", "10.0.0.1"]
    assert (shown["a"]["hosts"], shown["a"]["days_left"]) == ([], 364)
    hightide("certs", "create", place, "--client", "a", code=CONFLICT)
    hightide("certs", "renew", place, "--days", "20")
    again = hightide("certs", "show", place, "-o", "json")
    assert {row["days_left"] for row in json.loads(again.out)} == {19, 3649}
    assert "expires in 19 days" in again.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["create", "certs", "--node", "x"], USAGE, "expected ID or ID=HOST"),
        (["create", "certs", "--node", "01"], USAGE, "expected ID or ID=HOST"),
        (["create", "certs", "--client", "node-1"], USAGE, "are of nodes"),
        (["create", "certs", "--client", "../a"], USAGE, "is no name for a certificate"),
        (["create", "certs", "--client", "ca"], USAGE, "is no name for a certificate"),
        (["create", "certs", "--client", "a-key"], USAGE, "is no name for a certificate"),
        (["renew", "certs"], USAGE, "certs has no authority"),
        (["create", "certs", "--node", "1=a b"], USAGE, "'a b' is no host"),
        (["create", "certs", "--node", "1=münchen.example"], USAGE, "is no host"),
        (["create", "certs", "--node", "1=10.0.0.0/8"], USAGE, "is no host"),
        (["create", "certs", "--node", "1=a..b"], USAGE, "is no host"),
        (["create", "certs", "--node", "1", "--node", "1=b"], USAGE, "twice"),
        (["create", "certs", "--client", "CA"], USAGE, "is no name for a certificate"),
        (["show", "none"], USAGE, "does not exist"),
        (["show", "/dev/null"], NOT_FOUND, "there are no certificates"),
    ],
)
def test_what_cannot_be_made_is_told_and_nothing_is_made(tmp_path, words, code, said):
    ended = hightide("certs", *words, code=code, cwd=tmp_path)
    assert said in ended.err
    assert [*tmp_path.iterdir()] == []


def test_what_has_expired_is_unhealthy(tmp_path):
    files = Authority(tmp_path).issue("a", expired=True)
    ended = hightide("certs", "show", tmp_path, code=UNHEALTHY)
    assert f"{files.certificate} expires already" in ended.err
    (shown,) = show_certificates(Path(files.certificate))
    assert (shown.name, shown.days_left < 0) == ("a", True)


def test_a_second_authority_does_not_take_the_place_of_the_first(tmp_path):
    create_authority(tmp_path)
    with pytest.raises(CertificatesRefused, match="has certificates already"):
        create_authority(tmp_path)
    (tmp_path / "ca-key.pem").write_text("garbage")
    with pytest.raises(CertificatesRefused, match="is no key that can be used"):
        open_authority(tmp_path)


def test_an_authority_whose_certificate_was_lost_is_not_replaced(tmp_path):
    create_authority(tmp_path).issue("a")
    key = (tmp_path / "ca-key.pem").read_bytes()
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(CertificatesRefused, match="has certificates already"):
        create_authority(tmp_path)
    assert (tmp_path / "ca-key.pem").read_bytes() == key


def test_an_authority_is_not_taken_with_the_key_of_another(tmp_path):
    create_authority(tmp_path / "a")
    create_authority(tmp_path / "b")
    shutil.copy(tmp_path / "b" / "ca-key.pem", tmp_path / "a")
    with pytest.raises(CertificatesRefused, match="is not the one of its authority"):
        open_authority(tmp_path / "a")


def test_what_was_begun_is_made_whole(tmp_path):
    """A crash came between the key and the certificate."""
    create_authority(tmp_path)
    key = (tmp_path / "ca-key.pem").read_bytes()
    (tmp_path / "ca.pem").unlink()
    authority = create_authority(tmp_path)
    assert (tmp_path / "ca-key.pem").read_bytes() == key
    authority.issue("a")
    key = (tmp_path / "a-key.pem").read_bytes()
    (tmp_path / "a.pem").unlink()
    authority.issue("a")
    assert (tmp_path / "a-key.pem").read_bytes() == key


def test_a_renewal_is_one_file_and_touches_only_what_this_authority_made(tmp_path):
    authority = create_authority(tmp_path / "ours")
    for name in ("a", "b"):
        authority.issue(name)
    create_authority(tmp_path / "theirs").issue("c")
    theirs = (tmp_path / "theirs" / "c.pem").read_bytes()
    (tmp_path / "ours" / "c.pem").write_bytes(theirs)
    (tmp_path / "ours" / "c-key.pem").write_bytes((tmp_path / "theirs/c-key.pem").read_bytes())
    (tmp_path / "ours" / "another-ca.pem").write_bytes((tmp_path / "theirs/ca.pem").read_bytes())
    keys = {path: path.read_bytes() for path in (tmp_path / "ours").glob("*-key.pem")}
    assert [path.stem for path in open_authority(tmp_path / "ours").renew()] == ["a", "b"]
    assert {path: path.read_bytes() for path in keys} == keys
    assert (tmp_path / "ours" / "c.pem").read_bytes() == theirs


def test_nothing_outlives_its_authority(tmp_path):
    authority = create_authority(tmp_path)
    with pytest.raises(CertificatesRefused, match="3649 that the authority has left"):
        authority.issue("a", days=CA_DAYS + 1)


TLS = {"security.protocol": "SSL", "ssl.client.auth": "required"}
INSIDE = {"internal.listen.port": "1", "internal.security.protocol": "SSL"}


REMEDIES = (
    "listen.host = 127.0.0.1",
    "certificates of nodes",
    "security.protocol = SASL_SSL",
    "allow.insecure.listener = true",
)


@pytest.mark.parametrize(
    ("facts", "is_open"),
    [
        ({}, False),
        ({"listen.host": "localhost"}, False),
        ({"listen.host": "127.9.9.9"}, False),
        ({"listen.host": "::1"}, False),
        ({"listen.host": "10.0.0.1"}, True),
        ({"listen.host": "0.0.0.0", "advertised.host": "a"}, True),
        ({"listen.host": "db1"}, True),
        ({"listen.host": "db1", **TLS, "ssl.client.auth": "requested", **INSIDE}, True),
        ({"listen.host": "db1", **TLS, "internal.listen.port": "1"}, True),
        ({"listen.host": "db1", **TLS, **INSIDE}, False),
        ({**TLS, **INSIDE, "internal.listen.host": "db1"}, False),
        ({"internal.listen.port": "1", "internal.listen.host": "db1"}, True),
    ],
)
def test_a_broker_that_others_reach_does_not_start_unless_they_prove_who_they_are(facts, is_open):
    config = make_config(facts)
    if not is_open:
        return check_open(config)
    with pytest.raises(ConfigError) as refused:
        check_open(config)
    for remedy in REMEDIES:
        assert remedy in str(refused.value)
    check_open(make_config({**facts, "allow.insecure.listener": "true"}))


@pytest.mark.live
@pytest.mark.parametrize("named", [(), ("--set", "advertised.host=me")])
def test_it_says_so_and_exits_2(named):
    """Before it says that others need a name for it."""
    words = ("--set", "listen.host=0.0.0.0", *named, "--check-config")
    ended = hightide("server", "start", *words, code=USAGE)
    assert "0.0.0.0:19092" in ended.err
    for remedy in REMEDIES:
        assert remedy in ended.err


# -- client.toml -----------------------------------------------------------------------------------


def test_a_client_file_is_read_with_whole_paths_from_where_it_lies(tmp_path, monkeypatch):
    path = tmp_path / "client.toml"
    path.write_text(
        'bootstrap.servers = "a:1"\nsecurity.protocol = "SSL"\nrequest.timeout.ms = 500\n'
        '[ssl]\nca.location = "certs/ca.pem"\nkey.location = "/k.pem"\n'
    )
    told = client.read_client_config(path)
    monkeypatch.chdir(tmp_path.parent)
    nearby = Path(tmp_path.name) / "client.toml"
    assert client.read_client_config(nearby) == told, "who works elsewhere finds the files too"
    assert told == {
        "bootstrap_servers": "a:1",
        "security_protocol": "SSL",
        "request_timeout_ms": 500,
        "ssl_ca_location": str(tmp_path / "certs/ca.pem"),
        "ssl_key_location": "/k.pem",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bootstrap.servers", "cannot be read as TOML"),
        ('security.protocl = "SSL"', "did you mean security.protocol"),
        ('linger.ms = "5"', "has no option 'linger.ms'"),
    ],
)
def test_a_client_file_that_is_none_is_named(tmp_path, text, said):
    path = tmp_path / "client.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"client\.toml") as refused:
        client.read_client_config(path)
    assert said in str(refused.value)


def test_a_flag_goes_over_the_environment_and_the_nearer_one_over_the_other(tmp_path):
    for name in ("environment", "root", "command"):
        (tmp_path / name).write_text(f'bootstrap.servers = "{name}.invalid:1"\n')
    of = {name: str(tmp_path / name) for name in ("environment", "root", "command")}
    for words, asked in (
        (["topics", "list"], "environment.invalid"),
        (["--config", of["root"], "topics", "list"], "root.invalid"),
        (["--config", of["root"], "topics", "list", "--config", of["command"]], "command.invalid"),
        (["topics", "list", "--config", of["command"], "-b", "flag.invalid:1"], "flag.invalid"),
    ):
        ended = hightide(*words, "--timeout", "0.5", code=3, config=of["environment"])
        assert asked in ended.err, ended.err
