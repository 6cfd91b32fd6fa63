"""A switch for whole runs: with HIGHTIDE_SECURE=1 the clusters that tests start by `up` have TLS,
users that log in, and permissions; commands and clients of the tests then come as their
administrator. No test lives here.
"""

import os
from pathlib import Path
from typing import Any

from hightide import read_client_config

IS_ON = os.environ.get("HIGHTIDE_SECURE") == "1"
WORDS = ("--secure",) if IS_ON else ()
"""What `up` is told."""
_CONFIGS: dict[str, Path] = {}


def remember(addresses: str, data: Path) -> None:
    """These brokers are of the cluster in that directory."""
    if IS_ON:
        _CONFIGS.update(dict.fromkeys(addresses.split(","), data / "client.toml"))


def config_of(addresses: str | None) -> Path | None:
    """The file by which clients come to these brokers; None: it takes none."""
    each = (addresses or "").split(",")
    return next((_CONFIGS[address] for address in each if address in _CONFIGS), None)


def reaching(addresses: str) -> dict[str, Any]:
    """The options of a client of these brokers."""
    config = config_of(addresses)
    options = read_client_config(config) if config else {}
    return options | {"bootstrap_servers": addresses}
