"""The doors of a node: who may come in by which, and who proves to be whom.

A node has one door for everybody, or one for clients and one for nodes. By the nodes' own door,
under TLS, a certificate says which node its holder is: its common name is `node-<id>`.
"""

from __future__ import annotations

import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import trio

from hightide.net.ports import Network, Stream
from hightide.net.tcp import TcpNetwork, TcpStream
from hightide.net.tls import Tls, TlsFiles, check_own, check_pair, server_context
from hightide.net.tls_stream import TlsNetwork, TlsStream, secured
from hightide.protocol import wire
from hightide.protocol.errors import AuthenticationFailed, ErrorCode, UsageError
from hightide.protocol.records import Buffer
from hightide_broker import config_keys as keys
from hightide_broker.config import TLS, BrokerConfig, ConfigError, check_listeners
from hightide_broker.core.cluster.names import USER
from hightide_broker.core.cluster.principals import Rule, name_by, parse_rules
from hightide_broker.core.cluster.senders import name_of, node_of
from hightide_broker.runtime.base.call import ANONYMOUS, Peer
from hightide_broker.runtime.server.guesses import Turnstile

log = logging.getLogger("hightide.server")

HANDSHAKE_S = 10.0
"""How long a peer has to agree about TLS."""
LOOK_S = 30.0
"""How often certificates are looked at, whether their files were replaced."""
_ASKS = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

Admit = Callable[[Stream], Awaitable[tuple[Stream, Peer]]]
"""The stream as it is used from here on, and who is there; raises `OSError` or
`AuthenticationFailed`."""


class Door(NamedTuple):
    """Where a node listens, and how others come in."""

    host: str
    port: int
    admit: Admit
    of_nodes: bool = False
    """Whether it is for nodes alone."""
    users_log_in: bool = False
    """Whether who comes in says who it is, with a password."""
    rate: int | None = None
    """Connections a second that are taken; None: as many as come."""

    @property
    def name(self) -> str:
        """The listener's."""
        return "internal" if self.of_nodes else "client"


class Certificates:
    """Those of one door, exchanged whole when their files are replaced; who is in stays in."""

    def __init__(
        self,
        files: TlsFiles,
        asks: ssl.VerifyMode,
        *,
        node: int = -1,
        network: TlsNetwork | None = None,
    ) -> None:
        """`node`: whose door for nodes it is, and `network` its way to others', with the same
        files. Raises `UsageError` for files that are of no use."""
        self._files = files
        self._asks = asks
        self._node = node
        self._network = network
        self._taken: tuple[object, ...] | None = None
        self.expires_at: float | None = None
        """In seconds since 1970; None: it cannot be read here."""
        self.renew()

    @property
    def listener(self) -> str:
        """Whose they are."""
        return "client" if self._node < 0 else "internal"

    def renew(self) -> bool:
        """Take the files as they are now, if they have changed since they were taken. Raises
        `UsageError`, and goes on with what it had: they may be good later, as they are."""
        if (now := self._files.stamp()) == self._taken:
            return False
        context = server_context(self._files, asks=self._asks)
        check_own(self._files)
        if self._node >= 0 and (name := check_pair(context, self._files)) != name_of(self._node):
            raise UsageError(
                f"{self._files.certificate!r} is of {name!r}, expected node-{self._node}"
            )
        if self._network is not None:
            self._network.reload()
        self.context, self._taken = context, now
        self.expires_at = end_of(self._files.certificate)
        return True


class Doors:
    """The doors of a node, and its own way to others'; made by `doors_of`."""

    def __init__(
        self, each: Sequence[Door], network: Network, certificates: Sequence[Certificates] = ()
    ) -> None:
        self.all = each
        """For clients, and then for nodes, if they have one of their own."""
        self.network = network
        """How this node comes to others."""
        self.renewals: Counter[str] = Counter()
        """Certificates that were replaced (`ok`), or could not be (`failed`)."""
        self._certificates = certificates

    @property
    def has_certificates(self) -> bool:
        """Whether there is anything to renew."""
        return bool(self._certificates)

    def renew(self) -> None:
        """Take certificates whose files were replaced; what is of no use changes nothing."""
        for certificates in self._certificates:
            try:
                if certificates.renew():
                    self.renewals["ok"] += 1
                    log.info("certificates were replaced: new connections are shown the new ones")
            except UsageError as error:
                self.renewals["failed"] += 1
                log.error(
                    "certificates were replaced by what is of no use, so not here: %s",
                    error,
                    extra={"event": "door.renewal_failed"},
                )

    def expiries(self) -> dict[str, float]:
        """When the certificate of each listener ends, in seconds since 1970, where that can be
        read."""
        found = {each.listener: each.expires_at for each in self._certificates}
        return {listener: at for listener, at in found.items() if at is not None}

    async def watch(self) -> None:
        """Look for new certificates, until cancelled; ends at once where there are none."""
        while self._certificates:
            await trio.sleep(LOOK_S)
            self.renew()


def end_of(path: str) -> float | None:
    """When the first certificate of a PEM file ends, in seconds since 1970; None where nothing is
    installed that can read it."""
    if find_spec("cryptography") is None:
        return None
    from cryptography import x509

    with open(path, "rb") as file:
        return x509.load_pem_x509_certificate(file.read()).not_valid_after_utc.timestamp()


def files_of(config: BrokerConfig) -> dict[str, TlsFiles]:
    """The files of each listener that is under TLS."""
    found = {}
    if config.clients_under_tls:
        found["client"] = TlsFiles(
            authorities=config[keys.SSL_CA_LOCATION],
            certificate=config[keys.SSL_CERTIFICATE_LOCATION],
            key=config[keys.SSL_KEY_LOCATION],
            password_location=config[keys.SSL_KEY_PASSWORD_LOCATION],
        )
    if config.is_split and config[keys.INTERNAL_SECURITY_PROTOCOL] == TLS:
        found["internal"] = TlsFiles(
            authorities=config[keys.INTERNAL_SSL_CA_LOCATION],
            certificate=config[keys.INTERNAL_SSL_CERTIFICATE_LOCATION],
            key=config[keys.INTERNAL_SSL_KEY_LOCATION],
            password_location=config[keys.INTERNAL_SSL_KEY_PASSWORD_LOCATION],
        )
    return found


def doors_of(config: BrokerConfig) -> Doors:
    """The doors that a configuration names; raises `ConfigError`, also for files of no use."""
    check_listeners(config)
    found: list[Certificates] = []
    try:
        doors = [_for_clients(config, found)]
        network: Network = TcpNetwork()
        if config.is_split:
            door, network = _for_nodes(config, found)
            doors.append(door)
    except UsageError as error:
        raise ConfigError(str(error)) from error
    return Doors(doors, network, found)


def _for_clients(config: BrokerConfig, found: list[Certificates]) -> Door:
    admit = _plain(may_be_node=not config.is_split)
    if (files := files_of(config).get("client")) is not None:
        certificates = Certificates(files, _ASKS[config[keys.SSL_CLIENT_AUTH]])
        found.append(certificates)
        rules = parse_rules(config[keys.SSL_PRINCIPAL_MAPPING_RULES])
        admit = _under_tls(certificates, partial(_user, rules))
    if config.users_log_in and find_spec("scramp") is None:
        raise ConfigError("for users that log in: pip install 'hightide[secure]'")
    host, port = config[keys.LISTEN_HOST], config[keys.LISTEN_PORT]
    rate = config[keys.MAX_CONNECTION_CREATION_RATE]
    return Door(host, port, admit, users_log_in=config.users_log_in, rate=rate)


def _for_nodes(config: BrokerConfig, found: list[Certificates]) -> tuple[Door, Network]:
    host, port = config.internal_listen_host, config[keys.INTERNAL_LISTEN_PORT]
    files = files_of(config).get("internal")
    if files is None:
        return Door(host, port, _plain(may_be_node=True), of_nodes=True), TcpNetwork()
    network = TlsNetwork(Tls(files), follows_files=False)  # when its door has taken them
    certificates = Certificates(
        files, ssl.CERT_REQUIRED, node=config[keys.NODE_ID], network=network
    )
    found.append(certificates)
    return Door(host, port, _under_tls(certificates, _node), of_nodes=True), network


def _plain(*, may_be_node: bool) -> Admit:
    async def admit(stream: Stream) -> tuple[Stream, Peer]:
        return stream, Peer(host_of(stream), may_be_node=may_be_node)

    return admit


def _under_tls(certificates: Certificates, proven: Callable[[TlsStream], Peer]) -> Admit:
    turnstile = Turnstile()

    async def admit(stream: Stream) -> tuple[Stream, Peer]:
        assert isinstance(stream, TcpStream), "TLS needs a socket"
        context, turn = certificates.context, turnstile.turn
        inside = await secured(stream, context, server_side=True, turn=turn)
        try:
            inside.check_resumed()
            return inside, proven(inside)
        except AuthenticationFailed as error:
            with suppress(OSError):
                inside.send_now(_farewell(error.message))
            await inside.aclose()
            raise

    return admit


def _user(rules: Sequence[Rule], stream: TlsStream) -> Peer:
    """Who is there, by the certificate that was shown, if one was; raises
    `AuthenticationFailed`."""
    host, shown = host_of(stream), stream.subject
    name = name_by(rules, shown) if rules and shown else stream.common_name
    if shown and not name:
        why = "no rule of ssl.principal.mapping.rules matches" if rules else "it has no common name"
        raise AuthenticationFailed(f"its certificate is nobody's: {why}")
    return Peer(host, f"{USER}{name}" if name else ANONYMOUS, may_be_node=False)


def _node(stream: TlsStream) -> Peer:
    """Which node is there; raises `AuthenticationFailed`."""
    name = stream.common_name
    node = node_of(name)
    if node is None:
        raise AuthenticationFailed(
            f"its certificate is of {name!r}, expected node-<id>: only nodes come in here"
        )
    return Peer(host_of(stream), f"{USER}{name}", node)


def _farewell(why: str) -> list[Buffer]:
    """What an answer to nothing says: TLS has no words for it."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer = wire.encode_response(None, request_id=-1, error=code, message=why)
    return wire.frame_buffers(answer, ())


def host_of(stream: Stream) -> str:
    """The address that a stream comes from."""
    return stream.peer.rpartition(":")[0] or stream.peer
