"""Ways by which passwords come to a cluster beside its own commands: pages, programs, and the words
of Kafka's clients. No test lives here; each returns what was said on the way.
"""

import json
import subprocess
import sys

from commands import environment
from console_run import Console, Visitor
from kafkakit import request_bytes
from patience import PATIENCE_S, wait_until

PROGRAM = """
import json
import logging
import sys

from hightide import AuthenticationFailed, blocking, read_client_config

logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
told = json.load(sys.stdin)
options = read_client_config(told["config"])
with blocking.Admin(**options) as admin:
    admin.set_password("dave", told["password"])
    print(admin, admin.__dict__, admin.list_users(), admin.describe_cluster())
del options["sasl_password_location"]
options["sasl_username"] = "dave"
with blocking.Producer(**options, sasl_password=told["password"]) as producer:
    print(producer, producer.__dict__)
try:
    with blocking.Admin(**options, sasl_password=told["wrong"]) as admin:
        admin.list_users()
except AuthenticationFailed:
    logging.exception("as dave, with another password: %s", admin)
print("this is the end")
"""


def by_a_page(address, config, *, admin, own, new, wrong):
    """A console, where somebody guesses, `alice` signs in by her `own` password, and an
    administrator gives `carol` a `new` one."""
    console = Console(address, "--allow-changes", config=config)
    try:
        guess = {"user": "alice", "password": wrong}
        visitor = Visitor(console, "admin", admin)
        said = [visitor.session, visitor.post("/api/sign-in", guess, 401)]
        change = {"what": "password", "user": "carol", "password": new}
        for preview in (True, False):
            said += [visitor.post("/api/access/change", {**change, "preview": preview})]
        said += [visitor.post("/api/access/change", {"what": new, "password": new}, 400)]
        happening = visitor.watch()
        wait_until(lambda: happening.events, "events", progress=lambda: happening.is_over)
        said += [happening.events, happening.state]
        for each in (visitor, Visitor(console, "alice", own)):
            state = each.watch().until(lambda state: "brokers" in state["cluster"], "a state")
            said += [each.get("/api/access"), state, each.session]
            said += [each.post("/api/sign-out", {})]
    finally:
        code, printed = console.end()
    assert code == 0
    return json.dumps(said, default=str) + printed


def by_a_program(config, *, new, wrong):
    """A program that says all that it can: it gives `dave` a password, and mistakes it."""
    told = {"config": str(config), "password": new, "wrong": wrong}
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )
    assert "this is the end" in ended.stdout, ended
    return ended.stdout + ended.stderr


def by_kafkas_words(secret):
    """Frames that a client of Kafka's sends before it has logged in, each list on a connection of
    its own, without their lengths: another way to log in, the wrong words, a password to be set."""

    def asked(name, version, **fields):
        return request_bytes(name, version, fields)[4:]

    plain = f"\0alice\0{secret}".encode()
    new = {
        "name": "eve",
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"0123456789abcdef",
        "salted_password": secret.encode(),
    }
    return [
        [
            asked("sasl_handshake", 1, mechanism="PLAIN"),
            asked("sasl_authenticate", 2, auth_bytes=plain),
        ],
        [asked("sasl_handshake", 0, mechanism="PLAIN"), plain],
        [
            asked("sasl_handshake", 1, mechanism="SCRAM-SHA-256"),
            asked("sasl_authenticate", 2, auth_bytes=plain),
        ],
        [asked("alter_user_scram_credentials", 0, deletions=[], upsertions=[new])],
    ]
