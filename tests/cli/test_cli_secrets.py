"""What was told in confidence stands nowhere: in no output, no log, no file that is not for it.

Method: a secure cluster of three lives through a day, as verbose as it can be, with encrypted keys:
users come, by commands, programs and pages, log in rightly and wrongly, files are spoilt, a node
meets a bug and another one is killed. Then all that was printed and written is searched for every
password and for what was made of it, in whatever shape.
"""

import json
import os
import shutil
import signal
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from commands import hightide
from cryptography.hazmat.primitives import serialization
from patience import wait_until
from secret_ways import by_a_page, by_a_program, by_kafkas_words
from secrets_kept import METADATA, Secret, kept_by, secrets_of

from hightide.protocol import login_messages as u
from hightide.protocol import wire
from hightide_broker.formatting import FIRST_USERS

pytestmark = [pytest.mark.live, pytest.mark.slow]

REFUSED, USAGE, CONFLICT, DENIED = 1, 2, 5, 8
FIRST, SECOND, INLINE = "alices-first-Xq7", "alices-second-Wz4", "bobs-own-Kp9"
GUESSED, TYPED, PLAIN, BUG = "a-guess-Hj3", "a-typing-slip-Vb6", "in-the-clear-Rn2", "of-boom-Ty8"
KEY, NO_KEY = "opens-the-keys-Mf5", "opens-nothing-Lc1"
SHOWN, CODED, MADE = "on-a-page-Qs1", "in-a-program-Fd5", "of-the-first-Gw8"
PASSWORDS = (FIRST, SECOND, INLINE, GUESSED, TYPED, PLAIN, BUG, KEY, NO_KEY, SHOWN, CODED, MADE)
SNAPSHOTS = ("--set", "metadata.log.max.record.bytes.between.snapshots=1KiB")
HOOK = Path(__file__).parents[1] / "support" / "bug_hook"


class Day:
    """A cluster's life, and all that it said."""

    def __init__(self, place):
        self.place, self.data = place, place / "data"
        self.said = {}
        self.commands = {}
        path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
        self.bug_notes = place / "bug-notes"
        self.variables = {"HIGHTIDE_SERVER_START_VERBOSE": "1"}
        self.hook = {"PYTHONPATH": path, "BUG_NOTES": str(self.bug_notes)}
        """What the nodes are started with."""

    def run(self, *words, code=0, variables=None, **how):
        variables = (variables or self.variables) | (self.hook if words[0] == "up" else {})
        ended = hightide(*words, code=code, variables=variables, **how)
        said = self.said.setdefault(" ".join(map(str, words)), b"")
        self.said[" ".join(map(str, words))] = said + ended.out + ended.err.encode()
        return ended

    def asked(self, *words, **how):
        """By the administrator."""
        return self.run(*words, "--config", self.data / "client.toml", **how)

    def shown(self, *words, **how):
        """In each way there is."""
        self.asked(*words, **how)
        return self.asked(*words, "-o", "json", **how)

    def put(self, name, text):
        """A file that is nobody else's, beside the cluster."""
        path = self.place / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def toml(self, name, **facts):
        """How somebody comes in."""
        common = {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.data / "certs" / "ca.pem"),
        }
        named = {key.replace("_", "."): value for key, value in facts.items()}
        lines = [f"{key} = {json.dumps(value)}" for key, value in (common | named).items()]
        return self.put(name, "\n".join(lines))

    def logs(self):
        return b"".join(path.read_bytes() for path in sorted((self.data / "logs").iterdir()))

    def pids(self):
        rows = json.loads(self.run("ps", "--data", self.data, "-o", "json").out)
        return {row["node"]: row["pid"] for row in rows if row["pid"] is not None}

    def end(self):
        for pid in self.pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def encrypt(path):
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(KEY.encode()),
        )
    )


def begin(day):
    """Nodes whose keys are encrypted."""
    certs = day.data / "certs"
    nodes = [word for node in (1, 2, 3) for word in ("--node", f"{node}=127.0.0.1,localhost")]
    day.run("certs", "create", certs, *nodes, "--client", "alice")
    for name in ("node-1", "node-2", "node-3", "alice"):
        encrypt(certs / f"{name}-key.pem")
    day.key_file, day.no_key_file = day.put("key.password", KEY), day.put("no.password", NO_KEY)
    sets = [
        word
        for prefix in ("", "internal.")
        for word in ("--set", f"{prefix}ssl.key.password.location={day.key_file}")
    ]
    day.up = ("up", "--detach", "--data", day.data, "--secure", "-n", "3", *SNAPSHOTS, *sets)
    ended = day.run(*day.up, "--port", "0", "--topic", "t:2:3")
    day.address = ended.out.decode().splitlines()[0]
    day.admin = (day.data / "certs" / "admin.password").read_text()
    for node, pid in day.pids().items():
        seen = Path(f"/proc/{pid}")
        day.commands[node] = (seen / "cmdline").read_bytes() + (seen / "environ").read_bytes()


def users_come_and_log_in(day):
    day.asked("users", "create", "alice", "--password-file", "-", stdin=FIRST.encode())
    day.asked(
        "users", "create", "alice", "--password-file", "-", stdin=TYPED.encode(), code=CONFLICT
    )
    second = day.put("second.password", SECOND + "\n")
    day.asked("users", "alter", "alice", "--password-file", second)
    day.asked("users", "create", "bob", "--password-file", day.put("bob.password", INLINE))
    for user in ("alice", "bob"):
        day.asked("acls", "allow", user, "ALL", "topic:*", "group:*")
    certs = day.data / "certs"
    shows = {
        "ssl_certificate_location": str(certs / "alice.pem"),
        "ssl_key_location": str(certs / "alice-key.pem"),
    }
    alice = {"sasl_username": "alice", "sasl_password_location": str(second), **shows}
    bob = {"sasl_username": "bob", "sasl_password": INLINE, **shows}
    comes = ("topics", "list", "--config")
    day.run(*comes, day.toml("a.toml", **alice, ssl_key_password_location=str(day.key_file)))
    day.run(*comes, day.toml("b.toml", **bob, ssl_key_password=KEY))
    produce = ("produce", "t", "--config", day.place / "b.toml")
    day.run(*produce, stdin=b"a record\n")
    reading = ("consume", "t", "--from", "start", "-e", "--config", day.place / "a.toml")
    day.run(*reading, "--group", "g")


def others_are_turned_away(day):
    comes = ("topics", "list", "--config")
    day.run(
        *comes,
        day.toml("guess.toml", sasl_username="alice", sasl_password=GUESSED),
        code=DENIED,
    )
    day.run(
        *comes,
        day.toml("nobody.toml", sasl_username="nobody", sasl_password=GUESSED),
        code=DENIED,
    )
    wrong = {
        "sasl_username": "alice",
        "sasl_password": SECOND,
        "ssl_certificate_location": str(day.data / "certs" / "alice.pem"),
        "ssl_key_location": str(day.data / "certs" / "alice-key.pem"),
    }
    day.run(*comes, day.toml("c.toml", **wrong, ssl_key_password=NO_KEY), code=USAGE)
    slips = {
        "list.toml": f'sasl.password = ["{TYPED}"]\n',
        "slip.toml": f'sasl.pasword = "{TYPED}"\n',
        "open.toml": f'sasl.password = "{TYPED}\n',
        "twice.toml": f'sasl.password = "{TYPED}"\nsasl.password = "{TYPED}"\n',
        "bare.toml": f"sasl.password = {TYPED}\n",
    }
    for name, text in slips.items():
        day.run(*comes, day.put(name, text), code=USAGE)


def settings_are_checked(day):
    certs = day.data / "certs"
    right = {
        "internal.listen.port": "1",
        "internal.security.protocol": "SSL",
        "security.protocol": "SSL",
        **{
            f"{prefix}ssl.{what}.location": str(path)
            for prefix in ("", "internal.")
            for what, path in (
                ("ca", certs / "ca.pem"),
                ("certificate", certs / "node-1.pem"),
                ("key", certs / "node-1-key.pem"),
                ("key.password", day.key_file),
            )
        },
    }
    check = ("server", "start", "--check-config", "-c")

    def broker(name, **facts):
        named = {key.replace("_", "."): value for key, value in facts.items()}
        lines = [f"{key} = {json.dumps(value)}" for key, value in (right | named).items()]
        return day.put(name, "\n".join(lines))

    day.run(*check, broker("right.toml"))
    wrong = broker("wrong.toml", ssl_key_password_location=str(day.no_key_file))
    day.run(*check, wrong, code=USAGE)
    day.run(*check, broker("typed.toml", ssl_key_password=KEY), code=USAGE)
    day.run(*check, broker("listed.toml", sasl_password=[KEY]), code=USAGE)
    day.run(*check, day.put("open-broker.toml", f'ssl.key.password = "{KEY}\n'), code=USAGE)
    day.run(*check, day.place / "right.toml", "--set", f"ssl.key.password={KEY}", code=USAGE)
    heard = day.variables | {"HIGHTIDE_SASL_PASSWORD": GUESSED}
    day.run(*check, day.place / "right.toml", variables=heard)
    for name in ("right.toml", "wrong.toml"):
        look = ("doctor", "--data", day.data, "--broker-config", day.place / name)
        day.run(*look, code=None)
        day.run(*look, "-o", "json", code=None)


def clear_words_come_by_the_door(day):
    """As clients do that know other ways to log in, or none."""
    host, port = day.address.split(",")[0].split(":")
    context = ssl.create_default_context(cafile=day.data / "certs" / "ca.pem")
    hand = u.SaslHandshakeRequest(mechanism="SCRAM-SHA-512")
    said = [
        [hand, u.SaslAuthenticateRequest(data=f"\0alice\0{PLAIN}".encode())],
        [hand, u.SaslAuthenticateRequest(data=f"n,,n=alice,r=,p={PLAIN}".encode())],
        [u.SaslAuthenticateRequest(data=PLAIN.encode())],
        [wish()],
        [PLAIN.encode()],
        *by_kafkas_words(PLAIN),
    ]
    for words in said:
        with (
            socket.create_connection((host, int(port))) as clear,
            context.wrap_socket(clear, server_hostname=host) as stream,
        ):
            for number, word in enumerate(words):
                with suppress(OSError):
                    if isinstance(word, bytes):
                        stream.sendall(len(word).to_bytes(4, "big") + word)
                    else:
                        payload = wire.encode_request(word, request_id=number, client="c")
                        stream.sendall(b"".join(map(bytes, payload)))
            with suppress(OSError):
                stream.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                while stream.recv(4096):
                    pass


def other_ways_are_gone(day):
    """By pages, by a program, and into a directory of its own."""
    config = day.data / "client.toml"
    given = {"admin": day.admin, "own": SECOND, "new": SHOWN, "wrong": GUESSED}
    day.said["the console"] = by_a_page(day.address, config, **given).encode()
    day.said["a program"] = by_a_program(config, new=CODED, wrong=GUESSED).encode()
    made = ("storage", "format", "--cluster-id", "hUNr0Yc3QsKCsPoAVfvSbQ")
    place = ("--set", f"log.dirs={day.data / 'another'}")
    first = day.put("first.password", MADE)
    day.run(*made, *place, "--user", f"root={first}")
    day.run(*made, *place, "--user", f"root={day.place / 'no.such'}", code=USAGE)


def wish():
    """A password that is given before its giver has logged in."""
    upsertion = u.ScramUpsertion(
        user="eve",
        mechanism="SCRAM-SHA-256",
        iterations=4096,
        salt=b"0123456789abcdef",
        salted_password=PLAIN.encode(),
    )
    return u.AlterUserScramCredentialsRequest(upsertions=[upsertion])


def everything_is_shown(day):
    day.asked("configs", "alter", "topic", "t", "--set", "retention.ms=86400000")
    day.asked("quotas", "set", "--user", "alice", "producer_byte_rate=1MiB")
    day.asked("acls", "deny", "bob", "WRITE", "topic:private")
    for words in (
        ("topics", "describe", "t"),
        ("configs", "describe", "topic", "t", "--all"),
        ("configs", "describe", "broker", "1", "--all"),
        ("configs", "describe", "cluster", "--all"),
        ("users", "list"),
        ("acls", "list"),
        ("quotas", "list"),
        ("brokers", "list"),
        ("brokers", "describe", "1"),
        ("quorum", "status"),
        ("groups", "list"),
        ("groups", "describe", "g"),
    ):
        day.shown(*words)
    day.shown("trace")
    day.shown("acls", "explain", "bob", "WRITE", "topic:private", code=DENIED)
    day.run("ps", "--data", day.data)
    day.run("certs", "show", day.data / "certs")
    for node in (1, 2, 3):
        of_node = day.data / f"broker-{node}"
        day.run("logs", "--data", day.data, "--node", node, "-n", "100000")
        day.run("storage", "info", "--set", f"log.dirs={of_node}", code=None)
        day.run("log", "verify", of_node)
        day.run("metrics", "--data", day.data, "--node", node)
        day.run("metrics", "--data", day.data, "--node", node, "--detail")
        day.run("trace", "--data", day.data, "--node", node, "--positions")
        day.run("trace", "--file", of_node / "trace", "-o", "json")
        day.run("trace", "replay", "--file", of_node / "trace")
        copies = day.place / f"copies-{node}"
        shutil.copytree(of_node / METADATA, copies / "orders-0")
        for how in ((), ("--records",), ("--records", "-J")):
            day.run("log", "dump", of_node / METADATA, *how)
            day.run("log", "dump", copies, *how)
        shutil.rmtree(copies)


def misfortunes(day):
    """A bug that names all that it was asked, and a node that is killed."""
    words = ("users", "create", "boom", "--password-file", day.put("boom.password", BUG))

    def is_met():
        day.asked(*words, "--timeout", "5", code=None)
        return b"a planted bug met" in day.logs()

    wait_until(is_met, "the bug is met")
    pid = day.pids().get(2)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: day.pids().get(2) != pid, "it is gone")
    day.run(*day.up)


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    lived = Day(tmp_path_factory.mktemp("secrets"))
    try:
        begin(lived)
        users_come_and_log_in(lived)
        others_are_turned_away(lived)
        settings_are_checked(lived)
        clear_words_come_by_the_door(lived)
        other_ways_are_gone(lived)
        misfortunes(lived)
        everything_is_shown(lived)
        lived.run("down", "--data", lived.data)
    finally:
        lived.end()
    changes = [change for node in (1, 2, 3) for change in kept_by(lived.data / f"broker-{node}")]
    salted = msgspec.msgpack.decode(lived.bug_notes.read_bytes())
    lived.secrets = {
        *(Secret("salted password of boom", each) for each in salted),
        *(Secret(f"the password {each}", each.encode()) for each in (*PASSWORDS, lived.admin)),
        *secrets_of(changes, (*PASSWORDS, lived.admin)),
    }
    return lived


def leaks(secrets, texts):
    """What stands where it should not: `texts` are by name, each with whether metadata is in it."""
    return [
        f"{secret.name} in {name}, as {shape}"
        for name, (text, is_metadata) in texts.items()
        for secret in secrets
        for shape in secret.found_in(text, but_raw=secret.is_kept and is_metadata)
    ]


def test_the_day_was_as_it_is_told(day):
    """What is looked for below is there to be found."""
    logs = day.logs()
    assert b"DEBUG" in logs
    assert b"a planted bug met AlterUserScramCredentialsRequest" in logs
    assert b"ScramUpsertion('boom'" in logs
    assert b"the SCRAM-SHA-512 password of user 'alice' is set" in logs
    names = [secret.name.partition(" of ")[0] for secret in day.secrets]
    # The administrator, bob, carol, dave, and alice, who has had two; by two mechanisms.
    assert names.count("stored_key") == 2 * 6
    assert names.count("salted password") == names.count("stored_key") + 2
    places = [day.data / f"broker-{node}" / METADATA for node in (1, 2, 3)]
    files = [path for place in places for path in place.iterdir() if path.is_file()]
    metadata = b"".join(path.read_bytes() for path in files)
    for secret in day.secrets:
        assert (secret.data in metadata) is secret.is_kept, secret.name
    snapshots = b"".join(path.read_bytes() for path in files if path.suffix == ".checkpoint")
    assert any(secret.data in snapshots for secret in day.secrets), "they are in snapshots, too"
    assert b"Producer" in day.said["a program"]
    assert b"AuthenticationFailed" in day.said["a program"]
    assert b'"carol"' in day.said["the console"]


def test_nothing_of_it_is_printed(day):
    assert len(day.said) > 70
    assert leaks(day.secrets, {words: (said, False) for words, said in day.said.items()}) == []


def test_nothing_of_it_is_in_a_processs_words(day):
    assert [*day.commands] == [1, 2, 3]
    assert all(b": server start" in text for text in day.commands.values())
    assert all(b"BUG_NOTES" in text for text in day.commands.values()), "its environment, too"
    words = {f"the words of node {node}": (text, False) for node, text in day.commands.items()}
    assert leaks(day.secrets, words) == []


def keeps_keys(path):
    """Whether a node has to know by this file who may log in."""
    return path.parent.name == METADATA or path.name == FIRST_USERS


def test_nothing_of_it_is_in_a_file_that_is_not_for_it(day):
    """Those that are for it are for their owner's eyes."""
    files = [path for path in sorted(day.data.rglob("*")) if path.is_file()]
    admin = day.data / "certs" / "admin.password"
    texts = {str(path): (path.read_bytes(), keeps_keys(path)) for path in files if path != admin}
    assert any("/logs/broker-3.log" in name for name in texts)
    assert leaks(day.secrets, texts) == []
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files if keeps_keys(path)}
    assert len(modes) > 6
    assert {*modes.values(), stat.S_IMODE(admin.stat().st_mode)} == {0o600}


@pytest.mark.parametrize("shape", Secret("any", bytes(range(40))).shapes)
def test_it_would_be_found_in_any_shape(shape):
    secret = Secret("kept", bytes(range(0x55, 0x100, 7)), is_kept=True)
    text = b"a line, and: " + secret.shapes[shape] + b" behind it"
    assert leaks([secret], {"a log": (text, False)}) == [f"kept in a log, as {shape}"]
    assert len(leaks([secret], {"a segment": (text, True)})) == (shape != "raw")
