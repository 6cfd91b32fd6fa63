"""`hightide bench logins` and `bench rules`: what it costs to know who is there, and what they may.

A login is measured at the client, each on a connection of its own: the floors are connections
without one, in clear text and under TLS. A decision is made by the broker's own authorizer, in
this process.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from hightide_broker.core.cluster.acls import Acl, Operation, Pattern, Permission, Resource
from hightide_broker.core.cluster.authorizer import Authorizer
from hightide_cli.bench.client import Way, data_option
from hightide_cli.bench.growth import numbers_option
from hightide_cli.options import output_option, run
from hightide_cli.output import show, show_one
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    from hightide.net.ports import Network

WARM = 3
"""Logins before it counts: the first one imports, and its salt is not known yet."""
TIMEOUT_S = 30.0
SEED = 7
USERS, TEAMS = 50, 100
ANYWHERE = "127.0.0.1"
QUESTIONS = 10_000
"""Different ones, no more than an authorizer remembers."""
ROUNDS = 5


@click.command(epilog="Example: hightide bench logins -n 200 -o json")
@click.option("-n", "--logins", type=click.IntRange(min=1), default=100, show_default=True)
@data_option
@output_option
def logins(logins: int, data: Path | None, output: str) -> None:
    """How long one connection takes to be of use to a user: by itself, under TLS, and with a login
    by password (SCRAM-SHA-512). Medians."""
    with OwnCluster(brokers=1, directory=data, secure=True) as cluster:
        plain, under_tls, with_login = run(_connections, cluster.way, cluster.address, logins)
    show_one(
        {
            "bench": "logins",
            "logins": logins,
            "tcp_p50_ms": plain,
            "tls_p50_ms": under_tls,
            "login_p50_ms": with_login,
            "login_beyond_tls_ms": round(with_login - under_tls, 3),
            "login_beyond_tcp_ms": round(with_login - plain, 3),
        },
        output,
    )


async def _connections(way: Way, address: str, count: int) -> list[float]:
    """Medians, in ms: in clear text, under TLS, with a login."""
    from hightide.net.options import ClientOptions, network_for
    from hightide.net.tcp import TcpNetwork

    nobody = {name: value for name, value in way.items() if not name.startswith("sasl_")}
    ways: list[Network] = [
        TcpNetwork(),
        network_for(ClientOptions(**{**nobody, "security_protocol": "SSL"})),
        network_for(ClientOptions(**way)),
    ]
    host, _, port = address.rpartition(":")
    return [await _connect(network, host, int(port), count) for network in ways]


async def _connect(network: Network, host: str, port: int, count: int) -> float:
    import trio

    times = []
    for _ in range(WARM + count):
        with trio.fail_after(TIMEOUT_S):
            began = time.perf_counter()
            stream = await network.connect(host, port)
            times.append(time.perf_counter() - began)
            await stream.aclose()
    return round(median(times[WARM:]) * 1000, 3)


@click.command(epilog="Example: hightide bench rules --rules 100,10000 -o json")
@numbers_option("--rules", default="10,100,1000,10000", what="rules")
@output_option
def rules(numbers: list[int], output: str) -> None:
    """What it takes to decide whether a user may read a topic, at growing numbers of rules: the
    first time, and each time after that. Medians of five rounds over 10 000 topics."""
    rows = [_decisions(number) for number in numbers]
    show(rows, output, columns=list(rows[0]), key="first_us")


def _decisions(number: int) -> dict[str, Any]:
    chance = random.Random(SEED)
    made = [_rule(n, chance) for n in range(number)]
    asked = [(f"User:u{n % USERS}", _topic(n)) for n in range(QUESTIONS)]
    first: list[float] = []
    known: list[float] = []
    for _ in range(ROUNDS):
        authorizer = Authorizer(made, super_users=frozenset())  # which remembers nothing
        first.append(_asked_us(authorizer, asked))
        known.append(_asked_us(authorizer, asked))
    return {
        "bench": "rules",
        "rules": number,
        "first_us": round(median(first), 2),
        "known_us": round(median(known), 2),
    }


def _asked_us(authorizer: Authorizer, asked: list[tuple[str, str]]) -> float:
    """What one of these questions, a user and a topic, takes on average."""
    allows = authorizer.allows
    began = time.perf_counter()
    for user, topic in asked:
        allows(user, ANYWHERE, Operation.READ, Resource.TOPIC, topic)
    return (time.perf_counter() - began) / len(asked) * 1e6


def _topic(number: int) -> str:
    return f"team-{number % TEAMS}.topic-{number}"


def _rule(number: int, chance: random.Random) -> Acl:
    """A third of them are about prefixes that begin with a team's name, a fifth deny."""
    topic = _topic(number)
    is_prefix = number % 3 == 0
    return Acl(
        resource=Resource.TOPIC,
        name=topic[: chance.randint(topic.index("."), len(topic))] if is_prefix else topic,
        pattern=Pattern.PREFIXED if is_prefix else Pattern.LITERAL,
        principal=f"User:u{number % USERS}",
        host="*",
        operation=chance.choice(list(Operation)),
        permission=Permission.DENY if number % 5 == 0 else Permission.ALLOW,
    )
