"""What nobody may read anywhere, in the shapes that it could be written in. No test lives here."""

import base64
import hashlib
import hmac
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from hightide.protocol.columns import to_records
from hightide.protocol.records import check_crc, iter_batches

METADATA = "__cluster_metadata-0"


class Secret(NamedTuple):
    """Something that is told to nobody."""

    name: str
    data: bytes
    is_kept: bool = False
    """Whether the metadata of a cluster has to hold it, as it is."""

    @property
    def shapes(self):
        """As it is, and as programs print bytes."""
        return _shapes(self.data)

    def found_in(self, text, *, but_raw=False):
        """The shapes in which it stands in a text; `but_raw`: other than as it is."""
        skipped = self.data if but_raw else None
        return [name for name, it in self.shapes.items() if it != skipped and it in text]


@cache
def _shapes(plain):
    return {
        "raw": plain,
        "hex": plain.hex().encode(),
        "HEX": plain.hex().upper().encode(),
        "base64": base64.b64encode(plain).rstrip(b"="),
        "base64 of URLs": base64.urlsafe_b64encode(plain).rstrip(b"="),
        "repr": repr(plain)[2:-1].encode(),
        "numbers": ", ".join(map(str, plain)).encode(),
    }


_salted = cache(hashlib.pbkdf2_hmac)
"""The nodes of a cluster keep the same, and in each of their snapshots once more."""


def kept_by(directory: Path):
    """What a node keeps of passwords: the changes in its metadata log and snapshots, as dicts."""
    found = []
    for path in sorted((directory / METADATA).iterdir()):
        if path.suffix in (".log", ".checkpoint"):
            for header, batch in iter_batches(path.read_bytes()):
                check_crc(batch, header)
                records = () if header.is_control else to_records(batch, header, "", 0)
                found += [msgspec.msgpack.decode(record.value) for record in records]
    return [change for change in found if change.get("type") in ("user_scram", "users_secret")]


def secrets_of(changes, passwords):
    """What is kept, and what it was made of: `passwords` are those that were ever given."""
    found = []
    for change in changes:
        if change["type"] == "users_secret":
            found.append(Secret("the users' secret", change["secret"], is_kept=True))
            continue
        whose = f"of {change['user']}, {change['mechanism']}"
        found += [
            Secret(f"{name} {whose}", change[name], is_kept=True)
            for name in ("stored_key", "server_key")
        ]
        kind = change["mechanism"].removeprefix("SCRAM-").replace("-", "").lower()
        for password in passwords:
            salted = _salted(kind, password.encode(), change["salt"], change["iterations"])
            client_key = hmac.digest(salted, b"Client Key", kind)
            if hashlib.new(kind, client_key).digest() == change["stored_key"]:
                found.append(Secret(f"salted password {whose}", salted))
                found.append(Secret(f"client key {whose}", client_key))
    return found
