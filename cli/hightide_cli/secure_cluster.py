"""What makes a cluster on this machine a secure one: every door under TLS, and nobody comes in who
has no certificate of its own authority.

`<data>/certs` holds the authority, a certificate for each node and one for an administrator;
`<data>/client.toml` says how to use that one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ADMIN = "admin"
CERTIFICATES, CLIENT_FILE = "certs", "client.toml"
LOOPBACK = ("127.0.0.1", "localhost")


def make_certificates(data: Path, nodes: Mapping[int, str]) -> None:
    """An authority, and a certificate for each node and for the administrator, unless they are
    there; `nodes` are the names of certificates by id. Raises `CertificatesRefused`."""
    from hightide_broker.certificates import create_authority, open_authority

    directory = data / CERTIFICATES
    is_new = not (directory / "ca.pem").exists()
    wanted = {**dict.fromkeys(nodes.values(), LOOPBACK), ADMIN: ()}
    missing = {n: hosts for n, hosts in wanted.items() if not (directory / f"{n}.pem").exists()}
    if not missing:
        return
    data.mkdir(parents=True, exist_ok=True)
    authority = create_authority(directory) if is_new else open_authority(directory)
    directory.chmod(0o700)
    for name, hosts in missing.items():
        authority.issue(name, hosts)


def keys_of(data: Path, node: int, internal_port: int) -> list[str]:
    """What is set for one node, as for --set."""
    here = (data / CERTIFICATES).resolve()
    facts = {"internal.listen.port": str(internal_port), "ssl.client.auth": "required"}
    for prefix in ("", "internal."):
        facts |= {
            f"{prefix}security.protocol": "SSL",
            f"{prefix}ssl.ca.location": str(here / "ca.pem"),
            f"{prefix}ssl.certificate.location": str(here / f"node-{node}.pem"),
            f"{prefix}ssl.key.location": str(here / f"node-{node}-key.pem"),
        }
    return [f"{name}={value}" for name, value in facts.items()]


def write_client_file(data: Path, address: str) -> Path:
    """How the administrator reaches the cluster: for its owner's eyes, as the key is."""
    path = data / CLIENT_FILE
    text = (
        "# The administrator of this cluster: hightide --config FILE …, or HIGHTIDE_CONFIG=FILE.\n"
        f'bootstrap.servers = "{address}"\n'
        'security.protocol = "SSL"\n'
        f'ssl.ca.location = "{CERTIFICATES}/ca.pem"\n'
        f'ssl.certificate.location = "{CERTIFICATES}/{ADMIN}.pem"\n'
        f'ssl.key.location = "{CERTIFICATES}/{ADMIN}-key.pem"\n'
    )
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
    return path
