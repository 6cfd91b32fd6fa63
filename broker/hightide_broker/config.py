"""A node's configuration: Kafka's names and units, validated once, frozen.

Where a value comes from, the first that has it: `--set key=value`, the environment (`HIGHTIDE_` +
the key in capitals with `_` for `.`), the TOML file, the default here. In TOML the dots make
tables: `log.segment.bytes = "1GiB"` and `[log.segment] bytes = "1GiB"` are the same. Sizes take
KiB, MiB, GiB, and KB, MB, GB for powers of 1000; times take ms, s, m, h, d. An unknown key is an
error that names the nearest known one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hightide.protocol.hosts import is_loopback
from hightide_broker import config_keys as keys
from hightide_broker.core.cluster.config_key import Key, Unfit
from hightide_broker.core.cluster.topic_config import unknown_key

T = TypeVar("T")
ENVIRONMENT_PREFIX = "HIGHTIDE_"
TLS = "SSL"
"""security.protocol of a listener under TLS, by Kafka's name."""
LOOPBACK = "127.0.0.1"
EVERY_ADDRESS = ("", "0.0.0.0", "::", "[::]", "*")


class ConfigError(Exception):
    """A configuration key or value that cannot be; the message names key, value and expectation."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A node's effective values."""

    values: Mapping[str, str]
    given: frozenset[str] = field(default_factory=frozenset)
    """The keys that somebody set."""

    def __getitem__(self, key: Key[T]) -> T:
        """A value, in its key's type: sizes in bytes, durations in ms."""
        return key.value(self.values[key.name])

    def seconds(self, key: Key[int]) -> float:
        """A duration in seconds."""
        assert key.unit == "ms", f"{key.name} is no duration"
        return self[key] / 1000

    @property
    def heartbeat_s(self) -> float:
        """How often a broker says that it is alive: one that did so only as its session ends would
        be fenced again and again, as long as its heartbeats take a moment."""
        session_s = self.seconds(keys.BROKER_SESSION_TIMEOUT_MS)
        return min(self.seconds(keys.BROKER_HEARTBEAT_INTERVAL_MS), session_s / 3)

    @property
    def advertised_host(self) -> str:
        return self[keys.ADVERTISED_HOST] or self[keys.LISTEN_HOST]

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where metrics are told, if they are; raises `ConfigError`."""
        said = self[keys.METRICS_LISTEN].strip()
        place = place_to_listen(said)
        if said and place is None:
            raise ConfigError(
                f"{keys.METRICS_LISTEN.name} is {said!r}, expected HOST:PORT, or a PORT of loopback"
            )
        return place

    @property
    def is_split(self) -> bool:
        """Whether nodes have a listener of their own."""
        return self[keys.INTERNAL_LISTEN_PORT] >= 0

    @property
    def clients_under_tls(self) -> bool:
        """Whether clients speak TLS."""
        return self[keys.SECURITY_PROTOCOL].endswith(TLS)

    @property
    def users_log_in(self) -> bool:
        """Whether clients say who they are, with a password."""
        return self[keys.SECURITY_PROTOCOL].startswith("SASL_")

    @property
    def clients_prove(self) -> bool:
        """Whether clients must prove who they are."""
        shows = self.clients_under_tls and self[keys.SSL_CLIENT_AUTH] == "required"
        return shows or self.users_log_in

    @property
    def internal_listen_host(self) -> str:
        return self[keys.INTERNAL_LISTEN_HOST] or self[keys.LISTEN_HOST]

    @property
    def internal_advertised_host(self) -> str:
        return self[keys.INTERNAL_ADVERTISED_HOST] or self.internal_listen_host

    @property
    def roles(self) -> tuple[str, ...]:
        """`broker`, `controller`, or both; raises `ConfigError`."""
        roles = tuple(role.strip() for role in self[keys.PROCESS_ROLES].split(","))
        if not roles or set(roles) - {"broker", "controller"} or len(set(roles)) != len(roles):
            raise ConfigError(
                f"process.roles is {self[keys.PROCESS_ROLES]!r}, expected broker, controller, "
                f"or broker,controller"
            )
        return roles

    @property
    def voters(self) -> dict[int, tuple[str, int]]:
        """Where each controller listens; this node alone where nothing is set. Raises
        `ConfigError` for what cannot be."""
        text = self[keys.CONTROLLER_QUORUM_VOTERS]
        node, is_controller = self[keys.NODE_ID], "controller" in self.roles
        own = self.advertised_host, self[keys.LISTEN_PORT]
        if self.is_split:
            own = self.internal_advertised_host, self[keys.INTERNAL_LISTEN_PORT]
        voters = {node: own} if not text else {}
        for entry in filter(None, text.split(",")):
            number, at, address = entry.strip().partition("@")
            host, colon, port = address.rpartition(":")
            if not (at and colon and host and number.isdecimal() and port.isdecimal()):
                raise ConfigError(f"controller.quorum.voters has {entry!r}, expected ID@HOST:PORT")
            if int(number) < 1 or not 1 <= int(port) <= 65535:
                raise ConfigError(
                    f"controller.quorum.voters has {entry!r}, expected an id of 1 or more and a "
                    f"port of 1 to 65535"
                )
            if int(number) in voters:
                raise ConfigError(f"controller.quorum.voters names node {number} twice")
            voters[int(number)] = (host, int(port))
        if not voters or (node in voters) != is_controller:
            raise ConfigError(
                f"node {node} has process.roles={self[keys.PROCESS_ROLES]} and "
                f"controller.quorum.voters={text!r}: exactly the controllers are voters"
            )
        return voters

    def topic_defaults(self) -> dict[str, str]:
        """What this node sets for topics that do not say themselves, in topic keys."""
        defaults = {}
        for key in keys.KEYS.values():
            if key.topic_key:
                defaults[key.topic_key.name] = _for_topics(key, self.values[key.name])
        return defaults


def make_config(*sources: Mapping[str, str]) -> BrokerConfig:
    """The configuration of these sources, later ones over earlier ones; raises `ConfigError`."""
    values = {key.name: key.default for key in keys.KEYS.values()}
    given: dict[str, str] = {}
    for source in sources:
        given.update(source)
    for name, value in given.items():
        key = keys.KEYS.get(name)
        if key is None:
            raise ConfigError(unknown_key(name, keys.KEYS))
        _check(key, value)
    config = BrokerConfig({**values, **given}, frozenset(given))
    if config.advertised_host in EVERY_ADDRESS:
        check_open(config)  # who has set neither hears of what matters more
        name = "advertised.host" if config[keys.ADVERTISED_HOST] else "listen.host"
        raise ConfigError(
            f"{name} is {config.advertised_host!r}, each address of a machine and the way to none: "
            "expected advertised.host, the name that clients and other brokers reach this node by"
        )
    _ = config.metrics_address  # raises
    node = config[keys.NODE_ID]
    if any(voter != node for voter in config.voters) and not config[keys.CLUSTER_ID]:
        raise ConfigError(
            "cluster.id is empty, expected the id that all nodes of controller.quorum.voters share "
            "(hightide storage id makes one)"
        )
    return config


def check_listeners(config: BrokerConfig) -> None:
    """Raise `ConfigError` for listeners that cannot work together, or lack a file."""
    inside, outside = config[keys.INTERNAL_SECURITY_PROTOCOL] == TLS, config.clients_under_tls
    if (inside or outside or config.users_log_in) and not config.is_split:
        raise ConfigError(
            "internal.listen.port is -1, expected a port of their own for nodes: where "
            "security.protocol or internal.security.protocol is not PLAINTEXT, they do not come as "
            "clients do"
        )
    if config[keys.AUTHORIZER_ENABLE] and not inside:
        raise ConfigError(
            "authorizer.enable is true and internal.security.protocol is PLAINTEXT, expected SSL: "
            "who may be taken for a node needs no permission"
        )
    _check_whole(config)
    for user in filter(None, config[keys.SUPER_USERS].split(";")):
        if not user.strip().startswith("User:"):
            raise ConfigError(f"super.users has {user.strip()!r}, expected User:<name>")
    needed = [keys.SSL_CERTIFICATE_LOCATION] if outside else []
    if outside and config[keys.SSL_CLIENT_AUTH] != "none":
        needed.append(keys.SSL_CA_LOCATION)
    if inside:
        needed += [keys.INTERNAL_SSL_CERTIFICATE_LOCATION, keys.INTERNAL_SSL_CA_LOCATION]
    for key in needed:
        if not config[key]:
            raise ConfigError(f"{key.name} is empty, expected a PEM file: {key.doc}")


_OUTSIDE_TLS = (
    keys.SSL_CERTIFICATE_LOCATION,
    keys.SSL_KEY_LOCATION,
    keys.SSL_KEY_PASSWORD_LOCATION,
    keys.SSL_CA_LOCATION,
    keys.SSL_CLIENT_AUTH,
    keys.SSL_PRINCIPAL_MAPPING_RULES,
)
_INSIDE_TLS = (
    keys.INTERNAL_SSL_CERTIFICATE_LOCATION,
    keys.INTERNAL_SSL_KEY_LOCATION,
    keys.INTERNAL_SSL_KEY_PASSWORD_LOCATION,
    keys.INTERNAL_SSL_CA_LOCATION,
)


def _check_whole(config: BrokerConfig) -> None:
    """Raise `ConfigError` for what would protect something if it were used: who sets it takes the
    door for closed."""
    inside = config[keys.INTERNAL_SECURITY_PROTOCOL] == TLS
    protections: list[tuple[bool, tuple[Key[Any], ...], str]] = [
        (config.clients_under_tls, _OUTSIDE_TLS, f"{keys.SECURITY_PROTOCOL.name} SSL or SASL_SSL"),
        (inside, _INSIDE_TLS, f"{keys.INTERNAL_SECURITY_PROTOCOL.name} SSL"),
        (
            config.users_log_in,
            (keys.CONNECTIONS_MAX_REAUTH_MS,),
            f"{keys.SECURITY_PROTOCOL.name} SASL_SSL or SASL_PLAINTEXT",
        ),
        (
            config[keys.AUTHORIZER_ENABLE],
            (keys.SUPER_USERS,),
            f"{keys.AUTHORIZER_ENABLE.name} true",
        ),
    ]
    for is_used, of, needs in protections:
        for key in () if is_used else of:
            if config[key] != key.parse(key.default):
                raise ConfigError(f"{key.name} is set and without effect, expected {needs} with it")


def listeners_that_ask_nobody(config: BrokerConfig) -> dict[str, bool]:
    """By listener, whether it lets in who does not prove who it is."""
    found = {"client": not config.clients_prove}
    if config.is_split:
        found["internal"] = config[keys.INTERNAL_SECURITY_PROTOCOL] != TLS
    return found


def listens_at(config: BrokerConfig) -> dict[str, tuple[str, int]]:
    """Where a node listens: for clients, for nodes if they come by a door of their own, and for
    metrics. Port 0: any free one."""
    found = {"client": (config[keys.LISTEN_HOST], config[keys.LISTEN_PORT])}
    if config.is_split:
        found["internal"] = config.internal_listen_host, config[keys.INTERNAL_LISTEN_PORT]
    if metrics := config.metrics_address:
        found["metrics"] = metrics
    return found


def open_listeners(config: BrokerConfig) -> list[str]:
    """The listeners where others than this machine's users may do anything: each is reached from
    elsewhere, and asks nobody who they are."""
    places = listens_at(config)
    asking_nobody = [name for name, it_does in listeners_that_ask_nobody(config).items() if it_does]
    return [
        f"{host}:{port}"
        for host, port in map(places.__getitem__, asking_nobody)
        if not is_loopback(host)
    ]


def ways_in(config: BrokerConfig) -> list[tuple[str, str]]:
    """Each listener with each way to prove there who one is, as metrics name them."""
    found = [("client", "TLS")] if config.clients_under_tls else []
    found += [("client", "SCRAM")] if config.users_log_in else []
    is_tls = config.is_split and config[keys.INTERNAL_SECURITY_PROTOCOL] == TLS
    return found + ([("internal", "TLS")] if is_tls else [])


def open_metrics(config: BrokerConfig) -> str:
    """The HOST:PORT where others than this machine's users are told its metrics, as that port asks
    nobody who they are; empty: there is none."""
    address = config.metrics_address
    return "" if address is None or is_loopback(address[0]) else config[keys.METRICS_LISTEN].strip()


def check_open(config: BrokerConfig) -> None:
    """Raise `ConfigError` for a listener that is open to others, unless it is said to be meant."""
    if (found := open_listeners(config)) and not config[keys.ALLOW_INSECURE_LISTENER]:
        raise ConfigError(
            f"it would listen on {' and '.join(found)}, where all who reach it may do anything. "
            f"Expected one of: listen.host = 127.0.0.1; certificates of nodes "
            f"(internal.security.protocol = SSL; hightide certs makes them), and users that log in "
            f"or certificates of clients (security.protocol = SASL_SSL, or SSL and "
            f"ssl.client.auth = required); or allow.insecure.listener = true, in a network that "
            f"only the trusted reach"
        )


def place_to_listen(text: str) -> tuple[str, int] | None:
    """Where HOST:PORT, or a PORT of loopback, says; None if it is neither."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        return None
    return host.strip("[]") or LOOPBACK, int(port)


def _check(key: Key[Any], value: str) -> None:
    try:
        key.parse(value)
        if key.topic_key:
            key.topic_key.parse(_for_topics(key, value))
    except Unfit as unfit:
        raise ConfigError(f"{key.name} is {value!r}, expected {unfit.expected}") from unfit


def _for_topics(key: Key[Any], value: str) -> str:
    """The value as a topic's, whose numbers are written plainly."""
    parsed = key.parse(value)
    is_number = isinstance(parsed, int) and not isinstance(parsed, bool)
    return str(parsed) if is_number else value.strip()


def read_toml(text: str) -> dict[str, str]:
    """The keys of a TOML file, tables joined with dots; raises `ConfigError`."""
    try:
        return _flatten(tomllib.loads(text), "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file is no TOML: {error}") from error


def _flatten(table: Mapping[str, object], prefix: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{name}."))
        elif isinstance(value, bool):
            flat[prefix + name] = str(value).lower()
        elif isinstance(value, str | int | float):
            flat[prefix + name] = str(value)
        else:
            # Not what it says: it may be a password, of a key that there is not.
            kind = type(value).__name__
            raise ConfigError(f"{prefix}{name} is a {kind}, expected text or a number")
    return flat


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys that environment variables set; other HIGHTIDE_ variables are not this node's."""
    names = {environment_name(key): key for key in keys.KEYS}
    return {names[name]: value for name, value in environment.items() if name in names}


def environment_name(key: str) -> str:
    """The environment variable that sets a key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def read_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    """The keys of `--set key=value` flags; raises `ConfigError`."""
    pairs: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment!r}, expected key=value")
        pairs[name.strip()] = value.strip()
    return pairs
