"""A node's configuration: Kafka's names and units, validated once, frozen.

Where a value comes from, the first that has it: `--set key=value`, the environment (`HIGHTIDE_` +
the key in capitals with `_` for `.`), the TOML file, the default here. In TOML the dots make
tables: `log.segment.bytes = "1GiB"` and `[log.segment] bytes = "1GiB"` are the same. Sizes take
KiB, MiB, GiB, times take ms, s, m, h, d. An unknown key is an error that names the nearest known
one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hightide.protocol.errors import Refused
from hightide_broker.config_keys import KEYS, Key
from hightide_broker.core.cluster.topic_config import TOPIC_KEYS, unknown_key

ENVIRONMENT_PREFIX = "HIGHTIDE_"
EVERY_ADDRESS = ("", "0.0.0.0", "::", "[::]", "*")


class ConfigError(Exception):
    """A configuration key or value that cannot be; the message names key, value and expectation."""


_UNITS = {
    "bytes": {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40},
    "ms": {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000},
}


def parse_quantity(key: Key, text: str) -> int:
    """A whole number with an optional unit; raises `ConfigError`."""
    stripped = text.strip().lower()
    digits = stripped.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = stripped[len(stripped.rstrip("abcdefghijklmnopqrstuvwxyz")) :]
    units = _UNITS.get(key.unit, {"": 1})
    number: int | None = None
    with suppress(ValueError):
        number = int(digits.replace("_", ""))
    if number is None or unit not in units:
        kinds = ", ".join(name for name in units if name)
        expected = f"a whole number, units {kinds}" if kinds else "a whole number"
        raise ConfigError(f"{key.name} is {text!r}, expected {expected}")
    value = number * units[unit] if number >= 0 else number
    if value < key.low:
        raise ConfigError(f"{key.name} is {text!r}, expected {key.low} or more")
    if value > key.high:
        raise ConfigError(f"{key.name} is {text!r}, expected {key.high} or less")
    return value


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A node's effective values."""

    values: Mapping[str, str]
    given: frozenset[str] = field(default_factory=frozenset)
    """The keys that somebody set."""

    def text(self, name: str) -> str:
        """A value as it was written."""
        return self.values[name]

    def number(self, name: str) -> int:
        """A value in bytes, in ms, or as a count."""
        return parse_quantity(KEYS[name], self.values[name])

    def seconds(self, name: str) -> float:
        """A value in ms, in seconds."""
        return self.number(name) / 1000

    @property
    def advertised_host(self) -> str:
        return self.values["advertised.host"] or self.values["listen.host"]

    @property
    def roles(self) -> tuple[str, ...]:
        """`broker`, `controller`, or both; raises `ConfigError`."""
        roles = tuple(role.strip() for role in self.text("process.roles").split(","))
        if not roles or set(roles) - {"broker", "controller"} or len(set(roles)) != len(roles):
            raise ConfigError(
                f"process.roles is {self.text('process.roles')!r}, expected broker, controller, "
                f"or broker,controller"
            )
        return roles

    @property
    def voters(self) -> dict[int, tuple[str, int]]:
        """Where each controller listens; this node alone where nothing is set. Raises
        `ConfigError` for what cannot be."""
        text = self.text("controller.quorum.voters")
        node, is_controller = self.number("node.id"), "controller" in self.roles
        voters = {node: (self.advertised_host, self.number("listen.port"))} if not text else {}
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
                f"node {node} has process.roles={self.text('process.roles')} and "
                f"controller.quorum.voters={text!r}: exactly the controllers are voters"
            )
        return voters

    def topic_defaults(self) -> dict[str, str]:
        """What this node sets for topics that do not say themselves, in topic keys."""
        defaults = {}
        for key in KEYS.values():
            if key.topic_key:
                plain = key.is_text or key.is_float or key.choices
                value = self.values[key.name] if plain else str(self.number(key.name))
                defaults[key.topic_key] = value
        return defaults


def make_config(*sources: Mapping[str, str]) -> BrokerConfig:
    """The configuration of these sources, later ones over earlier ones; raises `ConfigError`."""
    values = {key.name: key.default for key in KEYS.values()}
    given: dict[str, str] = {}
    for source in sources:
        given.update(source)
    for name, value in given.items():
        key = KEYS.get(name)
        if key is None:
            raise ConfigError(unknown_key(name, KEYS))
        _check(key, value)
    config = BrokerConfig({**values, **given}, frozenset(given))
    if config.advertised_host in EVERY_ADDRESS:
        name = "advertised.host" if config.text("advertised.host") else "listen.host"
        raise ConfigError(
            f"{name} is {config.advertised_host!r}, each address of a machine and the way to none: "
            "expected advertised.host, the name that clients and other brokers reach this node by"
        )
    node = config.number("node.id")
    if any(voter != node for voter in config.voters) and not config.text("cluster.id"):
        raise ConfigError(
            "cluster.id is empty, expected the id that all nodes of controller.quorum.voters share "
            "(hightide storage id makes one)"
        )
    return config


def _check(key: Key, value: str) -> None:
    if key.choices and value not in key.choices:
        raise ConfigError(f"{key.name} is {value!r}, expected one of {', '.join(key.choices)}")
    if key.is_float:
        try:
            float(value)
        except ValueError as error:
            raise ConfigError(f"{key.name} is {value!r}, expected a number") from error
    plain = value
    if not (key.is_text or key.is_float or key.choices):
        plain = str(parse_quantity(key, value))
    if key.topic_key:
        try:
            TOPIC_KEYS[key.topic_key].check(plain)
        except Refused as refusal:
            expected = refusal.message.rpartition("expected ")[2]
            raise ConfigError(f"{key.name} is {value!r}, expected {expected}") from refusal


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
            raise ConfigError(f"{prefix}{name} is {value!r}, expected text or a number")
    return flat


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys that environment variables set; other HIGHTIDE_ variables are not this node's."""
    names = {environment_name(key): key for key in KEYS}
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
