"""A cluster on one machine whose doors are closed: certificates, settings of its nodes, and an
administrator who logs in.

For `hightide up --secure` and `hightide.testing`. One directory has the authority, a certificate
for each node, and the administrator's password; nobody else comes in before they let them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from secrets import token_urlsafe

from hightide.protocol.login_messages import ScramUpsertion
from hightide_broker.whole_files import put_file

ADMIN = "admin"
PASSWORD_FILE = f"{ADMIN}.password"
_PASSWORD_BYTES = 24
LOOPBACK = ("127.0.0.1", "localhost")


def make_secrets(directory: Path, nodes: Iterable[int]) -> None:
    """Those that are not there yet. Raises `CertificatesRefused`, or `OSError`."""
    from hightide_broker.certificates import create_authority, open_authority

    names = [f"node-{node}" for node in nodes]
    missing = [name for name in names if not (directory / f"{name}.pem").exists()]
    if missing:
        is_new = not (directory / "ca.pem").exists()
        authority = create_authority(directory) if is_new else open_authority(directory)
        directory.chmod(0o700)
        for name in missing:
            authority.issue(name, LOOPBACK)
    password = token_urlsafe(_PASSWORD_BYTES).encode()
    put_file(directory / PASSWORD_FILE, password, mode=0o600, replaces=False)


def first_users(directory: Path) -> list[ScramUpsertion]:
    """The administrator, as a new cluster's directories are made with; raises `UsageError`."""
    from hightide.admin.passwords import salted

    return salted(ADMIN, (directory / PASSWORD_FILE).read_text(encoding="utf-8"))


def node_settings(directory: Path, node: int, internal_port: int) -> dict[str, str]:
    """What makes a node a secure one; `internal_port` is where other nodes come in."""
    here = directory.resolve()
    keys = {
        "internal.listen.port": str(internal_port),
        "internal.security.protocol": "SSL",
        "security.protocol": "SASL_SSL",
        "authorizer.enable": "true",
        "super.users": f"User:{ADMIN}",
    }
    for prefix in ("", "internal."):
        keys |= {
            f"{prefix}ssl.ca.location": str(here / "ca.pem"),
            f"{prefix}ssl.certificate.location": str(here / f"node-{node}.pem"),
            f"{prefix}ssl.key.location": str(here / f"node-{node}-key.pem"),
        }
    return keys


def client_settings(directory: Path | str) -> dict[str, str]:
    """How the administrator comes in, by the names of a `client.toml`; paths are below
    `directory`."""
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": f"{directory}/ca.pem",
        "sasl.username": ADMIN,
        "sasl.password.location": f"{directory}/{PASSWORD_FILE}",
    }
