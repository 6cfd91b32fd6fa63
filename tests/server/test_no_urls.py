"""A setting that names a file names a file: never something to fetch.

Goal: `http://…` and `file://…` are names of files that are not there, for clients and for nodes,
although a server is there that would answer, and a file that would be meant (CVE-2025-27817).
Method: every setting that is a path, by its name; a listener that nobody may come to.
"""

import dataclasses
import random
import socket
from contextlib import closing

import pytest
from certificates import Authority
from cryptography.hazmat.primitives import serialization

from hightide.net.login import Login, Words
from hightide.net.options import ClientOptions, network_for
from hightide.protocol.errors import UsageError
from hightide_broker.config import ConfigError, make_config
from hightide_broker.config_keys import KEYS
from hightide_broker.formatting import format_node
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.runtime.server.door import doors_of

KEY_PASSWORD = "opens it"


@pytest.fixture
def server():
    """Where nobody may come; fails if somebody did."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setblocking(False)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.fixture
def files(tmp_path):
    """Those that are there and good, by the last words of the settings that name them."""
    made = Authority(tmp_path / "certs").issue("node-1")
    password = tmp_path / "password"
    password.write_text(KEY_PASSWORD)
    with open(made.key, "r+b") as key:
        opened = serialization.load_pem_private_key(key.read(), None)
        key.seek(0)
        key.write(
            opened.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(KEY_PASSWORD.encode()),
            )
        )
    return {
        "ca": made.authorities,
        "certificate": made.certificate,
        "key": made.key,
        "password": str(password),
    }


def words_of(name):
    """The setting's last words but `location`, by which `files` has it."""
    return name.replace("_", ".").removesuffix(".location").rpartition(".")[2]


def spellings(path, server):
    """The same file as URLs, and one that the server would have."""
    return [f"{server}/{words_of(path)}.pem", f"file://{path}", f"FILE:{path}", f"//{server}{path}"]


def refusals(make, names, files, server):
    """What each setting says to each URL; `make` uses settings, and raises for a bad one."""
    good = {name: files[words_of(name)] for name in names}
    make(good)
    for name in names:
        for url in spellings(files[words_of(name)], server):
            with pytest.raises((UsageError, ConfigError)) as refused:
                make({**good, name: url})
            assert "No such file" in str(refused.value), (name, url)
            assert url in str(refused.value)


def client(settings):
    """The files of a client that shows a certificate and logs in are read."""
    options = ClientOptions(
        "127.0.0.1:1", security_protocol="SASL_SSL", sasl_username="user", **settings
    )
    network_for(options)
    Words(Login("SCRAM-SHA-512", "user", "", options.sasl_password_location))


def test_a_clients_paths_are_names_of_files(files, server):
    names = [
        each.name for each in dataclasses.fields(ClientOptions) if each.name.endswith("_location")
    ]
    assert len(names) == 5
    refusals(client, names, files, server)


def node(settings):
    """The files of a node's two doors are read."""
    common = {
        "security.protocol": "SSL",
        "ssl.client.auth": "required",
        "internal.listen.port": "1",
        "internal.security.protocol": "SSL",
    }
    doors_of(make_config(common | settings))


def test_a_nodes_paths_are_names_of_files(files, server):
    names = [name for name in KEYS if name.endswith(".location")]
    assert len(names) == 8
    refusals(node, names, files, server)


def test_a_nodes_directory_is_a_directory_of_this_machine(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = make_config({"log.dirs": f"{server}/data", "cluster.id": "c"})
    format_node(config, RealDisk(), random.Random(1))
    host = server.removeprefix("http://")
    assert (tmp_path / "http:" / host / "data" / "meta.properties").exists()


def test_every_other_setting_that_sounds_like_a_path_is_looked_at_here():
    sounding = {
        name
        for name in KEYS
        if any(word in name for word in ("location", "dir", "path", "file", "url", "class"))
    }
    assert sounding - {name for name in KEYS if name.endswith(".location")} == {"log.dirs"}
