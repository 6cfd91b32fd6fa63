"""A cluster on one machine whose every door is under TLS: its certificates, its nodes' settings.

For `hightide up --secure` and `hightide.testing`. One directory has the authority, a certificate
for each node, and one for an administrator; nobody comes in without one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ADMIN = "admin"
LOOPBACK = ("127.0.0.1", "localhost")


def make_certificates(directory: Path, nodes: Iterable[int]) -> None:
    """Those that are not there yet. Raises `CertificatesRefused`."""
    from hightide_broker.certificates import create_authority, open_authority

    wanted = {**{f"node-{node}": LOOPBACK for node in nodes}, ADMIN: ()}
    missing = {n: hosts for n, hosts in wanted.items() if not (directory / f"{n}.pem").exists()}
    if not missing:
        return
    is_new = not (directory / "ca.pem").exists()
    authority = create_authority(directory) if is_new else open_authority(directory)
    directory.chmod(0o700)
    for name, hosts in missing.items():
        authority.issue(name, hosts)


def node_settings(directory: Path, node: int, internal_port: int) -> dict[str, str]:
    """What makes a node a secure one; `internal_port` is where other nodes come in."""
    here = directory.resolve()
    keys = {"internal.listen.port": str(internal_port), "ssl.client.auth": "required"}
    keys |= {"authorizer.enable": "true", "super.users": f"User:{ADMIN}"}
    for prefix in ("", "internal."):
        keys |= {
            f"{prefix}security.protocol": "SSL",
            f"{prefix}ssl.ca.location": str(here / "ca.pem"),
            f"{prefix}ssl.certificate.location": str(here / f"node-{node}.pem"),
            f"{prefix}ssl.key.location": str(here / f"node-{node}-key.pem"),
        }
    return keys


def client_settings(directory: Path | str) -> dict[str, str]:
    """How the administrator comes in, by the names of a `client.toml`; paths are below
    `directory`."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": f"{directory}/ca.pem",
        "ssl.certificate.location": f"{directory}/{ADMIN}.pem",
        "ssl.key.location": f"{directory}/{ADMIN}-key.pem",
    }
