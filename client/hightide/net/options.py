"""What every client may be told, and how: by keywords, or by a mapping with Kafka's dotted names.

Each client has one frozen struct of options, in its own room. Both worlds, async and blocking, are
constructed with the struct's own arguments, so that an option stands in one place: its name, type,
default and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import wraps
from inspect import Parameter, signature
from types import MappingProxyType, NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar

from hightide.net.explained import explained
from hightide.net.login import LoginNetwork, way_of
from hightide.net.ports import Network, Random
from hightide.net.tcp import TcpNetwork
from hightide.net.tls_stream import TlsNetwork
from hightide.net.warned import Warned
from hightide.protocol.errors import HightideError, UsageError, did_you_mean, seconds, whole

P = ParamSpec("P")
S = TypeVar("S")
Options = TypeVar("Options")

DEFAULT_BOOTSTRAP = "127.0.0.1:19092"


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "bool | None": ((bool, NoneType), "True, False or None"),
    "str": ((str,), "text"),
    "str | None": ((str, NoneType), "text or None"),
}
"""By how an option's type is written: what it may be, and how that is called."""


@explained
@dataclass(frozen=True)
class ClientOptions:
    """What all clients have in common. Times are in milliseconds, sizes in bytes."""

    bootstrap_servers: str | Sequence[str] = DEFAULT_BOOTSTRAP
    """`host:port` of brokers to ask first, several with commas or as a list; one that answers is
    enough. Kafka: bootstrap.servers."""
    _: KW_ONLY
    client_id: str = "hightide"
    """What brokers call this client in their logs and in group members' ids. Kafka: client.id."""
    request_timeout_ms: float = 30_000
    """How long one request may take. Kafka: request.timeout.ms."""
    on_retry: Callable[[HightideError], None] | None = None
    """Told why something is tried again; not called for what fails for good. If it has a method
    `silent(broker, patience_s)`, a producer calls that, too, once a broker that owes an answer has
    said nothing for 5 s. None: the log `hightide` is warned where nobody answers."""
    metadata_max_age_ms: float = 300_000
    """How long what is known of brokers, topics and leaders is believed without a reason to doubt
    it. Kafka: metadata.max.age.ms."""
    security_protocol: str = "PLAINTEXT"
    """How brokers are spoken to: PLAINTEXT, or SSL, which is TLS; SASL_SSL or SASL_PLAINTEXT where
    users log in. Kafka: security.protocol."""
    sasl_mechanism: str = ""
    """SCRAM-SHA-512, which it is if empty, or SCRAM-SHA-256. Kafka: sasl.mechanism."""
    sasl_username: str = ""
    """Who logs in. librdkafka: sasl.username."""
    sasl_password: str = field(default="", repr=False)
    """The password; it is salted and hashed here and does not leave. librdkafka: sasl.password."""
    sasl_password_location: str = ""
    """A file with the password instead."""
    ssl_ca_location: str = ""
    """A PEM file of the authorities whose certificates brokers may show; empty: the system's.
    librdkafka: ssl.ca.location."""
    ssl_certificate_location: str = ""
    """A PEM file with this client's own certificate, for brokers that want one. librdkafka:
    ssl.certificate.location."""
    ssl_key_location: str = ""
    """A PEM file with the key of it; empty: it is in the certificate's. librdkafka:
    ssl.key.location."""
    ssl_key_password: str = field(default="", repr=False)
    """The password of that key, if it is encrypted. librdkafka: ssl.key.password."""
    ssl_key_password_location: str = ""
    """A file with the password of that key, instead."""
    ssl_endpoint_identification_algorithm: str = "https"
    """https: a broker's certificate must be of the host that was asked for; none: of any. Kafka:
    ssl.endpoint.identification.algorithm."""
    network: Network | None = None
    """For tests: how connections are made."""
    random: Random | None = None
    """For tests: the source of chance, for back-offs and the choice of brokers."""

    def __post_init__(self) -> None:
        """Raises `UsageError` for a number that is none, and for a text where True or False is
        meant: `"false"` would be true."""
        if self.on_retry is None:
            object.__setattr__(self, "on_retry", Warned())  # frozen for everybody else
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int":
                # Numbers of numpy become Python's own.
                object.__setattr__(self, each.name, whole(each.name, value, least=0))
            elif each.type == "float":
                seconds(each.name, value)
            elif each.type in _KINDS:
                kinds, expected = _KINDS[str(each.type)]
                if not isinstance(value, kinds):
                    shown = repr(value) if each.repr else "something else"
                    raise UsageError(f"{each.name} is {shown}, expected {expected}")


def network_for(options: ClientOptions) -> Network:
    """How a client with these options comes to brokers. Raises `UsageError`."""
    way = way_of(lambda name: str(getattr(options, name.replace(".", "_"))))
    network = options.network or (TcpNetwork() if way.tls is None else TlsNetwork(way.tls))
    return network if way.login is None else LoginNetwork(network, way.login)


def taking(
    options: Callable[P, Options],
) -> Callable[[Callable[[S, Options], None]], Callable[Concatenate[S, P], None]]:
    """Have an `__init__` that wants an options struct be called with the struct's arguments.

    It raises `UsageError` for an option that there is not, with the one that was meant.
    """

    def decorate(init: Callable[[S, Options], None]) -> Callable[Concatenate[S, P], None]:
        @wraps(init)
        def __init__(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            check_names(kwargs, own.parameters, of=type(self).__name__)
            init(self, options(*args, **kwargs))

        own = signature(options)
        this = Parameter("self", Parameter.POSITIONAL_ONLY)
        shown = own.replace(parameters=[this, *own.parameters.values()], return_annotation=None)
        # What `help`, editors and the reference show; not what is wrapped.
        __init__.__signature__ = shown  # type: ignore[attr-defined]
        del __init__.__wrapped__
        return __init__

    return decorate


def arguments(options: ClientOptions) -> dict[str, Any]:
    """The arguments that make the same struct again."""
    return {field.name: getattr(options, field.name) for field in fields(options)}


def from_config(
    options: type[ClientOptions],
    config: Mapping[str, Any],
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The arguments of `options` that Kafka's dotted names stand for: `linger.ms` is `linger_ms`.
    Values may be text, as in a properties file; `more` are arguments already. Raises
    `UsageError`."""
    known = {field.name.replace("_", "."): field for field in fields(options)}
    said = [name for name, field in known.items() if _is_said(str(field.type))]
    for name, value in config.items():
        meant = said if isinstance(value, str) else known
        check_names([name], known, of=options.__name__, meant=meant)
        if known[name].name in more:
            raise UsageError(f"{name} is given twice, as {known[name].name} too")
    parsed = {
        known[name].name: _parsed(name, value, str(known[name].type))
        for name, value in config.items()
    }
    return parsed | dict(more)


def check_names(
    given: Iterable[str], known: Iterable[str], *, of: str, meant: Iterable[str] = ()
) -> None:
    """Raise `UsageError` for the first name that is not known, with the one that was meant: of all
    of them, or of those that can be `meant`."""
    names = list(known)
    for name in given:
        if name not in names:
            names = list(meant) or names
            hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
            raise UsageError(f"{of} has no option {name!r}{hint}")


_BOOLS = {"true": True, "false": False}


def _is_said(kind: str) -> bool:
    """Whether a text can stand for a value of this type."""
    return any(word in ("str", "bool", "int", "float") for word in kind.split(" | "))


def _parsed(name: str, value: object, kind: str) -> object:
    """Text as a value of the option's type; whatever is no text stays as it is."""
    if not isinstance(value, str) or "str" in kind:
        return value
    if not _is_said(kind):
        raise UsageError(f"{name} is {value!r}, and no text: programs alone can give it")
    try:
        if "bool" in kind:
            return _BOOLS[value.strip().lower()]
        return int(value) if kind == "int" else float(value)
    except (KeyError, ValueError) as error:
        expected = "true or false" if "bool" in kind else "a number"
        raise UsageError(f"{name} is {value!r}, expected {expected}") from error
