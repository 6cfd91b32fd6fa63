"""What `up --secure` adds to a cluster's directory: `certs`, and a `client.toml` for the
administrator."""

from __future__ import annotations

from pathlib import Path

from hightide_broker.secure_local import client_settings, node_settings
from hightide_broker.whole_files import put_file

CERTIFICATES, CLIENT_FILE = "certs", "client.toml"


def keys_of(data: Path, node: int, internal_port: int) -> list[str]:
    """What is set for one node, as for --set."""
    found = node_settings(data / CERTIFICATES, node, internal_port)
    return [f"{name}={value}" for name, value in found.items()]


def write_client_file(data: Path, address: str) -> Path:
    """How the administrator reaches the cluster: for its owner's eyes, as the key is."""
    path = data / CLIENT_FILE
    facts = {"bootstrap.servers": address, **client_settings(CERTIFICATES)}
    text = "# This cluster's administrator: hightide --config FILE …, or HIGHTIDE_CONFIG=FILE.\n"
    text += "".join(f'{name} = "{value}"\n' for name, value in facts.items())
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # a full disk takes no other
        put_file(path, text.encode(), mode=0o600)
    return path
