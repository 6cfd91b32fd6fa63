"""The rules about secrets and settings, held on the syntax tree of every file and on every struct;
each is shown what it has to find.

Goal: nobody learns a password by how long its comparison takes, nobody finds one in the words of an
object, and no setting says what is opened, imported or run.
"""

import dataclasses
import hmac
import importlib
import inspect
import pkgutil
from collections import namedtuple

import msgspec
import pytest
import scramp.core
from house_rules import modules, parse
from logins import PASSWORD, wish
from security_rules import ALLOWED, LOGIN, SECRET, comparisons, openings, stale

import hightide
import hightide_broker
import hightide_cli
from hightide.net.login import Login, Words
from hightide.protocol.errors import AuthenticationFailed, Refused
from hightide.protocol.login_messages import SaslAuthenticateRequest, SaslAuthenticateResponse
from hightide_broker.core.cluster.users import credential_of
from hightide_broker.runtime.server.login import _Scram

RULES = (comparisons, openings)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule):
    violations = [violation for module in modules() for violation in rule(module)]
    if violations:
        pytest.fail("\n".join(violations), pytrace=False)


def test_every_allowance_is_still_needed_and_the_login_is_where_it_is_looked_for():
    assert stale(modules()) == []
    assert {*LOGIN} <= {module.name for module in modules()}


LOGGING_IN = "broker/hightide_broker/runtime/server/login.py"
ELSEWHERE = "cli/hightide_cli/users.py"

PLANTED = (
    (comparisons, ELSEWHERE, "if password == said:\n    pass", "`password`"),
    (comparisons, ELSEWHERE, "if not self.sasl_password != said:\n    pass", "`sasl_password`"),
    (comparisons, ELSEWHERE, "known = said in passwords", "`passwords`"),
    (comparisons, LOGGING_IN, "(user, proof) == (a, b)", "`proof`"),
    (comparisons, LOGGING_IN, "x == kept['stored_key']", "`stored_key`"),
    (comparisons, LOGGING_IN, "x == kept.server_key.hex()", "`server_key`"),
    (comparisons, LOGGING_IN, "x == hmac.digest(a, b, 'sha256')", "`digest`"),
    (comparisons, LOGGING_IN, "if kind(a).hexdigest() not in found:\n    pass", "`hexdigest`"),
    (comparisons, LOGGING_IN, "self._s_nonce[:9] == nonces[0]", "`_s_nonce`"),
    (openings, ELSEWHERE, "import urllib.request", "opens URLs"),
    (openings, ELSEWHERE, "from urllib import request", "opens URLs"),
    (openings, ELSEWHERE, "from http.client import HTTPConnection", "opens URLs"),
    (openings, ELSEWHERE, "def f():\n    import requests", ":2:"),
    (openings, ELSEWHERE, "from jsonschema import RefResolver", "follows references"),
    (openings, ELSEWHERE, "import pickle", "runs what it reads"),
    (openings, ELSEWHERE, "import yaml", "makes objects"),
    (openings, ELSEWHERE, "import importlib\nimportlib.import_module(name)", ":2:"),
    (openings, ELSEWHERE, "f = importlib.import_module", "imports"),
    (openings, ELSEWHERE, "from importlib import import_module as f", "by another name"),
    (openings, ELSEWHERE, "__import__(config['class'])", "imports"),
    (openings, ELSEWHERE, "eval(value)", "runs text"),
    (openings, ELSEWHERE, "map(exec, values)", "runs text"),
    (openings, ELSEWHERE, "os.system(value)", "starts programs"),
    (openings, ELSEWHERE, "from subprocess import run", "starts programs"),
)
INNOCENT = (
    (comparisons, LOGGING_IN, "hmac.compare_digest(proof, other)\nif key == other:\n    pass"),
    (comparisons, LOGGING_IN, "if password == '' or not password or password is None:\n    pass"),
    (comparisons, LOGGING_IN, "if len(salted_password) != kind().digest_size:\n    pass"),
    (comparisons, ELSEWHERE, "x == image.digest()\npassword_location == 'a'\nSECRETS == x"),
    (comparisons, "tests/server/test_login.py", "assert proof == expected"),
    (openings, ELSEWHERE, "from urllib.parse import urlsplit\nfrom importlib import import_module"),
    (openings, ELSEWHERE, "import_module('pyarrow')\nfind_spec('scramp')\nre.compile('a')"),
    (openings, ELSEWHERE, "from importlib.metadata import version\nself.evaluate(value)"),
    (openings, "cli/hightide_cli/main.py", "import_module(name)"),
    (openings, "tests/server/test_login.py", "import subprocess, pickle"),
)


@pytest.mark.parametrize(("rule", "path", "source", "words"), PLANTED)
def test_a_planted_violation_is_found(rule, path, source, words):
    (violation, *_) = rule(parse(path, source))
    assert violation.startswith(f"{path}:")
    assert words in violation


@pytest.mark.parametrize(("rule", "path", "source"), INNOCENT)
def test_what_the_rule_allows_is_left_alone(rule, path, source):
    assert rule(parse(path, source)) == []


def test_an_idle_allowance_is_found():
    used = parse("cli/a.py", "import subprocess")
    (idle,) = stale([used], {"cli/a.py": {"subprocess": "", "pickle": ""}})
    assert idle.startswith("cli/a.py: has no `pickle`")
    assert all(reason for whats in ALLOWED.values() for reason in whats.values())


# -- the library that judges proofs ----------------------------------------------------------------


def exchanged(password):
    """Whether who knows this password is let in, and then believes the broker."""
    words = Words(Login("SCRAM-SHA-256", "user", password))
    kept = credential_of(wish())
    server = _Scram("SCRAM-SHA-256", lambda *_: tuple(kept))
    answer = server.first(words.first()).encode()
    words.check(server.final(words.final(answer)).encode())
    return server.user


def test_a_proof_and_its_answer_are_judged_by_compare_digest_and_by_nothing_else(monkeypatch):
    """Let it say yes to everything, and any password will do; let it say no, and none does."""
    assert scramp.core.compare_digest is hmac.compare_digest
    assert exchanged(PASSWORD) == "user"
    with pytest.raises(Refused):
        exchanged("guess")
    asked = []

    def yes(*sides):
        asked.append(sides)
        return True

    monkeypatch.setattr(scramp.core, "compare_digest", yes)
    assert exchanged("guess") == "user"
    assert credential_of(wish()).stored_key in {side for sides in asked for side in sides}
    monkeypatch.setattr(scramp.core, "compare_digest", lambda *_: False)
    with pytest.raises((Refused, AuthenticationFailed)):
        exchanged(PASSWORD)


@pytest.mark.parametrize("iterations", [0, 1, 4095, 4096])
def test_a_password_is_not_hashed_for_who_asks_for_too_little_of_it(iterations):
    """Who listens, or poses as the broker, would find it by trying (RFC 7677: 4096 at least)."""
    words = Words(Login("SCRAM-SHA-256", "user", PASSWORD))
    nonce = words.first().decode().rpartition("r=")[2]
    asked = f"r={nonce}abc,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={iterations}".encode()
    if iterations == 4096:
        assert b",p=" in words.final(asked)
        return
    with pytest.raises(AuthenticationFailed):
        words.final(asked)


def test_by_itself_the_library_compares_nonces_alone_which_everybody_sees():
    source = inspect.getsource(scramp.core)
    found = comparisons(parse(LOGGING_IN, source))
    assert {violation.split("`")[1] for violation in found} == {"nonce", "msg_nonce"}, found
    spoilt = source.replace("if not compare_digest(key, stored_key):", "if key != stored_key:")
    assert len(comparisons(parse(LOGGING_IN, spoilt))) == len(found) + 1


# -- what objects say of themselves ----------------------------------------------------------------


def structs():
    """Every class of the three packages whose fields are known, with their names."""
    for package in (hightide, hightide_broker, hightide_cli):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            for kind in vars(importlib.import_module(found.name)).values():
                if isinstance(kind, type) and kind.__module__ == found.name:
                    yield kind, fields_of(kind)


def fields_of(kind):
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind)]
    if issubclass(kind, msgspec.Struct):
        return [*kind.__struct_fields__]
    return [*getattr(kind, "_fields", ())]


def made(kind, names, value):
    """One of a class whose secrets have this value, and whose other fields are plain."""
    hushed = {name: value if is_secret(kind, name) else 0 for name in names}
    if issubclass(kind, tuple):
        return kind._make(hushed.values())
    if issubclass(kind, msgspec.Struct):
        return kind(**hushed)
    it = object.__new__(kind)
    for name in names:
        object.__setattr__(it, name, hushed[name])
    return it


def is_secret(kind, name):
    return bool(SECRET.search(name)) or (kind in WORDS_OF_LOGINS and name == "data")


WORDS_OF_LOGINS = (SaslAuthenticateRequest, SaslAuthenticateResponse)
"""What they carry is called data, and is a proof."""


def says_it(kind, names, value):
    """Whether its words have a secret in them, in any way to ask for them."""
    it = made(kind, names, value)
    return any("hush" in said for said in (repr(it), str(it), f"{it}", repr({"it": (it,)})))


def test_what_holds_a_secret_does_not_say_it():
    kept = {
        kind: names for kind, names in structs() if any(is_secret(kind, name) for name in names)
    }
    assert {kind.__name__ for kind in kept} >= {
        *("ClientOptions", "ProducerOptions", "ConsumerOptions", "AdminOptions"),
        *("Login", "TlsFiles", "ScramUpsertion", "SetScramCredential", "SetUsersSecret"),
        *("Credential", "ClusterImage", "SaslAuthenticateRequest", "SaslAuthenticateResponse"),
    }
    for value in ("hush-hush", b"hush-hush"):
        assert [kind for kind, names in kept.items() if says_it(kind, names, value)] == []


def test_one_that_says_all_would_be_found():
    fields = ["user", "password"]
    for kind in (
        msgspec.defstruct("Struct", fields),
        dataclasses.make_dataclass("Data", fields),
        namedtuple("Pair", fields),
    ):
        assert fields_of(kind) == fields
        assert says_it(kind, fields, "hush-hush")
