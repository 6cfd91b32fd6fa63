"""A switch for whole runs: with HIGHTIDE_SECURE=1 the clusters that tests start have TLS, users
that log in, and permissions; commands and clients of the tests then come as their administrator.

No test lives here. Without the switch every function gives what a cluster that is open wants. Which
cluster is at an address is known to the processes that a test starts as well.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hightide import read_client_config
from hightide.net.login import Way, way_of
from hightide.protocol.login_messages import MECHANISMS
from hightide.testing import BlockingCluster
from hightide_cli.own_cluster import OwnCluster
from hightide_cli.processes import nodes_of
from hightide_cli.secure_cluster import write_client_file

IS_ON = os.environ.get("HIGHTIDE_SECURE") == "1"
WORDS = ("--secure",) if IS_ON else ()
"""What `up` is told."""
_KNOWN = "SECURE_RUN_CLUSTERS"
_CONFIGS: dict[str, str] = json.loads(os.environ.get(_KNOWN, "{}"))


def open_only(reason: str) -> pytest.MarkDecorator:
    """Marks tests that make no sense on a secure cluster."""
    return pytest.mark.skipif(IS_ON, reason=reason)


def remember(data: Path, *more: str) -> None:
    """The nodes of the cluster in that directory, and who else is at `more`, take its file."""
    if IS_ON:
        facts = [facts for node in nodes_of(data) if "port" in (facts := node.facts())]
        addresses = [f"{each['host']}:{each['port']}" for each in facts]
        _CONFIGS.update(dict.fromkeys([*addresses, *more], str(data / "client.toml")))
        os.environ[_KNOWN] = json.dumps(_CONFIGS)


def config_of(addresses: str | None) -> Path | None:
    """The file by which clients come to these nodes; None: it takes none. Where a cluster was that
    is gone with its directory another one may be by now."""
    known = [Path(_CONFIGS.get(address, "")) for address in (addresses or "").split(",")]
    return next((path for path in known if path.is_file()), None)


def reaching(addresses: str) -> dict[str, Any]:
    """The arguments of a client of these nodes."""
    config = config_of(addresses)
    options = read_client_config(config) if config else {}
    return options | {"bootstrap_servers": addresses}


def spark_options(addresses: str) -> dict[str, str]:
    """The same for Spark, by the names of its options; passwords as paths."""
    return {name.replace("_", "."): value for name, value in reaching(addresses).items()}


def librdkafka_options(addresses: str) -> dict[str, str]:
    """The same for a client of Kafka's, which takes a password and no path to one."""
    options = spark_options(addresses)
    if password := options.pop("sasl.password.location", ""):
        options |= {"sasl.mechanism": MECHANISMS[-1], "sasl.password": Path(password).read_text()}
    return options


def variables(addresses: str | None) -> dict[str, str]:
    """The same for a command, in its environment."""
    config = config_of(addresses)
    return {"HIGHTIDE_CONFIG": str(config)} if config else {}


def direct(addresses: str) -> tuple[str, Way]:
    """The same for a client on plain sockets, `BlockingClient(*direct(…))`."""
    options = spark_options(addresses)
    return addresses, way_of(lambda name: options.get(name, ""))


@contextmanager
def own_cluster(**options: Any) -> Iterator[OwnCluster]:
    """Processes, as `OwnCluster`; secure with the switch."""
    with OwnCluster(secure=IS_ON, **options) as cluster:
        introduce(cluster.address, cluster.nodes[0].data)
        yield cluster


@contextmanager
def blocking_cluster(brokers: int, **options: Any) -> Iterator[BlockingCluster]:
    """Brokers in this process, as `BlockingCluster`; secure with the switch."""
    with BlockingCluster(brokers, secure=IS_ON, **options) as cluster:
        introduce(cluster.bootstrap, cluster.directory)
        yield cluster


def introduce(addresses: str, data: Path) -> None:
    """The cluster in that directory, whose certificates are there, is at these addresses."""
    if IS_ON:
        write_client_file(data, addresses)
        remember(data, *addresses.split(","))
