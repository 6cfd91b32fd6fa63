"""A file with what clients are told: TOML with Kafka's dotted names, as `client.toml`.

`bootstrap.servers`, `security.protocol`, `ssl.ca.location`, …: what all clients have in common.
Paths are taken from where the file lies, and are whole: a process that works in another directory,
as Spark's executors do, finds them as well.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hightide.net.options import ClientOptions, from_config
from hightide.protocol.errors import UsageError

LOCATION = ".location"
"""Names that end like this are of files."""


def read_client_config(path: Path | str) -> dict[str, Any]:
    """The arguments of clients that a file names: `Admin(**read_client_config("client.toml"))`.
    Raises `UsageError`."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read as TOML: {error}") from error
    named = {
        name: str(path.parent.absolute() / value) if name.endswith(LOCATION) and value else value
        for name, value in _dotted(table, "")
    }
    try:
        return from_config(ClientOptions, named)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _dotted(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """In TOML the dots make tables; here they are part of a name."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
